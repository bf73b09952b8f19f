"""One run's loop over a phase: many steps, over as many epochs as they take, inside one compiled call."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import schedule
from jaxunlearn.types import Batch, ForgetRetain, Phase, State


class Examples(NamedTuple):
    """The examples that training and unlearning draw from, held once and shared by all runs.

    Attributes:
        x: [n, ...] inputs, the retain set first, then the m * B candidates batch by batch.
        y: [n] labels, of sequences [n, T].
    """

    x: Float[Array, "n ..."]
    y: Int[Array, "n ..."]


class Sizes(NamedTuple):
    """Static counts; equal for all runs because sign vectors are balanced.

    Attributes:
        retain: Examples in D_r.
        pool: Candidates, m * B.
        forget: Examples in D_f(S), floor(m / 2) * B.
    """

    retain: int
    pool: int
    forget: int

    def of(self, source: str) -> int:
        """Examples in an epoch over ``source``."""
        sizes = {"train": self.retain + self.forget, "retain": self.retain, "forget": self.forget}
        require(source in sizes, f"Expected a phase's source to be train, retain or forget, got {source!r}.")
        return sizes[source]


def steps_per_epoch(phase: Phase, sizes: Sizes) -> int:
    """Steps that one epoch over the phase's source takes; the last batch may be short."""
    return -(-sizes.of(phase.source) // phase.batch_size)


def total_steps(phase: Phase, sizes: Sizes) -> int:
    """Steps of the whole phase."""
    steps = phase.epochs * steps_per_epoch(phase, sizes)
    return steps if phase.max_steps is None else min(steps, phase.max_steps)


def _mask(source: str, member: Bool[Array, " n"], sizes: Sizes) -> Bool[Array, " n"]:
    is_retain = jnp.arange(member.shape[0]) < sizes.retain
    return {"train": member, "retain": is_retain, "forget": member & ~is_retain}[source]


def advance(
    phase: Phase,
    sizes: Sizes,
    key: PRNGKeyArray,
    state: State,
    member: Bool[Array, " n"],
    examples: Examples,
    order_of,
    first: Int[Array, ""],
    last: Int[Array, ""],
) -> State:
    """Runs steps ``first`` <= t < ``last`` of a phase for one run.

    Args:
        phase: What to do.
        sizes: Static counts.
        key: The run's key for this phase; step t gets ``fold_in(key, t)``.
        state: The phase's state before step ``first``.
        member: member[i] says whether row i is in the run's D(S); all rows of the retain set are.
        examples: The shared examples.
        order_of: ``(epoch) -> [n]`` the shared order pi of that epoch.
        first: First step; traced, so that one program serves any stretch.
        last: One past the last step.

    Returns:
        The state after step ``last - 1``.
    """
    per_epoch = steps_per_epoch(phase, sizes)

    def source_batches(source, order):
        rows = schedule.compact(order, _mask(source, member, sizes), sizes.of(source))
        return schedule.batches(rows, phase.batch_size)

    def gather(batches, index):
        rows, weight = batches[0][index], batches[1][index]
        return Batch(examples.x[rows], examples.y[rows], weight)

    def epoch_body(epoch, state):
        order = order_of(epoch)
        own = source_batches(phase.source, order)
        companion = None if phase.companion is None else source_batches(phase.companion, order)

        def step_body(index, state):
            step = epoch * per_epoch + index
            batch = gather(own, index)
            other = None if companion is None else gather(companion, index % companion[0].shape[0])
            parts: Any = (other, batch) if phase.source == "forget" else (batch, other)
            return phase.update(jax.random.fold_in(key, step), state, ForgetRetain(*parts), step)

        before = epoch * per_epoch
        begin, end = jnp.maximum(first - before, 0), jnp.minimum(last - before, per_epoch)
        return lax.fori_loop(begin, end, step_body, state)

    return lax.fori_loop(first // per_epoch, (last + per_epoch - 1) // per_epoch, epoch_body, state)
