"""Distances between what two models say: what the mapping attack brings down."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn import _validate

Distance = Callable[[Any, Any], Float[Array, " b"]]
"""``(outputs [b, ...], target [b, ...]) -> [b]``: what the attack brings down; each by its own rows alone."""


def mean_over_rest(values: Float[Array, "b ..."]) -> Float[Array, " b"]:
    """The mean of each row."""
    return jnp.mean(values.reshape(values.shape[0], -1), axis=1)


def kl(outputs: Float[Array, "b classes"], target: Float[Array, "b classes"], temperature: float = 1.0) -> Array:
    """KL(p_target || p_outputs) in nats, of logits divided by ``temperature``; RUB's for classification.

    Cross-entropy with the target's probabilities differs by their entropy, which no input changes.
    """
    log_p, log_q = jax.nn.log_softmax(target / temperature), jax.nn.log_softmax(outputs / temperature)
    # A class of probability 0 adds nothing, even where both logarithms are -inf.
    return jnp.sum(jnp.where(log_p > -jnp.inf, jnp.exp(log_p) * (log_p - log_q), 0.0), axis=-1)


def reverse_kl(
    outputs: Float[Array, "b classes"], target: Float[Array, "b classes"], temperature: float = 1.0
) -> Array:
    """KL(p_outputs || p_target) in nats."""
    return kl(target, outputs, temperature)


def mse(outputs: Float[Array, "b ..."], target: Float[Array, "b ..."]) -> Float[Array, " b"]:
    """Mean squared difference of all outputs of an example; RUB's for image-to-image models."""
    return mean_over_rest(jnp.square(outputs - target))


def cross_entropy(outputs: Float[Array, "b classes"], target: Float[Array, "b classes"]) -> Float[Array, " b"]:
    """Cross-entropy in nats with the class that the target gives most (the first of equals)."""
    own = jnp.argmax(target, axis=-1)
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), own[:, None], axis=-1)[:, 0]


DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {"kl": kl, "reverse-kl": reverse_kl, "mse": mse, "cross-entropy": cross_entropy}
)
"""The distances that have a name."""


def distance_of(distance: str | Distance) -> Distance:
    """A distance by its name, or the callable itself.

    Raises:
        InputError: No distance has this name.
    """
    if not isinstance(distance, str):
        return distance
    _validate.one_of("distance", distance, DISTANCES)
    return DISTANCES[distance]
