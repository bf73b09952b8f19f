#!/usr/bin/env bash
# What to measure on a machine with GPUs (or a TPU), at most LIMIT seconds in all (600): prints one table last and writes
# table.txt, results.json and log.txt to $OUT (./accelerator-results).
#
#   bash benchmarks/accelerator.sh              # OUT=folder LIMIT=seconds PYTHON=python3 EXTRA=cuda|tpu
#   SMOKE=1 bash benchmarks/accelerator.sh      # the same parts, tiny, on whatever is there: below two minutes
#
# Every part has a time limit of its own, one that fails is named in the table with its last line, and those for which the
# time does not suffice are skipped. Nothing global is installed: if PYTHON does not see an accelerator through JAX, or lacks
# one of the packages, a virtual environment is made in build/accelerator.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
SMOKE=${SMOKE:-} EXTRA=${EXTRA:-cuda} PYTHON=${PYTHON:-python3} LIMIT=${LIMIT:-$([ -n "$SMOKE" ] && echo 115 || echo 600)}
OUT=${OUT:-$PWD/accelerator-results}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 1
WORK=$(mktemp -d)
RESERVE=15 # seconds kept for ending the last part and for the table
: >"$WORK/parts.tsv"
: >"$OUT/log.txt"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export XLA_PYTHON_CLIENT_PREALLOCATE=false # peers share the card

finish() {
  trap - EXIT INT TERM
  timeout -k 1 "$((RESERVE - 2))" "$PYTHON" benchmarks/accelerator_table.py "$WORK" "$OUT" "$SECONDS" || cat "$WORK/parts.tsv"
  rm -rf "$WORK"
}
trap finish EXIT
trap 'exit 130' INT TERM

left() { # seconds for further parts, at least 1
  local seconds=$((LIMIT - RESERVE - SECONDS))
  echo $((seconds > 1 ? seconds : 1))
}

# part NAME SECONDS COMMAND...: runs the command for at most so long; NAME.json in $WORK is what it measured.
part() {
  local name=$1 most=$2 left began=$SECONDS rc
  shift 2
  left=$(left)
  if ((left < 10)); then
    printf '%s\tskipped\t0\t%s s were left\n' "$name" "$left" >>"$WORK/parts.tsv"
    return 1
  fi
  most=$((most < left ? most : left))
  echo "--- $name (at most $most s)"
  timeout -k 5 "$most" "$@" >"$WORK/$name.log" 2>&1
  rc=$?
  { echo "--- $name"; cat "$WORK/$name.log"; } >>"$OUT/log.txt"
  case $rc in
  0) printf '%s\tdone\t%s\t%s\n' "$name" $((SECONDS - began)) "" ;;
  124 | 137) printf '%s\tout of time\t%s\t%s\n' "$name" $((SECONDS - began)) "what it had measured counts" ;;
  *) printf '%s\tfailed\t%s\t%s\n' "$name" $((SECONDS - began)) "$(grep -v '^ *$' "$WORK/$name.log" | tail -n 1 | cut -c 1-160)" ;;
  esac >>"$WORK/parts.tsv"
  return $rc
}

ready() { # all packages of the audit, and a device other than the CPU (not asked of a smoke test)
  timeout "$(($(left) < 90 ? $(left) : 90))" "$1" -c "
import jax, flax, optax, orbax.checkpoint, tyro, tqdm, jaxtyping, sklearn, scipy, matplotlib
assert '$SMOKE' or jax.default_backend() != 'cpu', 'JAX sees CPUs only'" >>"$OUT/log.txt" 2>&1
}

if ! ready "$PYTHON"; then
  VENV=build/accelerator
  part environment 280 bash -c "{ [ -x $VENV/bin/python ] || '$PYTHON' -m venv $VENV; } &&
    $VENV/bin/python -m pip install --quiet --constraint constraints.txt '.[$EXTRA,test]'"
  [ -x $VENV/bin/python ] && PYTHON=$PWD/$VENV/bin/python
