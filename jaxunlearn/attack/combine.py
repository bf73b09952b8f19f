"""Several scores per example into one log-likelihood ratio per batch, fitted on calibration runs alone.

An attack here is a function ``(calibration [K, n, m, B], signs [n, m], scores [K, L, m, B]) -> llr [L, m]``: K signals of n
calibration runs with their signs, and of L runs to attack. It never sees the signs of the runs that it attacks. NumPy and
scikit-learn, no JAX.
"""

from collections.abc import Callable

import numpy as np

from jaxunlearn._validate import at_least, one_of, require
from jaxunlearn.attack import likelihood

Attack = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

ATTACKS = ("gaussian", "multivariate", "stacked")
FOLDS = 10
CONFIDENT = 8.0
"""Nats at which a single signal's ratio is cut before it is combined: a few absurd ones would rule the classifier."""


def make_attack(kind: str, variance: str) -> Attack:
    """The attack of a name.

    Args:
        kind: "gaussian" (the first signal alone), "multivariate" (one Gaussian over the signals of an example; with
            variance "batch" or "full" over those of all examples of the batch or of the run) or "stacked" (logistic
            regression over the signals' ratios).
        variance: One of ``likelihood.VARIANCES``; for "multivariate" pooled, batch or full.

    Raises:
        InputError: No such attack, or no such variance for it.
    """
    one_of("attack", kind, ATTACKS)
    one_of("variance", variance, likelihood.VARIANCES)
    if kind == "multivariate":
        require(
            variance in ("pooled", "batch", "full"),
            f"Expected variance='pooled', 'batch' or 'full' for attack='multivariate', got {variance!r}.",
        )
        return lambda *arrays: _multivariate(*arrays, variance=variance)
    function = _gaussian if kind == "gaussian" else _stacked
    return lambda *arrays: function(*arrays, variance=variance)


def _gaussian(calibration: np.ndarray, signs: np.ndarray, scores: np.ndarray, *, variance: str) -> np.ndarray:
    fit = likelihood.fit_batchwise(calibration[0], signs, variance=variance)
    return likelihood.batchwise_llr(fit, scores[0])


def _multivariate(calibration: np.ndarray, signs: np.ndarray, scores: np.ndarray, *, variance: str) -> np.ndarray:
    """The signals of an example are scores that share its sign, so they form a batch, or enlarge the one it is in."""
    m, size = calibration.shape[2:]
    calibration, scores = np.moveaxis(calibration, 0, -1), np.moveaxis(scores, 0, -1)  # [runs, m, B, K]
    if variance == "pooled":
        calibration, scores = (a.reshape(a.shape[0], m * size, -1) for a in (calibration, scores))
        fit = likelihood.fit_batchwise(calibration, np.repeat(signs, size, axis=1), variance="batch")
        return likelihood.batchwise_llr(fit, scores).reshape(-1, m, size).sum(axis=-1)
    calibration, scores = (a.reshape(a.shape[0], m, -1) for a in (calibration, scores))
    fit = likelihood.fit_batchwise(calibration, signs, variance=variance)
    return likelihood.batchwise_llr(fit, scores)


def _stacked(calibration: np.ndarray, signs: np.ndarray, scores: np.ndarray, *, variance: str) -> np.ndarray:
    """One classifier for all batches; it learns from ratios of runs that their Gaussians were not fitted on."""
    from sklearn.linear_model import LogisticRegression

    def ratios(calibration: np.ndarray, signs: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """[L, m, K], cut."""
        parts = [_gaussian(c[None], signs, s[None], variance=variance) for c, s in zip(calibration, scores)]
        return np.clip(np.stack(parts, axis=-1), -CONFIDENT, CONFIDENT)

    features = cross_fit(ratios, calibration, signs)
    classifier = LogisticRegression().fit(features.reshape(-1, features.shape[-1]), signs.reshape(-1))
    # Without the intercept: where no signal says anything, the ratio is exactly 0.
    return ratios(calibration, signs, scores) @ classifier.coef_[0]


def cross_fit(attack: Attack, calibration: np.ndarray, signs: np.ndarray, *, folds: int = FOLDS) -> np.ndarray:
    """Attacks every calibration run with a fit on runs of other folds.

    Args:
        attack: The attack.
        calibration: [K, n, m, B] scores.
        signs: [n, m].
        folds: Number of folds, >= 2, at most n are made; run i is in fold i modulo folds.

    Returns:
        [n, m] ratios (or whatever trailing axes ``attack`` gives).

    Raises:
        InputError: Without one of the folds some example has no score with or without its batch.
    """
    at_least(2, folds=folds)
    fold = np.arange(signs.shape[0]) % min(folds, signs.shape[0])
    parts = {i: attack(calibration[:, fold != i], signs[fold != i], calibration[:, fold == i]) for i in np.unique(fold)}
    out = np.empty((signs.shape[0], *parts[0].shape[1:]))
    for i, part in parts.items():
        out[fold == i] = part
    return out


def check_folds(signs: np.ndarray, *, folds: int = FOLDS, depth: int = 1) -> None:
    """Refuses calibration signs with which ``cross_fit`` would fail; needs no scores, so it can come before training.

    Args:
        signs: [n, m].
        folds: As in ``cross_fit``.
        depth: 2 if the attack that is cross-fitted cross-fits within the runs it is given, as "stacked" does.

    Raises:
        InputError: Without one of the folds some batch is in all runs or in none.
    """
    if depth > 1:
        outer = np.arange(signs.shape[0]) % min(folds, signs.shape[0])
        for i in np.unique(outer):
            check_folds(signs[outer != i], folds=folds, depth=depth - 1)
        return
    fold = np.arange(signs.shape[0]) % min(folds, signs.shape[0])
    plus = np.stack([(signs[fold != i] > 0).mean(axis=0) for i in np.unique(fold)])
    require(
        bool(((plus > 0) & (plus < 1)).all()),
        "Expected every candidate batch to be in some of the calibration runs and not in others, also after a tenth of them "
        "is held out for cross-fitting; use more calibration_runs, or attack='gaussian'.",
    )
