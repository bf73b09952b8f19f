"""A method at work on all seeds of a study: unlearns, stops, is asked, fine-tuned and asked again."""

import contextlib
import time
import zlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.attack import extraction
from jaxunlearn.data.splits import host_generator
from jaxunlearn.engine import checkpoints, store
from jaxunlearn.engine.population import Engine, PhaseRunner, Runs, pad
from jaxunlearn.engine.train import steps_per_epoch, total_steps
from jaxunlearn.pipeline.population import on_host, own_process
from jaxunlearn.pipeline.privacy import study as studies
from jaxunlearn.pipeline.privacy.measurements import Arrays, Measurements
from jaxunlearn.pipeline.privacy.models import BASE, TARGET, Models
from jaxunlearn.pipeline.privacy.study import Study
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params, Start

CURVE_EVERY = 2
"""Epochs from one point of a curve to the next."""


def relearning_draws(study: Study, known: np.ndarray) -> np.ndarray:
    """[draws, F] the facts that each draw of P3 fine-tunes on.

    Raises:
        InputError: There are fewer facts than ``recovery.samples``, or so few people that none would be left to score.
    """
    recovery, places = study.config.recovery, np.arange(len(study.material.facts))
    pools = {
        "known": places[study.forgotten][known],
        "unknown": places[study.forgotten][~known],
        "retained": places[study.retained],
    }
    rng = host_generator(jax.random.fold_in(study.root, studies.DRAWS))
    drawn = extraction.relearning_samples(
        rng, study.persons, pools[recovery.source], samples=recovery.samples, draws=recovery.draws
    )
    left = bool(extraction.scored_after(study.persons, drawn)[:, study.forgotten].any())
    require(left, f"Expected people to be left to score after recovery.samples={recovery.samples}; use fewer samples.")
    return drawn


class Relearning:
    """P3: many fine-tunings of the models of a chunk at once, a run for each seed and draw."""

    def __init__(self, study: Study, known: np.ndarray, measurements: Measurements):
        self.study, self.measurements = study, measurements
        self._engine, trained = study.recovering()
        recovery, people = study.config.recovery, study.persons
        drawn = relearning_draws(study, known)
        self.drawn = drawn
        """[draws, F] which facts a draw fine-tunes on."""
        self.scored = extraction.scored_after(people, drawn)
        """[draws, F] which facts count after it."""
        self._member = drawn[:, trained]
        sizes = self._engine.sizes
        phase = recovery.descent.phase(
            study.loss,
            source="forget",
            size=sizes.forget,
            epochs=recovery.epochs[-1],
            batch_size=recovery.batch_size,
        )
        self._phase = phase._replace(update=_on_forget(phase.update))
        self._per_epoch = steps_per_epoch(self._phase, sizes)

    @cached_property
    def _runner(self) -> PhaseRunner:
        return self._engine.phase_runner(self._phase, 0)

    def __call__(self, params: Params, rows: slice, *, last_alone: bool = False) -> np.ndarray:
        """Fine-tunes the models of a chunk on every draw, and asks directly.

        Args:
            params: [R, ...] models of a chunk.
            rows: Its seeds.
            last_alone: Ask only after the last number of epochs.

        Returns:
            [r, draws, E, F, new] ids of answers.
        """
        recovery, draws = self.study.config.recovery, self.study.config.recovery.draws
        count = rows.stop - rows.start
        seeds = self.study.numbers(rows)
        numbers = np.repeat(seeds, draws)
        which = np.tile(np.arange(draws), len(seeds))
        keys = jax.vmap(jax.random.fold_in)(self.study.keys(studies.RECOVERY, numbers), which)
        orders = jax.vmap(jax.random.fold_in)(self.study.keys(studies.ORDER, numbers, studies.RECOVERY), which)
        runs = Runs(self._member[which], keys, orders)
        said: dict[int, np.ndarray] = {}

        def ask(epoch: int, tuned: Params) -> None:
            said[epoch] = self.measurements.answers(tuned, count * draws)

        epochs = recovery.epochs[-1:] if last_alone else recovery.epochs
        stops = {epoch * self._per_epoch: partial(ask, epoch) for epoch in epochs}
        repeated = jax.tree.map(lambda a: jnp.repeat(jnp.asarray(a), draws, axis=0), pad(params, len(seeds)))
        self._runner(runs, repeated, None, stops)
        joined = np.stack([said[epoch] for epoch in epochs], axis=1)  # [r * draws, E, F, new]
        return joined.reshape(count, draws, *joined.shape[1:])


def _on_forget(update: Callable[..., Any]) -> Callable[..., Any]:
    """A descent on the forget set's batches."""

    def on_forget(key, state, batch, step):
        return update(key, state, batch._replace(retain=batch.forget), step)

    return on_forget


class _Stopped(Exception):
    """All models of a chunk are where they should stop."""


def _as_long(parts: list[np.ndarray], name: str) -> list[np.ndarray]:
    """Traces [r, epochs] of chunks that stopped at different epochs: the last value goes on."""
    if not name.startswith("trace_") or parts[0].ndim < 2:
        return parts
    longest = max(part.shape[1] for part in parts)
    return [np.pad(part, ((0, 0), (0, longest - part.shape[1])), mode="edge") for part in parts]


