"""How many runs a sequential audit needs: on real digits, and on simulated scores against the paper's protocol.

Writes results.json beside itself and prints the table of the README.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxunlearn.attack import likelihood
from jaxunlearn.audit import bounds, design, headline
from jaxunlearn.audit.least_favourable import draw_signs
from jaxunlearn.audit.preregistration import WARMUP_RUNS, Preregistration
from jaxunlearn.pipeline.anytime import AnytimeTest

M, DISTANCE, ZETA = 4500, 0.5, 0.05
RUNS, FIXED, EVALUATION = 30, 60, 10


def scores_of(rng: np.random.Generator, signs: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """[runs, m, 1] Gaussian scores, shifted by DISTANCE standard deviations where the batch was in."""
    return (offsets + rng.normal(size=signs.shape) + DISTANCE * (signs > 0))[..., None]


def warmup_signs(rng: np.random.Generator) -> np.ndarray:
    """Pairs of opposite sign vectors."""
    half = draw_signs(rng, WARMUP_RUNS // 2, M)
    return np.stack([half, -half], axis=1).reshape(WARMUP_RUNS, M)


def simulate(seed: int) -> dict[str, float]:
    """One sequential audit of RUNS runs, and fixed ones of FIXED runs, on scores of one law; attacks are fitted."""
    rng = np.random.default_rng(seed)
    offsets = 2 * rng.normal(size=M)
    plan = Preregistration.default("batchwise", m=M, batch_size=1, L=RUNS - WARMUP_RUNS, warmup=WARMUP_RUNS)
    test = AnytimeTest(plan)
    signs = np.concatenate([warmup_signs(rng), draw_signs(rng, RUNS - WARMUP_RUNS, M)])
    for number, (row, sign) in enumerate(zip(scores_of(rng, signs, offsets), signs)):
        test.teach(row, sign) if number < WARMUP_RUNS else test.attack(row, sign)
    record, arrays = test.record(method="simulated", title="simulated", definition="3.3")
    found = {
        "any_time": record.epsilon,
        "every_run_twice": bounds.evidence(arrays["log_p"], m=M, zeta=ZETA).epsilon,
        "runs_to_5": WARMUP_RUNS + 1 + int(np.argmax(np.array(test.process.path) > 5)),
        "runs_to_20": WARMUP_RUNS + 1 + int(np.argmax(np.array(test.process.path) > 20)),
    }
    signs = draw_signs(rng, FIXED, M)
    scores, fit = scores_of(rng, signs, offsets), slice(0, FIXED - EVALUATION)
    for variance in ("per_example", "pooled"):
        attack = likelihood.fit_batchwise(scores[fit], signs[fit], variance=variance)
        llr = likelihood.batchwise_llr(attack, scores[FIXED - EVALUATION :])
        true = signs[FIXED - EVALUATION :]
        if variance == "per_example":  # the paper's protocol, with the guess budget that suits it best
            overlaps = {r: design.overlaps(design.guess(llr, r), true) for r in range(250, M + 1, 250)}
            found["paper_best_r"] = max(bounds.paper_mean(v, m=M, r=r, zeta=ZETA).epsilon for r, v in overlaps.items())
            found["paper_r_3000"] = bounds.paper_mean(overlaps[3000], m=M, r=3000, zeta=ZETA).epsilon
        else:
            fixed = Preregistration.default("batchwise", m=M, batch_size=1, L=EVALUATION)
            found["fixed_headline"] = headline.evaluate(fixed, signs=true, llr=llr, curves=False).headline.epsilon
    return found


def digits(seed: int) -> dict[str, Any]:
    """Two sequential audits of digits: fine-tuning against a claim of 5, retraining against one of .1."""
    from jaxunlearn.cli import main

    found: dict[str, Any] = {"seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        for method, claim in (("finetune", 5.0), ("retrain", 0.1)):
            out = Path(folder) / method
            words = ["audit", "digits", "--methods", method, "--claim-epsilon", str(claim), "--seed", str(seed)]
            shared = ["--population", str(Path(folder) / "population"), "--out", str(out), "--quiet"]
            began = time.perf_counter()
            assert main([*words, *shared]) == 0
            record = json.loads((out / method / "bound.json").read_text())
            found[method] = {
                "claim": claim,
                "falsified": record["sequential"]["claim"]["falsified"],
                "runs": record["calibration_runs"] + record["evaluation_runs"],
                "epsilon": record["epsilon"],
                "seconds": round(time.perf_counter() - began, 1),
            }
    return found


def main() -> None:
    """Runs both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=["simulated", "digits"], default=["simulated", "digits"])
    arguments = parser.parse_args()
    path = Path(__file__).with_name("results.json")
    results = json.loads(path.read_text()) if path.exists() else {}
    results["settings"] = {"m": M, "distance": DISTANCE, "warmup_runs": WARMUP_RUNS, "runs": RUNS, "fixed_runs": FIXED}
    for part, function in (("simulated", simulate), ("digits", digits)):
        if part in arguments.parts:
            results[part] = [function(seed) for seed in range(arguments.seeds)]
            path.write_text(json.dumps(results, indent=2) + "\n")
    for name in results.get("simulated", [{}])[0]:
        values = [row[name] for row in results["simulated"]]
        print(f"{name:<16} {statistics.mean(values):8.2f}  ({min(values):.2f} to {max(values):.2f})")
    for row in results.get("digits", []):
        print(row)


if __name__ == "__main__":
    main()
