"""Which runs an audit has: their sign vectors, roles and keys."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn.data import signs
from jaxunlearn.records import CALIBRATION, EVALUATION


@dataclasses.dataclass(frozen=True)
class RunTable:
    """All runs of an audit, evaluation runs first (in a sequential audit warm-up runs first, then in order of time).

    Attributes:
        signs: [R, m] int8; evaluation rows are independent and uniform, calibration rows may be designed.
        roles: [R] int8.
        indices: [R] int64, numbered within the role.
    """

    signs: np.ndarray
    roles: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return self.roles.shape[0]


@jax.jit
def run_keys(key: PRNGKeyArray, roles: np.ndarray, indices: np.ndarray) -> PRNGKeyArray:
    """[R] keys that depend on the run's role and number only: a rerun gets the same key, and no two runs share one."""

    def fold(role, index):
        return jax.random.fold_in(jax.random.fold_in(key, role), index)

    return jax.vmap(fold)(jnp.asarray(roles, jnp.uint32), jnp.asarray(indices, jnp.uint32))


def make_runs(key: PRNGKeyArray, *, m: int, evaluation: int, calibration: int, designed: bool) -> RunTable:
    """Draws the sign vectors.

    Args:
        key: Key of the signs.
        m: Candidate batches.
        evaluation: L, evaluation runs.
        calibration: Calibration runs; with ``designed`` per sign vector.
        designed: Calibrate every sign vector equally often (joint and pairwise predictors).
    """
    designed_rows = signs.designed_signs(m, calibration) if designed else None
    count = calibration if designed_rows is None else designed_rows.shape[0]
    roles = np.repeat(np.array([EVALUATION, CALIBRATION], np.int8), [evaluation, count])
    indices = np.concatenate([np.arange(evaluation), np.arange(count)])
    table = np.array(jax.vmap(lambda k: signs.balanced_signs(k, m))(run_keys(key, roles, indices)))
    if designed_rows is not None:
        table[evaluation:] = designed_rows
    return RunTable(table, roles, indices)


def make_sequential_runs(key: PRNGKeyArray, *, m: int, warmup: int, runs: int) -> RunTable:
    """Draws the sign vectors of a sequential audit: designed ones for the warm-up, independent ones from then on.

    Args:
        key: Key of the signs.
        m: Candidate batches.
        warmup: Runs that only teach the attack; their role is CALIBRATION.
        runs: Runs in all; the first ones do not depend on it.
    """
    count = max(runs - warmup, 0)
    roles = np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), [warmup, count])
    indices = np.concatenate([np.arange(warmup), np.arange(count)])
    drawn = np.array(jax.vmap(lambda k: signs.balanced_signs(k, m))(run_keys(key, roles, indices)))
    drawn[:warmup] = signs.spread_signs(jax.random.fold_in(key, CALIBRATION), m, warmup)
    return RunTable(drawn, roles, indices)
