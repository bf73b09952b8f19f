"""Many train-and-unlearn runs as one program.

Shape of the program: runs are spread over devices by ``shard_map``; inside a device ``lax.map`` takes ``width`` of them at a
time under ``vmap``; inside a run whole epochs go through one loop. Examples are held once per device, states are donated.
A chunk of runs goes by stretches of steps whose length follows the clock, so that progress is shown and an interrupt is
answered within seconds, and a stretch may end where a model on the way is wanted; its bounds are traced, so the program is
compiled once.
"""

import dataclasses
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import schedule
from jaxunlearn.engine.plan import AXIS, PARAMETERS, Plan, padded
from jaxunlearn.engine.train import Examples, Sizes, advance, start, steps_per_epoch, total_steps
from jaxunlearn.types import Params, Phase

STRETCH_SECONDS = 1.0
MEASURED_SECONDS, MEASURED_SAMPLES = 0.1, 3
_AUGMENTATION = np.uint32((1 << 32) - 1)
"""Folded into an order's key, where no epoch comes: augmentation and order share no randomness."""
_NO_STOPS: Mapping[int, Callable[[Params], None]] = MappingProxyType({})

Progress = Callable[[float], None]
"""Called with the share of a chunk's work just done, in [0, 1]; negative where work has to be done again."""

Stops = Mapping[int, Callable[[Params], None]]
"""Step of a phase -> what to do with the parameters if the phase had ended after that many steps."""

Precision = Literal["float32", "tensorfloat32"]


class TooLarge(Exception):
    """A compiled program that takes more memory than it may; it was not started."""


@dataclasses.dataclass(frozen=True)
class Runs:
    """What distinguishes the runs of one chunk; every array has a leading runs axis.

    Attributes:
        member: [R, n] bool, which rows each run trains on.
        keys: [R] typed keys for noise in training or unlearning.
        order_keys: [R] typed keys of each run's own order pi, or None where all share one.
    """

    member: np.ndarray
    keys: PRNGKeyArray
    order_keys: PRNGKeyArray | None = None


