"""Exact tail of a sum of integer levels over random subsets of fixed size, at any size, by a tilted 2-D DFT.

Draw c of m items without replacement; item j has the integer level K_j; W is the sum. With independent bits
B_j ~ Bernoulli(sigma(theta K_j + mu)), C = sum B and W = sum B K, every subset of size c and sum w has probability
exp(theta w + mu c) / Z. Hence

    Pr[W >= w | size c] = Z e^(-theta w - mu c) / C(m, c) * sum_{u >= 0} e^(-theta u) Pr_tilt[C = c, W = w + u],

where theta and mu are chosen to make (c, w) typical, so that the probabilities on the right are not tiny and double
precision suffices. They come from the characteristic function, a product over levels, on a grid. A finite grid wraps
mass around, which only adds; rounding and whatever lies outside the window are bounded and added too.
"""

import math

import numpy as np
from scipy.special import expit, gammaln, log_expit

_NEGLIGIBLE = -42.0
_MAX_TILT = 40.0


def fit_tilt(values: np.ndarray, counts: np.ndarray, w: float, c: int) -> tuple[float, float]:
    """Theta >= 0 and mu that minimise sum_k n_k log(1 + e^(theta k + mu)) - theta w - mu c, by damped Newton steps.

    Any pair gives a valid bound, so the search simply stops where theta would run away (the true vector is the best).

    Args:
        values: [K] levels.
        counts: [K] how many items have each level.
        w: The observed sum.
        c: The subset size.
    """
    m = counts.sum()
    spread = math.sqrt(float(counts @ (values - counts @ values / m) ** 2 / m)) or 1.0
    centre = float(counts @ values / m)
    scaled, target = (values - centre) / spread, (w - c * centre) / spread
    theta, mu = 0.0, math.log(c / (m - c))

    def loss(theta: float, mu: float) -> float:
        return float(counts @ -log_expit(-(theta * scaled + mu))) - theta * target - mu * c

    value = loss(theta, mu)
    for _ in range(80):
        s = expit(theta * scaled + mu)
        gradient = np.array([counts @ (s * scaled) - target, counts @ s - c])
        weight = counts * s * (1 - s)
        cross = weight @ scaled
        hessian = np.array([[weight @ scaled**2, cross], [cross, weight.sum()]]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, -gradient)
        step *= min(1.0, 4.0 / np.abs(step).max()) if np.abs(step).max() > 0 else 1.0
        size, decrease = 1.0, float(gradient @ step)
        while size > 1e-6 and loss(theta + size * step[0], mu + size * step[1]) > value + 1e-4 * size * decrease:
            size /= 2
        theta, mu = theta + size * step[0], mu + size * step[1]
        new = loss(theta, mu)
        if value - new < 1e-10 or theta > _MAX_TILT * spread:
            break
        value = new
    theta = min(max(theta, 0.0), _MAX_TILT * spread)
    mu = _fit_offset(theta * scaled, counts, c)
    return theta / spread, mu - theta * centre / spread


def _fit_offset(tilted: np.ndarray, counts: np.ndarray, c: int) -> float:
    """Mu with sum_k n_k sigma(tilted_k + mu) = c, by bisection."""
    m = counts.sum()
    base = math.log(c / (m - c))
    low, high = base - float(tilted.max()) - 1e-6, base - float(tilted.min()) + 1e-6
    for _ in range(100):
        mid = (low + high) / 2
        low, high = (mid, high) if counts @ expit(tilted + mid) < c else (low, mid)
        if high - low < 1e-9:
            break
    return (low + high) / 2


