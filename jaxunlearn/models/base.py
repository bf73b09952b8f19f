"""A flax module in, pure functions out."""

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxunlearn import _validate
from jaxunlearn.types import Model, Variables


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

    Losses, gradients of the parameters, the optimiser and BatchNorm's statistics stay float32 (Micikevicius et al., 2018).
    """

    def rounded(tree) -> Any:
        if isinstance(tree, Variables):
            return tree._replace(params=rounded(tree.params))
        return jax.tree.map(lambda a: a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)

    def apply(params, x):
        return model.apply(rounded(params), rounded(x)).astype(jnp.float32)

    in_training = model.train
    if in_training is None:
        return Model(model.init, apply)

    def train(params, x, weight):
        logits, moved = in_training(rounded(params), rounded(x), weight)
        return logits.astype(jnp.float32), params._replace(statistics=moved.statistics)

    return Model(model.init, apply, train)


def normalised(model: Model, mean: Sequence[float], std: Sequence[float]) -> Model:
    """The same model on images in [0, 1], in which attacks work: each channel less its mean and over its deviation first.

    Args:
        model: Takes normalised images [b, h, w, c].
        mean: Of each channel.
        std: Of each channel, > 0.

    Raises:
        InputError: ``mean`` and ``std`` differ in length, or a deviation is not positive.
    """
    _validate.require(len(mean) == len(std), f"Expected mean and std of one length, got {mean!r} and {std!r}.")
    for channel, value in enumerate(std):
        _validate.positive(**{f"std[{channel}]": value})

    def of(x):
        offset, factor = (jnp.asarray(v, x.dtype)[None, None, None, :] for v in (mean, [1 / s for s in std]))
        return (x - offset) * factor

    in_training = model.train
    return Model(
        model.init,
        lambda params, x: model.apply(params, of(x)),
        None if in_training is None else lambda params, x, weight: in_training(params, of(x), weight),
    )


def parameter_count(params) -> int:
    """Number of scalars in a pytree of arrays (or of shapes, from ``jax.eval_shape``)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
