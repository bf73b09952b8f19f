"""Throughput of a population of runs beside its peers: training, unlearning and scoring, all sides in one session.

Command: ``python benchmarks/population.py [--json FILE] [--models mlp cnn tinynet lstm]
[--stages train finetune ascent score] [--runs 1 4 16 64 256] [--rounds 5] [--peers loop processes ensemble reference]``

Ours: the engine's own phases (one-cycle SGD with weight decay, rows gathered by index) on all devices of this process.
Peers (``peers.py``): the usual PyTorch loop with one thread per core; one such process with one thread per core; R models at
once by torch.func; the paper's pattern, one JAX process per core with a Python loop around a jitted step. All take turns,
``--rounds`` times; medians, and the median of the rounds' ratios. Run-steps a second; of the stage "score" examples a second,
over all runs. Compiling stands apart. What would take longer than ``--point-seconds`` is not run, and the row says so.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from typing import Any

import peers
from cases import CASES, STAGES, cores, machine, median_ratio, processor, render, save

PEERS = {
    "loop": "torch, all threads",
    "processes": "torch, 1-thread processes",
    "ensemble": "torch.func",
    "reference": "reference pattern",
}
SPEED = {
    "model": "model",
    "stage": "stage",
    "runs": "R",
    "width": "width",
    "ours": "ours",
    **PEERS,
    **{f"ratio_{name}": f"ours / {name}" for name in PEERS},
}
COST = {
    "model": "model",
    "stage": "stage",
    "runs": "R",
    "width": "width",
    "compile_seconds": "compile, s",
    "megabytes_per_device": "MB a device",
    "temporaries_per_device": "of it temporaries",
    "megabytes_per_run": "MB a run",
    "gflop": "GFLOP a step",
    "gflops": "GFLOP/s",
    "peak_gflops": "matrix product",
    "share_of_peak": "share",
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--stages", nargs="+", default=["train"], choices=STAGES)
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="none: --peers alone")
    parser.add_argument("--threads", type=int, default=cores(), help="threads of the loop, processes of the others")
    parser.add_argument("--torch-device", default="cpu", help="cuda: the same card; one process then")
    parser.add_argument(
        "--widths", nargs="+", default=["engine"], help="runs per device under vmap; engine: its choice"
    )
    parser.add_argument(
        "--dtype", default="float32", choices=("float32", "tensorfloat32", "bfloat16"), help="of ours' arithmetic"
    )
    parser.add_argument("--slice", type=float, default=1.0, help="seconds that one measurement should last")
    parser.add_argument("--point-seconds", type=float, default=180.0, help="most seconds for all rounds of one side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new row is begun after so many seconds")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    return parser.parse_args(arguments)


def too_long(options: argparse.Namespace, seconds: float) -> str | None:
    """What a row says in place of a number that would cost more than it is worth."""
    total = seconds * (options.rounds + 1)
    return f"would take about {total:,.0f} s" if total > options.point_seconds else None


def make_peers(options: argparse.Namespace, model: str, stage: str) -> tuple[dict[str, peers.Peer], list[str]]:
    """The peers whose speed does not depend on R, and why others are missing."""
    device, threads = options.torch_device, options.threads
    wanted = {
        "loop": (peers.torch_loop, (model, stage, threads, device), 1),
        "processes": (peers.torch_loop, (model, stage, 1, device), threads),
        "reference": (peers.reference_loop, (model, stage), threads),
    }
    made, notes = {}, []
    for name, (prepare, arguments, processes) in wanted.items():
        if name not in options.peers or (name != "reference" and peers.torch_missing()):
            continue
        try:
            made[name] = peers.Peer(prepare, *arguments, processes=processes)
        except RuntimeError as error:
            notes.append(f"{name}: {error}")
    return made, notes


def make_ensemble(options, model: str, stage: str, runs: int, rate: float) -> tuple[peers.Peer | None, str | None]:
    """R models by torch.func, unless one step of all of them takes too long at ``rate``."""
    step = runs * (CASES[model].examples if stage == "score" else 1) / rate
    why = too_long(options, max(options.slice, step))
    if why is None:
        try:
            arguments = (model, stage, runs, options.threads, options.torch_device)
            return peers.Peer(peers.torch_ensemble, *arguments), None
        except RuntimeError as error:
            why = str(error)
    return None, f"torch.func not run: {why}"


def measure(options, mine, peak, others: dict[str, peers.Peer]) -> tuple[dict[str, list[float]], list[str]]:
    """All sides turn about; a peer that fails on the way is left out and named."""
    samples: dict[str, list[float]] = {"ours": [], "peak": [], **{name: [] for name in others}}
    notes = []
    for _ in range(options.rounds):
        samples["ours"].append(mine.measure())
        samples["peak"].append(peak.measure())
        for name in [name for name in others if name in samples]:
            try:
                samples[name].append(others[name].measure(options.slice))
            except RuntimeError as error:
                notes.append(f"{name}: {error}")
                del samples[name]
    return samples, notes


def row_of(model: str, stage: str, runs: int, mine, samples: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of one point; bytes are of the largest compiled program, FLOP are by formula (``cases.Case``)."""
    median = {name: statistics.median(values) for name, values in samples.items()}
    gflop = CASES[model].flop(stage) / 1e9
    row = {"width": mine.width, "devices": mine.devices, **median, "compile_seconds": mine.compile_seconds}
    row |= {f"ratio_{name}": median_ratio(samples["ours"], samples[name]) for name in samples if name in PEERS}
    if mine.memory is not None:
        whole, temporaries = (size / 1e6 for size in mine.memory)
        per_run = whole * mine.devices / runs
        row |= {
            "megabytes_per_device": whole,
            "temporaries_per_device": temporaries,
            "megabytes_per_run": per_run,
        }
    gflops = median["ours"] * gflop
    peaks = [rate * gflop * 1e9 / peak for rate, peak in zip(samples["ours"], samples["peak"])]
    return row | {
        "gflop": gflop,
        "gflops": gflops,
        "peak_gflops": row.pop("peak") / 1e9,
        "share_of_peak": statistics.median(peaks),
        "samples": samples,
    }


