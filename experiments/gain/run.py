"""What each step gains over the paper's protocol, from the same runs: those of experiments/table1-images.

python experiments/table1-images/run.py && python experiments/gain/run.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.audit import bounds
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline import bounding
from jaxunlearn.records import EVALUATION, ScoreRecord, read_json, write_json

HERE = Path(__file__).parent


def gains(folder: Path, plan: Preregistration) -> common.Row | None:
    """Bounds of one audited method under ever better protocols, or None where the model does not depend on S."""
    scores = ScoreRecord.load(folder / "scores.npz")
    test = scores.roles == EVALUATION
    found = {
        variance: evaluate(
            plan,
            signs=scores.signs[test],
            failed=scores.failed[test],
            curves=False,
            llr=bounding.attack(scores, plan, variance=variance)["llr"],
        )
        for variance in ("per_example", "pooled", "full")
    }
    levels = {"m": plan.m, "zeta": plan.zeta, "delta": plan.delta}
    overlaps = found["pooled"].overlaps[plan.r]
    evidence = {variance: bounds.evidence(one.log_p_values, **levels).epsilon for variance, one in found.items()}
    row = {
        "setting": folder.parent.name,
        "method": folder.name,
        "paper": found["per_example"].paper_mean,
        "paper_pooled": found["pooled"].paper_mean,
        "overlap_pooled": bounds.overlap(overlaps, r=plan.r, **levels).epsilon,
        "evidence_pooled": evidence["pooled"],
        "evidence_full": evidence["full"],
        "headline": found["full"].headline.epsilon,
    }
    row |= {key: common.down(value) for key, value in row.items() if isinstance(value, float)}
    row["statistic"] = found["full"].headline.label
    return row if row["headline"] > 0 else None


def ratio(one: common.Row) -> str:
    """The headline over the paper's protocol."""
    return f"×{one['headline'] / one['paper']:.1f}" if one["paper"] else "–"


COLUMNS = {
    "setting": lambda r: r["setting"],
    "method": lambda r: r["method"],
    "paper's protocol": lambda r: r["paper"],
    "pooled variance": lambda r: r["paper_pooled"],
    "no factor two": lambda r: r["overlap_pooled"],
    "evidence": lambda r: r["evidence_pooled"],
    "correlations": lambda r: r["evidence_full"],
    "headline": lambda r: f"{r['headline']} ({r['statistic']})",
    "gain": ratio,
}

if __name__ == "__main__":
    rows = []
    for folder in sorted((common.runs_folder() / "table1-images").glob("*/*/scores.npz")):
        manifest = read_json(folder.parents[1] / "manifest.json")
        row = gains(folder.parent, Preregistration.from_json(manifest["preregistration"]))
        rows += [] if row is None else [row]
    print(common.table(rows, COLUMNS))
    write_json(HERE / "results.json", {"unit": common.LIMITS, "rows": rows})
