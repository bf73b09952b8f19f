"""One method's runs: unlearned, scored and kept on disk chunk by chunk, by all processes of the audit together."""

import contextlib
import time
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn.engine import store
from jaxunlearn.engine.population import PhaseRunner, Progress
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline import plans
from jaxunlearn.pipeline.population import PopulationTrainer, finite, models_store, on_host, run_names
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.task import UNLEARNING, Task, make_unlearner
from jaxunlearn.records import ScoreRecord
from jaxunlearn.types import Params, Phase, Start, TaskInfo, Unlearner

Part = dict[str, np.ndarray]
"""A chunk's scores, accuracies and failures by name, those of models on the way under a prefix, and the seconds spent."""


class Method(NamedTuple):
    """A method as it was asked for: its factory, what its results depend on, and what the factory made of the task."""

    factory: Callable[[TaskInfo], Unlearner]
    identity: dict[str, Any]
    unlearner: Unlearner


_ACCURACIES = ("retain", "forget", "unseen", "test")


class MethodRuns:
    """A method at work in its folder.

    Args:
        task: The audit's task.
        name: The method's name.
        method: The method.
        folder: DIR/<method>.
        trainer: Makes, and holds, the trained models.

    Attributes:
        unlearner: The algorithm.
        steps: Steps of a run.
        models: Where unlearned models are kept, or None.
    """

    def __init__(
        self,
        task: Task,
        name: str,
        method: Method,
        folder: AnyPath,
        trainer: PopulationTrainer,
    ):
        self.task, self.name, self.folder, self.trainer = task, name, folder, trainer
        self._method, self.unlearner = method, method.unlearner
        self.steps = sum(total_steps(phase, task.engine.sizes) for phase in self.unlearner.phases)
        self.models = models_store(task, folder, method.identity)

    @cached_property
    def _runners(self) -> Sequence[PhaseRunner]:
        return plans.runners(
            self.task,
            self.name,
            self.folder,
            self._phases,
            first=1,
            identity=self._method.identity,
            with_initial=self.unlearner.with_initial,
        )

    def _phases(self, form: str) -> Sequence[Phase]:
        same = form == self.task.engine.plan.form
        made = self.unlearner if same else make_unlearner(self.task.info_in(form), self.name, self._method.factory)
        return made.phases

    def models_kept(self, runs: int) -> bool:
        """Whether the unlearned models of the first ``runs`` runs are whole on disk, if they are to be; damage is said."""
        if self.models is None:
            return True
        numbers = [number for number, rows in enumerate(self.task.chunks) if rows.start < runs]
        for number in numbers:
            damage = self.models.damage(number, checksums=True)
            if damage is not None:
                store.notice(f"{damage}: its runs are unlearned again.")
                if self.task.group.first:  # another process may be writing it again by now
                    self.models.discard(number)
        return all(map(self.models.done, numbers))

    def all(self) -> tuple[ScoreRecord, dict[int, ScoreRecord], dict[str, float]] | None:
        """Unlearns every trained model and scores the result.

        Returns:
            The scores of all runs, those of the models after each step of the configured trajectory, and the seconds spent
            by stage; None in all processes but the first.
        """
        task, group = self.task, self.task.group
        own = [number for number in range(len(task.chunks)) if group.mine(number)]
        bar = Bar(self.name, sum(map(self._count, own)), self.steps, task.config.quiet)
        self.prepare()
        with self.writing():
            parts = {number: self.part(number, bar) for number in own}
        bar.close()
        if not group.first:
            return None
        with self.writing():
            ordered = [parts.get(number) or self.awaited(number) for number in range(len(task.chunks))]
        scores, seconds = collect(task, ordered, len(task.runs))
        on_the_way = {t: collect(task, ordered, len(task.runs), _at(t))[0] for t in task.config.trajectory}
        return scores, on_the_way, seconds

    def save_models(self) -> None:
        """Unlearns again the chunks whose models are to be kept and are not on disk; their scores are there already."""
        models, group = self.models, self.task.group
        assert models is not None
        self.prepare()
        numbers = [number for number in range(len(self.task.chunks)) if not models.done(number)]
        with self.writing():
            for number in filter(group.mine, numbers):
                self.compute(number)
        with self.writing():
            for number in numbers if group.first else ():
                if not group.wait_for(number, lambda number=number: models.done(number)):
                    self.compute(number)

    def prepare(self) -> None:
        """Chooses the plan where other processes wait for it; else that has time until a chunk is computed."""
        if self.task.group.count > 1 and self.task.group.first:
            _ = self._runners

    def writing(self) -> contextlib.AbstractContextManager[Any]:
        """A context that ends once all models that are kept are on disk."""
        return contextlib.nullcontext() if self.models is None else self.models.writer

    def _count(self, number: int) -> int:
        rows = self.task.chunks[number]
        return rows.stop - rows.start

    def _path(self, number: int) -> AnyPath:
        return self.folder / "chunks" / f"chunk-{number:05d}.npz"

    def part(self, number: int, bar: Bar | None = None) -> Part:
        """A chunk's scores, from disk or computed."""
        found = self.read(number)
        if found is None:
            progress = None if bar is None else bar.chunk(self._count(number), max(1, len(self.unlearner.phases)))
            return self.compute(number, progress)
        if bar is not None:
            bar.skip(self._count(number))
        return found

    def awaited(self, number: int) -> Part:
        """A chunk's scores that another process computes; computed here if that process has fallen silent."""

        def ready() -> bool:
            return self._path(number).exists() and (self.models is None or self.models.done(number))

        self.task.group.wait_for(number, ready)
        return self.part(number)

    def read(self, number: int) -> Part | None:
        """A finished chunk of scores whose models are kept if they are to be, or None."""
        if self.models is not None and not self.models.done(number):
            return None
        rows, path = self.task.chunks[number], self._path(number)
        if not path.exists() and self.task.group.count == 1 and self._path(number + 1).exists():
            store.notice(f"{path} is missing: its runs are unlearned and scored again.")
        part = store.read_chunk(path)
        # Another chunk size numbers the chunks differently.
        same = part is not None and np.array_equal(part.get("rows", ()), (rows.start, rows.stop))
        return part if same else None

    def compute(self, number: int, progress: Progress | None = None) -> Part:
        """Unlearns and scores one chunk, and writes its scores; models that are kept are written in the background.

        If a run's scores are not finite the chunk is done once more with the same keys; if that fails too, the run is
        recorded as failed and counts as p = 1. It is never dropped and never gets a new key or sign vector.
        """
        task, unlearner = self.task, self.unlearner
        task.group.check()
        rows = task.chunks[number]
        if not unlearner.from_scratch:
            self.trainer(number)
        chunk = task.chunk(rows, stage=UNLEARNING, salt=zlib.crc32(self.name.encode()))
        part: Part = {}

        def score(prefix: str, params: Params) -> None:
            began = time.perf_counter()
            for key, value in task.score(params, chunk.member).items():
                part[f"{prefix}{key}"] = np.asarray(value)[: rows.stop - rows.start]
            kept = [value for key, value in part.items() if key.startswith((f"{prefix}scores", f"{prefix}signal_"))]
            part[f"{prefix}failed"] = ~finite(kept)
            part["seconds"] += [0.0, time.perf_counter() - began]

        for attempt in range(2):
            part["seconds"] = np.zeros(2)
            began = time.perf_counter()
            population = self.trainer.population
            params: Any = (
                task.initial(rows) if unlearner.from_scratch else population.load(number, rows, unlearner.rewind)
            )
            if unlearner.with_initial:
                params = Start(params, task.initial(rows))
            before = 0
            for phase, runner in zip(unlearner.phases, self._runners):
                end = before + total_steps(phase, task.engine.sizes)
                stops = {t - before: partial(score, _at(t)) for t in task.config.trajectory if before <= t < end}
                params = runner(chunk, params, progress if attempt == 0 else None, stops)
                before = end
            part["seconds"][0] = time.perf_counter() - began - part["seconds"][1]
            score("", params)
            if not part["failed"].any():
                break
        if self.models is not None:
            self.models.save(number, on_host(params, rows), run_names(task, rows))
        with store.disk_errors(self.folder):
            records.write_npz(self._path(number), **part, rows=np.array([rows.start, rows.stop]))
        return part


def collect(task: Task, parts: Sequence[Part], runs: int, prefix: str = "") -> tuple[ScoreRecord, dict[str, float]]:
    """The scores of the first ``runs`` runs from their chunks, and the seconds spent by stage."""
    names = [key.removeprefix(prefix) for key in parts[0] if key.startswith(prefix)]
    names = [name for name in names if name.startswith(("scores", "failed", "accuracy_", "signal_"))]
    whole = {name: np.concatenate([part[prefix + name] for part in parts])[:runs] for name in names}
    table = task.runs
    scores = ScoreRecord(
        signs=table.signs[:runs],
        roles=table.roles[:runs],
        indices=table.indices[:runs],
        scores=whole["scores"],
        accuracy={key: whole[f"accuracy_{key}"] for key in _ACCURACIES},
        failed=whole["failed"],
        signals={key.removeprefix("signal_"): whole[key] for key in whole if key.startswith("signal_")},
    )
    seconds = np.sum([part["seconds"] for part in parts], axis=0)
    return scores, {"unlearn": float(seconds[0]), "score": float(seconds[1])}


def _at(step: int) -> str:
    """What the arrays of a model on the way are called by."""
    return f"at-{step}-"
