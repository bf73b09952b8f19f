"""How alike two models represent the same examples: linear centred kernel alignment (CKA). On the host, no JAX.

CKA(X, Y) = HSIC(X, Y) / sqrt(HSIC(X, X) HSIC(Y, Y)) with linear kernels (Kornblith et al., 2019, arXiv:1905.00414). The
biased estimate is far from 0 for representations that have nothing to do with each other wherever the width is not small
beside the number of examples (independent normal ones: .98 at 50 examples of width 3072), so the debiased one is the
default: HSIC_1 of Song et al. (2012, JMLR 13), as in Nguyen et al. (2021, arXiv:2010.15327). It is about 0 for
independent representations, may be negative, and needs 4 examples.

Three ways to the same number, all in float64: whole arrays (``linear_cka``, ``cka_by_layer``); batches that come once and are
not kept (``gather``, ``cka_of_moments``), exact; and sums over minibatches (``minibatch_cka``), unbiased sums.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from jaxunlearn._validate import InputError, one_of, require

Estimator = Literal["debiased", "biased"]
LEAST = 4  # examples that HSIC_1 needs


class Moments(NamedTuple):
    """Sums over n examples of x [d] and y [e] after a shift, enough for CKA without keeping an example.

    Attributes:
        n: Examples.
        shift: [d], [e]: what is taken off first, the means of the first batch. CKA does not depend on it; precision does.
        sums: [d], [e]: sums of x and of y.
        products: [d, d], [d, e], [e, e]: sums of x x', x y', y y'.
        norms: sums of |x|^2 and |y|^2.
        norm_products: sums of |x|^4, |x|^2 |y|^2, |y|^4.
        weighted: [d], [d], [e], [e]: sums of |x|^2 x, |y|^2 x, |x|^2 y, |y|^2 y.
    """

    n: int
    shift: tuple[np.ndarray, np.ndarray]
    sums: tuple[np.ndarray, np.ndarray]
    products: tuple[np.ndarray, np.ndarray, np.ndarray]
    norms: tuple[float, float]
    norm_products: tuple[float, float, float]
    weighted: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _pair(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    require(
        x.ndim == y.ndim == 2 and len(x) == len(y) > 0,
        f"Expected x and y of shape (n > 0, width) of the same n examples, got {x.shape} and {y.shape}.",
    )
    finite = np.isfinite(x).all() and np.isfinite(y).all()
    require(bool(finite), "Expected finite representations, got NaN or infinity; the model has diverged.")
    return x, y


def _mean(x: np.ndarray) -> np.ndarray:
    """[d]; of equal rows exactly that row, so that what does not vary becomes 0."""
    return x[0] + (x - x[0]).mean(axis=0)


def gather(moments: Moments | None, x: np.ndarray, y: np.ndarray) -> Moments:
    """Adds a batch of any size to the moments.

    Args:
        moments: So far; None at the first batch.
        x: [b, d] the first model's representations.
        y: [b, e] the second model's, of the same examples.

    Returns:
        The moments with the batch.

    Raises:
        InputError: The arrays do not belong together, or hold NaN or infinity.
    """
    x, y = _pair(x, y)
    shift = moments.shift if moments else (_mean(x), _mean(y))
    x, y = x - shift[0], y - shift[1]
    p, q = (x**2).sum(axis=1), (y**2).sum(axis=1)
    batch = Moments(
        n=len(x),
        shift=shift,
        sums=(x.sum(axis=0), y.sum(axis=0)),
        products=(x.T @ x, x.T @ y, y.T @ y),
        norms=(float(p.sum()), float(q.sum())),
        norm_products=(float(p @ p), float(p @ q), float(q @ q)),
        weighted=(p @ x, q @ x, p @ y, q @ y),
    )
    if moments is None:
        return batch
    added = {
        name: tuple(a + b for a, b in zip(getattr(moments, name), getattr(batch, name)))
        for name in ("sums", "products", "norms", "norm_products", "weighted")
    }
    return Moments(n=moments.n + batch.n, shift=shift, **added)


def _hsic_1(n: int, traces: float, totals: tuple[float, float], both: float) -> float:
    """HSIC_1 of kernels K, L with zero diagonals, from sum(K * L), their entries' sums, and 1'K L 1."""
    return (traces + totals[0] * totals[1] / ((n - 1) * (n - 2)) - 2 * both / (n - 2)) / (n * (n - 3))


def _ratio(xy: float, xx: float, yy: float) -> float:
    if not (xx > 0 and yy > 0):
        raise InputError(
            f"Expected representations that vary, got HSIC of {xx:.3g} and {yy:.3g} with themselves; use more examples, or "
            "leave this layer out."
        )
    return float(xy / np.sqrt(xx * yy))


def _enough(n: int, estimator: Estimator) -> None:
    one_of("estimator", estimator, ("debiased", "biased"))
    least = LEAST if estimator == "debiased" else 2
    require(n >= least, f"Expected at least {least} examples for the {estimator} CKA, got {n}.")


def cka_of_moments(moments: Moments, *, estimator: Estimator = "debiased") -> float:
    """CKA of all examples that were gathered, exactly.

    Args:
        moments: From ``gather``.
        estimator: "debiased" or "biased".

    Returns:
        At most 1; 1 for representations that are equal up to rotation, scale and shift.

    Raises:
        InputError: There are too few examples, or a representation does not vary.
    """
    n = moments.n
    _enough(n, estimator)

    def hsic(i: int, j: int) -> float:
        product = moments.products[i + j]
        first, second = moments.sums[i], moments.sums[j]
        if estimator == "biased":
            return float(((product - np.outer(first, second) / n) ** 2).sum())
        crossed = moments.norm_products[i + j]
        total_i, total_j = (float(moments.sums[k] @ moments.sums[k]) - moments.norms[k] for k in (i, j))
        # 1'KL1 = s_x'C s_y - s_x'(X'n_y) - s_y'(Y'n_x) + n_x'n_y, with n the squared lengths.
        both = first @ product @ second - first @ moments.weighted[2 * i + j] - second @ moments.weighted[2 * j + i]
        return _hsic_1(n, float((product**2).sum()) - crossed, (total_i, total_j), float(both) + crossed)

    return _ratio(hsic(0, 1), hsic(0, 0), hsic(1, 1))


def _gram_hsics(x: np.ndarray, y: np.ndarray, estimator: Estimator) -> np.ndarray:
    """HSIC of (x, y), (x, x), (y, y) through the Gram matrices [n, n]."""
    n = len(x)
    grams = [a @ a.T for a in (x - _mean(x), y - _mean(y))]
    if estimator == "biased":
        return np.array([np.vdot(grams[i], grams[j]) for i, j in ((0, 1), (0, 0), (1, 1))])
    for gram in grams:
        np.fill_diagonal(gram, 0)
    rows = [gram.sum(axis=1) for gram in grams]
    return np.array(
        [
            _hsic_1(n, float(np.vdot(grams[i], grams[j])), (rows[i].sum(), rows[j].sum()), rows[i] @ rows[j])
            for i, j in ((0, 1), (0, 0), (1, 1))
        ]
    )


def standardised(x: np.ndarray) -> np.ndarray:
    """[n, d] with mean 0 and standard deviation 1 in every dimension; dimensions that do not vary become 0."""
    centred = x - _mean(x)
    deviation = centred.std(axis=0)
    return np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)


def linear_cka(x: np.ndarray, y: np.ndarray, *, estimator: Estimator = "debiased", standardise: bool = False) -> float:
    """CKA of two representations of the same n examples.

    Args:
        x: [n, d].
        y: [n, e].
        estimator: "debiased" or "biased".
        standardise: Give every dimension the same weight; otherwise one outsized dimension that both share may decide.

    Returns:
        At most 1; 1 for representations that are equal up to rotation, scale and shift.

    Raises:
        InputError: The arrays do not belong together, hold NaN or infinity, are too few, or do not vary.
    """
    x, y = _pair(x, y)
    _enough(len(x), estimator)
    if standardise:
        x, y = standardised(x), standardised(y)
    if len(x) <= min(x.shape[1], y.shape[1]):
        return _ratio(*_gram_hsics(x, y, estimator))
    return cka_of_moments(gather(None, x, y), estimator=estimator)


def cka_by_layer(
    first: np.ndarray, second: np.ndarray, *, estimator: Estimator = "debiased", standardise: bool = False
) -> np.ndarray:
    """``linear_cka`` of every layer of two models: [L, n, d], [L, n, e] -> [L]. Say n beside it: it means little without.

    Raises:
        InputError: As for ``linear_cka``; or the numbers of layers differ.
    """
    require(len(first) == len(second), f"Expected as many layers in both, got {len(first)} and {len(second)}.")
    return np.array([linear_cka(x, y, estimator=estimator, standardise=standardise) for x, y in zip(first, second)])


def minibatch_cka(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Debiased CKA from HSIC_1 of minibatches, summed before one division (Nguyen et al., 2021).

    A mean of the batches' own biased CKA would be far too high.

    Args:
        batches: Pairs [b, d], [b, e] of the same examples, each with b >= 4; leave a shorter last one out.

    Returns:
        At most 1.

    Raises:
        InputError: There is no batch, one is too short, or a representation does not vary.
    """
    total = np.zeros(3)
    for x, y in batches:
        x, y = _pair(x, y)
        _enough(len(x), "debiased")
        total += _gram_hsics(x, y, "debiased")
    require(bool(total.any()), "Expected batches of representations that vary, got none.")
    return _ratio(*total)


def scored_states(states: np.ndarray, labels: np.ndarray, *, skip_first: bool = True) -> np.ndarray:
    """The states of single scored tokens, as examples for CKA by tokens.

    Args:
        states: [..., b, T, d] hidden states.
        labels: [b, T], negative where a token is not scored.
        skip_first: Leave the first position out, where models tend to park outsized states that lift CKA.

    Returns:
        [..., N, d] for the N scored tokens, in order.

    Raises:
        InputError: The shapes do not belong together.
    """
    states, chosen = np.asarray(states), np.asarray(labels) >= 0
    require(
        chosen.ndim == 2 and states.ndim >= 3 and states.shape[-3:-1] == chosen.shape,
        f"Expected states (..., b, T, d) and labels (b, T), got {states.shape} and {np.shape(labels)}.",
    )
    if skip_first:
        chosen[:, 0] = False
    return states[..., chosen, :]
