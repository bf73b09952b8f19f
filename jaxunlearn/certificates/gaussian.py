"""The analytic Gaussian mechanism (Balle & Wang, 2018, arXiv:1805.06530, Theorem 8), for any epsilon >= 0.

Two laws N(a, sigma^2 I) and N(b, sigma^2 I) with |a - b| <= D are (epsilon, delta)-indistinguishable if and only if

    Phi(D / 2 sigma - epsilon sigma / D) - exp(epsilon) Phi(-D / 2 sigma - epsilon sigma / D) <= delta.

The left side is theta_epsilon(D / sigma) in the notation of ``clipping``. It depends on the ratio D / sigma alone, rises
with it and falls with epsilon, so both are found by bisection. All in logs, and every rounding goes towards more noise or
a larger epsilon or delta: what is returned is certified.
"""

import math
import sys
from collections.abc import Callable

from scipy.special import log_ndtr

from jaxunlearn._validate import InputError, non_negative, open_unit, positive

_LIMIT = 1e18


def log_theta(epsilon: float, ratio: float) -> float:
    """Log theta_epsilon(r), the delta of a Gaussian mechanism with sensitivity / noise = r > 0; <= 0."""
    first = float(log_ndtr(-(epsilon / ratio - ratio / 2)))
    second = epsilon + float(log_ndtr(-(epsilon / ratio + ratio / 2)))
    return _log_difference(first, second)


def _log_difference(first: float, second: float) -> float:
    gap = second - first
    # Rounding may make the two terms equal for huge epsilon; the first alone is then a valid upper bound.
    return first + math.log(-math.expm1(gap)) if gap < 0 else first


def _log_theta_up(epsilon: float, ratio: float) -> float:
    """An upper limit of ``log_theta`` whatever the rounding: the first term is moved up, the second down."""
    unit = 8 * sys.float_info.epsilon
    low, high = epsilon / ratio - ratio / 2, epsilon / ratio + ratio / 2
    first, second = float(log_ndtr(-low)), epsilon + float(log_ndtr(-high))
    # log_ndtr(-x) has slope at most max(x, 0) + 1, and the argument itself is off by a few units of its largest term.
    first += unit * (high * (max(low, 0.0) + 1) + abs(first))
    second -= unit * (high * (high + 1) + epsilon)
    # theta falls with epsilon, so the total variation (epsilon = 0) is a limit too: where the difference cancels, the better.
    variation = math.erf(ratio / math.sqrt(8)) * (1 + unit)
    return min(0.0, math.log(variation) if variation > 0 else -math.inf, _log_difference(first, second))


def _bisect(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """The end of the bracket at which ``holds``, once the bracket is as narrow as doubles allow."""
    while True:
        middle = good + (bad - good) / 2
        if middle in (good, bad):
            return good
        good, bad = (middle, bad) if holds(middle) else (good, middle)


def gaussian_delta(sigma: float, epsilon: float, sensitivity: float) -> float:
    """The smallest delta for which a Gaussian mechanism is (epsilon, delta)-indistinguishable.

    Args:
        sigma: Standard deviation of the noise in every coordinate, > 0.
        epsilon: epsilon in nats, >= 0.
        sensitivity: Largest l2 distance of two noiseless outputs, >= 0.

    Returns:
        delta in [0, 1], rounded up.

    Raises:
        InputError: An argument is out of range.
    """
    positive(sigma=sigma)
    non_negative(epsilon=epsilon, sensitivity=sensitivity)
    ratio = sensitivity / sigma
    return min(1.0, math.nextafter(math.exp(_log_theta_up(epsilon, ratio)), 2.0)) if ratio > 0 else 0.0


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The least noise that makes a Gaussian mechanism (epsilon, delta)-indistinguishable.

    Args:
        epsilon: Target epsilon in nats, >= 0.
        delta: Target delta in (0, 1).
        sensitivity: Largest l2 distance of two noiseless outputs, >= 0.

    Returns:
        sigma, the standard deviation in every coordinate, rounded up; 0 for sensitivity 0.

    Raises:
        InputError: An argument is out of range, or sigma is no finite number.

    >>> round(gaussian_sigma(1.0, 1e-5, 1.0), 6)
    3.730632
    """
    non_negative(epsilon=epsilon, sensitivity=sensitivity)
    open_unit(delta=delta)
    if sensitivity == 0:
        return 0.0
    target = math.log(delta)

    def proven(ratio: float) -> bool:
        return _log_theta_up(epsilon, ratio) <= target

    good = bad = 1.0
    while not proven(good):
        bad, good = good, good / 2
    while proven(bad):
        good, bad = bad, bad * 2
    ratio = _bisect(proven, good, bad)
    sigma = sensitivity / ratio
    while 0 < sigma < math.inf and sensitivity / sigma > ratio:  # the division itself was rounded down
        sigma = math.nextafter(sigma, math.inf)
    if not 0 < sigma < math.inf:
        raise InputError(
            f"Expected sensitivity={sensitivity!r} at which the noise is a finite number > 0, got {sigma!r}; rescale it."
        )
    return sigma


def gaussian_epsilon(sigma: float, delta: float, sensitivity: float) -> float:
    """The smallest epsilon for which a Gaussian mechanism is (epsilon, delta)-indistinguishable.

    Args:
        sigma: Standard deviation of the noise in every coordinate, > 0.
        delta: delta in (0, 1).
        sensitivity: Largest l2 distance of two noiseless outputs, >= 0.

    Returns:
        epsilon in nats, >= 0, rounded up.

    Raises:
        InputError: An argument is out of range, or nothing below 1e18 is proven.

    >>> round(gaussian_epsilon(3.730632, 1e-5, 1.0), 5)
    1.0
    """
    positive(sigma=sigma)
    non_negative(sensitivity=sensitivity)
    open_unit(delta=delta)
    ratio, target = sensitivity / sigma, math.log(delta)
    if ratio == 0:
        return 0.0

    def proven(epsilon: float) -> bool:
        return _log_theta_up(epsilon, ratio) <= target

    if proven(0.0):
        return 0.0
    bad, good = 0.0, 1e-6
    while not proven(good):
        bad, good = good, good * 2
        if good > _LIMIT:
            raise InputError(
                f"Expected some epsilon to be proven at sensitivity / sigma = {ratio:.4g}, got none below {_LIMIT:g}; "
                "add noise."
            )
    return _bisect(proven, good, bad)