class Unlearning:
    """One method, chunk by chunk of seeds."""

    def __init__(
        self,
        study: Study,
        engine: Engine,
        member: np.ndarray,
        known: np.ndarray,
        name: str,
        method: Method,
        folder: AnyPath,
    ):
        self.study, self.engine, self.member, self.known = study, engine, member, known
        self.name, self.method, self.folder = name, method, folder
        self.salt = zlib.crc32(name.encode())
        identity = {"study": study.data, "known": known.tolist(), "method": method.identity}
        self.models = checkpoints.ParamsStore(folder / "models", identity=identity, process=own_process())

    @cached_property
    def _runners(self) -> list[PhaseRunner]:
        phases = self.method.unlearner.phases
        return [self.engine.phase_runner(phase, 1 + number) for number, phase in enumerate(phases)]

    @property
    def steps(self) -> int:
        """Steps of a run, were it not stopped."""
        return sum(total_steps(phase, self.engine.sizes) for phase in self.method.unlearner.phases)

    def all(self, models: Models, measurements: Measurements, relearning: Relearning) -> Arrays:
        """The arrays of all seeds."""
        bar = Bar(self.name, self.study.config.seeds, self.steps, self.study.config.quiet)
        parts = []
        for number, rows in enumerate(self.study.chunks):
            path = self.folder / "chunks" / f"chunk-{number:05d}.npz"
            part = store.read_chunk(path)
            if part is None or not np.array_equal(part.get("rows", ()), (rows.start, rows.stop)):
                progress = bar.chunk(rows.stop - rows.start, len(self.method.unlearner.phases) + 1)
                part = self._chunk(number, rows, models, measurements, relearning, progress)
                with store.disk_errors(self.folder):
                    records.write_npz(path, **part, rows=np.array([rows.start, rows.stop]))
            else:
                bar.skip(rows.stop - rows.start)
            parts.append(part)
        bar.close()
        self.models.flush()
        joined = {name: np.concatenate(_as_long([p[name] for p in parts], name)) for name in parts[0] if name != "rows"}
        return joined | {"seconds": np.sum([part["seconds"] for part in parts], axis=0)}

    def _chunk(
        self,
        number: int,
        rows: slice,
        models: Models,
        measurements: Measurements,
        relearning: Relearning,
        progress: Callable[[float], None],
    ) -> Arrays:
        began = time.perf_counter()
        params, trace = self._unlearn(number, rows, models, measurements, relearning, progress)
        unlearned = time.perf_counter()
        self.models.save(number, on_host(params, rows), {"runs": list(range(rows.start, rows.stop))})
        found = asked(self.study, params, rows, measurements, relearning)
        progress(1.0)
        return found | trace | {"seconds": np.array([[unlearned - began, time.perf_counter() - unlearned]])}

    def _unlearn(
        self,
        number: int,
        rows: slice,
        models: Models,
        measurements: Measurements,
        relearning: Relearning,
        progress: Callable[[float], None],
    ) -> tuple[Params, Arrays]:
        """Unlearned models [R, ...], each stopped where it should be, and what they were on the way [r, epochs]."""
        study, unlearner, count = self.study, self.method.unlearner, rows.stop - rows.start
        target = models.load(TARGET, number, rows)
        params: Any = Start(target, models.load(BASE, number, rows)) if unlearner.with_initial else target
        runs = study.runs(rows, studies.UNLEARNING, self.member, self.salt)
        threshold = study.config.stop_below
        glances: dict[int, Arrays] = {}
        recovered: dict[int, np.ndarray] = {}
        chosen: Any = None
        curve = self.name in study.config.curves
        done = np.zeros(count, bool)
        ended = np.zeros(count, int)

        def look(epoch: int, now: Params) -> None:
            """Looks at models after an epoch; called anew from the first where a device ran out of memory on the way."""
            nonlocal chosen
            glances[epoch] = measurements.glance(now, self.known, count)
            if curve and epoch % CURVE_EVERY == 0:
                recovered[epoch] = relearning(now, rows, last_alone=True)[:, :, 0]
            if epoch <= 1:
                chosen, done[:] = now, False
            if epoch == 0:
                return
            chosen = _where(~done, now, chosen)  # padding goes with the last one
            ended[~done] = epoch
            if threshold is not None:
                done[:] |= glances[epoch]["p1_known"] <= threshold
            if done.all() and not curve:
                raise _Stopped

        look(0, target)
        for phase, runner in zip(unlearner.phases, self._runners):
            every, stops = steps_per_epoch(phase, self.engine.sizes), {}
            if runner is self._runners[-1]:
                ends = [*range(every, runner.total, every), runner.total]
                stops = {step: partial(look, 1 + epoch) for epoch, step in enumerate(ends)}
            with contextlib.suppress(_Stopped):
                params = runner(runs, params, progress, stops)
        trace = {f"trace_{name}": np.stack([glances[e][name] for e in sorted(glances)], axis=1) for name in glances[0]}
        if recovered:
            trace["curve"] = np.stack([recovered[e] for e in sorted(recovered)], axis=1)
        return chosen, trace | {"trace_chosen": ended}


def _where(take: np.ndarray, new: Params, old: Params) -> Params:
    """For each model the new one where it is to be taken."""

    def choose(a, b):
        each = pad(take, a.shape[0])
        return jnp.where(jnp.asarray(each).reshape(-1, *(1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, new, old)


def asked(study: Study, params: Params, rows: slice, measurements: Measurements, relearning: Relearning) -> Arrays:
    """Everything that is asked of the models of a chunk [r, ...]: see ``measure``."""
    count = rows.stop - rows.start
    found = measurements.look(params, count)
    found["P1"] = measurements.answers(params, count)
    if study.config.shots:
        found["P2"] = measurements.shown(params, count)
    found["P3"] = relearning(params, rows)
    for bits in study.config.bits:
        found[f"bits_{bits}"] = measurements.rounded(params, bits, count)
    if study.config.choices is not None:
        found["choices"] = measurements.choices(params, count)
    found["states"] = measurements.states(params, count)
    return found
