"""Figures 1(a) and 1(b): bounds while uncertified model clipping runs; joint against pairwise predictor."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Audit
from jaxunlearn.presets import PRESETS
from jaxunlearn.records import BoundRecord

DIGITS, CIFAR100 = PRESETS["digits"][1], PRESETS["cifar100"][1]
METHODS = ("clipping-uncertified",)


def audit(base: Audit, *, split: str, m: int, runs: tuple[int, int], trajectory: tuple[int, ...]) -> Audit:
    """One preset; m = 2 is the pairwise predictor."""
    return dataclasses.replace(
        base,
        methods=METHODS,
        split=split,
        predictor="pairwise" if m == 2 else "joint",
        candidate_batch_size=base.pool_size // m,
        calibration_runs=runs[0],
        evaluation_runs=runs[1],
        r=None,
        trajectory=trajectory,
    )


SMALL_BASE = dataclasses.replace(DIGITS, pool_size=396)
STEPS = (0, 1, 10, 40, 100, 200, 400)
SMALL = {
    "digits, joint, m = 6, uniform": audit(SMALL_BASE, split="uniform", m=6, runs=(10, 100), trajectory=STEPS),
    "digits, joint, m = 6, adversarial": audit(SMALL_BASE, split="adversarial", m=6, runs=(10, 100), trajectory=STEPS),
    "digits, pairwise, uniform": audit(SMALL_BASE, split="uniform", m=2, runs=(50, 100), trajectory=STEPS),
}
PAPER_STEPS = (0, 1, 10, 50, 100, 200, 317, 450, 634, 3170)
PAPER = {
    f"CIFAR-100, joint, m = 6, {split}": audit(CIFAR100, split=split, m=6, runs=(50, 500), trajectory=PAPER_STEPS)
    for split in ("uniform", "adversarial")
} | {"CIFAR-100, pairwise, uniform": audit(CIFAR100, split="uniform", m=2, runs=(50, 500), trajectory=PAPER_STEPS)}


def collect(label: str, record: BoundRecord) -> list[common.Row]:
    """A row for every step on the way, and one for the end at the full level."""
    one, path = common.row(label, record), record.trajectory
    rows = [
        one
        | {
            "step": int(step),
            "level": round(record.zeta / len(path["step"]), 5),
            "epsilon": common.down(path["epsilon"][i]),
            "paper_mean": common.down(path["paper_mean"][i]),
            "ceiling": common.down(path["ceiling"][i]),
            "accuracy": {n: round(path[f"accuracy_{n}"][i], 4) for n in ("retain", "forget", "unseen", "test")},
        }
        for i, step in enumerate(path["step"])
    ]
    pairwise = [b for b in record.bounds if b.name == "clopper_pearson"]
    end = {"step": "end", "level": record.zeta, "pairwise": common.down(pairwise[0].epsilon) if pairwise else None}
    return [*rows, one | end]


if __name__ == "__main__":
    columns = dict(common.COLUMNS)
    columns.pop("method"), columns.pop("proven ε ≤")
    columns = {"setting": columns.pop("setting"), "step": lambda r: r["step"], "ζ": lambda r: r["level"]} | columns
    common.main(__file__, SMALL, PAPER, columns, collect)
