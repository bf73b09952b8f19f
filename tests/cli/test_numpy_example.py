"""examples/numpy_audit.py as a newcomer runs it: by two commands, where JAX cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKED = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "tensorflow")


def test_the_numpy_example_from_design_to_page_without_jax(tmp_path):
    for name in BLOCKED:
        (tmp_path / "blocked" / name).mkdir(parents=True)
        (tmp_path / "blocked" / name / "__init__.py").write_text("raise ImportError('not installed here')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "blocked"), str(ROOT)]),
        "MPLBACKEND": "Agg",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }

    def run(*words):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    blocked = subprocess.run([sys.executable, "-c", "import jax"], env=environment, capture_output=True, check=False)
    assert blocked.returncode == 1
    words = ["--pool-size", "80", "--calibration-runs", "14", "--evaluation-runs", "4", "--seed", "1", "--out", "d"]
    run("-m", "jaxunlearn.cli", "design", *words)
    said = run(str(ROOT / "examples" / "numpy_audit.py"), "d")
    found = {name: json.loads((tmp_path / "d" / "results" / name / "bound.json").read_text()) for name in METHODS}
    assert found["finetune"]["epsilon"] > 1 and found["retrain"]["epsilon"] == 0
    assert found["finetune"]["definition"] == "3.2" and "preregistered" in found["finetune"]["notes"][0]
    assert all(name in said for name in METHODS) and (tmp_path / "d" / "results" / "report.html").exists()


METHODS = ("finetune", "retrain")
