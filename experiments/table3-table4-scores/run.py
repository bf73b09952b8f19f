"""Tables 3 and 4 (appendix E): logit score against cross-entropy, and mean against median overlap."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Audit
from jaxunlearn.presets import PRESETS


def audits(base: Audit) -> dict[str, Audit]:
    """Ascent, and interleaved ascent at q in {1, 2, 4}; both splits, both scores; two populations in all."""
    found = {}
    for split in ("uniform", "adversarial"):
        shared = Path("table3-table4-scores") / f"population-{base.dataset}-{split}"
        same = dataclasses.replace(base, split=split, population=shared)
        for score in ("logit", "loss"):
            scored = dataclasses.replace(same, signals=(score,))
            found[f"{split}, {score}"] = dataclasses.replace(scored, methods=("ascent",))
            for q in (1, 2, 4):
                interleaved = dataclasses.replace(base.method.ida, retain_steps=q)
                found[f"{split}, {score}, q = {q}"] = dataclasses.replace(
                    scored, methods=("ida",), method=dataclasses.replace(base.method, ida=interleaved)
                )
    return found


COLUMNS = {
    "setting": lambda r: r["setting"],
    "method": lambda r: r["method"],
    "ε ≥": lambda r: r["epsilon"],
    "paper's bound, mean": lambda r: r["paper_mean"],
    "paper's bound, median": lambda r: r["paper_median"],
}

if __name__ == "__main__":
    common.main(__file__, audits(PRESETS["digits"][1]), audits(PRESETS["cifar100"][1]), COLUMNS)
