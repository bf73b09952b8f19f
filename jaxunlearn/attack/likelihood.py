"""Gaussian likelihood attacks on scores: batchwise ratios and joint sign-vector likelihoods.

Sections 5 and A of "Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898), in the spirit of
LiRA (Carlini et al., 2022, arXiv:2112.03570). Arrays in, log-likelihoods out, NumPy in float64; models stay elsewhere.
Scores: higher = more likely still in the model.

The Gaussian model is a choice of the attack only: the bounds are valid for any attack that does not see the evaluation
runs' sign vectors.
"""

import dataclasses

import numpy as np

from jaxunlearn._validate import InputError, at_least, one_of, positive, require

VARIANCES = ("pooled", "per_example")
FLOOR = 1e-10


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchwiseFit:
    """Gaussians of every example's score with and without its batch.

    Attributes:
        mean_in: [m, B] mean score over calibration runs that unlearned the batch (S_j = +1).
        mean_out: [m, B] mean score over runs that never saw it (S_j = -1).
        var_in: [m, B] variance for S_j = +1, at least the floor.
        var_out: [m, B] variance for S_j = -1; equal to ``var_in`` unless variance = "per_example".
        variance: How the variances were estimated.
    """

    mean_in: np.ndarray
    mean_out: np.ndarray
    var_in: np.ndarray
    var_out: np.ndarray
    variance: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointFit:
    """One Gaussian of every example's score for every sign vector.

    Attributes:
        mean: [M', m, B] mean score over the calibration runs with that sign vector.
        var: [M', m, B] variances, at least the floor.
        variance: How the variances were estimated.
    """

    mean: np.ndarray
    var: np.ndarray
    variance: str


