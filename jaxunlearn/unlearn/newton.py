"""Unlearning of convex losses: the perturbed Newton step, and output perturbation.

"Remember What You Want to Forget" (Sekhari et al., 2021, arXiv:2103.03279), Algorithm 1: from the minimiser w of the mean
loss over n examples, one Newton step on the retain set removes m of them,

    w_bar = w + H_hat^-1 sum_U grad / (n - m),      H_hat = (n H - sum_U hess) / (n - m),

and Gaussian noise hides what the step leaves (``certificates.newton_bound``). The losses are those of "Auditing of
Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898), appendices H and I.

These problems have one or two parameters, and what the step leaves is some 1e-5 of the bound. So this is NumPy in float64
on the host, and importing it loads no JAX.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit

from jaxunlearn._validate import InputError, non_negative, positive, require, shape

ITERATIONS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A convex loss of single examples.

    Attributes:
        gradient: (w [d], examples [n, k]) -> [n, d].
        hessian: The same -> [n, d, d].
    """

    gradient: Callable[[np.ndarray, np.ndarray], np.ndarray]
    hessian: Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """What Lemma 3 of Sekhari et al. assumes of every example's loss.

    Attributes:
        strong_convexity: mu.
        lipschitz: L, of the loss itself.
        hessian_lipschitz: M.
    """

    strong_convexity: float
    lipschitz: float
    hessian_lipschitz: float


def cubic(quadratic: float, third: float) -> Loss:
    """The cubic loss lambda0 w^2 / 2 + M w^3 / 6 - z w of one weight (appendix H.2, equation 18).

    Args:
        quadratic: lambda0, > 0.
        third: M, >= 0.

    Returns:
        The loss; an example is [z].
    """
    positive(quadratic=quadratic)
    non_negative(third=third)

    def gradient(w, z):
        return quadratic * w[0] + third / 2 * w[0] ** 2 - z[:, :1]

    def hessian(w, z):
        return np.full((z.shape[0], 1, 1), quadratic + third * w[0])

    return Loss(gradient=gradient, hessian=hessian)


def cubic_constants(quadratic: float, third: float, *, box: float, radius: float) -> Constants:
    """Constants of the cubic loss for |w| <= B and |z| <= R: mu = lambda0 - M B, L = lambda0 B + M B^2 / 2 + R.

    Raises:
        InputError: lambda0 <= M B, so that the loss is not strongly convex on the box.
    """
    positive(quadratic=quadratic, box=box)
    non_negative(third=third, radius=radius)
    require(
        quadratic > third * box,
        f"Expected quadratic={quadratic!r} > third * box = {third * box:.6g}, or the loss is not strongly convex on the box.",
    )
    lipschitz = quadratic * box + third / 2 * box**2 + radius
    return Constants(strong_convexity=quadratic - third * box, lipschitz=lipschitz, hessian_lipschitz=third)


def logistic(regularisation: float) -> Loss:
    """The logistic loss log(1 + exp(-y x . w)) + lambda |w|^2 / 2 (appendix H.4.2).

    Args:
        regularisation: lambda, > 0, of all weights; there is no intercept.

    Returns:
        The loss; an example is y x, features times the label -1 or +1.
    """
    positive(regularisation=regularisation)

    def gradient(w, z):
        return -expit(-z @ w)[:, None] * z + regularisation * w

    def hessian(w, z):
        margin = z @ w
        return (expit(margin) * expit(-margin))[:, None, None] * z[:, :, None] * z[
            :, None, :
        ] + regularisation * np.eye(w.size)

    return Loss(gradient=gradient, hessian=hessian)


def logistic_constants(regularisation: float, *, radius: float) -> Constants:
    """Constants of the logistic loss for |x| <= R, on a ball that holds every minimiser.

    mu = lambda, since the data part is flat far away. M = R^3 / (6 sqrt 3), R^3 times the largest slope of
    p (1 - p). Every minimiser has mean loss at most log 2, that of w = 0, so lambda |w|^2 / 2 <= log 2; its gradient
    vanishes, so lambda |w| <= R. On that ball L = R + min(R, sqrt(2 lambda log 2)).

    Args:
        regularisation: lambda, > 0.
        radius: R, norm of the largest example that may occur, > 0.
    """
    positive(regularisation=regularisation, radius=radius)
    return Constants(
        strong_convexity=regularisation,
        lipschitz=radius + min(radius, math.sqrt(2 * regularisation * math.log(2))),
        hessian_lipschitz=radius**3 / (6 * math.sqrt(3)),
    )


