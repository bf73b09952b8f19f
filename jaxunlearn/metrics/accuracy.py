"""Accuracy."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def accuracy(
    logits: Float[Array, "n classes"], labels: Int[Array, " n"], weight: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Share of examples whose label has the largest logit, in [0, 1]; ties go to the smaller label.

    Args:
        logits: Unnormalised log-probabilities.
        labels: Integer labels.
        weight: 1 for the examples that count, 0 for the others; None counts all.
    """
    correct = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    if weight is None:
        return jnp.mean(correct)
    return jnp.sum(correct * weight) / jnp.maximum(jnp.sum(weight), 1.0)