def _moments(scores: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, means and sums of squared deviations over axis 0 where ``mask``; constant columns give exactly 0."""
    counts = mask.sum(axis=0)
    # Centring on one observed score first makes identical scores cancel exactly and avoids large intermediate sums.
    first = np.take_along_axis(scores, mask.argmax(axis=0)[None], axis=0)[0]
    centred = np.where(mask, scores - first, 0.0)
    shift = centred.sum(axis=0) / np.maximum(counts, 1)
    squares = np.where(mask, (centred - shift) ** 2, 0.0).sum(axis=0)
    return counts, first + shift, squares


def _clean(scores: np.ndarray, ndim: int, axes: str) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray(scores, np.float64)
    require(scores.ndim == ndim and 0 not in scores.shape, f"Expected scores of shape {axes}, got {scores.shape}.")
    finite = np.isfinite(scores)
    return np.where(finite, scores, 0.0), finite


def fit_batchwise(
    scores: np.ndarray, signs: np.ndarray, *, variance: str = "pooled", floor: float = FLOOR
) -> BatchwiseFit:
    """Fits the in- and out-distribution of every example's score (Algorithm 2, calibration).

    Means are per example. The variance is, with ddof = 0 as in the paper,
      * "pooled" (default): one per example, from the deviations of IN and OUT runs together. The ratio is then linear
        in the score; on simulated scores (m = 4500, 50 runs, shift of half a standard deviation) the paper's bound
        rises from 36 to 46 and the evidence bound from 88 to 107 against separate variances;
      * "per_example": separate ones for IN and OUT, the paper's choice.

    Args:
        scores: [runs, m, B] calibration scores; non-finite ones are left out.
        signs: [runs, m] in {-1, +1}.
        variance: "pooled" or "per_example".
        floor: Smallest variance, > 0, in squared score units.

    Raises:
        InputError: Shapes differ, or an example has no finite score on one side; the message names batch and example.
    """
    one_of("variance", variance, VARIANCES)
    positive(floor=floor)
    scores, finite = _clean(scores, 3, "[runs, m, B]")
    signs = np.asarray(signs)
    require(signs.shape == scores.shape[:2], f"Expected signs of shape {scores.shape[:2]}, got {signs.shape}.")
    require(bool(np.isin(signs, (-1, 1)).all()), "Expected signs to hold only +1 and -1.")
    sides = []
    for name, sign in (("IN", 1), ("OUT", -1)):
        mask = finite & (signs == sign)[:, :, None]
        counts, mean, squares = _moments(scores, mask)
        if (counts == 0).any():
            j, b = np.argwhere(counts == 0)[0]
            raise InputError(
                f"Expected at least one finite {name} calibration score for every example, but batch {j}, example {b} "
                "has none; add calibration runs or leave the example out."
            )
        sides.append((counts, mean, squares))
    (n_in, mean_in, ss_in), (n_out, mean_out, ss_out) = sides
    if variance == "per_example":
        var_in, var_out = ss_in / n_in, ss_out / n_out
    else:
        var_in = (ss_in + ss_out) / (n_in + n_out)
        var_out = var_in
    var_in, var_out = np.maximum(var_in, floor), np.maximum(var_out, floor)
    return BatchwiseFit(mean_in=mean_in, mean_out=mean_out, var_in=var_in, var_out=var_out, variance=variance)


def _log_density(scores: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Log N(scores; mean, var) without the constant."""
    return -0.5 * ((scores - mean) ** 2 / var + np.log(var))


def batchwise_llr(fit: BatchwiseFit, scores: np.ndarray) -> np.ndarray:
    """Lambda_j, the log-likelihood ratio of "batch j was in" against "never seen" (Algorithm 2, evaluation).

    Args:
        fit: What ``fit_batchwise`` returned.
        scores: [L, m, B] scores of the runs to attack; a non-finite score adds 0.

    Returns:
        [L, m] in nats, finite; exactly 0 where the two fits coincide.

    Raises:
        InputError: The shape does not match the fit.
    """
    scores, finite = _clean(scores, 3, "[L, m, B]")
    _check_matches(scores.shape[1:], fit.mean_in.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        terms = _log_density(scores, fit.mean_in, fit.var_in) - _log_density(scores, fit.mean_out, fit.var_out)
    llr = np.where(finite & np.isfinite(terms), terms, 0.0).sum(axis=-1)
    return np.where(np.isfinite(llr), llr, 0.0)


def fit_joint(scores: np.ndarray, *, variance: str = "pooled", floor: float = FLOOR) -> JointFit:
    """Fits every example's score under every sign vector (Algorithm 3, calibration).

    Args:
        scores: [M', runs, m, B] calibration scores; axis 0 in the order of ``audit.design.sign_vectors``. Non-finite
            ones are left out.
        variance: "pooled" (default: per example, one over all sign vectors) or "per_example" (per example and sign
            vector, the paper's choice).
        floor: Smallest variance, > 0.

    Raises:
        InputError: Wrong shape, or an example has no finite score under a sign vector; the message names all three.
    """
    one_of("variance", variance, VARIANCES)
    positive(floor=floor)
    scores, finite = _clean(scores, 4, "[M', runs, m, B]")
    at_least(2, vectors=scores.shape[0])
    counts, mean, squares = _moments(np.swapaxes(scores, 0, 1), np.swapaxes(finite, 0, 1))
    if (counts == 0).any():
        v, j, b = np.argwhere(counts == 0)[0]
        raise InputError(
            "Expected at least one finite calibration score for every example under every sign vector, but sign "
            f"vector {v}, batch {j}, example {b} has none; add calibration runs or leave the example out."
        )
    if variance == "per_example":
        var = squares / counts
    else:
        var = squares.sum(axis=0) / counts.sum(axis=0)
    var = np.broadcast_to(np.maximum(var, floor), mean.shape)
    return JointFit(mean=mean, var=var, variance=variance)


def joint_log_likelihoods(fit: JointFit, scores: np.ndarray) -> np.ndarray:
    """log-likelihood of every sign vector (Algorithm 3, evaluation), up to a constant that all of them share.

    Args:
        fit: What ``fit_joint`` returned.
        scores: [L, m, B] scores of the runs to attack; a non-finite score is left out for all sign vectors.

    Returns:
        [L, M'] in nats, finite.

    Raises:
        InputError: The shape does not match the fit.
    """
    scores, finite = _clean(scores, 3, "[L, m, B]")
    _check_matches(scores.shape[1:], fit.mean.shape[1:])
    table = np.empty((scores.shape[0], fit.mean.shape[0]))
    for row, (score, used) in enumerate(zip(scores, finite)):
        with np.errstate(over="ignore", invalid="ignore"):
            terms = _log_density(score, fit.mean, fit.var)
        used = used & np.isfinite(terms).all(axis=0)
        table[row] = np.where(used, terms, 0.0).sum(axis=(1, 2))
    return np.where(np.isfinite(table), table, np.finfo(np.float64).min)


def _check_matches(actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    require(
        actual == expected, f"Expected scores of shape [L, m, B] with (m, B) = {expected} as in the fit, got {actual}."
    )