def log_tail(levels: np.ndarray, w: int) -> float:
    """Log Pr[W >= w] for a uniform subset of size floor(m/2), plus at most about 1e-8 of slack.

    Args:
        levels: [m] integers, smallest 0, not all equal.
        w: The observed sum.

    Returns:
        An upper bound of the log probability; 0 where w lies four standard deviations or more below the mean, where the
        exact value is within 1e-3 of it.
    """
    m = levels.size
    c = m // 2
    counts = np.bincount(levels).astype(np.float64)
    k = np.flatnonzero(counts)
    counts = counts[k]
    mean, variance = c * levels.mean(), c * (m - c) / (m - 1) * levels.var()
    sd = math.sqrt(variance)
    if w < mean - 4 * sd:
        return 0.0
    theta, mu = fit_tilt(k.astype(np.float64), counts, float(w), c)
    if theta < 0.5 / sd:  # a little tilt keeps the window short; any tilt is valid
        theta = 0.5 / sd
        mu = _fit_offset(theta * k, counts, c)
    x = theta * k + mu
    s, rest = expit(x), expit(-x)
    log_norm = float(counts @ -log_expit(-x))
    spread_c = math.sqrt(float(counts @ (s * rest)))
    tilted_mean = float(counts @ (s * k))
    spread_w = math.sqrt(float(counts @ (s * rest * k**2)))  # of W with C free: a little too wide, which is harmless
    centred = k - round(float(counts @ (s * rest * k)) / max(spread_c**2, 1e-300)) if spread_c > 0 else k
    spread_w = min(spread_w, math.sqrt(float(counts @ (s * rest * centred**2)) + spread_c**2) + 1.0)

    top = int(np.sort(levels)[m - c :].sum()) - w
    reach = 10 * spread_w + 20
    window = int(min(math.ceil(40 / theta), math.ceil(max(tilted_mean - w, 0.0) + reach), max(top, 0)))
    size_w = window + 1 + math.ceil(max(w - tilted_mean, 0.0) + reach)
    size_c = math.ceil(16 * spread_c) + 13
    # Given C = c, recentring every level by q moves W by c q; on the grid it keeps the two axes nearly uncorrelated.
    shift = int(k[0] - centred[0]) if spread_c > 0 else 0
    log_outside = -math.inf
    if window < top:
        log_outside = _log_outside(k - shift, counts, x, w - c * shift + window + 1, spread_w) - theta * (window + 1)
    masses = _window(k - shift, counts, s, rest, w - c * shift, c, size_w, size_c)[: window + 1]
    masses = np.maximum(masses, 0.0) + math.exp(_NEGLIGIBLE) + 1e-14
    inside = float(np.exp(-theta * np.arange(window + 1)) @ masses)
    total = inside + (math.exp(log_outside) if log_outside > -700 else 0.0)
    log_choose = float(gammaln(m + 1) - gammaln(c + 1) - gammaln(m - c + 1))
    # log_norm and the two products below are large and nearly cancel; their rounding error is a few 1e-16 of each.
    rounding = 4e-16 * (log_norm + abs(theta * w) + abs(mu * c) + log_choose) * 8
    return log_norm - theta * w - mu * c - log_choose + math.log(total) + 1e-9 + rounding


def _log_outside(k: np.ndarray, counts: np.ndarray, x: np.ndarray, bar: int, spread_w: float) -> float:
    """A Chernoff bound on log Pr_tilt[C = c, W >= bar]; at C = c the recentred sum stands for W."""
    log_norm = float(counts @ -log_expit(-x))
    rates = np.array([2.0, 4.0, 6.0, 9.0, 14.0]) / max(spread_w, 1e-3)
    chernoff = min(float(counts @ -log_expit(-(x + rate * k))) - log_norm - rate * bar for rate in rates)
    return min(0.0, chernoff)


def _window(
    k: np.ndarray, counts: np.ndarray, s: np.ndarray, rest: np.ndarray, w: int, c: int, size_w: int, size_c: int
) -> np.ndarray:
    """Pr_tilt[C = c, W = w + u] for u = 0..size_w - 1, wrapped around the grid.

    The real part of the log characteristic function is built level by level, the most influential first, and grid
    points are dropped as soon as they are negligible: most go after two or three levels.
    """
    frequencies = np.arange(size_w // 2 + 1)
    a, b = (grid.ravel() for grid in np.meshgrid(frequencies, np.arange(size_c), indexing="ij"))
    log_size = np.zeros(a.size)
    order = np.argsort(-counts * s * rest)

    def angle(level: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return 2 * np.pi * (((a * level) % size_w) / size_w + b / size_c)

    with np.errstate(divide="ignore"):
        for position in order:
            half = np.sin(angle(int(k[position]), a, b) / 2)
            log_size += 0.5 * counts[position] * np.log1p(-np.minimum(4 * s[position] * rest[position] * half**2, 1.0))
            keep = log_size > _NEGLIGIBLE
            if keep.sum() < 0.8 * keep.size:
                a, b, log_size = a[keep], b[keep], log_size[keep]
        keep = log_size > _NEGLIGIBLE
        a, b = a[keep], b[keep]
        log_phi = np.zeros(a.size, np.complex128)
        for position in order:
            turn = np.exp(1j * angle(int(k[position]), a, b))
            log_phi += counts[position] * np.log(rest[position] + s[position] * turn)
    phase = 2 * np.pi * (((a * w) % size_w) / size_w + ((b * c) % size_c) / size_c)
    phi = np.exp(log_phi - 1j * phase)
    real = np.bincount(a, weights=phi.real, minlength=frequencies.size)
    imaginary = np.bincount(a, weights=phi.imag, minlength=frequencies.size)
    # phi = E e^(i alpha (W - w) + ...): inverting needs e^(-i alpha u), irfft supplies e^(+i alpha u), hence the
    # conjugate.
    return np.fft.irfft((real - 1j * imaginary) / size_c, size_w)
