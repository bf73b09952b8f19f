"""Lower bounds on epsilon: from overlap scores, from p-values of the true sign vector, from ranks.

The null hypothesis is always "the algorithm is (epsilon, delta)-certified" in the sense of Definition 3.3 of "Auditing of
Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898). Each function returns the smallest epsilon that is
not rejected at level zeta, so the true epsilon is below the returned value with probability at most zeta. The
``paper_*`` functions are Lemma 4.2 as printed; the others use the sharper cap derived in ``_tails``.

What is summed, and which budgets, levels and thresholds are used, has to be fixed before the evaluation runs are seen
(``audit.validity``); the sign vectors have to be independent and uniform.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxunlearn._validate import at_least, half_open_unit, not_empty, open_unit, require
from jaxunlearn.audit import _tails, design


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon.

    Attributes:
        name: Which bound.
        epsilon: The bound in nats, finite and >= 0.
        ceiling: The value it takes if every run is guessed perfectly: this design cannot give more.
        zeta: Error level: the true epsilon lies below the bound with probability at most zeta.
        delta: The hypothesis's delta.
        epsilon_ldp: For bounds that are halved, the value before (the epsilon of the induced local-privacy mechanism).
        detail: Anything else worth keeping.
    """

    name: str
    epsilon: float
    ceiling: float
    zeta: float
    delta: float = 0.0
    epsilon_ldp: float | None = None
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)


def check_levels(zeta: float, delta: float) -> None:
    """Zeta in (0, 1) and delta in [0, 1)."""
    open_unit(zeta=zeta)
    half_open_unit(delta=delta)


def _check_overlaps(overlaps: np.ndarray, r: int) -> np.ndarray:
    values = np.atleast_1d(np.asarray(overlaps, np.float64))
    not_empty("overlaps", values)
    bad = ~((values >= 0) & (values <= r) & (values == np.round(values)))
    require(not bad.any(), f"Expected overlaps to be integers within 0..{r}, got {values[bad][:1]} in run {np.argmax(bad)}.")
    return values.astype(np.int64)


def check_log_p_values(log_p_values: np.ndarray, m: int | None = None) -> np.ndarray:
    """Finite, <= 0 and, where m is given, not below -log |S_m|, which no p-value of a sign vector can undercut."""
    values = np.atleast_1d(np.asarray(log_p_values, np.float64))
    not_empty("log_p_values", values)
    bad = ~(np.isfinite(values) & (values <= 0))
    require(not bad.any(), f"Expected log_p_values to be finite and <= 0, got {values[bad][:1]} in run {np.argmax(bad)}.")
    if m is not None:
        floor = -design.log_support(m)
        bad = values < floor - 1e-6
        require(
            not bad.any(),
            f"Expected log_p_values >= -log |S_m| = {floor:.6g} for m={m}, got {values[bad][:1]} in run {np.argmax(bad)}.",
        )
        values = np.maximum(values, floor)
    return values


def _ldp_epsilon(log_g: float, m: int) -> float:
    """Inverts g = e^epsilon / (e^epsilon + |S_m| - 1) of Lemma 4.2; 0 where that is negative."""
    log_others = math.log(design.support(m) - 1) if m <= 60 else design.log_support(m)
    return max(0.0, log_g - math.log(-math.expm1(log_g)) + log_others)


def _paper(name: str, statistic: float, log_g: float, top_log_g: float, m: int, zeta: float) -> Bound:
    before, ceiling = _ldp_epsilon(log_g, m), _ldp_epsilon(top_log_g, m)
    detail = {"statistic": statistic}
    return Bound(name=name, epsilon=before / 2, ceiling=ceiling / 2, zeta=zeta, epsilon_ldp=before, detail=detail)


