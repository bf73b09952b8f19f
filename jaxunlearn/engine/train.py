"""One run's loop over a phase: many steps, over as many epochs as they take, inside one compiled call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import schedule
from jaxunlearn.types import Batch, ForgetRetain, Params, Phase, State

FORGET_THEN_RETAIN = "forget-then-retain"
REFERENCE_BATCH = 32
SOURCES = ("train", "retain", "forget", FORGET_THEN_RETAIN)


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
        require(source in SOURCES, f"Expected a phase's source to be {', '.join(SOURCES)}, got {source!r}.")
        both = self.retain + self.forget
        return {"retain": self.retain, "forget": self.forget}.get(source, both)


def _parts(source: str) -> tuple[str, ...]:
    """What an epoch covers one after the other."""
    return ("forget", "retain") if source == FORGET_THEN_RETAIN else (source,)


def steps_per_epoch(phase: Phase, sizes: Sizes) -> int:
    """Steps that one epoch over the phase's source takes; the last batch of each part may be short."""
    return sum(-(-sizes.of(part) // phase.batch_size) for part in _parts(phase.source))


def total_steps(phase: Phase, sizes: Sizes) -> int:
    """Steps of the whole phase."""
    steps = phase.epochs * steps_per_epoch(phase, sizes)
    return steps if phase.max_steps is None else min(steps, phase.max_steps)


class Referring(NamedTuple):
    """The state of a phase with a ``reference``.

    Attributes:
        state: The phase's own.
        reference: [size of the source, ...] what its starting point says of the source's rows.
        place: [n] where a row stands in ``reference``; of other rows anything.
    """

    state: Any
    reference: Any
    place: Int[Array, " n"]


def start(
    phase: Phase, sizes: Sizes, key: PRNGKeyArray, params: Params, member: Bool[Array, " n"], examples: Examples
) -> State:
    """The state of one run before a phase's first step."""
    state = phase.init(key, params)
    if phase.reference is None:
        return state
    n = member.shape[0]
    rows = jnp.concatenate(
        [schedule.compact(jnp.arange(n), _mask(part, member, sizes), sizes.of(part)) for part in _parts(phase.source)]
    )
    reference = phase.reference

    def one(row):
        found = reference(params, examples.x[row][None], examples.y[row][None])
        return jax.tree.map(lambda a: a[0], found)

    said = lax.map(one, rows, batch_size=REFERENCE_BATCH)
    return Referring(state, said, jnp.zeros(n, jnp.int32).at[rows].set(jnp.arange(rows.size, dtype=jnp.int32)))


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
    augment: Callable[[Int[Array, ""], Int[Array, " b"], Float[Array, "b ..."]], Float[Array, "b ..."]] | None = None,
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
        augment: ``(epoch, rows, x) -> x``, or None.

    Returns:
        The state after step ``last - 1``.
    """
    per_epoch = steps_per_epoch(phase, sizes)
    referring = phase.reference is not None

    def source_batches(source, order):
        parts = [
            schedule.batches(
                schedule.compact(order, _mask(part, member, sizes), sizes.of(part)),
                phase.batch_size,
            )
            for part in _parts(source)
        ]
        return parts[0] if len(parts) == 1 else tuple(map(jnp.concatenate, zip(*parts)))

    def gather(batches, epoch, index, referring=None):
        rows, weight = batches[0][index], batches[1][index]
        x = examples.x[rows]
        if augment is not None and phase.augment:
            x = augment(epoch, rows, x)
        said = None if referring is None else jax.tree.map(lambda a: a[referring.place[rows]], referring.reference)
        return Batch(x, examples.y[rows], weight, rows >= sizes.retain, said)

    def epoch_body(epoch, state):
        order = order_of(epoch)
        own = source_batches(phase.source, order)
        companion = None if phase.companion is None else source_batches(phase.companion, order)

        def step_body(index, state):
            step = epoch * per_epoch + index
            batch = gather(own, epoch, index, state if referring else None)
            other = None if companion is None else gather(companion, epoch, index % companion[0].shape[0])
            parts: Any = (other, batch) if phase.source == "forget" else (batch, other)
            before = state.state if referring else state
            new = phase.update(jax.random.fold_in(key, step), before, ForgetRetain(*parts), step)
            return state._replace(state=new) if referring else new

        before = epoch * per_epoch
        begin, end = jnp.maximum(first - before, 0), jnp.minimum(last - before, per_epoch)
        return lax.fori_loop(begin, end, step_body, state)

    return lax.fori_loop(first // per_epoch, (last + per_epoch - 1) // per_epoch, epoch_body, state)
