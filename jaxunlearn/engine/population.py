"""Many train-and-unlearn runs as one program.

Shape of the program: runs are spread over devices by ``shard_map``; inside a device ``lax.map`` takes ``width`` of them at a
time under ``vmap``; inside a run whole epochs go through one loop. Examples are held once per device, states are donated.
A chunk of runs goes by stretches of steps whose length follows the clock, so that progress is shown and an interrupt is
answered within seconds, and a stretch may end where a model on the way is wanted; its bounds are traced, so the program is
compiled once.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import PRNGKeyArray

from jaxunlearn.data import schedule
from jaxunlearn.engine.plan import AXIS, Plan
from jaxunlearn.engine.train import Examples, Sizes, advance, steps_per_epoch, total_steps
from jaxunlearn.types import Params, Phase

STRETCH_SECONDS = 1.0
_NO_STOPS: Mapping[int, Callable[[Params], None]] = MappingProxyType({})

Progress = Callable[[float], None]
"""Called with the share of a chunk's work just done, in [0, 1]."""

Stops = Mapping[int, Callable[[Params], None]]
"""Step of a phase -> what to do with the parameters if the phase had ended after that many steps."""


class PhaseRunner(Protocol):
    """A compiled phase."""

    def __call__(self, runs: "Runs", params: Params, progress: Progress | None = None, stops: Stops = ..., /) -> Params:
        """Runs the phase over a chunk; params have a leading runs axis."""
        ...


@dataclasses.dataclass(frozen=True)
class Runs:
    """What distinguishes the runs of one chunk; every array has a leading runs axis of the plan's chunk size.

    Attributes:
        member: [R, n] bool, which rows each run trains on.
        keys: [R] typed keys for noise in training or unlearning.
        order_keys: [R] typed keys of each run's own order pi, or None where all share one.
    """

    member: np.ndarray
    keys: PRNGKeyArray
    order_keys: PRNGKeyArray | None = None