def paper_mean(overlaps: np.ndarray, *, m: int, r: int, zeta: float) -> Bound:
    """The audit paper's bound from the mean overlap (Lemma 4.2, eq. 1), halved as Lemma 4.1 asks; delta = 0.

    Every pi_epsilon(u) is N_u times the same factor g(epsilon), so the infimum over lambda does not depend on epsilon and
    log g = (log zeta)/L - inf_lambda [log sum_u e^(lambda u) N_u - lambda v] is solved in closed form.

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
    values = _check_overlaps(overlaps, r)
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
        rate = _tails.brentq(slope, 0.0, high, xtol=1e-12)
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
    values = _check_overlaps(overlaps, r)
    runs, median = values.size, float(np.median(values))
    k = -(-runs // 2)
    log_counts = design.log_overlap_counts(m, r)
    share = (math.log(zeta) - _tails.log_binomial(runs, k)) / k
    log_tail = float(np.logaddexp.reduce(log_counts[math.ceil(median) :]))
    return _paper("paper_median", median, share - log_tail, share - float(log_counts[r]), m, zeta)


def overlap(overlaps: np.ndarray, *, m: int, r: int, zeta: float, delta: float = 0.0) -> Bound:
    """The sharp bound from the sum of the overlap scores of L runs.

    Pr[V >= v] <= T(a_v) with a_v the chance of v correct guesses when S is independent of the model; a sum of L runs is
    dominated by the sum of L independent copies of that law, whose tail is computed exactly.

    Args:
        overlaps: [L] correct guesses of each run, integers in 0..r.
        m: Candidate batches.
        r: Guess budget, chosen without the evaluation runs.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Returns:
        The bound, not halved.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    design.check_budget(r, m)
    values = _check_overlaps(overlaps, r)
    runs, total = values.size, int(values.sum())
    log_a = design.log_overlap_tail(m, r)
    ceiling = _tails.invert_cap(*_tails.log_success(runs, runs, zeta), float(log_a[r]), delta)

    def log_tail(epsilon: float) -> float:
        return _tails.log_sum_tail(_tails.lattice_pmf(log_a[::-1], epsilon, delta)[::-1], runs, total)

    epsilon = ceiling if total == r * runs else _tails.solve(log_tail, math.log(zeta), max(ceiling / 2, 1e-3))
    detail = {"statistic": total / runs, "r": r}
    return Bound(name="overlap", epsilon=min(epsilon, ceiling), ceiling=ceiling, zeta=zeta, delta=delta, detail=detail)


def _from_count(
    name: str, k: int, runs: int, log_alpha: float, zeta: float, delta: float, detail: dict[str, Any]
) -> Bound:
    epsilon = _tails.invert_cap(*_tails.log_success(k, runs, zeta), log_alpha, delta)
    ceiling = _tails.invert_cap(*_tails.log_success(runs, runs, zeta), log_alpha, delta)
    detail = {**detail, "count": k, "runs": runs}
    return Bound(name=name, epsilon=epsilon, ceiling=ceiling, zeta=zeta, delta=delta, detail=detail)


