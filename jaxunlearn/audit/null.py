"""P-values of the true sign vector: how many balanced sign vectors fit the model's scores at least as well.

With w(S, f) the log-likelihood of S under the attack's model of f, p(S, f) = Pr[w(S', f) >= w(S, f)] over a uniform S'
is super-uniform whenever f is independent of S, whatever the attack is. It uses all of the attack's confidence and
needs no guess budget; ``audit.bounds.evidence`` combines the p-values of several runs.

For the batchwise attack w = sum_j S_j Lambda_j. Lambda is rounded to integer levels first, by a rule that looks at
Lambda alone: the rounded value *is* the statistic, so its p-value is exact and no order of summation matters. Numerical
slack is only ever added.
"""

import math

import numpy as np
from scipy.special import gammaln, log_expit

from jaxunlearn._validate import InputError, at_least, require
from jaxunlearn.audit import _dft, design

DYNAMIC_LIMIT = 100
LEVELS = 32


def log_p_value(llr: np.ndarray, signs: np.ndarray, *, levels: int = LEVELS, method: str = "auto") -> float:
    """Log p of the true sign vector for the statistic sum_j S_j K_j, K the rounded log-likelihood ratios.

    Args:
        llr: [m] log-likelihood ratios in nats; higher = more likely in. Non-finite entries count as 0.
        signs: [m] the true balanced sign vector.
        levels: Lambda is rounded to the integers -levels..levels (where S_m can be enumerated: to 2^40 of them).
        method: "auto" chooses by m; "enumerate" (|S_m| <= 100,000), "dynamic" (a table of counts by partial sum; work
            grows like m^3), "dft" (a tilted two-dimensional transform, any m).

    Returns:
        log p in nats, in [-log |S_m|, 0]; exactly 0 if all values are equal.

    Raises:
        InputError: Shapes differ, signs are not balanced, or the method is unknown or cannot serve m.
    """
    llr, signs = _check_pair(llr, signs)
    at_least(1, levels=levels)
    m = llr.size
    if method == "auto":
        method = "enumerate" if design.enumerable(m) else "dynamic" if m <= DYNAMIC_LIMIT else "dft"
    if method == "enumerate":
        position, size = rank(llr, signs)
        return math.log(position) - math.log(size)
    rounded = _shift(round_levels(llr, levels))
    if not rounded.any():
        return 0.0
    w = int(rounded[signs > 0].sum())
    if method == "dynamic":
        value = _dynamic(rounded, w)
    elif method == "dft":
        value = _dft.log_tail(rounded, w)
    else:
        raise InputError(f"Unknown method={method!r}. Choose from: auto, enumerate, dynamic, dft.")
    return min(0.0, max(value, -design.log_support(m)))


def log_p_values(llr: np.ndarray, signs: np.ndarray, *, levels: int = LEVELS, method: str = "auto") -> np.ndarray:
    """``log_p_value`` of every run: [L, m], [L, m] -> [L]."""
    llr, signs = np.asarray(llr, np.float64), np.asarray(signs)
    require(
        llr.ndim == 2 and llr.shape == signs.shape,
        f"Expected llr and signs of one shape [L, m], got {llr.shape} and {signs.shape}.",
    )
    return np.array([log_p_value(a, s, levels=levels, method=method) for a, s in zip(llr, signs)])


def rank(llr: np.ndarray, signs: np.ndarray) -> tuple[int, int]:
    """The rank of the true sign vector among all of S_m by sum_j S_j Lambda_j, ties counted against it.

    Lambda is scaled to integers of up to 40 bits, so that equal sums are equal exactly.

    Args:
        llr: [m] log-likelihood ratios in nats; non-finite entries count as 0.
        signs: [m] the true balanced sign vector.

    Returns:
        (rank, |S_m|), 1 <= rank <= |S_m|; the rank is |S_m| if all values are equal.

    Raises:
        InputError: Shapes differ, signs are not balanced, or S_m has more than 100,000 members.
    """
    llr, signs = _check_pair(llr, signs)
    scale = np.abs(llr).max()
    rounded = np.zeros(llr.size, np.int64) if scale == 0 else np.rint(llr / scale * 2.0**40).astype(np.int64)
    vectors = design.sign_vectors(llr.size)
    sums = vectors.astype(np.int64) @ rounded
    true = int(signs.astype(np.int64) @ rounded)
    return int((sums >= true).sum()), vectors.shape[0]


def rank_of(log_likelihoods: np.ndarray, index: int) -> int:
    """The rank of one entry of a table of log-likelihoods, ties counted against it; NaN counts as -infinity.

    Args:
        log_likelihoods: [support] log-likelihood of every candidate (``design.sign_vectors`` order for the joint
            attack).
        index: The true candidate.

    Returns:
        The rank, 1 <= rank <= support.

    Raises:
        InputError: The table is not one-dimensional or the index lies outside it.

    >>> rank_of(np.array([-1.0, -3.0, -1.0]), 0)
    2
    """
    table = np.asarray(log_likelihoods, np.float64)
    require(
        table.ndim == 1 and table.size >= 2, f"Expected log_likelihoods of shape [support >= 2], got {table.shape}."
    )
    require(0 <= index < table.size, f"Expected index={index} within 0..{table.size - 1}.")
    table = np.where(np.isnan(table), -np.inf, table)
    return int((table >= table[index]).sum())


