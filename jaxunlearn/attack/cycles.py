"""Searches whose iterates repeat: found as they run, by Brent's algorithm, many at once."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxunlearn.attack.descent import choose


class Watch(NamedTuple):
    """Brent's search for a cycle: one iterate is kept, until as many steps again have been compared with it."""

    kept: Array
    patience: Int[Array, " b"]
    waited: Int[Array, " b"]


def watch_from(at: Array) -> Watch:
    """A watch that has seen the first iterates alone."""
    one = jnp.ones(at.shape[0], jnp.int32)
    return Watch(at, one, jnp.zeros_like(one))


def _same(a: Array, b: Array) -> Bool[Array, " b"]:
    """Whether all bits of a row are equal."""
    bits = jnp.dtype(f"uint{8 * a.dtype.itemsize}")
    equal = lax.bitcast_convert_type(a, bits) == lax.bitcast_convert_type(b, bits)
    return jnp.all(equal.reshape(a.shape[0], -1), axis=1)


def look(watch: Watch, at: Array) -> tuple[Watch, Int[Array, " b"]]:
    """The watch after one more step, and the cycle's length where it was found, else 0."""
    waited = watch.waited + 1
    period = jnp.where(_same(at, watch.kept), waited, 0)
    move = waited == watch.patience
    watch = Watch(
        choose(move, at, watch.kept),
        jnp.where(move, 2 * watch.patience, watch.patience),
        jnp.where(move, 0, waited),
    )
    return watch, period
