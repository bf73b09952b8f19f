"""Static-shape index schedules: one shared order, each run its own members.

All runs of an audit share the shuffling order pi (audit paper, section 3.4): in every epoch one permutation of retain set
and pool together. A run's own order is that permutation with the absent rows taken out. Rows are gathered, never weighted by
zero: a zero-weighted row would still take a place in its batch and move all others.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray


def orders(key: PRNGKeyArray, epochs: int, n: int) -> np.ndarray:
    """[epochs, n] int32, one permutation of 0..n-1 per epoch; epoch e depends on (key, e) only, not on how many there are."""
    return np.array([order(key, epoch, n) for epoch in range(epochs)], np.int32).reshape(epochs, n)


@partial(jax.jit, static_argnums=2)
def order(key: PRNGKeyArray, epoch: int, n: int) -> Int[Array, " n"]:
    """The permutation of 0..n-1 of one epoch; compiled once, where all epochs at once would be compiled for each number."""
    return jax.random.permutation(jax.random.fold_in(key, epoch), n).astype(jnp.int32)


def compact(order: Int[Array, " n"], present: Bool[Array, " n"], size: int) -> Int[Array, " size"]:
    """The entries of ``order`` whose row is present, in the same order.

    Args:
        order: A permutation of row numbers.
        present: present[i] says whether row i belongs to the run.
        size: How many rows are present (static; equal for all runs because sign vectors are balanced).

    Returns:
        [size] row numbers.
    """
    keep = present[order]
    position = jnp.where(keep, jnp.cumsum(keep) - 1, size)  # absent rows aim past the end and are dropped
    return jnp.zeros(size, order.dtype).at[position].set(order, mode="drop")


def batches(
    rows: Int[Array, " size"], batch_size: int
) -> tuple[Int[Array, "steps batch"], Float[Array, "steps batch"]]:
    """Cuts an epoch into batches; the last one is padded with row 0 at weight 0.

    Returns:
        Row numbers and weights; the loss is sum(w * l) / sum(w), so the short batch counts as what it is.
    """
    size = rows.shape[0]
    steps = -(-size // batch_size)
    padding = steps * batch_size - size
    weight = jnp.concatenate([jnp.ones(size, jnp.float32), jnp.zeros(padding, jnp.float32)])
    rows = jnp.concatenate([rows, jnp.zeros(padding, rows.dtype)])
    return rows.reshape(steps, batch_size), weight.reshape(steps, batch_size)
