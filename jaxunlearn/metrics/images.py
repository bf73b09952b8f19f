"""How good generated images are, and how near to others. On the host in float64, no JAX."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxunlearn import _validate
from jaxunlearn._validate import require

_SUM = 1e-4  # by which a row of probabilities, which were float32, may miss 1


class Score(NamedTuple):
    """An Inception Score.

    Attributes:
        mean: Over the parts, in [1, C]; higher = surer and more varied predictions.
        sd: Over the parts (with n, as is usual), 0 of a single one.
    """

    mean: float
    sd: float


def inception_score(probabilities: Float[np.ndarray, "n C"], splits: int = 10) -> Score:
    """exp(mean KL(p(y | x) || mean of p(y | x))) of parts of a set of images (Salimans et al., 2016, arXiv:1606.03498).

    Args:
        probabilities: What a classifier says of each image, rows that sum to 1. The images should be in random order: parts
            are runs of neighbours.
        splits: Parts; each needs many images per class, or its score is too low.

    Returns:
        Mean and deviation over the parts.

    Raises:
        InputError: There are fewer images than parts, or rows are not probabilities.
    """
    p = np.asarray(probabilities, np.float64)
    _validate.shape("probabilities", p, (None, None), "images, classes")
    _validate.at_least(1, splits=splits)
    require(len(p) >= splits, f"Expected splits={splits} <= {len(p)}, the number of images; take fewer.")
    require(
        bool((p >= 0).all() and np.abs(p.sum(axis=1) - 1).max() <= _SUM),
        "Expected rows of probabilities to be >= 0 and to sum to 1; take the softmax of logits.",
    )
    p = p / p.sum(axis=1, keepdims=True)
    scores = []
    for part in np.array_split(p, splits):
        mean = part.mean(axis=0)
        terms = np.zeros_like(part)
        some = part > 0  # 0 log 0 = 0
        terms[some] = part[some] * np.log((part / np.where(mean > 0, mean, 1.0))[some])
        scores.append(np.exp(terms.sum(axis=1).mean()))
    return Score(float(np.mean(scores)), float(np.std(scores)))


def frechet_distance(features_a: Float[np.ndarray, "n d"], features_b: Float[np.ndarray, "m d"]) -> float:
    """The squared Fréchet distance of normal distributions fitted to two sets of features (FID; Heusel et al., 2017).

    |mean_a - mean_b|^2 + tr(A + B - 2 (A B)^(1/2)) with covariances A and B, over n - 1. Only singular values are taken, of a
    product of centred features, so that nothing complex can come up and fewer images than features do no harm; yet of few
    images any FID is too high, and compares with others of as many alone.

    Args:
        features_a: Of one set of images.
        features_b: Of another.

    Returns:
        >= 0; lower = more alike.

    Raises:
        InputError: Features differ in number or are not finite, or a set has fewer than two images.
    """
    a, b = (_features(name, value) for name, value in (("features_a", features_a), ("features_b", features_b)))
    require(
        a.shape[1] == b.shape[1],
        f"Expected equally many features, got {a.shape[1]} and {b.shape[1]}; take both from one network.",
    )
    roots = [_root_of_features(x) for x in (a, b)]
    return _distance(a.mean(axis=0), roots[0], b.mean(axis=0), roots[1])


def frechet_distance_of_moments(
    mean_a: Float[np.ndarray, " d"],
    covariance_a: Float[np.ndarray, "d d"],
    mean_b: Float[np.ndarray, " d"],
    covariance_b: Float[np.ndarray, "d d"],
) -> float:
    """The same of means and covariances, as published statistics of data sets are.

    Raises:
        InputError: Shapes do not fit, a covariance is not symmetric, or it has a clearly negative eigenvalue.
    """
    means, roots = [], []
    for name, mean, covariance in (("a", mean_a, covariance_a), ("b", mean_b, covariance_b)):
        mean, covariance = np.asarray(mean, np.float64), np.asarray(covariance, np.float64)
        d = len(np.atleast_1d(mean_a))
        _validate.shape(f"mean_{name}", mean, (d,))
        _validate.shape(f"covariance_{name}", covariance, (d, d))
        require(
            bool(np.isfinite(mean).all() and np.isfinite(covariance).all()),
            f"Expected finite mean_{name} and covariance_{name}.",
        )
        size = np.abs(covariance).max(initial=0.0)
        require(
            np.abs(covariance - covariance.T).max(initial=0.0) <= 1e-6 * size,
            f"Expected covariance_{name} to be symmetric; take that of np.cov(features, rowvar=False).",
        )
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        require(
            values.min(initial=0.0) >= -1e-6 * max(values.max(initial=0.0), 0.0),
            f"Expected covariance_{name} without negative eigenvalues, got {values.min():.3g}.",
        )
        means.append(mean)
        roots.append(vectors * np.sqrt(np.maximum(values, 0.0)))
    return _distance(means[0], roots[0], means[1], roots[1])


def _features(name: str, features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, np.float64)
    _validate.shape(name, features, (None, None), "images, features")
    require(len(features) >= 2, f"Expected {name} of at least two images, got {len(features)}.")
    require(bool(np.isfinite(features).all()), f"Expected {name} to be finite.")
    return features


def _root_of_features(features: np.ndarray) -> np.ndarray:
    """[d, k] R with R R^T the covariance, k no larger than need be."""
    centred = (features - features.mean(axis=0)) / np.sqrt(len(features) - 1)
    return centred.T if len(centred) <= centred.shape[1] else np.asarray(np.linalg.qr(centred, mode="r")).T


def _distance(mean_a: np.ndarray, root_a: np.ndarray, mean_b: np.ndarray, root_b: np.ndarray) -> float:
    """With A = R R^T and B = S S^T the eigenvalues of A B are the squared singular values of R^T S."""
    product = np.linalg.svd(root_a.T @ root_b, compute_uv=False).sum()
    traces = np.sum(root_a**2) + np.sum(root_b**2)
    return float(max(np.sum((mean_a - mean_b) ** 2) + traces - 2 * product, 0.0))


def l1(a: Float[np.ndarray, "n ..."], b: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, " n"]:
    """Mean absolute difference of two images, pair by pair, in units of their pixels; lower = more alike.

    Raises:
        InputError: The two differ in shape.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    require(a.shape == b.shape and a.ndim >= 2, f"Expected images of one shape [n, ...], got {a.shape} and {b.shape}.")
    return np.abs(a - b).mean(axis=tuple(range(1, a.ndim)))
