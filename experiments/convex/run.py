"""Section 8 and appendices H and I of the audit paper at full size: every bound beside the certificate and the truth.

python experiments/convex/run.py    # about a minute of one core; rewrites results.json
"""

import dataclasses
from pathlib import Path

import numpy as np

from jaxunlearn.pipeline import convex
from jaxunlearn.records import ConvexRecord, write_json
from jaxunlearn.report.convex import render

PRESETS = {
    "default": ("noisy models are told apart, pooled covariance", convex.Convex()),
    "paper": (
        "draws from the fitted Gaussians, one covariance each, as the paper says",
        convex.Convex(draws="fitted", covariance="separate"),
    ),
    "code": (
        "noisy models, 500 a side to fit, as in the paper's code",
        convex.Convex(calibration_runs=500, covariance="separate"),
    ),
}
SEEDS = range(20)


def compact(record: ConvexRecord) -> dict:
    """What the README's tables need."""
    kept = ("problem", "ratio", "sensitivity", "constants", "settings", "ceilings", "retained", "unlearned", "trained")
    shown = ("epsilon", "sigma", "exact", "accuracy", "bounds")
    rows = [{name: getattr(row, name) for name in shown} for row in record.rows]
    return {name: getattr(record, name) for name in kept} | {"rows": rows}


def exceedances() -> dict:
    """Over SEEDS and all certified epsilons: how often a bound is above the certificate, and above the exact epsilon."""
    records = [record for seed in SEEDS for record in convex.run(convex.Convex(seed=seed))]
    found = {}
    for name in convex.NAMES:
        mine = [record for record in records if record.problem == name]
        rows = [row for record in mine for row in record.rows]
        found[name] = {
            "audits": len(rows),
            "above_certified": {b: sum(row.bounds[b] > row.epsilon for row in rows) for b in rows[0].bounds},
            "above_exact": {b: sum(row.bounds[b] > row.exact for row in rows) for b in rows[0].bounds},
            "ratio_median": float(np.median([record.ratio for record in mine])),
            "ratio_range": [min(record.ratio for record in mine), max(record.ratio for record in mine)],
        }
    return found


def main() -> None:
    """Runs everything and writes results.json beside this file."""
    results: dict = {"presets": {}}
    for name, (description, chosen) in PRESETS.items():
        records = convex.run(chosen)
        results["presets"][name] = {"description": description, "records": [compact(record) for record in records]}
        print(f"# {name}: {description}", *map(render, records), sep="\n\n", end="\n\n")
    problems = {"cubic": convex.Cubic(), "logistic": convex.Logistic()}
    results["sweeps"] = {
        name: [dataclasses.asdict(point) for point in convex.rho_sweep(problem)[:20]]
        for name, problem in problems.items()
    }
    results["seeds"] = exceedances()
    write_json(Path(__file__).parent / "results.json", results)
    print(results["seeds"])


if __name__ == "__main__":
    main()
