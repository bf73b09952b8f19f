"""How many noisy steps certify model clipping (Koloskova et al., 2025, "Certified Unlearning for Neural Networks").

Theorem 4.2 there. Before unlearning the weights lie in a ball of radius C0; every noisy step projects on a ball of
radius C2 and adds Gaussian noise of standard deviation sigma. Between the unlearned and the reference process, delta_t
shrinks at fixed epsilon by

    theta_e(r) = Q(e/r - r/2) - exp(e) Q(e/r + r/2),      Q = 1 - Phi,
    delta_{t+1} = delta_t theta_{e_t}(2 C2 / sigma),      e_t = log(1 + (exp(epsilon) - 1) / delta_t),

starting from delta_0 = theta_epsilon(2 C0 / sigma_0), or 1 where the first iterate gets no noise. Projected points
are at most 2 C2 apart, so each step's noise hides all but the share theta of the divergence that is left. All in logs.
"""

import math

from jaxunlearn._validate import InputError, at_least, non_negative, positive, require
from jaxunlearn.certificates.gaussian import log_theta

MAX_STEPS = 1_000_000


def _check(clip_initial: float, clip: float, sigma: float, sigma_initial: float) -> None:
    positive(clip_initial=clip_initial, clip=clip, sigma=sigma)
    non_negative(sigma_initial=sigma_initial)


def _log_delta_start(epsilon: float, clip_initial: float, sigma_initial: float) -> float:
    return log_theta(epsilon, 2 * clip_initial / sigma_initial) if sigma_initial > 0 else 0.0


def _step(log_delta: float, epsilon: float, ratio: float) -> float:
    log_growth = epsilon + math.log1p(-math.exp(-epsilon)) - log_delta  # log((e^epsilon - 1) / delta_t)
    inner = log_growth + math.log1p(math.exp(-log_growth)) if log_growth > 0 else math.log1p(math.exp(log_growth))
    return log_delta + min(0.0, log_theta(inner, ratio))


def noisy_steps(
    epsilon: float,
    delta: float,
    *,
    clip_initial: float,
    clip: float,
    sigma: float,
    sigma_initial: float = 0.0,
) -> int:
    """The smallest number of noisy steps after which model clipping is (epsilon, delta)-certified.

    Args:
        epsilon: Target epsilon in nats, > 0.
        delta: Target delta in (0, 1).
        clip_initial: C0, radius of the ball that holds the weights before the first step.
        clip: C2, radius of the projection in every step.
        sigma: Standard deviation of the noise in every step.
        sigma_initial: Standard deviation of noise added before the first step; 0 = none.

    Returns:
        T >= 0.

    Raises:
        InputError: An argument is out of range, or more than a million steps would be needed.
    """
    positive(epsilon=epsilon)
    require(0 < delta < 1, f"Expected delta={delta!r} inside (0, 1).")
    _check(clip_initial, clip, sigma, sigma_initial)
    target, ratio = math.log(delta), 2 * clip / sigma
    log_delta, steps = _log_delta_start(epsilon, clip_initial, sigma_initial), 0
    while log_delta > target:
        shrunk = _step(log_delta, epsilon, ratio)
        if not shrunk < log_delta:  # the share that is hidden is below double precision
            steps = MAX_STEPS
        log_delta, steps = shrunk, steps + 1
        if steps > MAX_STEPS:
            raise InputError(
                f"Expected (epsilon, delta)=({epsilon}, {delta}) to be reachable, but 2 clip / sigma = {ratio:.4g} "
                f"needs over {MAX_STEPS} steps; add noise or clip more."
            )
    return steps


def clipping_epsilon(
    steps: int,
    delta: float,
    *,
    clip_initial: float,
    clip: float,
    sigma: float,
    sigma_initial: float = 0.0,
) -> float:
    """The epsilon that is proven after a number of noisy steps, the inverse of ``noisy_steps``.

    Args:
        steps: Noisy steps taken, >= 0.
        delta: delta in (0, 1).
        clip_initial: C0, radius of the ball that holds the weights before the first step.
        clip: C2, radius of the projection in every step.
        sigma: Standard deviation of the noise in every step.
        sigma_initial: Standard deviation of noise added before the first step; 0 = none.

    Returns:
        epsilon in nats, rounded up (the upper end of the search), so that it is certified.

    Raises:
        InputError: An argument is out of range, or nothing below 1e12 is proven.
    """
    at_least(0, steps=steps)
    require(0 < delta < 1, f"Expected delta={delta!r} inside (0, 1).")
    _check(clip_initial, clip, sigma, sigma_initial)
    target, ratio = math.log(delta), 2 * clip / sigma

    def proven(epsilon: float) -> bool:
        log_delta = _log_delta_start(epsilon, clip_initial, sigma_initial)
        for _ in range(steps):
            if log_delta <= target:
                break
            log_delta = _step(log_delta, epsilon, ratio)
        return log_delta <= target

    high = 1e-6
    while not proven(high):
        high *= 2
        if high > 1e12:
            raise InputError(
                f"Expected some epsilon to be proven after steps={steps}, got none; take more steps or add noise."
            )
    low = high / 2 if high > 1e-6 else 0.0
    while high - low > 1e-9 * max(1.0, high):
        mid = (low + high) / 2
        low, high = (low, mid) if proven(mid) else (mid, high)
    return high
