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


def in_bfloat16(model: Model) -> Model:
    """The same model computed in bfloat16: float32 parameters and inputs are rounded on the way in, logits are float32.

    Losses, gradients of the parameters and the optimiser stay float32 (Micikevicius et al., 2018).
    """

    def rounded(tree):
        return jax.tree.map(lambda a: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)

    def apply(params, x):
        return model.apply(rounded(params), rounded(x)).astype(jnp.float32)

    return Model(model.init, apply)


def parameter_count(params) -> int:
    """Number of scalars in a pytree of arrays (or of shapes, from ``jax.eval_shape``)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
