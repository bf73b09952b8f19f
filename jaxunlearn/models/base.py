"""A flax module in, pure functions out."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxunlearn.types import Model


def from_module(module: nn.Module, input_shape: tuple[int, ...], dtype: Any = jnp.float32) -> Model:
    """Wraps a flax module that holds only parameters.

    Args:
        module: A ``flax.linen`` module called as ``module(x)``, without mutable collections.
        input_shape: Shape of one example, without the batch axis.
        dtype: Of the inputs; integer for models that look their inputs up.

    Returns:
        Pure ``init(key)`` and ``apply(params, x)``.
    """

    def init(key):
        return module.init(key, jnp.zeros((1, *input_shape), dtype))["params"]

    def apply(params, x) -> Any:
        return module.apply({"params": params}, x)

    return Model(init, apply)


def parameter_count(params) -> int:
    """Number of scalars in a pytree of arrays (or of shapes, from ``jax.eval_shape``)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
