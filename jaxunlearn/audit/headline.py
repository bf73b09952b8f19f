"""From the attack's output to the headline: what is fixed beforehand, and what is computed afterwards.

A ``Preregistration`` is stored before the first evaluation run. It names K bounds; each is computed at zeta / K, so the
largest of them is a lower bound at zeta whatever the data favour (union bound). The paper's own bounds stand beside as
references, and curves over the guess budget are exploratory: neither can become the headline.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.audit import bounds, design, null, validity
from jaxunlearn.audit.preregistration import BOUNDS, ORDERS, Preregistration, even_budget
from jaxunlearn.records import BoundEntry

__all__ = ["Evaluation", "Preregistration", "ceilings", "evaluate", "headline", "status_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an audit found.

    Attributes:
        headline: The largest preregistered bound.
        bounds: All bounds: preregistered, then reference, then exploratory.
        paper_mean: The paper's mean bound after halving, at the full zeta, delta = 0 and the preregistered r.
        paper_median: The same for the median.
        log_p_values: [L] log p of every run, in nats.
        overlaps: r -> [L] correct guesses of every run, for the budgets used.
        ranks: [L] rank of the true sign vector, where S_m can be enumerated; else empty.
        by_r: Exploratory curves over the guess budget, each at the full zeta: "r", "overlap" (bound), "paper_mean"
            (bound), "accuracy" (share of guesses that are right).
        failed_runs: Runs that count as p = 1.
    """

    headline: BoundEntry
    bounds: list[BoundEntry]
    paper_mean: float
    paper_median: float
    log_p_values: list[float]
    overlaps: dict[int, list[int]]
    ranks: list[int]
    by_r: dict[str, list[float]]
    failed_runs: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Runs:
    """The evaluation runs, reduced to what the bounds need."""

    signs: np.ndarray
    llr: np.ndarray | None
    guesses: np.ndarray | None
    log_p: np.ndarray
    ranks: np.ndarray | None

    def overlaps(self, r: int) -> np.ndarray:
        if self.guesses is not None:
            return design.overlaps(self.guesses, self.signs)
        assert self.llr is not None  # one of the two is always there
        return design.overlaps(design.guess(self.llr, r), self.signs)


def evaluate(
    preregistration: Preregistration,
    *,
    signs: np.ndarray,
    llr: np.ndarray | None = None,
    log_likelihoods: np.ndarray | None = None,
    failed: np.ndarray | None = None,
    extra: Sequence[tuple[str, int | None]] = (),
    curves: bool = True,
) -> Evaluation:
    """All bounds of one audited method.

    Args:
        preregistration: What was fixed before the first evaluation run.
        signs: [L, m] true sign vectors, one independent uniform draw a run.
        llr: [L, m] log-likelihood ratios in nats (predictor "batchwise"); higher = more likely in; non-finite counts as
            0.
        log_likelihoods: [L, M'] log-likelihood of every sign vector in ``design.sign_vectors`` order ("joint",
            "pairwise").
        failed: [L] bool: runs that failed twice with the same key; they count as p = 1.
        extra: Further (name, r) to compute at the full zeta; marked exploratory unless preregistered.
        curves: Whether to compute the exploratory curves over r.

    Returns:
        The evaluation; every epsilon is finite and >= 0.

    Raises:
        InputError: Shapes differ from the preregistration, the sign vectors are not balanced or look designed
            (``audit.validity``), or the wrong kind of attack output was given.
    """
    p = preregistration
    signs = validity.check_evaluation_signs(signs)
    validity.check_run_count(signs.shape[0], p.L)
    require(signs.shape[1] == p.m, f"Expected signs with m={p.m} columns as preregistered, got {signs.shape[1]}.")
    runs = _reduce(p, signs, llr, log_likelihoods, failed)

    entries = [_entry(p, runs, name, r, p.zeta_each, "preregistered") for name, r in p.candidates]
    best = headline(entries)
    values = runs.overlaps(p.r)
    mean, median = (f(values, m=p.m, r=p.r, zeta=p.zeta) for f in (bounds.paper_mean, bounds.paper_median))
    entries += [_record(bound, "reference", p.r) for bound in (mean, median)]
    if p.predictor == "pairwise":
        entries += _pairwise_reference(p, runs)
    entries += [
        _entry(p, runs, name, r, p.zeta, "exploratory") for name, r in extra if status_of(p, name, r) == "exploratory"
    ]
    return Evaluation(
        headline=best,
        bounds=entries,
        paper_mean=mean.epsilon,
        paper_median=median.epsilon,
        log_p_values=[float(v) for v in runs.log_p],
        overlaps={r: [int(v) for v in runs.overlaps(r)] for r in sorted({p.r, *p.r_grid})},
        ranks=[] if runs.ranks is None else [int(v) for v in runs.ranks],
        by_r=_curves(p, runs) if curves else {},
        failed_runs=[] if failed is None else [int(i) for i in np.flatnonzero(failed)],
    )


def headline(entries: Iterable[BoundEntry]) -> BoundEntry:
    """The largest preregistered bound; of equal ones the first. References and exploratory bounds never qualify.

    Raises:
        InputError: There is no preregistered bound.
    """
    candidates = [entry for entry in entries if entry.status == "preregistered"]
    require(len(candidates) > 0, "Expected at least one preregistered bound; an exploratory one is never the headline.")
    return max(candidates, key=lambda entry: entry.epsilon)


