"""Points of the convex audits: retain and forget sets placed so that forgetting is hard.

"Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898), appendices H.4 and I.2. NumPy only. The
link of appendix H.4.2 with the parameter zeta is not used there with the one that the paper takes, so it has no zeta here.
"""

import numpy as np

from jaxunlearn._validate import at_least, open_unit, positive, require


def cubic_points(*, retain_size: int, forget_size: int, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Retain points at 0 and forget points at -R, for the loss with the term -z w (appendix H.4.1).

    The forget points pull w towards -B (the paper says +B; by its equation 18 the gradient at z = -R is +R at w = 0).

    Returns:
        (retain [n - m, 1], forget [m, 1]).
    """
    at_least(1, retain_size=retain_size, forget_size=forget_size)
    positive(radius=radius)
    return np.zeros((retain_size, 1)), np.full((forget_size, 1), -float(radius))


def direction(rng: np.random.Generator, dimension: int) -> np.ndarray:
    """theta*, uniform on the unit sphere."""
    theta = rng.normal(size=dimension)
    return theta / np.linalg.norm(theta)


def boundary_points(
    rng: np.random.Generator, *, retain_size: int, forget_size: int, dimension: int, eta: float, forget_norm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian features with labels of a noisy half space, and forget points all in one place (appendix H.4.2).

    x ~ N(0, I / d); y = +1 with probability eta where x . theta* >= 0, else with 1 - eta. The forget points lie at
    x* = -sign(theta*) rho_f / sqrt(d) with label +1: divided by sqrt(d), so that rho_f is their norm, as the paper calls
    it. Retain points outside the ball of radius rho_f are drawn again, so that it bounds all examples.

    Args:
        rng: Source of randomness.
        retain_size: Retain points, >= 1.
        forget_size: Forget points, >= 1.
        dimension: d, >= 1.
        eta: Probability of the right label, in (0, 1).
        forget_norm: rho_f, >= 1.

    Returns:
        (retain [n - m, d], forget [m, d]), features times labels.
    """
    at_least(1, retain_size=retain_size, forget_size=forget_size, dimension=dimension)
    open_unit(eta=eta)
    positive(forget_norm=forget_norm)
    require(
        forget_norm >= 1, f"Expected forget_norm={forget_norm!r} >= 1, the root mean square norm of the retain points."
    )
    theta = direction(rng, dimension)
    x = rng.normal(size=(retain_size, dimension)) / np.sqrt(dimension)
    while (outside := np.linalg.norm(x, axis=1) > forget_norm).any():
        x[outside] = rng.normal(size=(int(outside.sum()), dimension)) / np.sqrt(dimension)
    right = rng.random(retain_size) < eta
    label = np.where((x @ theta >= 0) == right, 1.0, -1.0)
    place = -np.sign(theta) * forget_norm / np.sqrt(dimension)
    return x * label[:, None], np.tile(place, (forget_size, 1))


def regression_points(
    rng: np.random.Generator,
    *,
    retain_size: int,
    forget_size: int,
    dimension: int,
    slope: float,
    half_range: float,
    forget_norm: float,
    label_noise: float,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Linear regression whose forget set follows the opposite direction (appendix I.2).

    x ~ N(0, I / d) and y = clip(eta x . theta, -r, r) + noise, clipped to [-r, r] again; theta is a unit vector theta* for
    the retain set and -rho_f theta* for the forget set.

    Args:
        rng: Source of randomness.
        retain_size: Retain points, >= 1.
        forget_size: Forget points, >= 1.
        dimension: d, >= 1.
        slope: eta, > 0.
        half_range: r, > 0.
        forget_norm: rho_f, > 0.
        label_noise: Standard deviation of the noise on y, > 0.

    Returns:
        ((x, y) of the retain set, (x, y) of the forget set), x [n, d] and y [n].
    """
    at_least(1, retain_size=retain_size, forget_size=forget_size, dimension=dimension)
    positive(slope=slope, half_range=half_range, forget_norm=forget_norm, label_noise=label_noise)
    theta = direction(rng, dimension)

    def points(size: int, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(size, dimension)) / np.sqrt(dimension)
        y = np.clip(slope * (x @ along), -half_range, half_range) + label_noise * rng.normal(size=size)
        return x, np.clip(y, -half_range, half_range)

    return points(retain_size, theta), points(forget_size, -forget_norm * theta)