def refuse(options: argparse.Namespace, model: str, stage: str, runs: int, width: str, rate: float) -> str | None:
    """Why a point is not measured, or None."""
    import jax
    import ours

    if width != "engine" and int(width) > -(-runs // jax.local_device_count()):
        return "wider than a device's share"
    return too_long(options, ours.expected_seconds(model, stage, runs, rate=rate, seconds=options.slice))


def measure_point(options, model: str, stage: str, runs: int, width: str, rates: dict[str, float], peak, others):
    """One row: ours at R runs beside the peers; ``rates`` are the latest rates by width, and that of the ensemble."""
    import jax
    import ours

    sides, notes = dict(others), []
    try:
        mine = ours.Ours(
            model,
            stage,
            runs,
            width=None if width == "engine" else int(width),
            rate=rates[width],
            seconds=options.slice,
            dtype=options.dtype,
        )
        if "ensemble" in options.peers and not peers.torch_missing():
            ensemble, why = make_ensemble(options, model, stage, runs, rates["ensemble"])
            sides |= {"ensemble": ensemble} if ensemble else {}
            notes += [why] if why else []
        samples, failed = measure(options, mine, peak, sides)
    except jax.errors.JaxRuntimeError as error:  # out of memory, most likely
        return {"note": f"failed: {str(error).splitlines()[0][:150]}"}
    finally:
        if "ensemble" in sides:
            sides["ensemble"].close()
    row = row_of(model, stage, runs, mine, samples)
    rates |= {width: row["ours"], "ensemble": row.get("ensemble", rates["ensemble"])}
    return row | {"note": "; ".join(notes + failed) or None}


def points(options: argparse.Namespace):
    """Yields the rows, one after the other as they are measured."""
    import jax
    import ours

    began, peak = time.perf_counter(), ours.Peak(options.dtype)
    for model, stage in itertools.product(options.models, options.stages):
        # The first guess of all rates; a step is about three forward passes over its batch.
        nominal = CASES[model].nominal * jax.local_device_count()
        rates = dict.fromkeys(
            [*options.widths, "ensemble"], nominal * (3 * CASES[model].batch if stage == "score" else 1)
        )
        others, missing = make_peers(options, model, stage)
        facts = {name: peer.facts for name, peer in others.items()}
        for runs, width in itertools.product(sorted(options.runs), options.widths):
            row = {"model": model, "stage": stage, "runs": runs, "asked_width": width}
            late = time.perf_counter() - began > options.seconds
            why = f"{options.seconds:.0f} s were over" if late else refuse(options, *row.values(), rates[width])
            if why:
                yield row | {"note": f"not run: {why}"}
                continue
            row |= measure_point(options, *row.values(), rates, peak, others)
            notes = [*missing, row.get("note")]
            yield row | {"note": "; ".join(note for note in notes if note) or None, "facts": facts}
        for peer in others.values():
            peer.close()


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        import jax

        jax.config.update("jax_num_cpu_devices", cores())
    about = machine()
    print(
        f"{processor()}, {about['devices']}, jax {about['jax']}, {options.rounds} rounds, load {about['load']}",
        flush=True,
    )
    if (hint := peers.torch_missing()) and {*options.peers} - {"reference"}:
        print(hint)
    rows = []
    for row in points(options):
        rows.append(row | {"batch": CASES[row["model"]].batch, "dtype": options.dtype} | about)
        save(options.json, rows)
        print(row["model"], row["stage"], f"R={row['runs']}", row.get("note") or f"{row['ours']:,.1f}/s", flush=True)
    print("\nrun-steps a second (stage score: examples a second over all runs), medians of the rounds\n")
    print(render(rows, {key: head for key, head in SPEED.items() if any(row.get(key) is not None for row in rows)}))
    print("\nours: compiling, memory of the largest program, arithmetic (FLOP by formula; of score per example)\n")
    print(render([row | {"note": None} for row in rows if "ours" in row], COST))
    starts = {(r["model"], r["stage"]): r["facts"]["reference"] for r in rows if "reference" in (r.get("facts") or {})}
    if starts:
        print(
            "\nreference pattern, once per run: Python and imports; data, weights and first step, compilation included\n"
        )
        for (model, stage), facts in starts.items():
            print(f"{model} {stage}: {facts['start_seconds']:.1f} s + {facts['first_step_seconds']:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