def round_levels(llr: np.ndarray, levels: int) -> np.ndarray:
    """Rounds log-likelihood ratios to integers in -levels..levels, centred at the median, clipped 3.5 spreads away.

    The spread is the standard deviation after the outer 2.5% on both sides have been pulled in, since one absurd value
    would otherwise push all others into a single level; where that is 0, the largest distance. A constant added to all
    ratios changes nothing, because S is balanced.

    Args:
        llr: [m] finite log-likelihood ratios.
        levels: Number of positive levels.

    Returns:
        [m] int64; all 0 if all values are equal.
    """
    values = np.clip(llr, -1e150, 1e150)
    values = values - np.median(values)
    low, high = np.quantile(values, (0.025, 0.975))
    spread = float(np.std(np.clip(values, low, high)))
    reach = 3.5 * spread if spread > 0 else float(np.abs(values).max())
    if reach == 0:
        return np.zeros(values.size, np.int64)
    return np.rint(np.clip(values / reach, -1.0, 1.0) * levels).astype(np.int64)


def log_p_value_bound(llr: np.ndarray, signs: np.ndarray) -> float:
    """A cheap upper bound of log p for the unrounded statistic, by exponential tilting.

    Under independent bits B_j ~ Bernoulli(sigma(theta Lambda_j + mu)), a balanced vector's probability is
    exp(theta w + mu c) / Z, so at most Z exp(-theta w - mu c) Pr[sum B = c] balanced vectors reach w, for any
    theta >= 0. It loses about half of log m nats against the exact value and equals it for Lambda = 0. Not to be
    combined with the exact value of the *rounded* statistic by taking the smaller: they are two statistics.

    Args:
        llr: [m] log-likelihood ratios in nats; non-finite entries count as 0.
        signs: [m] the true balanced sign vector.

    Returns:
        An upper bound of log p, in [-log |S_m|, 0].

    Raises:
        InputError: Shapes differ or signs are not balanced.
    """
    llr, signs = _check_pair(llr, signs)
    m = llr.size
    scale = float(np.abs(llr).max())
    values = llr / scale if scale > 0 else llr
    ones, c = np.ones(m), m // 2
    w = float(values[signs > 0].sum())
    theta, mu = _dft.fit_tilt(values, ones, w, c)
    x = theta * values + mu
    log_norm = float(-log_expit(-x).sum())
    loose = log_norm - theta * w - mu * c - design.log_support(m) + math.log(_count_probability(x, c))
    slack = 1e-9 * (1 + m / 1e3)
    return min(0.0, max(loose + slack, -design.log_support(m)))


def _count_probability(x: np.ndarray, c: int) -> float:
    """Pr[sum of Bernoulli(sigma(x_j)) = c] by a one-dimensional transform; aliasing and slack only add."""
    s = np.exp(log_expit(x))
    sd = math.sqrt(float((s * np.exp(log_expit(-x))).sum()))
    size = 2 * math.ceil(8 * sd + 6) + 1
    angles = 2 * np.pi * np.arange(size) / size
    log_phi = np.zeros(size, np.complex128)
    with np.errstate(divide="ignore"):
        for block in np.array_split(s, max(1, s.size // 512)):
            log_phi += np.log(1 - block[:, None] + block[:, None] * np.exp(1j * angles)).sum(axis=0)
    phase = 2 * np.pi * ((np.arange(size) * c) % size) / size
    probability = float(np.exp(log_phi - 1j * phase).real.mean())
    return min(1.0, max(probability, 0.0) + 1e-13)


def _check_pair(llr: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    llr = design.finite_llr(llr)
    require(llr.ndim == 1 and llr.size >= 2, f"Expected llr of shape [m] with m >= 2, got {llr.shape}.")
    signs = np.asarray(signs)
    require(signs.shape == llr.shape, f"Expected signs of shape {llr.shape} = llr.shape, got {signs.shape}.")
    return llr, design.check_signs(signs[None])[0]


def _shift(rounded: np.ndarray) -> np.ndarray:
    """Levels moved to start at 0 and divided by their common divisor: the same ordering of S_m on a smaller lattice."""
    moved = rounded - rounded.min()
    divisor = int(np.gcd.reduce(moved))
    return moved // divisor if divisor > 1 else moved


def _dynamic(rounded: np.ndarray, w: int) -> float:
    """Log p by counting the subsets of size c by their sum: additions of positive numbers only, so nothing cancels."""
    m = rounded.size
    require(m <= 1000, f"Expected m={m} <= 1000 for method='dynamic', whose counts overflow beyond; use method='dft'.")
    c = m // 2
    width = int(np.sort(rounded)[m - c :].sum()) + 1
    table = np.zeros((c + 1, width))
    table[0, 0] = 1.0
    for step, level in enumerate(np.sort(rounded), start=1):
        rows = min(step, c)
        table[1 : rows + 1, level:] += table[:rows, : width - level].copy()
    log_total = float(gammaln(m + 1) - gammaln(c + 1) - gammaln(m - c + 1))
    return math.log(table[c, w:].sum()) - log_total + 1e-9