fi

if [ -n "$SMOKE" ]; then
  MODELS="mlp" RUNS="1 4" SOME=4 PAIR="1 4" WIDTHS="1 2" FAST="--rounds 1 --slice 0.02 --seconds 15"
  AUDIT="--methods finetune --pool-size 40 --training.epochs 2 --calibration-runs 10 --evaluation-runs 2"
else
  MODELS="mlp cnn tinynet lstm" RUNS="1 16 64 256" SOME=64 PAIR="16 64" WIDTHS="1 8 32" FAST="--rounds 3 --slice 0.5"
  AUDIT=""
fi
population() { # population NAME SECONDS OPTIONS...
  local name=$1 most=$2
  shift 2
  # shellcheck disable=SC2086
  part "$name" "$most" "$PYTHON" benchmarks/population.py $FAST --seconds $((most * 3 / 4)) --json "$WORK/$name.json" "$@"
}

part check 60 "$PYTHON" -c "
import platform, subprocess, jax, jaxlib, flax, optax, jax.numpy as jnp
print('python', platform.python_version(), 'jax', jax.__version__, 'jaxlib', jaxlib.__version__, 'flax', flax.__version__)
print(jax.devices())
print('product of ones:', float(jax.jit(lambda a: (a @ a).sum())(jnp.ones((256, 256)))), '(16777216.0 is right)')
try: print(subprocess.run(['nvidia-smi'], capture_output=True, text=True).stdout)
except OSError: print('no nvidia-smi')"
DEVICES=$(timeout "$(left)" "$PYTHON" -c "import jax; print(jax.local_device_count() if jax.default_backend() != 'cpu' else 1)" 2>/dev/null || echo 1)

if ! "$PYTHON" -c "import pytest, chex" 2>/dev/null; then
  printf 'tests\tskipped\t0\tpytest or chex is missing\n' >>"$WORK/parts.tsv"
elif ! grep -rqs "mark\.gpu" tests; then
  printf 'tests\tskipped\t0\tno test is marked gpu\n' >>"$WORK/parts.tsv"
else
  part tests 45 "$PYTHON" -m pytest -q -x -m "gpu and not slow" tests
fi
# shellcheck disable=SC2086
{
  population engine 150 --peers --models $MODELS --runs $RUNS
  AUDITING="$PYTHON -m jaxunlearn.cli audit digits --quiet $AUDIT"
  export JAXUNLEARN_CACHE=$WORK/cache JAX_COMPILATION_CACHE_DIR=$WORK/cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
  part audit-cold 90 $AUDITING --out "$WORK/audit-cold"
  part audit-warm 60 $AUDITING --out "$WORK/audit-warm"
  unset JAXUNLEARN_CACHE JAX_COMPILATION_CACHE_DIR JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS
  population widths 90 --peers --models $MODELS --runs $SOME --widths $WIDTHS
  population bfloat16 45 --peers --models $MODELS --runs $SOME --dtype bfloat16
  population tensorfloat32 45 --peers --models $MODELS --runs $SOME --dtype tensorfloat32
  population reference 60 --peers reference --threads 1 --models $MODELS --runs $SOME
  population stages 45 --peers --models $MODELS --runs $SOME --stages finetune score
  if timeout "$(left)" "$PYTHON" -c "import torch; assert torch.cuda.is_available()" 2>/dev/null; then
    population torch 90 --peers loop ensemble --torch-device cuda --models $MODELS --runs $PAIR
  else
    printf 'torch\tskipped\t0\tno PyTorch with CUDA here, or no time\n' >>"$WORK/parts.tsv"
  fi
  if ((DEVICES > 1)); then
    part scaling 60 "$PYTHON" benchmarks/scaling.py --rounds 3 --slice 0.5 --runs 64 --models mlp tinynet \
      --devices $(seq 1 "$DEVICES") --json "$WORK/scaling.json"
  fi
}
