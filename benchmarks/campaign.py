"""An audit of five methods with 60 runs each on digits: the command, beside one process per run.

Command: ``python benchmarks/campaign.py [--sample 10] [--full] [--json FILE]``

Ours: ``jaxunlearn audit digits --methods ...`` in fresh run directories, import and compilation included, first with an empty
compilation cache, then with the one that it left. Beside: the same job as the paper's scripts do it (``reference_run.py``):
every method trains its own models, one process per run, as many at a time as there are cores, first without a compilation
cache, as the scripts, then with a warm one. ``--sample`` processes are timed, spread over the methods, and the total is
*derived* from their mean; ``--full`` runs and times all of them. Scores of every process are held against the audit's own.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from cases import ROOT, cores, processor, render, save

METHODS = ("retrain", "finetune", "ascent", "ida", "clipping")
PAIRS = 0.99  # smallest correlation of the scores of one run on both sides that counts as the same job


def environment(cache: str | None, **more: str) -> dict[str, str]:
    """This checkout first, a compilation cache of our own or none."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    cached = {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAXUNLEARN_CACHE": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return kept | {"PYTHONPATH": os.pathsep.join(paths)} | (cached if cache else {}) | more


def audit(out: Path, cache: str, methods, options: list[str]) -> float:
    """Seconds of the audit's command."""
    command = [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--methods", *methods, "--out", str(out)]
    began = time.perf_counter()
    subprocess.run([*command, "--quiet", *options], env=environment(cache), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def write_design(path: Path, methods) -> int:
    """What all processes share: data, sign vectors, orders, keys; they need not make it themselves. Returns the runs."""
    import jax

    from jaxunlearn import presets
    from jaxunlearn.data import schedule
    from jaxunlearn.pipeline import task as tasks

    config = presets.PRESETS["digits"][1]
    task = tasks.build(config)
    runs, root = len(task.runs), jax.random.key(config.seed)
    arrays = {name: getattr(task.data, name) for name in ("x", "y", "x_test", "y_test", "retain", "outputs")}
    arrays |= {"signs": task.runs.signs, "initial_key": jax.random.key_data(jax.random.fold_in(root, tasks._INITIAL))}

    def keys(stage: int, number: int, salt: int):
        parts = []
        for rows in task.chunks:
            own = task.chunk(rows, stage=stage, salt=salt).keys[: rows.stop - rows.start]
            parts.append(jax.vmap(lambda key: jax.random.fold_in(key, number))(own))
        own = jax.numpy.concatenate(parts)
        return np.stack([jax.random.key_data(jax.vmap(lambda k, p=p: jax.random.fold_in(k, p))(own)) for p in range(3)])

    epochs: dict[int, int] = {0: config.training.epochs}
    arrays["keys-train-0"] = keys(tasks.TRAINING, 0, 0)
    for method in methods:
        unlearner = getattr(config.method, method.replace("-", "_")).build(task.info)
        for number, phase in enumerate(unlearner.phases, 1):
            arrays[f"keys-{method}-{number}"] = keys(tasks.UNLEARNING, number, zlib.crc32(method.encode()))
            epochs[number] = max(epochs.get(number, 0), phase.epochs)
    for number, count in epochs.items():
        key = jax.random.fold_in(task.engine.order_key, number)
        arrays[f"orders-{number}"] = schedule.orders(key, count, len(task.data.y))
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return runs


def processes(design: Path, out: Path, jobs: list[tuple[str, int]], cache: str | None, at_once: int):
    """Runs the jobs, ``at_once`` at a time; seconds of each process, and of all together."""
    script, began = Path(__file__).with_name("reference_run.py"), time.perf_counter()
    waiting, running, seconds = list(jobs), {}, {}
    while waiting or running:
        while waiting and len(running) < at_once:
            method, run = waiting.pop(0)
            words = [sys.executable, str(script), str(design), method, str(run), str(out / f"{method}-{run}.npz")]
            environ = environment(cache)
            running[method, run] = subprocess.Popen(words, env=environ), time.perf_counter()
        for job, (process, start) in list(running.items()):
            if process.poll() is not None:
                if process.returncode:
                    raise SystemExit(f"Run {job} of the reference pattern ended with exit code {process.returncode}.")
                seconds[job] = time.perf_counter() - start
                del running[job]
        time.sleep(0.01)
    return seconds, time.perf_counter() - began


def agreement(run_directory: Path, out: Path, jobs) -> list[dict[str, Any]]:
    """Each process's scores against those of the same run in the audit: correlation, largest and median gap, accuracies."""
    rows = []
    for method, run in jobs:
        theirs, mine = np.load(out / f"{method}-{run}.npz"), np.load(run_directory / method / "scores.npz")
        a, b = theirs["scores"].ravel(), mine["scores"][run].ravel()
        rows.append(
            {
                "method": method,
                "run": run,
                "correlation": float(np.corrcoef(a, b)[0, 1]),
                "median_gap": float(np.median(np.abs(a - b))),
                "largest_gap": float(np.abs(a - b).max()),
                "test_reference": float(theirs["accuracy_test"]),
                "test_ours": float(mine["accuracy_test"][run]),
            }
        )
    return rows


def summary(name: str, seconds: dict, wall: float, total: int, at_once: int, out: Path) -> dict[str, Any]:
    """Seconds of a process with their spread, and of the whole job: measured if all ran, else derived from the mean."""
    values, measured = list(seconds.values()), len(seconds) == total
    facts = [json.loads(str(np.load(out / f"{method}-{run}.npz")["facts"])) for method, run in seconds]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) / math.sqrt(len(values)) * total / at_once if len(values) > 1 else math.nan
    return {
        "side": name,
        "processes": len(values),
        "fastest": min(values),
        "mean": mean,
        "slowest": max(values),
        "imports": statistics.fmean(fact["import_seconds"] for fact in facts),
        "total": wall if measured else mean * total / at_once,
        "standard_error": None if measured else spread,
        "note": "measured" if measured else f"derived: mean x {total} / {at_once}",
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--sample", type=int, default=10, help="processes of the reference pattern that are timed")
    parser.add_argument("--full", action="store_true", help="run all of them, not a sample")
    parser.add_argument("--at-once", type=int, default=cores(), help="processes at a time")
    parser.add_argument("--caches", nargs="+", default=["none", "warm"], choices=("none", "warm"))
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        place, cache = Path(folder), f"{folder}/cache"
        print(f"{processor()}, {cores()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
        rows: list[dict[str, Any]] = []
        for name in ("cold", "warm"):
            seconds = audit(place / name, cache, options.methods, [])
            rows.append({"side": f"jaxunlearn audit, {name} compilation cache", "total": seconds, "note": "measured"})
            print(rows[-1]["side"], f"{seconds:.1f} s", flush=True)
        runs = write_design(place / "design.npz", options.methods)
        everything = [(method, run) for run in range(runs) for method in options.methods]
        jobs = everything if options.full else everything[: options.sample]
        (place / "out").mkdir()
        for kind in options.caches:
            own = None if kind == "none" else f"{folder}/reference-cache"
            if own:  # filled by one process of each method, which is not timed
                processes(place / "design.npz", place / "out", everything[: len(options.methods)], own, options.at_once)
            seconds, wall = processes(place / "design.npz", place / "out", jobs, own, options.at_once)
            name = f"one process per run, {options.at_once} at a time, compilation cache: {kind}"
            rows.append(summary(name, seconds, wall, len(everything), options.at_once, place / "out"))
            print(rows[-1]["side"], f"{rows[-1]['mean']:.1f} s a process", flush=True)
        pairs = agreement(place / "warm", place / "out", jobs)
        for row in rows:
            row["ratio"] = row["total"] / rows[0]["total"]
        columns = {
            "side": "side",
            "processes": "processes",
            "fastest": "s each, fastest",
            "mean": "mean",
            "slowest": "slowest",
            "imports": "of it imports",
            "total": "s in all",
            "standard_error": "+-",
            "ratio": "times ours, cold",
        }
        print(f"\n{len(everything)} runs: {runs} for each of {', '.join(options.methods)}\n\n{render(rows, columns)}")
        print("\nthe same run on both sides\n")
        heads = {"correlation": "correlation of scores", "median_gap": "median gap, nats", "largest_gap": "largest gap"}
        heads |= {"test_reference": "test accuracy, process", "test_ours": "test accuracy, audit"}
        print(render(pairs[: 2 * len(options.methods)], {"method": "method", "run": "run"} | heads))
        save(options.json, {"rows": rows, "agreement": pairs, "processor": processor(), "cores": cores()})
        apart = [pair for pair in pairs if not pair["correlation"] > PAIRS]
        if apart:
            raise SystemExit(f"{len(apart)} of {len(pairs)} runs differ (correlation <= {PAIRS}): not the same job.")


if __name__ == "__main__":
    sys.exit(main())
