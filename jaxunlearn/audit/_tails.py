r"""What (epsilon, delta)-certified unlearning allows: the largest probability of an event, and sums of log p-values.

Let R be the reference law of Definition 3.3 of the audit paper. For every sign vector s and event E,
Pr[f in E_s | S = s] <= e^epsilon R(E_s) + delta, and the same with the two laws exchanged bounds the complement.
Averaging over a uniform S shows that an event whose probability is alpha when f is drawn from R independently of S has
probability at most

    T(alpha) = min{1, e^epsilon alpha + delta, 1 - e^-epsilon (1 - alpha - delta)}.

Both sides are compared with the one law R and never two sign vectors with each other; so nothing has to be halved, and
delta enters as it is (the paper's Lemma 4.1 goes through a triangle inequality and loses both).

A p-value p of S satisfies Pr[p <= alpha] <= T(alpha). Hence -log p is stochastically at most
Y* = s + B a + Exp(1) with probability 1 - delta and +infinity with probability delta, where B ~ Bernoulli(1 -
e^-epsilon), a = log(1 + e^epsilon) and s = -log(1 - delta): its density at y is e^-y (e^-epsilon + (e^epsilon -
e^-epsilon) 1{y > a}), and shifting Exp(1) by a multiplies its density by e^a = 1 + e^epsilon. A sum of n such variables
is therefore a binomial mixture of shifted gamma variables.
"""

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainccinv, betaincinv, gammaincc, gammaln, xlogy
from scipy.stats import binom

TOLERANCE = 1e-10


def log_cap(log_alpha: np.ndarray | float, epsilon: float, delta: float) -> np.ndarray:
    """Log T(alpha) for events of null probability exp(log_alpha); sums of positive terms only, so nothing cancels."""
    log_alpha = np.asarray(log_alpha, np.float64)
    log_delta = math.log(delta) if delta > 0 else -math.inf
    upper = np.logaddexp(log_alpha + epsilon, log_delta)
    log_gap = math.log(-math.expm1(-epsilon)) if epsilon > 0 else -math.inf
    lower = np.logaddexp(log_gap, np.logaddexp(log_alpha, log_delta) - epsilon)
    return np.minimum(0.0, np.minimum(upper, lower))


def invert_cap(log_t: float, log_1mt: float, log_alpha: float, delta: float) -> float:
    """The smallest epsilon >= 0 with T(alpha) >= t; 0 if t <= delta or alpha + delta >= 1.

    Args:
        log_t: log t.
        log_1mt: log(1 - t), given separately because t may be close to 1.
        log_alpha: log alpha.
        delta: The hypothesis's delta.
    """
    t, alpha = math.exp(log_t), math.exp(log_alpha)
    if t <= delta or alpha + delta >= 1 or log_t == -math.inf:
        return 0.0
    log_excess = log_t + math.log1p(-delta / t)
    return max(0.0, log_excess - log_alpha, math.log1p(-alpha - delta) - log_1mt)


def log_success(k: int, runs: int, zeta: float) -> tuple[float, float]:
    """The lower confidence limit t of a success probability after k successes of ``runs``, as (log t, log(1 - t))."""
    if k == 0:
        return -math.inf, 0.0
    if k == runs:
        log_t = math.log(zeta) / runs
        return log_t, math.log(-math.expm1(log_t))
    return math.log(betaincinv(k, runs - k + 1, zeta)), math.log(betainccinv(runs - k + 1, k, zeta))


def gamma_mixture_tail(n: int, x: float, epsilon: float) -> float:
    """Pr[sum of n copies of B a + Exp(1) >= x] (delta = 0), a binomial mixture of gamma tails."""
    if n == 0:
        return float(x <= 0)
    k = np.arange(n + 1)
    log_weight = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) + xlogy(k, -math.expm1(-epsilon))
    log_weight = log_weight - epsilon * (n - k)
    weight = np.exp(log_weight)
    used = weight > 1e-18  # what is left out is added below, so the tail can only grow
    shifted = np.maximum(x - k[used] * np.logaddexp(0.0, epsilon), 0.0)
    tail = float(weight[used] @ gammaincc(n, shifted)) + 1e-18 * float((~used).sum())
    return min(1.0, tail)


def trimmed(runs: int, zeta: float, delta: float) -> int:
    """How many of the largest values to leave out so that the delta atoms cost at most zeta / 5."""
    if delta == 0:
        return 0
    j = np.arange(runs + 1)
    return int(j[binom.sf(j, runs, delta) <= zeta / 5][0])


def evidence_tail(x: float, epsilon: float, *, runs: int, trim: int, delta: float) -> float:
    """Pr[sum of the (runs - trim) smallest -log p >= x], an upper bound under (epsilon, delta).

    With at most ``trim`` infinite values the sum of the smallest ones is at most that of any runs - trim finite ones.
    """
    kept = runs - trim
    atoms = float(binom.sf(trim, runs, delta)) if delta > 0 else 0.0
    shift = -kept * math.log1p(-delta)
    return atoms + (1 - atoms) * gamma_mixture_tail(kept, x - shift, epsilon)


