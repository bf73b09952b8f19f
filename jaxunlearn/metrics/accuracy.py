"""Accuracy."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def correct(logits: Float[Array, "n *t classes"], labels: Int[Array, "n *t"]) -> Float[Array, " n"]:
    """1 where the label has the largest logit, else 0; of a sequence, the share of its positions.

    Ties go to the smaller label.
    """
    hits = (jnp.argmax(logits, axis=-1) == labels).astype(jnp.float32)
    return hits.reshape(hits.shape[0], -1).mean(axis=1)


def accuracy(
    logits: Float[Array, "n *t classes"], labels: Int[Array, "n *t"], weight: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    """Mean of ``correct`` over the examples, in [0, 1].

    Args:
        logits: Unnormalised log-probabilities.
        labels: Integer labels.
        weight: 1 for the examples that count, 0 for the others; None counts all.
    """
    hits = correct(logits, labels)
    return jnp.mean(hits) if weight is None else weighted_mean(hits, weight)


def weighted_mean(values: Float[Array, " n"], weight: Float[Array, " n"]) -> Float[Array, ""]:
    """sum(w v) / sum(w); 0 where all weights are 0."""
    return jnp.sum(values * weight) / jnp.maximum(jnp.sum(weight), 1.0)
