"""Does one score of examples predict another? Correlations with bootstrap intervals. On the host, no JAX.

A high correlation over all examples may say no more than that kinds of information differ (addresses are long and forgotten
fast, dates are short), or that the scores follow how well an example was learnt. So beside Pearson's and Spearman's
coefficients stand the same within groups, those of a plain baseline (its loss before unlearning), the partial ones given the
baseline, and by how much the score beats it.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata

from jaxunlearn._validate import at_least, open_unit, require, shape

LEAST = 3  # rows of a correlation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number and its bootstrap percentile interval.

    Attributes:
        value: Of all rows.
        low: Lower end.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlation:
    """Both coefficients over the same rows.

    Attributes:
        count: Rows.
        pearson: Linear.
        spearman: Of ranks; ties share their mean rank.
    """

    count: int
    pearson: Estimate
    spearman: Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """How well a score predicts an outcome.

    Attributes:
        level: Nominal coverage of each interval.
        pooled: Over all rows.
        within: Over all rows, each less its group's mean (ranks are taken within groups, as shares of their size); None
            without groups.
        by_group: Each group's own, but for those with fewer than 3 rows or without variation.
        baseline: Of the baseline with the outcome; None without a baseline, like the two below.
        partial: Of score and outcome, given the baseline (of ranks, given its rank).
        gain: |correlation of the score| - |that of the baseline|; > 0: the score predicts better.
    """

    level: float
    pooled: Correlation
    within: Correlation | None
    by_group: dict[str, Correlation]
    baseline: Correlation | None
    partial: Correlation | None
    gain: Correlation | None


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """NaN where one does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / scale, -1, 1)) if scale > 0 else np.nan


def _both(x: np.ndarray, y: np.ndarray) -> list[float]:
    return [_pearson(x, y), _pearson(rankdata(x), rankdata(y))]


def _within(x: np.ndarray, y: np.ndarray, groups: np.ndarray, count: int) -> list[float]:
    centred = np.zeros((2, 2, len(x)))
    for group in range(count):
        rows = groups == group
        if rows.any():
            values = np.stack([x[rows], y[rows]])
            both = np.stack([values, rankdata(values, axis=1) / rows.sum()])
            centred[:, :, rows] = both - both.mean(axis=2, keepdims=True)
    return [_pearson(*centred[0]), _pearson(*centred[1])]


def _given(xy: float, xz: float, yz: float) -> float:
    """Partial correlation of x and y given z."""
    rest = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / np.sqrt(rest) if rest > 0 else np.nan


def _statistics(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray | None, names: Sequence[str], z: np.ndarray | None
) -> dict[str, list[float]]:
    """Name -> [Pearson, Spearman] of everything that a ``Comparison`` holds."""
    found = {"pooled": _both(x, y)}
    if groups is not None:
        found["within"] = _within(x, y, groups, len(names))
        for group, name in enumerate(names):
            rows = groups == group
            found[f"by {name}"] = _both(x[rows], y[rows]) if rows.sum() >= LEAST else [np.nan, np.nan]
    if z is not None:
        found["baseline"] = _both(z, y)
        found["partial"] = [_given(*three) for three in zip(found["pooled"], _both(x, z), found["baseline"])]
        found["gain"] = [abs(a) - abs(b) for a, b in zip(found["pooled"], found["baseline"])]
    return found


def _resampler(rng: np.random.Generator, size: int, clusters: np.ndarray | None) -> Callable[[], np.ndarray]:
    """Draws rows, or whole clusters of them, with replacement."""
    if clusters is None:
        return lambda: rng.integers(0, size, size)
    _, cluster = np.unique(clusters, return_inverse=True)
    members = np.split(np.argsort(cluster, kind="stable"), np.cumsum(np.bincount(cluster))[:-1])
    return lambda: np.concatenate([members[i] for i in rng.integers(0, len(members), len(members))])


def _column(name: str, values: np.ndarray, size: int) -> np.ndarray:
    values = np.asarray(values, np.float64)
    shape(name, values, (size,), "one for each row")
    require(
        bool(np.isfinite(values).all()),
        f"Expected finite {name}, got {int((~np.isfinite(values)).sum())} that are not.",
    )
    require(
        bool(np.ptp(values) > 0), f"Expected {name} to vary, got {values[0]:.6g} throughout; no correlation is defined."
    )
    return values


def correlate(
    rng: np.random.Generator,
    score: np.ndarray,
    outcome: np.ndarray,
    *,
    groups: Sequence[str] | None = None,
    baseline: np.ndarray | None = None,
    clusters: Sequence[object] | None = None,
    resamples: int = 1000,
    level: float = 0.95,
) -> Comparison:
    """Correlates a score with an outcome, and says how much of it is left within groups and beside a baseline.

    Args:
        rng: Draws the resamples.
        score: [n] e.g. association with the known forget set.
        outcome: [n] e.g. the forgetting score.
        groups: [n] names, e.g. the type of attribute; None: none.
        baseline: [n] a plain predictor, e.g. -log p before unlearning; None: none.
        clusters: [n] what is drawn together, e.g. the person a row speaks of: rows of one person are not independent. None:
            every row by itself.
        resamples: Of the bootstrap, >= 100.
        level: Nominal coverage of each percentile interval, in (0, 1).

    Returns:
        The comparison. Resamples in which something does not vary are left out of its interval.

    Raises:
        InputError: Fewer than 3 rows; lengths differ; a column is not finite or does not vary; options out of range.
    """
    size = len(score)
    at_least(LEAST, rows=size)
    at_least(100, resamples=resamples)
    open_unit(level=level)
    columns = {"score": score, "outcome": outcome} | ({} if baseline is None else {"baseline": baseline})
    x, y, *rest = (_column(name, values, size) for name, values in columns.items())
    z = rest[0] if rest else None
    names, of_row, sizes = [], None, {}
    if groups is not None:
        shape("groups", np.asarray(groups), (size,), "one for each row")
        unique, of_row, counts = np.unique(np.asarray(groups, str), return_inverse=True, return_counts=True)
        names = unique.tolist()
        sizes = dict(zip(names, counts.tolist()))
    if clusters is not None:
        shape("clusters", np.asarray(clusters), (size,), "one for each row")
    draw = _resampler(rng, size, None if clusters is None else np.asarray(clusters))

    whole = _statistics(x, y, of_row, names, z)
    drawn = np.empty((resamples, len(whole), 2))
    for i in range(resamples):
        rows = draw()
        group, given = (None if column is None else column[rows] for column in (of_row, z))
        drawn[i] = list(_statistics(x[rows], y[rows], group, names, given).values())

    def correlation(name: str, count: int = size) -> Correlation | None:
        values, samples = whole.get(name), drawn[:, list(whole).index(name)] if name in whole else None
        if values is None or samples is None or np.isnan(values).any() or np.isnan(samples).all(axis=0).any():
            return None
        low, high = np.nanquantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
        pearson, spearman = (Estimate(value=v, low=float(l_), high=float(h)) for v, l_, h in zip(values, low, high))
        return Correlation(count=count, pearson=pearson, spearman=spearman)

    by_group = {name: correlation(f"by {name}", count) for name, count in sizes.items()}
    pooled = correlation("pooled")
    assert pooled is not None
    return Comparison(
        level=level,
        pooled=pooled,
        within=correlation("within"),
        by_group={name: found for name, found in by_group.items() if found is not None},
        baseline=correlation("baseline"),
        partial=correlation("partial"),
        gain=correlation("gain"),
    )