def overlap_count(overlaps: np.ndarray, *, m: int, r: int, v: float, zeta: float, delta: float = 0.0) -> Bound:
    """The bound from how many runs have an overlap of at least v, in closed form.

    Args:
        overlaps: [L] correct guesses of each run, integers in 0..r.
        m: Candidate batches.
        r: Guess budget.
        v: Threshold in 0..r, chosen without the evaluation runs.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    design.check_budget(r, m)
    values = _check_overlaps(overlaps, r)
    require(0 <= v <= r, f"Expected v={v!r} within 0..{r}.")
    log_alpha = float(design.log_overlap_tail(m, r)[math.ceil(v)])
    k = int((values >= v).sum())
    return _from_count("overlap_count", k, values.size, log_alpha, zeta, delta, {"v": v, "r": r})


def overlap_median(overlaps: np.ndarray, *, m: int, r: int, zeta: float, delta: float = 0.0) -> Bound:
    """The sharp counterpart of ``paper_median``: at least half of the runs reach the median, whatever value it takes.

    The threshold may be the observed median because the order statistic itself is dominated, run by run.

    Args:
        overlaps: [L] correct guesses of each run, integers in 0..r.
        m: Candidate batches.
        r: Guess budget.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    design.check_budget(r, m)
    values = np.sort(_check_overlaps(overlaps, r))[::-1]
    k = -(-values.size // 2)
    log_a = design.log_overlap_tail(m, r)
    limits = _tails.log_success(k, values.size, zeta)
    epsilon, ceiling = (_tails.invert_cap(*limits, float(log_a[v]), delta) for v in (values[k - 1], r))
    detail = {"statistic": float(values[k - 1]), "r": r}
    return Bound(name="overlap_median", epsilon=epsilon, ceiling=ceiling, zeta=zeta, delta=delta, detail=detail)


def count(
    log_p_values: np.ndarray, *, alpha: float, zeta: float, delta: float = 0.0, log_support: float | None = None
) -> Bound:
    """The bound from how many runs have a p-value of at most alpha. Robust: a run that fails costs one count.

    Args:
        log_p_values: [L] natural logs of p-values of the true sign vectors.
        alpha: Threshold in (0, 1), chosen without the evaluation runs.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).
        log_support: log |S_m|; given, a p-value that cannot reach alpha makes the ceiling 0.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    open_unit(alpha=alpha)
    values = check_log_p_values(log_p_values)
    # A p-value equal to alpha up to rounding counts, and the null probability is that of the widened event.
    log_alpha = math.log(alpha) + 1e-9
    k = int((values <= log_alpha).sum())
    bound = _from_count("count", k, values.size, log_alpha, zeta, delta, {"alpha": alpha})
    unreachable = log_support is not None and log_alpha < -log_support
    return dataclasses.replace(bound, ceiling=0.0) if unreachable else bound


def _evidence_epsilon(total: float, *, runs: int, trim: int, zeta: float, delta: float) -> float:
    def log_tail(epsilon: float) -> float:
        tail = _tails.evidence_tail(total, epsilon, runs=runs, trim=trim, delta=delta)
        return math.log(tail) if tail > 0 else -math.inf

    kept = max(runs - trim, 1)
    return _tails.solve(log_tail, math.log(zeta), max(total / kept, 1.0))


def evidence(log_p_values: np.ndarray, *, m: int, zeta: float, delta: float = 0.0) -> Bound:
    """The bound from the sum of -log p over runs, p the p-value of the true sign vector (``audit.null``).

    No guess budget and no threshold. At delta = 0 and large epsilon it is about mean(-log p) - 1.57 at L = 10 and
    zeta = .05. With delta > 0 the j largest values are left out, j the smallest number with
    Pr[Bin(L, delta) > j] <= zeta / 5, because each run may be fully revealing with probability delta.

    Args:
        log_p_values: [L] natural logs of p-values, <= 0; a failed run has log p = 0.
        m: Candidate batches, for the ceiling (p >= 1 / |S_m|).
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Returns:
        The bound; ``detail`` holds the mean of -log p and the number left out.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    values = -check_log_p_values(log_p_values, m)
    runs = values.size
    trim = _tails.trimmed(runs, zeta, delta)
    kept = runs - trim
    limits = {"runs": runs, "trim": trim, "zeta": zeta, "delta": delta}
    epsilon = _evidence_epsilon(float(np.sort(values)[:kept].sum()), **limits) if kept else 0.0
    ceiling = _evidence_epsilon(kept * design.log_support(m), **limits) if kept else 0.0
    detail = {"mean": float(values.mean()), "left_out": trim}
    return Bound(
        name="evidence", epsilon=min(epsilon, ceiling), ceiling=ceiling, zeta=zeta, delta=delta, detail=detail
    )


def lattice(ranks: np.ndarray, *, support: int, zeta: float, delta: float = 0.0) -> Bound:
    """The bound from ranks of the true sign vector among ``support`` candidates, exact on the lattice of p-values.

    Each run scores floor(log(support / rank) / h); the law of the sum under the cap is computed by FFT. The floor is taken on
    both sides and so costs no validity. For two candidates it reduces to a binomial limit, in closed form.

    Args:
        ranks: [L] integers in 1..support, 1 = the true vector alone came first; ties count against.
        support: Number of candidates, at most 100,000 (|S_m|, or N + 1 for N Monte-Carlo sign vectors).
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    at_least(2, support=support)
    require(support <= design.ENUMERATION_LIMIT, f"Expected support={support} <= {design.ENUMERATION_LIMIT}; use evidence.")
    ranks = np.atleast_1d(np.asarray(ranks, np.float64))
    not_empty("ranks", ranks)
    bad = ~((ranks >= 1) & (ranks <= support) & (ranks == np.round(ranks)))
    require(not bad.any(), f"Expected ranks to be integers within 1..{support}, got {ranks[bad][:1]} in run {np.argmax(bad)}.")
    ranks = ranks.astype(np.int64)
    runs = ranks.size
    ceiling = _tails.invert_cap(*_tails.log_success(runs, runs, zeta), -math.log(support), delta)
    detail = {"first": int((ranks == 1).sum()), "support": support}
    if support == 2:
        limits = _tails.log_success(int((ranks == 1).sum()), runs, zeta)
        epsilon = _tails.invert_cap(*limits, -math.log(2), delta)
    elif (ranks == 1).all():
        epsilon = ceiling
    else:
        epsilon = _tails.solve(_lattice_log_tail(ranks, support, delta), math.log(zeta), max(ceiling / 2, 1e-3))
    return Bound(name="lattice", epsilon=min(epsilon, ceiling), ceiling=ceiling, zeta=zeta, delta=delta, detail=detail)


def _lattice_log_tail(ranks: np.ndarray, support: int, delta: float) -> Callable[[float], float]:
    """epsilon -> log Pr[score of L runs >= observed]; the step h grows only where the transform would exceed 2^19 points."""
    step = max(1e-3, ranks.size * math.log(support) / 2**19)
    k = np.arange(1, support + 1)
    scores = np.floor(np.log(support / k) / step).astype(np.int64)
    total = int(scores[ranks - 1].sum())
    log_a = np.log(k / support)

    def log_tail(epsilon: float) -> float:
        mass = np.bincount(scores, weights=np.exp(_tails.lattice_pmf(log_a, epsilon, delta)), minlength=scores[0] + 1)
        with np.errstate(divide="ignore"):
            return _tails.log_sum_tail(np.log(mass), ranks.size, total)

    return log_tail


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
    taken. Between the unlearned models of two forget sets the rates compare two laws that are each within epsilon of the
    reference: TPR <= e^(2 epsilon) FPR + (1 + e^epsilon) delta. That is solved for epsilon (``halve=True``; at delta = 0
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
        require(int(value) == value and 0 <= value <= limit, f"Expected {name}={value!r} to be an integer in 0..{limit}.")

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
    return float(_tails.betainccinv(events + 1, trials - events, level))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnytimeBound(Bound):
    """A bound that may be looked at after every run, and acted upon.

    Attributes:
        path: The bound after 1, 2, ... runs, nondecreasing; all of them hold together with probability 1 - zeta.
    """

    path: tuple[float, ...] = ()


def e_process(log_p_values: np.ndarray, *, m: int, zeta: float, delta: float = 0.0) -> AnytimeBound:
    """The anytime-valid bound: looked at after every run, stopped whenever one likes.

    Under the hypothesis q = T(p) is a p-value given the past, so the uniform mixture over kappa of
    prod_l kappa q_l^(kappa - 1) is a test supermartingale; it exceeds 1 / zeta at any time with probability at most
    zeta (Ville). The attack used for run l may be fitted on runs 1..l-1.

    Args:
        log_p_values: [n] natural logs of p-values in the order of the runs.
        m: Candidate batches, for the ceiling.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    values = check_log_p_values(log_p_values, m)
    path, best = [], 0.0
    for n in range(1, values.size + 1):
        best = max(best, _e_value_root(values[:n], zeta, delta, best))
        path.append(best)
    perfect = np.full(values.size, -design.log_support(m))
    ceiling = max(_e_value_root(perfect[:n], zeta, delta, 0.0) for n in {1, values.size})
    return AnytimeBound(
        name="e_process", epsilon=best, ceiling=max(best, ceiling), zeta=zeta, delta=delta, path=tuple(path)
    )


def _e_value_root(log_p_values: np.ndarray, zeta: float, delta: float, at_least: float) -> float:
    """The largest epsilon whose mixture e-value reaches 1 / zeta; ``at_least`` if none above it does."""

    def log_reciprocal(epsilon: float) -> float:
        total = -float(_tails.log_cap(log_p_values, epsilon, delta).sum())
        return -_tails.log_beta_mixture(total, log_p_values.size)

    if at_least > 0 and log_reciprocal(at_least) > math.log(zeta):
        return at_least
    return _tails.solve(log_reciprocal, math.log(zeta), max(-float(log_p_values.mean()), 1.0))