def lattice_pmf(log_values: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """Masses T(a_i) - T(a_{i-1}) for increasing null probabilities a_0 < a_1 < ... = 1, with T before a_0 set to 0.

    Args:
        log_values: [n] log a_i, nondecreasing, last one 0.
        epsilon: The hypothesis's epsilon.
        delta: The hypothesis's delta; its mass falls on the first entry, the rarest event.

    Returns:
        [n] log masses. Each is formed from differences of the a_i and never by subtracting values of T, which are close
        to 1 for most of them.
    """
    log_a = np.minimum(log_values, math.log1p(-delta))  # T is 1 from 1 - delta on
    before = np.concatenate([[-np.inf], log_a[:-1]])
    log_corner = math.log1p(-delta) - np.logaddexp(0.0, epsilon)  # where the two branches of T meet
    with np.errstate(divide="ignore", invalid="ignore"):

        def log_difference(high: np.ndarray, low: np.ndarray) -> np.ndarray:
            return np.where(high > low, high + np.log(-np.expm1(np.minimum(low - high, 0.0))), -np.inf)

        steep = log_difference(np.minimum(log_a, log_corner), np.minimum(before, log_corner)) + epsilon
        flat = log_difference(np.maximum(log_a, log_corner), np.maximum(before, log_corner)) - epsilon
    mass = np.logaddexp(steep, flat)
    if delta > 0:
        mass[0] = np.logaddexp(mass[0], math.log(delta))
    return mass


def log_sum_tail(log_pmf: np.ndarray, runs: int, total: int) -> float:
    """Log Pr[sum of ``runs`` copies >= total] for an integer variable on 0..r, by an exponentially tilted FFT.

    Args:
        log_pmf: [r + 1] log masses.
        runs: Number of copies.
        total: The observed sum, 0 <= total <= r runs.
    """
    r = log_pmf.size - 1
    if total <= 0:
        return 0.0
    if total == r * runs:
        return float(runs * log_pmf[r])
    values = np.arange(r + 1)
    target = total / runs

    def tilt(rate: float) -> tuple[float, np.ndarray]:
        terms = log_pmf + rate * values
        top = terms.max()
        mass = np.exp(terms - top)
        return top + math.log(mass.sum()), mass / mass.sum()

    def excess(rate: float) -> float:
        return float(tilt(rate)[1] @ values) - target

    rate = 0.0
    if excess(0.0) < 0:
        high = 1.0
        while excess(high) < 0 and high < 1e4:
            high *= 2.0
        rate = cast(float, brentq(excess, 0.0, high, xtol=1e-6 * high)) if excess(high) > 0 else high
    log_norm, mass = tilt(rate)
    size = 1 << (r * runs).bit_length()
    power = np.fft.irfft(np.fft.rfft(mass, size) ** runs, size)[total : r * runs + 1]
    # The transform's rounding error is near 1e-16 a point; the slack makes sure that it never lowers the tail.
    power = np.maximum(power, 0.0) + 2e-16 * (4 + math.sqrt(runs))
    weights = np.exp(-rate * np.arange(power.size))
    return min(0.0, float(runs * log_norm - rate * total + math.log(power @ weights)))


def solve(log_tail: Callable[[float], float], log_zeta: float, start: float) -> float:
    """The largest epsilon known to be rejected: log_tail is nondecreasing, and log_tail(result) <= log_zeta.

    Args:
        log_tail: epsilon -> log of the probability of what was seen, or of anything more extreme.
        log_zeta: The level.
        start: A first guess of an upper end; it is doubled until the tail exceeds the level.

    Returns:
        epsilon >= 0, the lower end of a bracket of width about 1e-9; 0 if epsilon = 0 is not rejected.
    """

    def gap(epsilon: float) -> float:
        return max(log_tail(epsilon), -1e6) - log_zeta

    if gap(0.0) > 0:
        return 0.0
    high = max(start, 1e-3)
    while gap(high) <= 0:
        if high > 1e9:
            return high
        high *= 2.0
    root = cast(float, brentq(gap, 0.0, high, xtol=TOLERANCE, rtol=1e-12))
    step = TOLERANCE
    while root > 0 and gap(root) > 0:  # brentq may end on the side that is not rejected
        root, step = max(0.0, root - step), step * 4
    return root


def log_binomial(n: int, k: int) -> float:
    """Log C(n, k)."""
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


def log_beta_mixture(a: float, runs: int) -> float:
    """Log of the integral over kappa in (0, 1) of kappa^n e^{A (1 - kappa)}, for A = -sum log q >= 0 and n runs.

    Each q is a p-value; kappa q^(kappa - 1) is an e-value for every kappa, and so is the mixture of their products.
    """
    n = runs
    if a > n + 1:
        return float(a - (n + 1) * math.log(a) + gammaln(n + 1) + math.log1p(-gammaincc(n + 1, a)))
    terms = 60 + 12 * int(math.sqrt(n + 1))
    ratios = a / (n + 1 + np.arange(1, terms))
    return float(-math.log(n + 1) + math.log1p(np.cumprod(ratios).sum()))
