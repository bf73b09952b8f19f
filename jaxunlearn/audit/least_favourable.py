"""The mechanism that attains every cap at once: what a bound's type-I error has to be measured against.

Among all (epsilon, delta)-certified mechanisms it is the one whose p-value, rank or overlap is stochastically most
extreme: density e^epsilon with respect to the reference on the best null fraction, e^-epsilon on the rest, and an
event of probability delta that reveals everything. Simple threshold mechanisms are kinder and hide errors. Whoever changes a
bound draws from here and counts how often the bound exceeds the true epsilon.
"""

import numpy as np

from jaxunlearn._validate import at_least, half_open_unit, non_negative
from jaxunlearn.audit import design


def null_levels(rng: np.random.Generator, shape: int | tuple[int, ...], *, epsilon: float, delta: float) -> np.ndarray:
    """Draws alpha with Pr[alpha <= x] = T(x), the smallest p-values that (epsilon, delta) allows.

    Args:
        rng: Source of randomness.
        shape: Shape of the draw.
        epsilon: The mechanism's epsilon, >= 0.
        delta: The mechanism's delta in [0, 1).

    Returns:
        Values in [0, 1); exactly 0 with probability delta.

    Raises:
        InputError: epsilon or delta is out of range.
    """
    non_negative(epsilon=epsilon)
    half_open_unit(delta=delta)
    u = rng.random(shape)
    kept = (u - delta) / (1 - delta)  # uniform, given that the revealing event did not happen
    corner = 1 / (1 + np.exp(-epsilon))  # mass of the steep part
    with np.errstate(over="ignore"):
        steep = kept * np.exp(-epsilon)
        flat = 1 - (1 - kept) * np.exp(epsilon)
    return np.where(u < delta, 0.0, (1 - delta) * np.where(kept < corner, steep, flat))


def draw_log_p_values(
    rng: np.random.Generator, shape: int | tuple[int, ...], *, m: int, epsilon: float, delta: float = 0.0
) -> np.ndarray:
    """Log p-values of the least favourable mechanism, at least -log |S_m|.

    On a large S_m this lattice is as good as continuous; for a small one use ``draw_ranks``.
    """
    alpha = null_levels(rng, shape, epsilon=epsilon, delta=delta)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(alpha), -design.log_support(m))


def draw_ranks(
    rng: np.random.Generator, shape: int | tuple[int, ...], *, support: int, epsilon: float, delta: float = 0.0
) -> np.ndarray:
    """Ranks in 1..support of the true vector under the least favourable mechanism."""
    at_least(2, support=support)
    alpha = null_levels(rng, shape, epsilon=epsilon, delta=delta)
    return np.clip(np.ceil(alpha * support), 1, support).astype(np.int64)


def draw_overlaps(
    rng: np.random.Generator, shape: int | tuple[int, ...], *, m: int, r: int, epsilon: float, delta: float = 0.0
) -> np.ndarray:
    """Overlaps in 0..r under the least favourable mechanism: the largest v whose null tail a_v is at least alpha."""
    tail = np.exp(design.log_overlap_tail(m, r))
    alpha = null_levels(rng, shape, epsilon=epsilon, delta=delta)
    reached = np.searchsorted(tail[::-1], alpha, side="left")  # entries of the increasing tail that are below alpha
    return np.where(alpha <= 0, r, r - np.minimum(reached, r)).astype(np.int64)


def draw_signs(rng: np.random.Generator, runs: int, m: int) -> np.ndarray:
    """Independent uniform balanced sign vectors, [runs, m] int8."""
    at_least(1, runs=runs)
    at_least(2, m=m)
    order = rng.random((runs, m)).argsort(axis=1)
    return np.where(order < m // 2, 1, -1).astype(np.int8)
