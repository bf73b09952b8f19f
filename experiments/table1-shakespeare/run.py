"""Table 1(a) of the audit paper: Shakespeare, all heuristics, and interleaved ascent over q, lambda and E_f."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Audit
from jaxunlearn.presets import PRESETS

PAPER_BASE, SMALL_BASE = PRESETS["shakespeare"][1], PRESETS["shakespeare-small"][1]


def audits(base: Audit, grid: tuple[tuple[int, float, int], ...]) -> dict[str, Audit]:
    """All methods at the preset's settings, and IDA at every (q, lambda, E_f) of the grid; one population."""
    shared = dataclasses.replace(base, population=Path("table1-shakespeare") / f"population-{base.m}")
    interleaved = {
        f"q = {q}, λ = {weight:g}, E_f = {epochs}": dataclasses.replace(
            shared,
            methods=("ida",),
            method=dataclasses.replace(
                base.method,
                ida=dataclasses.replace(
                    base.method.ida, retain_steps=q, forget_weight=weight, interleaved_epochs=epochs
                ),
            ),
        )
        for q, weight, epochs in grid
    }
    return {"all": shared} | interleaved


PAPER = audits(PAPER_BASE, ((1, 0.5, 4), (4, 0.5, 4), (9, 0.5, 4), (1, 0.5, 7), (1, 1.5, 4), (1, 1.5, 7)))
SMALL = audits(SMALL_BASE, ((4, 0.5, 3), (9, 0.5, 3), (1, 0.5, 5), (1, 1.5, 3), (1, 1.5, 5)))

if __name__ == "__main__":
    common.main(__file__, SMALL, PAPER)
