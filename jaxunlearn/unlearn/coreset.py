"""Core-sets: the few examples of a forget set whose unlearning is to carry the others along. On the host, no JAX.

Association-aware selection ("Unveiling Ripple Effects and Shallow Forgetting in Privacy Unlearning", arXiv:2604.22076,
section 4.2) takes the top k% by AS, the inner product of an example's gradient with the mean gradient of the forget set. That
product holds the example's own part, ||g||^2 / n, so that large gradients choose themselves; scores that leave it out
(``metrics.association.leave_one_out``) can be handed in as well. Its control is a random set of the same size.
"""

from typing import Literal

import numpy as np

from jaxunlearn._validate import not_empty, one_of, require


def core_size(n: int, share: float) -> int:
    """How many of n examples a share is: rounded down, at least 1; 820 of 4,103 at 20%, as in the paper's tables.

    Args:
        n: Examples, >= 1.
        share: In (0, 1].

    Raises:
        InputError: There are no examples, or the share is out of range.
    """
    require(n >= 1, f"Expected n={n!r} >= 1 examples to choose from.")
    require(0 < share <= 1, f"Expected share={share!r} inside (0, 1].")
    return max(1, int(np.floor(n * share + 1e-9)))


def core_set(scores: np.ndarray, share: float, *, order: Literal["highest", "lowest"] = "highest") -> np.ndarray:
    """The rows of the examples with the highest association.

    Args:
        scores: [n] AS of every example of the forget set.
        share: How many of them, in (0, 1]; see ``core_size``.
        order: "highest" as in the paper, or "lowest" for the opposite choice, a second control.

    Returns:
        [k] rows, ascending; of equal scores the smaller row goes first.

    Raises:
        InputError: There are no scores, one is not finite, or an option is out of range.
    """
    scores = np.asarray(scores, np.float64)
    require(scores.ndim == 1, f"Expected scores of shape (n,), got {scores.shape}.")
    not_empty("scores", scores)
    require(bool(np.isfinite(scores).all()), "Expected finite scores; the model's gradients have overflown.")
    one_of("order", order, ("highest", "lowest"))
    ranked = np.argsort(-scores if order == "highest" else scores, kind="stable")
    return np.sort(ranked[: core_size(len(scores), share)])


def random_set(rng: np.random.Generator, n: int, share: float) -> np.ndarray:
    """As many rows of n as ``core_set`` would choose, uniformly without replacement; ascending.

    Raises:
        InputError: There is nothing to choose from, or the share is out of range.
    """
    return np.sort(rng.choice(n, core_size(n, share), replace=False))
