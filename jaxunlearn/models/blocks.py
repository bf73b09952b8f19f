"""A batch in blocks of whole images, so that what a block needs on the way stays in a core's cache."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

BLOCK_PIXELS = 2048
"""Pixels in a block; measured on a core with 1 MB of second-level cache, flat from 1024 to 4096."""


def images_of(x: Float[Array, "b h w c"]) -> int:
    """Images that make a block."""
    batch, height, width, _ = x.shape
    return min(batch, max(1, BLOCK_PIXELS // (height * width)))


def map_images(fn: Callable[..., Array], *arrays: Float[Array, "b ..."] | None, size: int) -> Float[Array, "b ..."]:
    """``fn(*arrays)`` for a function that treats images apart, ``size`` images at a time; absent arrays stay None."""
    batch = jax.tree.leaves(arrays)[0].shape[0]
    if size == batch:
        return fn(*arrays)

    def step(i, y):
        start = jnp.minimum(i * size, batch - size)  # the last block may do some images again
        some = jax.tree.map(lambda part: lax.dynamic_slice_in_dim(part, start, size), arrays)
        return lax.dynamic_update_slice_in_dim(y, fn(*some), start, 0)

    out = jax.eval_shape(fn, *arrays)
    return lax.fori_loop(0, -(-batch // size), step, jnp.zeros(out.shape, out.dtype))


def sum_images(
    fn: Callable[[Array, Array], Any], x: Float[Array, "b ..."], dy: Float[Array, "b ..."], size: int
) -> Any:
    """``fn(x, dy)`` for a function that sums over images, ``size`` images at a time."""
    batch = x.shape[0]

    def step(i, total):
        return total + fn(*(lax.dynamic_slice_in_dim(part, i * size, size) for part in (x, dy)))

    total = fn(x[:size], dy[:size])
    if batch > size:
        total = lax.fori_loop(1, batch // size, step, total)
    left = batch % size
    return total + fn(x[-left:], dy[-left:]) if left else total