class Engine:
    """Compiles phases for a mesh, a plan and a set of examples, and runs them over chunks of runs.

    Args:
        mesh: One-dimensional mesh over the devices.
        plan: Execution plan.
        examples: The shared examples; moved to the devices once.
        sizes: Static counts.
        order_key: Key of the shared order pi; phase number and epoch are folded in.
    """

    def __init__(self, mesh: Mesh, plan: Plan, examples: Examples, sizes: Sizes, order_key: PRNGKeyArray):
        self.mesh, self.plan, self.sizes, self.order_key = mesh, plan, sizes, order_key
        self._replicated, self._by_run = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))
        self.examples = jax.device_put(examples, self._replicated)

    def _map_runs(self, fn, *, shared: int, donate: tuple[int, ...] = ()):
        """Maps ``fn(*shared_arguments, *run_arguments)`` over the leading axis of the run arguments."""

        def over_share(*arguments):
            one_run = partial(fn, *arguments[:shared])
            # One at a time without vmap: over a single run it would only turn products into batched ones, which are slower.
            width = None if self.plan.width == 1 else self.plan.width
            return lax.map(lambda run: one_run(*run), arguments[shared:], batch_size=width)

        def specs(count):
            return (P(),) * shared + (P(AXIS),) * (count - shared)

        def program(*arguments):
            # No run talks to another, and a model's own scan over constant zeros would not pass the check of varying axes.
            mapped = jax.shard_map(
                over_share, mesh=self.mesh, in_specs=specs(len(arguments)), out_specs=P(AXIS), check_vma=False
            )
            return mapped(*arguments)

        return jax.jit(program, donate_argnums=donate)

    def spread(self, tree: Any) -> Any:
        """Puts arrays with a leading runs axis on the devices, an equal share each."""
        return jax.device_put(tree, self._by_run)

    def map(self, fn: Callable[..., Any], shared: Any = ()) -> Callable[..., Any]:
        """``fn(examples, shared, *run_arguments)`` over all runs of a chunk, compiled, as a function of the run arguments."""
        program, shared = self._map_runs(fn, shared=2), jax.device_put(shared, self._replicated)
        return lambda *run_arguments: program(self.examples, shared, *map(self.spread, run_arguments))

    def phase_runner(self, phase: Phase, number: int) -> PhaseRunner:
        """Compiles one phase.

        Args:
            phase: The phase.
            number: Its number, folded into the order's and the runs' keys so that no two phases share them.

        Returns:
            ``run(runs, params, progress, stops) -> params`` with a leading runs axis; ``stops`` are called on the way, with
            steps in 0..total. A phase without steps is still started and finished: its noise may be all that a certificate
            rests on.
        """
        sizes, n = self.sizes, self.examples.y.shape[0]
        start = self._map_runs(lambda key, params: phase.init(key, params), shared=0)
        finish = self._map_runs(lambda key, state: phase.finalize(key, state), shared=0)
        order_key = jax.random.fold_in(self.order_key, number)

        def with_shared_order(examples, orders, first, last, state, key, member):
            return advance(phase, sizes, key, state, member, examples, lambda e: orders[e], first, last)

        def with_own_order(examples, orders, first, last, state, key, member, own):
            own = jax.random.fold_in(own, number)

            def order_of(epoch):
                return jax.random.permutation(jax.random.fold_in(own, epoch), n).astype(jnp.int32)

            return advance(phase, sizes, key, state, member, examples, order_of, first, last)

        step_shared = self._map_runs(with_shared_order, shared=4, donate=(4,))
        step_own = self._map_runs(with_own_order, shared=4, donate=(4,))
        # The shared order is one table, computed once; a table per run would outgrow memory on large data sets.
        orders = jax.jit(schedule.orders, static_argnums=(1, 2), out_shardings=self._replicated)
        total, per_epoch = total_steps(phase, sizes), steps_per_epoch(phase, sizes)
        epochs = -(-total // per_epoch)

        def run(runs: Runs, params: Params, progress: Progress | None = None, stops: Stops = _NO_STOPS, /) -> Params:
            keys = _split3(runs.keys, number)
            init_keys, step_keys, final_keys = (self.spread(k) for k in keys)
            member = self.spread(runs.member)
            if runs.order_keys is None:
                step, extra, table = step_shared, (), orders(order_key, epochs, n)
            else:
                step, extra, table = step_own, (self.spread(runs.order_keys),), jnp.zeros((0, n), jnp.int32)
            state = start(init_keys, self.spread(params))
            if total == 0 and progress is not None:
                progress(1.0)
            done, stretch = 0, per_epoch
            for stop in sorted({*stops, total}):
                while done < stop:
                    last, first_call = min(stop, done + stretch), done == 0
                    began = time.perf_counter()
                    state = step(self.examples, table, np.int32(done), np.int32(last), state, step_keys, member, *extra)
                    jax.block_until_ready(state)
                    seconds = time.perf_counter() - began
                    if progress is not None:
                        progress((last - done) / total)
                    if not first_call and last - done == stretch:  # the first one also compiled
                        stretch = max(1, min(stretch * 8, round(stretch * STRETCH_SECONDS / max(seconds, 1e-6))))
                    done = last
                if stop in stops:
                    stops[stop](finish(final_keys, state))
            return finish(final_keys, state)

        return run


def _split3(keys: PRNGKeyArray, number: int) -> tuple[PRNGKeyArray, ...]:
    """Three independent keys per run (init, steps, finalize) for phase ``number``."""
    phase_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
    return tuple(jax.vmap(jax.random.fold_in, (0, None))(phase_keys, part) for part in range(3))


def pad(tree: Any, size: int) -> Any:
    """Repeats the last run until the leading axis is ``size``; padding runs are computed and never reported."""
    return jax.tree.map(lambda a: a[np.minimum(np.arange(size), a.shape[0] - 1)], tree)


def members(signs: np.ndarray, sizes: Sizes) -> np.ndarray:
    """[R, n] bool: which rows each run trains on: the whole retain set and the candidate batches of sign +1."""
    batch_size = sizes.pool // signs.shape[1]
    candidates = np.repeat(signs > 0, batch_size, axis=1)
    return np.concatenate([np.ones((signs.shape[0], sizes.retain), bool), candidates], axis=1)
