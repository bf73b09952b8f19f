"""Lower bounds on epsilon: from overlap scores, from p-values of the true sign vector, from ranks.

The null hypothesis is always "the algorithm is (epsilon, delta)-certified" in the sense of Definition 3.3 of "Auditing
of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898). Each function returns the smallest epsilon that
is not rejected at level zeta, so the true epsilon is below the returned value with probability at most zeta. All use
the cap that is derived in ``_tails``. The paper's own bounds (``audit.paper``) and the anytime bound
(``audit.sequential``) are offered here too.

What is summed, and which budgets, levels and thresholds are used, has to be fixed before the evaluation runs are seen
(``audit.validity``); the sign vectors have to be independent and uniform.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxunlearn._validate import at_least, not_empty, open_unit, require
from jaxunlearn.audit import _tails, design
from jaxunlearn.audit._bound import Bound, check_levels, check_log_p_values, check_overlaps
from jaxunlearn.audit.paper import clopper_pearson, paper_mean, paper_median
from jaxunlearn.audit.sequential import AnytimeBound, e_process

__all__ = [
    "AnytimeBound",
    "Bound",
    "check_levels",
    "check_log_p_values",
    "check_overlaps",
    "clopper_pearson",
    "count",
    "e_process",
    "evidence",
    "fair_labels",
    "lattice",
    "order_statistic",
    "overlap",
    "overlap_count",
    "overlap_median",
    "paper_mean",
    "paper_median",
]


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
    values = check_overlaps(overlaps, r)
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
    values = check_overlaps(overlaps, r)
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
    values = np.sort(check_overlaps(overlaps, r))[::-1]
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


def order_statistic(
    log_p_values: np.ndarray, *, k: int, zeta: float, delta: float = 0.0, log_support: float | None = None
) -> Bound:
    """The bound from the k-th smallest p-value: k of L runs are at least that surprising.

    Of L runs the number with p <= alpha is at most Binomial(L, T(alpha)), for every alpha, so the k-th smallest p is
    stochastically at least that of the least-favourable law, whatever value it takes. Against the evidence bound, which
    averages, it gains where runs differ much in how far they give the sign vector away: one run that names it is enough.

    Args:
        log_p_values: [L] natural logs of p-values of the true sign vectors.
        k: Which one, 1..L; fixed without the evaluation runs.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1); of use only below the confidence limit of k successes in L.
        log_support: log |S_m|, for the ceiling; None: the ceiling is the bound.

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    values = check_log_p_values(log_p_values)
    at_least(1, k=k)
    require(k <= values.size, f"Expected k={k} <= {values.size} runs.")
    log_alpha = float(np.sort(values)[k - 1]) + 1e-9  # as in ``count``: equal up to rounding
    success = _tails.log_success(k, values.size, zeta)
    epsilon = _tails.invert_cap(*success, log_alpha, delta)
    ceiling = epsilon if log_support is None else _tails.invert_cap(*success, -log_support, delta)
    detail = {"k": k, "runs": values.size, "log_p": log_alpha}
    return Bound(
        name=f"order_{k}", epsilon=epsilon, ceiling=max(epsilon, ceiling), zeta=zeta, delta=delta, detail=detail
    )


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
    return Bound(name="evidence", epsilon=min(epsilon, ceiling), ceiling=ceiling, zeta=zeta, delta=delta, detail=detail)


def lattice(ranks: np.ndarray, *, support: int, zeta: float, delta: float = 0.0) -> Bound:
    """The bound from ranks of the true sign vector among ``support`` candidates, exact on the lattice of p-values.

    Each run scores floor(log(support / rank) / h); the law of the sum under the cap is computed by FFT. The floor is
    taken on both sides and so costs no validity. For two candidates it reduces to a binomial limit, in closed form.

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
    require(
        support <= design.ENUMERATION_LIMIT, f"Expected support={support} <= {design.ENUMERATION_LIMIT}; use evidence."
    )
    ranks = np.atleast_1d(np.asarray(ranks, np.float64))
    not_empty("ranks", ranks)
    bad = ~((ranks >= 1) & (ranks <= support) & (ranks == np.round(ranks)))
    require(
        not bad.any(),
        f"Expected ranks to be integers within 1..{support}, got {ranks[bad][:1]} in run {np.argmax(bad)}.",
    )
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


def fair_labels(correct: int, runs: int, *, zeta: float, delta: float = 0.0) -> Bound:
    """The bound from how often an attack tells two laws apart, when a fair coin chose the law of every draw.

    For laws that are (epsilon, delta)-indistinguishable from each other (Definition H.1: one of the two *is* the
    reference), Pr[correct] = (P(E) + Q(not E)) / 2 is at most (e^epsilon + delta) / (1 + e^epsilon), whatever E. With t
    the lower confidence limit of Pr[correct], epsilon >= log((t - delta) / (1 - t)). One limit on one rate, at the full
    zeta, where ``clopper_pearson`` needs two. Between two forget sets it bounds no certificate: use ``lattice``.

    Args:
        correct: K, draws whose law was recognised, 0..runs.
        runs: L, draws in all, >= 1; the number on either side has to be random, not half each.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    at_least(1, runs=runs)
    at_least(0, correct=correct)
    require(correct <= runs, f"Expected correct={correct!r} <= runs={runs!r}.")

    def epsilon(k: int) -> float:
        log_t, log_1mt = _tails.log_success(k, runs, zeta)
        if math.exp(log_t) <= delta:
            return 0.0
        return max(0.0, log_t + math.log1p(-delta * math.exp(-log_t)) - log_1mt)

    detail = {"count": int(correct), "runs": int(runs)}
    return Bound(
        name="fair_labels", epsilon=epsilon(correct), ceiling=epsilon(runs), zeta=zeta, delta=delta, detail=detail
    )


def _lattice_log_tail(ranks: np.ndarray, support: int, delta: float) -> Callable[[float], float]:
    """The map from epsilon to log Pr[score of L runs >= observed]."""
    # A coarser step is as valid; it is taken only where the transform would exceed 2^19 points.
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