def minimise(loss: Loss, examples: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The minimiser of the mean loss, by Newton's method with step halving on the norm of the gradient.

    Args:
        loss: A strongly convex loss.
        examples: [n, k].
        start: [d] first weights.

    Returns:
        [d] float64, where the gradient is as small as rounding lets it be.

    Raises:
        InputError: No examples, or no minimum is found (the loss is not strongly convex where it went).
    """
    require(examples.ndim == 2 and examples.shape[0] > 0, f"Expected examples of shape [n, k], got {examples.shape}.")
    w = np.asarray(start, np.float64)
    slope = loss.gradient(w, examples).mean(axis=0)
    for _ in range(ITERATIONS):
        curvature = loss.hessian(w, examples).mean(axis=0)
        try:
            np.linalg.cholesky(curvature)
        except np.linalg.LinAlgError:
            break
        step, size = np.linalg.solve(curvature, slope), 1.0
        while size > 1e-3:
            flatter = loss.gradient(w - size * step, examples).mean(axis=0)
            if np.linalg.norm(flatter) <= (1 - size / 4) * np.linalg.norm(slope) and slope.any():
                break
            size /= 2
        else:
            # Near a minimum the step is rounding error; anywhere else a strongly convex loss grants some progress.
            if np.linalg.norm(step) <= 1e-9 * (1 + np.linalg.norm(w)):
                return w
            break
        w, slope = w - size * step, flatter
    raise InputError(
        f"Expected a strongly convex loss with a minimum, but Newton's method is at {w} without one; add regularisation."
    )


def newton_step(loss: Loss, w: np.ndarray, hessian: np.ndarray, forget: np.ndarray, size: int) -> np.ndarray:
    """Algorithm 1 of Sekhari et al. before its noise: removes the forget set by one Newton step on the retain set.

    Args:
        loss: The loss.
        w: [d] minimiser of the mean loss over all examples.
        hessian: [d, d] mean Hessian at w over all examples: what has to be stored beside w.
        forget: [m, k] examples to forget.
        size: n > m, all examples.

    Returns:
        [d] w_bar; exactly w for an empty forget set.

    Raises:
        InputError: Shapes do not match, or nothing would be left.
    """
    shape("hessian", hessian, (w.size, w.size), "[d, d]")
    m = forget.shape[0]
    require(m < size, f"Expected fewer forget examples than size={size!r}, got {m}.")
    curvature = (size * hessian - loss.hessian(w, forget).sum(axis=0)) / (size - m)
    return w + np.linalg.solve(curvature, loss.gradient(w, forget).sum(axis=0)) / (size - m)


def unlearn(
    loss: Loss, retain: np.ndarray, forget: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trains on everything, removes the forget set by a Newton step, and trains on the retain set for comparison.

    Args:
        loss: A strongly convex loss.
        retain: [n - m, k] examples.
        forget: [m, k] examples.
        start: [d] first weights.

    Returns:
        (trained, unlearned, retrained), each [d].
    """
    examples = np.concatenate([retain, forget])
    trained = minimise(loss, examples, start)
    hessian = loss.hessian(trained, examples).mean(axis=0)
    unlearned = newton_step(loss, trained, hessian, forget, examples.shape[0])
    return trained, unlearned, minimise(loss, retain, start)


def least_squares(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The minimiser of the mean squared error, without regulariser or intercept (appendix I.1).

    Args:
        x: [n, d] features of full column rank.
        y: [n] targets.

    Raises:
        InputError: The features do not determine the weights.
    """
    w, _, rank, _ = np.linalg.lstsq(x, y, rcond=None)
    require(rank == x.shape[1], f"Expected features of rank {x.shape[1]}, got {rank}; add examples.")
    return w


def project(w: np.ndarray, radius: float) -> np.ndarray:
    """The nearest point of the centred l2 ball of ``radius`` > 0 (the first half of output perturbation)."""
    positive(radius=radius)
    norm = float(np.linalg.norm(w))
    return w if norm <= radius else w * (radius / norm)
