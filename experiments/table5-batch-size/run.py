"""Table 5 and appendix F: epsilon against the guess budget r and the batch size B, ascent on the forget set."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np

from jaxunlearn.config import Audit
from jaxunlearn.presets import PRESETS
from jaxunlearn.records import BoundRecord

DIGITS, CIFAR100 = PRESETS["digits"][1], PRESETS["cifar100"][1]


def audits(base: Audit, sizes: tuple[int, ...]) -> dict[str, Audit]:
    """One audit for every batch size, over the same pool."""
    return {
        f"{base.dataset}, B = {size}": dataclasses.replace(base, methods=("ascent",), candidate_batch_size=size, r=None)
        for size in sizes
    }


def collect(label: str, record: BoundRecord) -> list[common.Row]:
    """The row, with the largest of the paper's bound over r (exploratory) and where it is."""
    r, curve = np.array(record.by_r["r"]), np.array(record.by_r["paper_mean"])
    best = int(np.argmax(curve))
    curve_of = {str(int(budget)): common.down(value) for budget, value in zip(r, curve)}
    shape = {"best_r": int(r[best]), "paper_best": common.down(curve[best]), "at_m": common.down(curve[-1])}
    return [common.row(label, record) | shape | {"paper_by_r": curve_of}]


COLUMNS = {
    "setting": lambda r: r["setting"],
    "m": lambda r: r["m"],
    "ε ≥": lambda r: f"{r['epsilon']} ({r['statistic']})",
    "paper's bound, best r (exploratory)": lambda r: f"{r['paper_best']} at r = {r['best_r']}",
    "paper's bound, r = m": lambda r: r["at_m"],
    "ceiling": lambda r: r["ceiling"],
}

if __name__ == "__main__":
    common.main(__file__, audits(DIGITS, (1, 2, 5, 10, 50, 100)), audits(CIFAR100, (1, 10, 100, 500)), COLUMNS, collect)