def ceilings(preregistration: Preregistration) -> list[BoundEntry]:
    """What each preregistered bound gives if every run is guessed perfectly: the design cannot show more.

    Args:
        preregistration: What is fixed; no run needs to exist.

    Returns:
        One entry for each of its candidates; epsilon is the ceiling.
    """
    p = preregistration
    signs = np.tile(np.where(np.arange(p.m) < p.m // 2, 1, -1).astype(np.int8), (p.L, 1))
    log_p = np.full(p.L, -design.log_support(p.m))
    runs = _Runs(signs=signs, llr=signs.astype(np.float64), guesses=None, log_p=log_p, ranks=np.ones(p.L, np.int64))
    return [_entry(p, runs, name, r, p.zeta_each, "preregistered") for name, r in p.candidates]


def status_of(preregistration: Preregistration, name: str, r: int | None = None) -> str:
    """Whether (name, r) was named before the first evaluation run: "preregistered", else "exploratory"."""
    return "preregistered" if (name, r) in preregistration.candidates else "exploratory"


def _reduce(
    p: Preregistration,
    signs: np.ndarray,
    llr: np.ndarray | None,
    log_likelihoods: np.ndarray | None,
    failed: np.ndarray | None,
) -> _Runs:
    wanted, given = ("llr", llr) if p.predictor == "batchwise" else ("log_likelihoods", log_likelihoods)
    other = log_likelihoods if p.predictor == "batchwise" else llr
    require(given is not None and other is None, f"Expected {wanted} alone for predictor={p.predictor!r}.")
    width = p.m if p.predictor == "batchwise" else design.support(p.m)
    given = np.asarray(given, np.float64)
    require(given.shape == (p.L, width), f"Expected {wanted} of shape {(p.L, width)}, got {given.shape}.")
    given = validity.fail_safe(given, failed)
    if p.predictor == "batchwise":
        given = design.finite_llr(given)
        if not design.enumerable(p.m):
            return _Runs(signs=signs, llr=given, guesses=None, log_p=null.log_p_values(given, signs), ranks=None)
        ranks = np.array([null.rank(row, s)[0] for row, s in zip(given, signs)])
        guesses, rows = None, given
    else:
        ranks = np.array([null.rank_of(row, i) for row, i in zip(given, design.sign_index(signs))])
        first = np.argmax(np.where(np.isnan(given), -np.inf, given), axis=1)
        guesses, rows = design.sign_vectors(p.m)[first], None
    log_p = np.log(ranks) - math.log(design.support(p.m))
    return _Runs(signs=signs, llr=rows, guesses=guesses, log_p=np.minimum(log_p, 0.0), ranks=ranks)


def _entry(p: Preregistration, runs: _Runs, name: str, r: int | None, zeta: float, status: str) -> BoundEntry:
    levels = {"zeta": zeta, "delta": p.delta}
    if name == "evidence":
        bound = bounds.evidence(runs.log_p, m=p.m, **levels)
    elif name == "lattice":
        if runs.ranks is None:
            raise InputError(f"Expected m={p.m} <= 19 for the lattice bound; use evidence.")
        bound = bounds.lattice(runs.ranks, support=design.support(p.m), **levels)
    elif name == "overlap":
        if r is None:
            raise InputError("Expected a guess budget r for the overlap bound.")
        bound = bounds.overlap(runs.overlaps(r), m=p.m, r=r, **levels)
    elif name in ORDERS:
        k = 1 + ORDERS.index(name)
        bound = bounds.order_statistic(runs.log_p, k=k, log_support=design.log_support(p.m), **levels)
    elif name == "count":
        bound = bounds.count(runs.log_p, alpha=p.alpha, log_support=design.log_support(p.m), **levels)
    else:
        raise InputError(f"Unknown bound={name!r}. Choose from: {', '.join(BOUNDS)}.")
    return _record(bound, status, r)


def _record(bound: bounds.Bound, status: str, r: int | None = None) -> BoundEntry:
    detail = {**bound.detail, "delta": bound.delta}
    if bound.epsilon_ldp is not None:
        detail["unhalved"] = bound.epsilon_ldp
    return BoundEntry(
        name=bound.name,
        epsilon=float(bound.epsilon),
        ceiling=float(bound.ceiling),
        zeta=bound.zeta,
        status=status,
        r=r,
        detail=detail,
    )


def _pairwise_reference(p: Preregistration, runs: _Runs) -> list[BoundEntry]:
    """Clopper-Pearson on telling the two forget sets apart; none if only one of them was drawn."""
    first = runs.signs[:, 0] > 0
    assert runs.guesses is not None  # the pairwise predictor guesses a whole vector
    said_first = runs.guesses[:, 0] > 0
    if first.all() or not first.any():
        return []
    counts = (first & said_first).sum(), first.sum(), (~first & said_first).sum(), (~first).sum()
    bound = bounds.clopper_pearson(*(int(c) for c in counts), zeta=p.zeta, delta=p.delta)
    return [_record(bound, "reference")]


def _curves(p: Preregistration, runs: _Runs) -> dict[str, list[float]]:
    if p.predictor != "batchwise":
        budgets = [p.m]
    else:
        points = 12 if p.m > 1000 else 24
        budgets = sorted({even_budget(x, p.m) for x in np.linspace(2, p.m, points)} | {p.r, *p.r_grid})
    curves: dict[str, list[float]] = {"r": [], "overlap": [], "paper_mean": [], "accuracy": []}
    for r in budgets:
        values = runs.overlaps(r)
        curves["r"].append(int(r))
        curves["overlap"].append(bounds.overlap(values, m=p.m, r=r, zeta=p.zeta, delta=p.delta).epsilon)
        curves["paper_mean"].append(bounds.paper_mean(values, m=p.m, r=r, zeta=p.zeta).epsilon)
        curves["accuracy"].append(float(values.mean() / r))
    return curves
