"""The audit paper's own bounds, as printed: Lemma 4.2 (mean and median overlap) and the pairwise baseline (eq. 3).

"Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898). They are shown beside the
sharper bounds of ``audit.bounds`` so that results can be compared with published ones.
"""

import math
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainccinv

from jaxunlearn._validate import at_least, require
from jaxunlearn.audit import _tails, design
from jaxunlearn.audit._bound import Bound, check_levels, check_overlaps


def _ldp_epsilon(log_g: float, m: int) -> float:
    """Inverts g = e^epsilon / (e^epsilon + |S_m| - 1) of Lemma 4.2; 0 where that is negative."""
    log_others = math.log(design.support(m) - 1) if m <= 60 else design.log_support(m)
    return max(0.0, float(log_g) - math.log(-math.expm1(log_g)) + log_others)


def _paper(name: str, statistic: float, log_g: float, top_log_g: float, m: int, zeta: float) -> Bound:
    before, ceiling = _ldp_epsilon(log_g, m), _ldp_epsilon(top_log_g, m)
    detail = {"statistic": statistic}
    return Bound(name=name, epsilon=before / 2, ceiling=ceiling / 2, zeta=zeta, epsilon_ldp=before, detail=detail)


def paper_mean(overlaps: np.ndarray, *, m: int, r: int, zeta: float) -> Bound:
    """The audit paper's bound from the mean overlap (Lemma 4.2, eq. 1), halved as Lemma 4.1 asks; delta = 0.

    Every pi_epsilon(u) is N_u times the same factor g(epsilon), so the infimum over lambda does not depend on epsilon
    and log g = (log zeta)/L - inf_lambda [log sum_u e^(lambda u) N_u - lambda v] is solved in closed form.

    Args:
        overlaps: [L] correct guesses of each run, integers in 0..r.
        m: Candidate batches.
        r: Guess budget.
        zeta: Error level in (0, 1).

    Returns:
        The bound; ``epsilon_ldp`` is the value before halving.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, 0.0)
    design.check_budget(r, m)
    values = check_overlaps(overlaps, r)
    runs, mean = values.size, float(values.mean())
    log_counts = design.log_overlap_counts(m, r)
    u = np.arange(r + 1)

    def slope(rate: float) -> float:
        terms = log_counts + rate * u
        mass = np.exp(terms - terms.max())
        return float(mass @ u / mass.sum()) - mean

    if values.sum() == r * runs:
        log_least = log_counts[r]
    elif slope(0.0) >= 0:
        log_least = design.log_support(m)
    else:
        high = 1.0
        while slope(high) < 0:
            high *= 2.0
        rate = cast(float, brentq(slope, 0.0, high, xtol=1e-12))
        log_least = float(np.logaddexp.reduce(log_counts + rate * u)) - rate * mean
    share = math.log(zeta) / runs
    return _paper("paper_mean", mean, share - log_least, share - float(log_counts[r]), m, zeta)


def paper_median(overlaps: np.ndarray, *, m: int, r: int, zeta: float) -> Bound:
    """The audit paper's bound from the median overlap (Lemma 4.2, eq. 2), halved as Lemma 4.1 asks; delta = 0.

    Args:
        overlaps: [L] correct guesses of each run, integers in 0..r.
        m: Candidate batches.
        r: Guess budget.
        zeta: Error level in (0, 1).

    Returns:
        The bound; ``epsilon_ldp`` is the value before halving.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, 0.0)
    design.check_budget(r, m)
    values = check_overlaps(overlaps, r)
    runs, median = values.size, float(np.median(values))
    k = -(-runs // 2)
    log_counts = design.log_overlap_counts(m, r)
    share = (math.log(zeta) - _tails.log_binomial(runs, k)) / k
    log_tail = float(np.logaddexp.reduce(log_counts[math.ceil(median) :]))
    return _paper("paper_median", median, share - log_tail, share - float(log_counts[r]), m, zeta)


def clopper_pearson(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    *,
    zeta: float,
    delta: float = 0.0,
    halve: bool = True,
) -> Bound:
    """The pairwise baseline: exact limits on both error rates (audit paper, appendix A.3, eq. 3).

    Both rates get a one-sided limit at zeta / 2; they then hold together, and the better of the two directions may be
    taken. Between the unlearned models of two forget sets the rates compare two laws that are each within epsilon of
    the
    reference: TPR <= e^(2 epsilon) FPR + (1 + e^epsilon) delta. That is solved for epsilon (``halve=True``; at delta =
        0
    exactly half of eq. 3). Only when one of the two laws *is* the reference (Definition H.1) is eq. 3 itself a bound.

    Args:
        true_positives: Runs of the first kind recognised, 0..positives.
        positives: Runs of the first kind, >= 1.
        false_positives: Runs of the second kind taken for the first, 0..negatives.
        negatives: Runs of the second kind, >= 1.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).
        halve: Whether both laws come from forget sets.

    Returns:
        The bound; ``epsilon_ldp`` is eq. 3 (before halving).

    Raises:
        InputError: A count is out of range.
    """
    check_levels(zeta, delta)
    at_least(1, positives=positives, negatives=negatives)
    for name, value, limit in (
        ("true_positives", true_positives, positives),
        ("false_positives", false_positives, negatives),
    ):
        require(
            int(value) == value and 0 <= value <= limit, f"Expected {name}={value!r} to be an integer in 0..{limit}."
        )

    def epsilons(misses: int, false_alarms: int) -> tuple[float, float]:
        miss, alarm = _upper_rate(misses, positives, zeta / 2), _upper_rate(false_alarms, negatives, zeta / 2)
        direct, composed = 0.0, 0.0
        for one, other in ((miss, alarm), (alarm, miss)):
            power = 1 - one - delta
            if power > 0:
                direct = max(direct, math.log(power / other))
                composed = max(composed, math.log(2 * power / (delta + math.sqrt(delta**2 + 4 * other * power))))
        return direct, composed

    direct, composed = epsilons(positives - true_positives, false_positives)
    top_direct, top_composed = epsilons(0, 0)
    epsilon, ceiling = (composed, top_composed) if halve else (direct, top_direct)
    detail = {"true_positives": true_positives, "positives": positives}
    detail |= {"false_positives": false_positives, "negatives": negatives, "halved": halve}
    return Bound(
        name="clopper_pearson",
        epsilon=epsilon,
        ceiling=ceiling,
        zeta=zeta,
        delta=delta,
        epsilon_ldp=direct,
        detail=detail,
    )


def _upper_rate(events: int, trials: int, level: float) -> float:
    """The one-sided Clopper-Pearson upper limit."""
    if events == trials:
        return 1.0
    if events == 0:
        return -math.expm1(math.log(level) / trials)
    return float(betainccinv(events + 1, trials - events, level))