class Engine:
    """Compiles phases for a mesh and a set of examples, and runs them over chunks of runs.

    Args:
        mesh: Mesh of axes "runs" and "parameters" over the devices.
        plan: Execution plan; its width is the default of ``phase_runner``.
        examples: The shared examples; moved to the devices once.
        sizes: Static counts.
        order_key: Key of the shared order pi; phase number and epoch are folded in.
        precision: Of float32 matrix products and convolutions; accelerators take fewer bits unless they are told not to.
        memory: Bytes that a phase may take on each device; None means all.
        augment: ``(keys [b], x [b, ...]) -> x``, a random transformation of training inputs, one key per example; None
            means none. The keys depend on order, epoch and row: a run that lacks a row sees all others as before.
    """

    def __init__(
        self,
        mesh: Mesh,
        plan: Plan,
        examples: Examples,
        sizes: Sizes,
        order_key: PRNGKeyArray,
        *,
        precision: Precision = "float32",
        memory: float | None = None,
        augment: Callable[[PRNGKeyArray, Any], Any] | None = None,
    ):
        self.augment = augment
        self.mesh, self.plan, self.sizes, self.order_key = mesh, plan, sizes, order_key
        self.precision, self.memory = precision, memory
        self._replicated = NamedSharding(mesh, P())
        self.examples = jax.device_put(examples, self._replicated)

    def _map_runs(self, fn, *, shared: int, width: int, donate: bool = False):
        """Maps ``fn(*shared_arguments, *run_arguments)`` over the leading axis of the run arguments.

        With ``donate`` the first run argument is a state and the result takes its place.
        """

        def over_share(*arguments):
            one_run = partial(fn, *arguments[:shared])
            mapped = _replace if donate else _map
            return mapped(lambda run: one_run(*run), arguments[shared:], width)

        def specs(count):
            return (P(),) * shared + (P(AXIS),) * (count - shared)

        def program(*arguments):
            # No run talks to another, and a model's own scan over constant zeros would not pass the check of varying axes.
            # The axis of parameters is left to the compiler, which follows how the arguments are spread over it.
            mapped = jax.shard_map(
                over_share,
                mesh=self.mesh,
                in_specs=specs(len(arguments)),
                out_specs=P(AXIS),
                axis_names={AXIS} if self.mesh.shape[PARAMETERS] > 1 else set(self.mesh.axis_names),
                check_vma=False,
            )
            with jax.default_matmul_precision(self.precision):
                out = mapped(*arguments)
            if self.mesh.shape[PARAMETERS] == 1:
                return out
            return lax.with_sharding_constraint(out, jax.tree.map(self._sharding, out))

        return jax.jit(program, donate_argnums=(shared,) if donate else ())

    def spread(self, tree: Any, size: int | None = None) -> Any:
        """Puts arrays with a leading runs axis on the devices, an equal share each.

        Args:
            tree: The arrays.
            size: Runs to spread, the last one repeated; None means as many as there are.
        """
        size = jax.tree.leaves(tree)[0].shape[0] if size is None else size
        tree = pad(tree, size)
        return jax.device_put(tree, jax.tree.map(self._sharding, tree))

    def _sharding(self, array: Any) -> NamedSharding:
        """Runs over the first axis; the parameters' axis takes the last of the largest axes that it divides."""
        shards = self.mesh.shape[PARAMETERS]
        fits = [d for d in range(1, array.ndim) if shards > 1 and array.shape[d] % shards == 0]
        by = max(fits, key=lambda d: (array.shape[d], d), default=None)
        return NamedSharding(self.mesh, P(AXIS, *(PARAMETERS if d == by else None for d in range(1, array.ndim))))

    def map(self, fn: Callable[..., Any], shared: Any = (), *, width: int | None = None) -> Callable[..., Any]:
        """``fn(examples, shared, *run_arguments)`` over all runs of a chunk, compiled, as a function of the run arguments.

        Where the device runs out of memory fewer runs go at once from then on.

        Args:
            fn: A function of one run.
            shared: Arrays that all runs share.
            width: Runs that a device computes at once; None means the plan's.
        """
        width = self.plan.width if width is None else width
        shared = jax.device_put(shared, self._replicated)
        programs = {width: self._map_runs(fn, shared=2, width=width)}

        def run(*run_arguments):
            size = max(jax.tree.leaves(argument)[0].shape[0] for argument in run_arguments)
            size = padded(self.mesh, size, 1)
            spread = [self.spread(argument, size) for argument in run_arguments]
            while True:
                narrowest = min(programs)
                try:
                    return jax.block_until_ready(programs[narrowest](self.examples, shared, *spread))
                except jax.errors.JaxRuntimeError as error:
                    if narrowest == 1 or not out_of_memory(error):
                        raise
                programs[narrowest // 2] = self._map_runs(fn, shared=2, width=narrowest // 2)

        return run

    def phase_runner(self, phase: Phase, number: int, *, width: int | None = None) -> "PhaseRunner":
        """Prepares one phase.

        Args:
            phase: The phase.
            number: Its number, folded into the order's and the runs' keys so that no two phases share them.
            width: Runs that a device computes at once; None means the plan's.
        """
        return PhaseRunner(self, phase, number, self.plan.width if width is None else width)


class PhaseRunner:
    """One phase over chunks of runs; compiled when it is first called.

    A phase without steps is still started and finished: its noise may be all that a certificate rests on. Where the device
    runs out of memory the width is halved and the chunk goes on from its parameters.

    Attributes:
        width: Runs that a device computes at once.
        total: Steps of the phase.
        compile_seconds: Time that compiling the steps took; 0 before.
        bytes: Memory that the steps take on each device; 0 before.
    """

    def __init__(self, engine: Engine, phase: Phase, number: int, width: int):
        self.engine, self.phase, self.number, self.width = engine, phase, number, width
        self.total = total_steps(phase, engine.sizes)
        self._per_epoch = steps_per_epoch(phase, engine.sizes)
        self._build()

    def _build(self) -> None:
        """Makes the programs for the width; they are compiled when they are called."""
        engine, phase, number = self.engine, self.phase, self.number
        referring = phase.reference is not None
        self._start = engine._map_runs(
            lambda examples, key, params, member: start(phase, engine.sizes, key, params, member, examples),
            shared=1,
            width=self.width,
        )
        self._finish = engine._map_runs(
            lambda key, state: phase.finalize(key, state.state if referring else state), shared=0, width=self.width
        )
        sizes, n = engine.sizes, engine.examples.y.shape[0]

        def steps(examples, orders, order_key, first, last, state, key, member, own=None):
            order_key = order_key if own is None else jax.random.fold_in(own, number)

            def order_of(epoch):
                return orders[epoch] if own is None else schedule.order(order_key, epoch, n)

            def augment(epoch, rows, x):
                assert engine.augment is not None
                key = jax.random.fold_in(jax.random.fold_in(order_key, _AUGMENTATION), epoch)
                return engine.augment(jax.vmap(jax.random.fold_in, (None, 0))(key, rows), x)

            return advance(
                phase,
                sizes,
                key,
                state,
                member,
                examples,
                order_of,
                first,
                last,
                None if engine.augment is None else augment,
            )

        self._steps = engine._map_runs(steps, shared=5, width=self.width, donate=True)
        self._compiled: Callable | None = None
        self.compile_seconds, self.bytes = 0.0, 0

    def __call__(
        self, runs: Runs, params: Params, progress: Progress | None = None, stops: Stops = _NO_STOPS, /
    ) -> Params:
        """Runs the phase over a chunk.

        Args:
            runs: The chunk's runs, at most the plan's ``runs_per_chunk``.
            params: [R, ...] host or device arrays; they are not consumed.
            progress: Told of the share of the work just done.
            stops: Called on the way, with steps in 0..total.

        Returns:
            [R', ...] parameters, on the devices; from R on the last run is repeated.

        Raises:
            InputError: Not even one run at a time fits into a device's memory.
        """
        done = 0.0

        def move(share: float) -> None:
            nonlocal done
            done += share
            if progress is not None:
                progress(share)

        while True:
            try:
                return self._run(runs, params, move, stops)
            except (TooLarge, jax.errors.JaxRuntimeError) as error:
                self._narrow(error)
            move(-done)

    def _narrow(self, error: Exception) -> None:
        """Halves the width after the device ran out of memory; raises any other error."""
        if not out_of_memory(error):
            raise error
        require(
            self.width > 1,
            f"One run at a time takes {self.bytes >> 20} MiB, more than a device has; use a smaller batch_size or model, or "
            "spread each run's parameters over several devices with parameter_shards.",
        )
        self.width //= 2
        warnings.warn(f"Out of memory: going on with width={self.width} runs at once on a device.", stacklevel=4)
        self._build()

    def _begin(self, runs: Runs, params: Params) -> tuple[Any, Callable[[Any, int, int], Any], Any]:
        """The state before the first step, a function that advances it, and the keys to finish with."""
        engine = self.engine
        size = padded(engine.mesh, engine.plan.runs_per_chunk, self.width)
        keys = _split3(pad(runs.keys, size), np.uint32(self.number))
        init_keys, step_keys, final_keys = (engine.spread(part) for part in keys)
        member = engine.spread(runs.member, size)
        n = engine.examples.y.shape[0]
        order_key = jax.random.fold_in(engine.order_key, self.number)
        if runs.order_keys is None:
            # One table for all runs: a table per run would outgrow memory on large data sets.
            table, extra = schedule.orders(order_key, -(-self.total // self._per_epoch), n), ()
        else:
            table, extra = np.zeros((0, n), np.int32), (engine.spread(runs.order_keys, size),)

        table, order_key = jax.device_put((table, order_key), engine._replicated)

        def advance_to(state: Any, first: int, last: int) -> Any:
            bounds = np.int32(first), np.int32(last)
            arguments = engine.examples, table, order_key, *bounds, state, step_keys, member, *extra
            if self._compiled is None:
                began = time.perf_counter()
                self._compiled = self._steps.lower(*arguments).compile()
                self.compile_seconds = time.perf_counter() - began
                self.bytes = bytes_of(self._compiled)
            if engine.memory is not None and self.bytes > engine.memory and self.width > 1:
                raise TooLarge  # what is free is an estimate: one run at a time is tried in any case
            state = self._compiled(*arguments)
            jax.block_until_ready(state)
            return state

        state = self._start(engine.examples, init_keys, engine.spread(params, size), member)
        return state, advance_to, final_keys

    def _run(self, runs: Runs, params: Params, progress: Progress, stops: Stops) -> Params:
        state, advance_to, final_keys = self._begin(runs, params)
        if self.total == 0:
            progress(1.0)
        done, stretch = 0, self._per_epoch
        for stop in sorted({*stops, self.total}):
            while done < stop:
                last, compiled = min(stop, done + stretch), self._compiled is not None
                began = time.perf_counter()
                state = advance_to(state, done, last)
                seconds = time.perf_counter() - began
                progress((last - done) / self.total)
                if compiled and last - done == stretch:
                    stretch = max(1, min(stretch * 8, round(stretch * STRETCH_SECONDS / max(seconds, 1e-6))))
                done = last
            if stop in stops:
                stops[stop](self._finish(final_keys, state))
        return self._finish(final_keys, state)

    def measure(self, runs: Runs, params: Params) -> tuple[float, Params]:
        """Times a few steps.

        Args:
            runs: A whole chunk's runs.
            params: [R, ...] parameters.

        Returns:
            Seconds that one step of one run takes, over all devices, infinite where it does not fit into memory; and what
            the phase hands on.
        """
        try:
            state, advance_to, final_keys = self._begin(runs, params)
            if self.total == 0:
                return 0.0, self._finish(final_keys, state)
            state = advance_to(state, 0, 1)  # compiles
            steps, samples = 1, []
            while len(samples) < MEASURED_SAMPLES:
                began = time.perf_counter()
                state = advance_to(state, 0, steps)
                seconds = time.perf_counter() - began
                if seconds < MEASURED_SECONDS and steps < self.total:
                    steps = min(self.total, max(steps + 1, round(steps * MEASURED_SECONDS / max(seconds, 1e-5))))
                else:
                    samples.append(seconds / steps)
        except (TooLarge, jax.errors.JaxRuntimeError) as error:
            if not out_of_memory(error):
                raise
            return float("inf"), params
        return statistics.median(samples) / self.engine.plan.runs_per_chunk, self._finish(final_keys, state)


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that a device has too little memory."""
    return isinstance(error, TooLarge) or "RESOURCE_EXHAUSTED" in str(error)


def bytes_of(compiled: Any) -> int:
    """Memory of a compiled program on each device: arguments, outputs and temporaries, less what they share."""
    found = compiled.memory_analysis()
    parts = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return int(parts - found.alias_size_in_bytes)


def _map(one_run: Callable[[Any], Any], runs: Any, width: int) -> Any:
    """``one_run`` over the leading axis, ``width`` at once. A width of 1 is no vmap: it would batch every product."""
    return lax.map(one_run, runs, batch_size=None if width == 1 else width)


def _replace(one_run: Callable[[Any], Any], runs: Any, width: int) -> Any:
    """The same where the first of ``runs`` is a state and the results take its place in memory.

    ``lax.map`` would hold the states of all runs two more times, as its input and its output.
    """
    share = jax.tree.leaves(runs)[0].shape[0]

    def group(number, state):
        at = number * width
        if width == 1:
            taken = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, at, keepdims=False), (state, *runs[1:]))
            new = jax.tree.map(lambda a: a[None], one_run(taken))
        else:
            taken = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, at, width), (state, *runs[1:]))
            new = jax.vmap(one_run)(taken)
        return jax.tree.map(lambda old, part: lax.dynamic_update_slice_in_dim(old, part, at, 0), state, new)

    if share == width > 1:
        return jax.vmap(one_run)(runs)
    return lax.fori_loop(0, share // width, group, runs[0])


@jax.jit
def _split3(keys: PRNGKeyArray, number: Int[Array, ""]) -> tuple[PRNGKeyArray, ...]:
    """Three independent keys per run (init, steps, finalize) for phase ``number``."""
    phase_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
    return tuple(jax.vmap(jax.random.fold_in, (0, None))(phase_keys, part) for part in range(3))


def pad(tree: Any, size: int) -> Any:
    """Repeats the last run until the leading axis is ``size``; padding runs are computed and never reported."""

    def pad_leaf(a):
        return a if a.shape[0] == size else a[np.minimum(np.arange(size), a.shape[0] - 1)]

    return jax.tree.map(pad_leaf, tree)


def members(signs: np.ndarray, sizes: Sizes) -> np.ndarray:
    """[R, n] bool: which rows each run trains on: the whole retain set and the candidate batches of sign +1."""
    batch_size = sizes.pool // signs.shape[1]
    candidates = np.repeat(signs > 0, batch_size, axis=1)
    return np.concatenate([np.ones((signs.shape[0], sizes.retain), bool), candidates], axis=1)
