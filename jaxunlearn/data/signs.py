"""Balanced sign vectors: which candidate batches are in which run.

S_m holds the vectors of m signs with as many +1 as -1, and one extra -1 if m is odd (audit paper, section 4). +1 = the
candidate batch is trained on and then unlearned, -1 = the run never sees it.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int8, PRNGKeyArray

from jaxunlearn import _validate


def balanced_signs(key: PRNGKeyArray, m: int) -> Int8[Array, " m"]:
    """One uniform draw from S_m.

    Args:
        key: Typed PRNG key.
        m: Number of candidate batches, >= 2.

    Returns:
        [m] int8 in {-1, +1} with floor(m / 2) entries +1.

    Raises:
        InputError: m < 2.
    """
    _validate.at_least(2, m=m)
    ordered = jnp.where(jnp.arange(m) < m // 2, 1, -1).astype(jnp.int8)
    return jax.random.permutation(key, ordered)


def designed_signs(m: int, repeats: int) -> np.ndarray:
    """Every vector of S_m ``repeats`` times, for calibrating the joint predictor; never for evaluation runs.

    Args:
        m: Number of candidate batches, small enough to enumerate.
        repeats: Runs per vector (the paper's Gamma), >= 1.

    Returns:
        [C(m, floor(m/2)) * repeats, m] int8; run i holds vector i % C(m, floor(m/2)) of
        ``all_signs``.
    """
    _validate.at_least(1, repeats=repeats)
    return np.tile(all_signs(m), (repeats, 1))


def spread_signs(key: PRNGKeyArray, m: int, runs: int) -> np.ndarray:
    """Vectors of S_m that use every batch as often as any other, up to one; for warm-up runs, never for evaluation.

    Each run takes the batches that the runs before it used least, ties at random: for even m every second vector is the
    opposite of the one before. Two runs (three for odd m) show every batch on both sides.

    Args:
        key: Typed PRNG key.
        m: Number of candidate batches, >= 2.
        runs: Number of vectors; the first ones do not depend on it.

    Returns:
        [runs, m] int8 in {-1, +1}.
    """
    _validate.at_least(2, m=m)
    used, table = np.zeros(m, np.int64), np.full((runs, m), -1, np.int8)
    for run in range(runs):
        ties = np.asarray(jax.random.permutation(jax.random.fold_in(key, run), m))
        chosen = np.lexsort((ties, used))[: m // 2]
        table[run, chosen] = 1
        used[chosen] += 1
    return table


def all_signs(m: int) -> np.ndarray:
    """[C(m, floor(m/2)), m] int8: S_m in lexicographic order of the positions of +1."""
    positions = list(itertools.combinations(range(m), m // 2))
    table = np.full((len(positions), m), -1, np.int8)
    for row, chosen in enumerate(positions):
        table[row, list(chosen)] = 1
    return table
