"""Quantised weights as an attack: rounding can undo an update that is smaller than a step of the grid.

Zhang et al. (2025) found that four-bit weights bring back much of what language models were made to forget: unlearning with
a small learning rate moves few weights far enough to land on another grid point than the trained model's.
"""

import jax
import jax.numpy as jnp

from jaxunlearn import _validate
from jaxunlearn.types import Params


def quantise(params: Params, bits: int, block_of: Params) -> Params:
    """Rounds every matrix to the nearest point of a symmetric grid with one scale for each output column.

    The grid holds ``2 ** bits - 1`` points, -(2 ** (bits - 1) - 1) .. 2 ** (bits - 1) - 1 times the column's largest absolute
    value over 2 ** (bits - 1) - 1: round-to-nearest, absmax. Vectors (norms, biases) stay as they are, as is usual.

    Args:
        params: A pytree of arrays.
        bits: Of a weight, 2 to 16.
        block_of: ``LanguageModel.block_of`` of them, which says where the first axis is one of blocks: what has two more axes
            is a matrix [..., in, out].

    Returns:
        The rounded parameters in their own type: what a kernel with integer weights would compute with.

    Raises:
        InputError: ``bits`` is out of range.
    """
    _validate.require(2 <= bits <= 16, f"Expected bits={bits!r} in 2..16.")
    top = 2 ** (bits - 1) - 1

    def rounded(a, blocks):
        if a.ndim - (jnp.ndim(blocks) > 0) < 2 or not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        scale = jnp.max(jnp.abs(a), axis=-2, keepdims=True) / top
        return (jnp.round(a / jnp.where(scale > 0, scale, 1)) * scale).astype(a.dtype)

    return jax.tree.map(rounded, params, block_of)
