"""Which attack gives more epsilon a run: simulated scores, and scores of an audit bounded again with every attack.

python experiments/attacks/run.py RUN_DIRECTORY METHOD ... writes results.json beside this file (README.md says how the run
directory is made). Everything about the audit's scores is exploratory: all splits re-use the same 60 runs.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxunlearn.attack import combine
from jaxunlearn.audit import bounds, null
from jaxunlearn.audit import least_favourable as lf
from jaxunlearn.records import ScoreRecord

L, ZETA, DELTA = 10, 0.05, 1e-5
SINGLE = [("gaussian", variance) for variance in ("pooled", "per_example", "shrunken", "full")]
SEVERAL = [(kind, variance) for kind in ("multivariate", "stacked") for variance in ("pooled", "full")]
REPETITIONS, SPLITS = 3, 8

Made = tuple[np.ndarray, np.ndarray]


def equal(rng: np.random.Generator, runs: int, m: int) -> Made:
    """Independent noise, every example moves by half a standard deviation."""
    signs = lf.draw_signs(rng, runs, m)
    return signs, rng.normal(size=(1, runs, m, 1)) + 0.5 * (signs > 0)[None, :, :, None]


def heteroscedastic(rng: np.random.Generator, runs: int, m: int) -> Made:
    """As ``equal``, and the standard deviation with the batch is between a third and three times that without."""
    signs = lf.draw_signs(rng, runs, m)
    inside, ratio = (signs > 0)[None, :, :, None], np.exp(rng.uniform(-np.log(3), np.log(3), size=(1, 1, m, 1)))
    return signs, rng.normal(size=(1, runs, m, 1)) * np.where(inside, ratio, 1) + 0.5 * inside


def common_noise(rng: np.random.Generator, runs: int, m: int) -> Made:
    """As ``equal``, half of the variance in five directions that all examples of a run have in common."""
    signs = lf.draw_signs(rng, runs, m)
    noise = rng.normal(size=(runs, 5)) @ rng.normal(size=(5, m)) / np.sqrt(5)
    noise = np.sqrt(0.5) * noise + np.sqrt(0.5) * rng.normal(size=(runs, m))
    return signs, (noise + 0.5 * (signs > 0))[None, :, :, None]


def three_signals(rng: np.random.Generator, runs: int, m: int) -> Made:
    """Three signals of an example, noise correlated by .5, that move by half a standard deviation each."""
    signs = lf.draw_signs(rng, runs, m)
    noise = np.sqrt(0.5) * rng.normal(size=(1, runs, m, 1)) + np.sqrt(0.5) * rng.normal(size=(3, runs, m, 1))
    return signs, noise + 0.5 * (signs > 0)[None, :, :, None]


def epsilon(attack: combine.Attack, scores: np.ndarray, signs: np.ndarray, calibration: int) -> float:
    """The evidence bound of the last L runs under an attack fitted on the first ones."""
    llr = attack(scores[:, :calibration], signs[:calibration], scores[:, calibration:])
    log_p = null.log_p_values(llr, signs[calibration:])
    return bounds.evidence(log_p, m=signs.shape[1], zeta=ZETA, delta=DELTA).epsilon


def summary(values: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Mean, standard deviation, and gain over "gaussian, pooled" on the same runs, by attack."""
    base = np.array(values["gaussian, pooled"])
    return {
        name: {
            "epsilon": round(float(np.mean(v)), 2),
            "sd": round(float(np.std(v, ddof=1)), 2),
            "gain": round(float(np.mean(v - base)), 2),
            "gain_sd": round(float(np.std(v - base, ddof=1)), 2),
        }
        for name, v in values.items()
    }


def simulated(make: Callable[[np.random.Generator, int, int], Made], m: int, calibration: int) -> dict:
    """Every attack on the same simulated scores, several times."""
    values: dict[str, list[float]] = {}
    for seed in range(REPETITIONS):
        signs, scores = make(np.random.default_rng(seed), calibration + L, m)
        for kind, variance in SINGLE + (SEVERAL if scores.shape[0] > 1 else []):
            found = epsilon(combine.make_attack(kind, variance), scores, signs, calibration)
            values.setdefault(f"{kind}, {variance}", []).append(found)
    return summary(values)


def rebounded(record: ScoreRecord, calibration: int) -> dict:
    """Every attack on random splits of all runs of an audit into calibration and evaluation."""
    rng, values, scores = np.random.default_rng(0), {}, record.stacked()
    for _ in range(SPLITS):
        order = rng.permutation(record.signs.shape[0])[: calibration + L]
        for kind, variance in SINGLE + (SEVERAL if record.signals else []):
            found = epsilon(combine.make_attack(kind, variance), scores[:, order], record.signs[order], calibration)
            values.setdefault(f"{kind}, {variance}", []).append(found)
    return summary(values)


def show(title: str, found: dict) -> None:
    """Prints one table."""
    print(
        f"\n{title}",
        *(f"{k:<24}{v['epsilon']:8.2f} sd {v['sd']:5.2f}  {v['gain']:+.2f}" for k, v in found.items()),
        sep="\n",
    )


def main(directory: Path, methods: list[str]) -> None:
    """Writes results.json."""
    results: dict[str, dict] = {}
    for method in methods:
        record = ScoreRecord.load(directory / method / "scores.npz")
        for calibration in (50, 20):
            results[f"{method}, {calibration} calibration runs"] = rebounded(record, calibration)
            show(*list(results.items())[-1])
    for make in (equal, heteroscedastic, common_noise, three_signals):
        for m in (400, 1000):
            for calibration in (20, 50):
                results[f"{make.__name__}, m = {m}, {calibration} calibration runs"] = simulated(make, m, calibration)
                show(*list(results.items())[-1])
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
