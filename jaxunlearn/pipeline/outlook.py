"""What a design can show before anything is run: ceilings, simulated attacks, and what to do next, as text."""

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError
from jaxunlearn.audit import headline, least_favourable
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline import bounding
from jaxunlearn.records import CALIBRATION, EVALUATION, ScoreRecord

STRENGTHS = (0.25, 0.5, 1.0)
"""Shifts of a score by membership, in standard deviations of the score over runs."""
SIMULATIONS = 5


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def heading(plan: Preregistration, roles: np.ndarray, out: AnyPath | None, *, found: bool) -> str:
    """Size and terms of the design, and whether it was written or found."""
    calibration = int(np.sum(roles == CALIBRATION))
    place = "Not written (no --out)" if out is None else f"{'Found as it was' if found else 'Written'} in {out}"
    examples = f"batches of {plan.batch_size} examples" if plan.batch_size > 1 else "candidate examples"
    return (
        f"{place}: {len(roles):,} runs, {calibration:,} for calibration and {plan.L:,} for evaluation, each with "
        f"{plan.m // 2:,} of m = {plan.m:,} {examples}.\n"
        f"Preregistered: {plan.predictor} predictor, zeta = {plan.zeta:g}, delta = {plan.delta:g}, r = {plan.r}; the "
        f"headline is the largest of {len(plan.candidates)} bounds, each at zeta / {len(plan.candidates)}."
    )


def best_ceiling(plan: Preregistration) -> float:
    """The most that the headline can be."""
    return max(entry.ceiling for entry in headline.ceilings(plan))


def ceilings(plan: Preregistration, r: int | None) -> str:
    """The ceiling of each preregistered bound, and a table of the headline's over L and m.

    Args:
        plan: What is preregistered.
        r: The guess budget that was asked for, or None.
    """
    entries = headline.ceilings(plan)
    lines = ["The most that epsilon can be here, with a perfect attack:"]
    lines += [f"  {entry.label.replace('_', ' '):<20} {_number(entry.ceiling):>9}" for entry in entries]
    runs = sorted({max(1, plan.L // 2), plan.L, 2 * plan.L, 4 * plan.L})
    sizes = sorted({max(2, plan.m // 2), plan.m, 2 * plan.m}) if plan.predictor != "pairwise" else [2]
    lines += ["", f"{'That of the headline:':<24}" + "".join(f"{f'L = {count}':>11}" for count in runs)]
    for m in sizes:
        try:
            resized = [_resized(plan, m, count, r) for count in runs]
        except InputError:  # too many sign vectors for the joint predictor, or a budget that does not fit
            continue
        cells = [_number(best_ceiling(one)) for one in resized]
        lines.append(f"  {f'm = {m}':<22}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def _resized(plan: Preregistration, m: int, L: int, r: int | None) -> Preregistration:
    return Preregistration.default(
        plan.predictor, m=m, batch_size=plan.batch_size, L=L, zeta=plan.zeta, delta=plan.delta, r=r
    )


def simulate(
    rng: np.random.Generator,
    plan: Preregistration,
    roles: np.ndarray,
    signs: np.ndarray,
    *,
    shift: float,
    variance: str,
) -> float:
    """The headline of one simulated audit: scores are N(offset + shift * [in], 1), the offsets unknown to the attack.

    Args:
        rng: Source of randomness.
        plan: What is preregistered.
        roles: [runs] CALIBRATION or EVALUATION.
        signs: [runs, m]; those of the calibration runs are used, evaluation runs get new ones.
        shift: By how many standard deviations a score is higher if its batch was in.
        variance: One of ``likelihood.VARIANCES``.
    """
    signs = signs.copy()
    evaluation = roles == EVALUATION
    signs[evaluation] = least_favourable.draw_signs(rng, plan.L, plan.m)
    scores = rng.normal(size=(*signs.shape, plan.batch_size)) + shift * (signs > 0)[..., None]
    record = ScoreRecord(
        signs=signs,
        roles=roles,
        indices=np.concatenate([np.arange(np.sum(~evaluation)), np.arange(plan.L)]),
        scores=scores + rng.normal(size=scores.shape[1:]),
        accuracy={},
        failed=np.zeros(len(roles), bool),
    )
    outputs = bounding.attack(record, plan, variance=variance)
    found = headline.evaluate(
        plan,
        signs=signs[evaluation],
        llr=outputs.get("llr"),
        log_likelihoods=outputs.get("log_likelihoods"),
        curves=False,
    )
    return found.headline.epsilon


def expected(
    rng: np.random.Generator, plan: Preregistration, roles: np.ndarray, signs: np.ndarray, *, variance: str
) -> str:
    """A table of simulated headlines for attacks of three strengths."""
    lines = [
        f"Simulated ({SIMULATIONS} audits each; a score is higher by d of its standard deviations if its example was in):"
    ]
    for shift in STRENGTHS:
        found = [simulate(rng, plan, roles, signs, shift=shift, variance=variance) for _ in range(SIMULATIONS)]
        lines.append(
            f"  d = {shift:<5g} epsilon {_number(float(np.mean(found)))}, from {_number(min(found))} to {_number(max(found))}"
        )
    return "\n".join(lines)


def next_steps(plan: Preregistration, runs: int, out: AnyPath | None, *, candidates: bool) -> str:
    """What to do with the design."""
    if out is None:
        return "Next: give --out DIR to write the design, before the first run."
    examples = f", {plan.batch_size}" if plan.batch_size > 1 else ""
    listed = f"\n     {out / 'candidates.csv'} says which examples each batch holds." if candidates else ""
    return f"""\
Next:
  1. For each row of {out / "runs.csv"}: seed the run with its seed, train on the rest of your data and the batches
     with +1, unlearn those batches, and score every candidate, in or not: higher = more likely still in the model.{listed}
  2. Save the scores, [{runs}, {plan.m}{examples}] in the order of the rows: npy, or npz with an array scores. Or CSV in
     any order, with a column run and {plan.m * plan.batch_size} columns of scores.
  3. jaxunlearn bound --design {out} --scores FILE --name METHOD"""
