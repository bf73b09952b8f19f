"""Gaussian likelihood attacks on scores: batchwise ratios and joint sign-vector likelihoods.

Sections 5 and A of "Auditing of Unlearning Algorithms" (Sarmasarkar et al., 2026, arXiv:2607.05898), in the spirit of
LiRA (Carlini et al., 2022, arXiv:2112.03570). Arrays in, log-likelihoods out, NumPy in float64; models stay elsewhere.
Scores: higher = more likely still in the model.

The Gaussian model is a choice of the attack only: the bounds are valid for any attack that does not see the evaluation
runs' sign vectors.
"""

import dataclasses
from typing import Literal, get_args

import numpy as np
from scipy.special import digamma, polygamma

from jaxunlearn._validate import InputError, at_least, one_of, positive, require
from jaxunlearn.attack.correlation import Correlations, shrunken_correlations

Variance = Literal["pooled", "per_example", "shrunken", "batch", "full"]
VARIANCES: tuple[str, ...] = get_args(Variance)
FLOOR = 1e-10
SWEEPS = 10
"""Passes over the unknown signs of the other batches; the ratios move by less than a percent after five."""
FARTHEST = 1e6
"""Standard deviations beyond which a score is taken for that far, so that products stay finite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchwiseFit:
    """Gaussians of every example's score with and without its batch.

    Attributes:
        mean_in: [m, B] mean score over calibration runs that unlearned the batch (S_j = +1).
        mean_out: [m, B] mean score over runs that never saw it (S_j = -1).
        var_in: [m, B] variance for S_j = +1, at least the floor.
        var_out: [m, B] variance for S_j = -1; equal to ``var_in`` unless variance is "per_example" or "shrunken".
        variance: How the variances were estimated.
        correlations: Between the scores of a batch ("batch": m groups of B) or of all batches ("full": one group of m * B).
    """

    mean_in: np.ndarray
    mean_out: np.ndarray
    var_in: np.ndarray
    var_out: np.ndarray
    variance: str
    correlations: Correlations | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointFit:
    """One Gaussian of every example's score for every sign vector.

    Attributes:
        mean: [M', m, B] mean score over the calibration runs with that sign vector.
        var: [M', m, B] variances, at least the floor.
        variance: How the variances were estimated.
        weights: [M', m, B] with "full": the inverse covariance of all scores times the mean's difference to that of the
            first sign vector. The log-likelihood against the first is then linear in the scores.
    """

    mean: np.ndarray
    var: np.ndarray
    variance: str
    weights: np.ndarray | None = None


def _moments(scores: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts, means and deviations (0 outside ``mask``) over axis 0 where ``mask``; constant columns give exactly 0."""
    counts = mask.sum(axis=0)
    # Centring on one observed score first makes identical scores cancel exactly and avoids large intermediate sums.
    first = np.take_along_axis(scores, mask.argmax(axis=0)[None], axis=0)[0]
    centred = np.where(mask, scores - first, 0.0)
    shift = centred.sum(axis=0) / np.maximum(counts, 1)
    return counts, first + shift, np.where(mask, centred - shift, 0.0)


def inverse_trigamma(value: float) -> float:
    """The x > 0 whose trigamma is ``value`` > 0, by Newton's method (Smyth, 2004, appendix).

    >>> round(inverse_trigamma(np.pi**2 / 6), 9)
    1.0
    """
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-12 * x:
            break
    return x


def prior_degrees(squares: np.ndarray, counts: np.ndarray) -> float:
    """Degrees of freedom of the prior that holds an example's variances on several sides together.

    The empirical Bayes model of Smyth (2004, Statistical Applications in Genetics and Molecular Biology 3(1)): a side's
    variance is drawn around the example's own with scaled inverse chi-squared law of d0 degrees of freedom, so that the
    sample log-variances of an example spread by trigamma(d/2) + trigamma(d0/2); d0 is found from the mean spread.

    Args:
        squares: [G, ...] sums of squared deviations on each of G sides.
        counts: [G, ...] runs on each side; examples with fewer than two, or with a constant side, are left out.

    Returns:
        d0 > 0; infinite where the variances differ by no more than chance.
    """
    used = ((counts >= 2) & (squares > 0)).all(axis=0)
    if not used.any():
        return np.inf
    half = (counts[:, used] - 1) / 2
    logs = np.log(squares[:, used] / (2 * half)) - digamma(half) + np.log(half)
    excess = float(logs.var(axis=0, ddof=1).mean() - polygamma(1, half).mean())
    return 2 * inverse_trigamma(excess) if excess > 1e-9 else np.inf


def _variances(squares: np.ndarray, counts: np.ndarray, variance: str, floor: float) -> np.ndarray:
    """[G, ...] variances of every example on each of G sides, at least ``floor``."""
    pooled = squares.sum(axis=0) / counts.sum(axis=0)
    prior = 0.0 if variance == "per_example" else prior_degrees(squares, counts) if variance == "shrunken" else np.inf
    var = pooled if np.isinf(prior) else (prior * pooled + squares) / (prior + counts)
    return np.broadcast_to(np.maximum(var, floor), squares.shape)


def _clean(scores: np.ndarray, ndim: int, axes: str) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray(scores, np.float64)
    require(scores.ndim == ndim and 0 not in scores.shape, f"Expected scores of shape {axes}, got {scores.shape}.")
    finite = np.isfinite(scores)
    return np.where(finite, scores, 0.0), finite


def fit_batchwise(
    scores: np.ndarray, signs: np.ndarray, *, variance: str = "pooled", floor: float = FLOOR
) -> BatchwiseFit:
    """Fits the in- and out-distribution of every example's score (Algorithm 2, calibration).

    Means are per example. The variance is, with ddof = 0 as in the paper, one of ``VARIANCES``:
      * "pooled" (default): one per example, from the deviations of IN and OUT runs together. The ratio is then linear
        in the score; on simulated scores (m = 4500, 50 runs, shift of half a standard deviation) the paper's bound
        rises from 36 to 46 and the evidence bound from 88 to 107 against separate variances;
      * "per_example": separate ones for IN and OUT, the paper's choice;
      * "shrunken": separate ones, drawn towards the pooled one as far as the data say (``prior_degrees``);
      * "batch": pooled, with the shrunken correlations between the scores of a batch;
      * "full": pooled, with the shrunken correlations between all scores of a run. What the other scores say about the
        noise of one is taken off; their own unknown signs are filled in by mean-field sweeps (``batchwise_llr``).

    Args:
        scores: [runs, m, B] calibration scores; non-finite ones are left out.
        signs: [runs, m] in {-1, +1}.
        variance: One of ``VARIANCES``.
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
        counts, mean, deviations = _moments(scores, mask)
        if (counts == 0).any():
            j, b = np.argwhere(counts == 0)[0]
            raise InputError(
                f"Expected at least one finite {name} calibration score for every example, but batch {j}, example {b} "
                "has none; add calibration runs or leave the example out."
            )
        sides.append((counts, mean, deviations))
    (n_in, mean_in, dev_in), (n_out, mean_out, dev_out) = sides
    squares = np.stack([(dev_in**2).sum(axis=0), (dev_out**2).sum(axis=0)])
    var_in, var_out = _variances(squares, np.stack([n_in, n_out]), variance, floor)
    correlations = None
    if variance in ("batch", "full"):
        residuals = np.swapaxes(dev_in + dev_out, 0, 1)  # [m, runs, B]; every run is on one side
        if variance == "full":
            residuals = np.swapaxes(residuals, 0, 1).reshape(1, scores.shape[0], -1)
        correlations = shrunken_correlations(residuals)
    return BatchwiseFit(
        mean_in=mean_in, mean_out=mean_out, var_in=var_in, var_out=var_out, variance=variance, correlations=correlations
    )


def _log_density(scores: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Log N(scores; mean, var) without the constant."""
    return -0.5 * ((scores - mean) ** 2 / var + np.log(var))


def batchwise_llr(fit: BatchwiseFit, scores: np.ndarray) -> np.ndarray:
    """Lambda_j, the log-likelihood ratio of "batch j was in" against "never seen" (Algorithm 2, evaluation).

    With variance = "full" the ratio of batch j depends on the signs of the others, which nobody knows: each stands at its
    mean tanh(Lambda_k / 2) under the present ratios, and the ratios are computed anew, ``SWEEPS`` times (naive mean field
    with damping 1/2).

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
    if fit.correlations is not None:
        return _correlated_llr(fit, fit.correlations, scores, finite)
    with np.errstate(over="ignore", invalid="ignore"):
        terms = _log_density(scores, fit.mean_in, fit.var_in) - _log_density(scores, fit.mean_out, fit.var_out)
    llr = np.where(finite & np.isfinite(terms), terms, 0.0).sum(axis=-1)
    return np.where(np.isfinite(llr), llr, 0.0)


def _correlated_llr(
    fit: BatchwiseFit, correlations: Correlations, scores: np.ndarray, finite: np.ndarray
) -> np.ndarray:
    """[L, m] ratios under correlated scores; a non-finite score stands at the middle between its two means."""
    sd = np.sqrt(fit.var_in)
    effect = (fit.mean_in - fit.mean_out) / sd
    middle = np.where(finite, (scores - (fit.mean_in + fit.mean_out) / 2) / sd, 0.0)
    middle = np.clip(middle, -FARTHEST, FARTHEST)
    m, size = effect.shape
    if fit.variance == "batch":
        weights = correlations.solve(effect[:, :, None])[:, :, 0]
        return (weights * middle).sum(axis=-1)

    def solve(values: np.ndarray) -> np.ndarray:
        """The inverse correlations times each of [rows, m, B]."""
        return correlations.solve(values.reshape(1, -1, m * size).swapaxes(1, 2))[0].T.reshape(-1, m, size)

    own = _own_information(correlations, effect)
    llr = np.zeros(scores.shape[:2])
    for sweep in range(SWEEPS + 1):
        expected = np.tanh(llr / 2) / 2
        left = solve(middle - effect * expected[:, :, None])
        new = (effect * left).sum(axis=-1) + own * expected  # the batch's own sign is not known to itself
        llr = new if sweep == 0 else (llr + new) / 2
    return llr


def _own_information(correlations: Correlations, effect: np.ndarray) -> np.ndarray:
    """[m] the quadratic form of each batch's effect with its block of the inverse correlations of all m * B scores."""
    m, size = effect.shape
    if correlations.weight == 1:
        return (effect**2).sum(axis=1)
    z = np.sqrt(1 - correlations.weight) * correlations.residuals[0]
    diagonal = 1 - (z**2).sum(axis=0)
    gram = np.eye(z.shape[0]) + (z / diagonal) @ z.T
    seen = (z * (effect.reshape(-1) / diagonal)).reshape(-1, m, size).sum(axis=2)
    return (effect**2 / diagonal.reshape(m, size)).sum(axis=1) - (seen * np.linalg.solve(gram, seen)).sum(axis=0)


def fit_joint(scores: np.ndarray, *, variance: str = "pooled", floor: float = FLOOR) -> JointFit:
    """Fits every example's score under every sign vector (Algorithm 3, calibration).

    Args:
        scores: [M', runs, m, B] calibration scores; axis 0 in the order of ``audit.design.sign_vectors``. Non-finite
            ones are left out.
        variance: "pooled" (default: per example, one over all sign vectors), "per_example" (per example and sign
            vector, the paper's choice), "shrunken" (between the two) or "full" (pooled, with the shrunken correlations
            between all scores of a run).
        floor: Smallest variance, > 0.

    Raises:
        InputError: Wrong shape, or an example has no finite score under a sign vector; the message names all three.
    """
    one_of("variance", variance, VARIANCES)
    require(variance != "batch", "Expected another variance than 'batch' for joint likelihoods; use 'full'.")
    positive(floor=floor)
    scores, finite = _clean(scores, 4, "[M', runs, m, B]")
    at_least(2, vectors=scores.shape[0])
    counts, mean, deviations = _moments(np.swapaxes(scores, 0, 1), np.swapaxes(finite, 0, 1))
    if (counts == 0).any():
        v, j, b = np.argwhere(counts == 0)[0]
        raise InputError(
            "Expected at least one finite calibration score for every example under every sign vector, but sign "
            f"vector {v}, batch {j}, example {b} has none; add calibration runs or leave the example out."
        )
    var = _variances((deviations**2).sum(axis=0), counts, variance, floor)
    weights = None
    if variance == "full":
        correlations = shrunken_correlations(deviations.reshape(1, -1, mean[0].size))
        sd = np.sqrt(var[0])
        effects = ((mean - mean[0]) / sd).reshape(1, mean.shape[0], -1)
        weights = correlations.solve(np.swapaxes(effects, 1, 2))[0].T.reshape(mean.shape) / sd
    return JointFit(mean=mean, var=var, variance=variance, weights=weights)


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
            if fit.weights is None:
                terms = _log_density(score, fit.mean, fit.var)
            else:
                terms = fit.weights * (score - (fit.mean + fit.mean[0]) / 2)
        used = used & np.isfinite(terms).all(axis=0)
        table[row] = np.where(used, terms, 0.0).sum(axis=(1, 2))
    return np.where(np.isfinite(table), table, np.finfo(np.float64).min)


def _check_matches(actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    require(
        actual == expected, f"Expected scores of shape [L, m, B] with (m, B) = {expected} as in the fit, got {actual}."
    )
