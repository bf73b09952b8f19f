"""The trained models D(S) of an audit: made once, shared by all methods, kept on disk."""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn.engine import store
from jaxunlearn.engine.population import PhaseRunner, Progress
from jaxunlearn.engine.train import steps_per_epoch, total_steps
from jaxunlearn.pipeline import plans
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.task import TRAINING, Task
from jaxunlearn.types import Params, Phase


def finite(tree: Any) -> np.ndarray:
    """[R] whether every array of a run is finite."""
    flags = [np.isfinite(np.asarray(leaf)).reshape(leaf.shape[0], -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.logical_and.reduce(flags)


def train_population(task: Task, rewinds: Iterable[int] = ()) -> tuple["Population", dict[str, Any]]:
    """Trains D(S) for all runs, or reuses what is on disk.

    Args:
        task: The audit's task.
        rewinds: Epochs before the end at which a checkpoint is wanted as well.

    Returns:
        The population, and {"seconds", "trained_runs", "reused_runs"} for the report.
    """
    with store.exclusive(task.config.population_directory):
        return _train_population(task, rewinds)


def _train_population(task: Task, rewinds: Iterable[int]) -> tuple["Population", dict[str, Any]]:
    train = PopulationTrainer(task, rewinds)
    bar = Bar("train", len(task.runs), train.steps, task.config.quiet)
    for number, rows in enumerate(task.chunks):
        runs = rows.stop - rows.start
        if not train(number, bar.chunk(runs)):
            bar.skip(runs)
    bar.close()
    return train.population, train.facts()


class PopulationTrainer:
    """Trains the chunks of a population that are not on disk yet, and keeps count.

    Args:
        task: The audit's task.
        rewinds: Epochs before the end at which a checkpoint is wanted as well.

    Attributes:
        population: The models; the directory is held to the training that it was begun with.
        steps: Training steps of a run.
        seconds: Time spent on training this population, earlier sessions included.

    Raises:
        InputError: The directory holds another training.
    """

    def __init__(self, task: Task, rewinds: Iterable[int]):
        phase = task.info.train_phase("train")
        identity = configuration.training_identity(task.config)
        identity |= {"runs_per_chunk": task.engine.plan.runs_per_chunk}
        self._manifest = store.open_manifest(task.config.population_directory, "manifest.json", identity)
        self.task, self.population = task, Population(task, sorted({0, *rewinds}))
        self.steps = total_steps(phase, task.engine.sizes)
        self.seconds = float(self._manifest.get("seconds", 0.0))
        self._runner: PhaseRunner | None = None
        self._per_epoch = steps_per_epoch(phase, task.engine.sizes)
        self._asked: set[int] = set()
        self._trained: set[int] = set()

    def _phases(self, form: str) -> list[Phase]:
        return [self.task.info_in(form).train_phase("train")]

    def facts(self) -> dict[str, Any]:
        """What the report says of the population, of the chunks that were asked for."""
        asked, trained = (
            sum(rows.stop - rows.start for number, rows in enumerate(self.task.chunks) if number in numbers)
            for numbers in (self._asked, self._trained)
        )
        return {"seconds": round(self.seconds, 1), "trained_runs": trained, "reused_runs": asked - trained}

    def __call__(self, number: int, progress: Progress) -> bool:
        """Trains chunk ``number`` unless all its checkpoints are on disk; says whether it did."""
        self._asked.add(number)
        began = time.perf_counter()
        missing = [rewind for rewind in self.population.stores if not self.population.done(number, rewind)]
        if not missing:
            return False
        rows = self.task.chunks[number]
        stops = {
            self.steps - rewind * self._per_epoch: partial(self.population.save, number, rows, rewind=rewind)
            for rewind in missing
        }
        if self._runner is None:
            directory = self.task.config.population_directory
            (self._runner,) = plans.runners(self.task, "train", directory, self._phases, first=0)
        self._runner(self.task.chunk(rows, stage=TRAINING), self.task.initial(rows), progress, stops)
        self._trained.add(number)
        self.seconds += time.perf_counter() - began
        directory = self.task.config.population_directory
        with store.disk_errors(directory):
            records.write_json(directory / "manifest.json", self._manifest | {"seconds": self.seconds})
        return True


class Population:
    """The trained models by chunk; small ones stay in memory, all are on disk.

    Args:
        task: The audit's task.
        rewinds: Epochs before the end at which there are checkpoints; 0 is the trained model.
    """

    def __init__(self, task: Task, rewinds: Iterable[int] = (0,)):
        self.task = task
        directory = task.config.population_directory
        self.stores = {k: store.ParamsStore(directory / f"rewound-{k}" if k else directory) for k in rewinds}
        leaves = jax.tree.leaves(task.parameter_shapes)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * len(task.runs)
        self._fits = size * len(self.stores) < 1 << 30
        self._cache: dict[tuple[int, int], Params] = {}

    def done(self, number: int, rewind: int = 0) -> bool:
        """Whether a chunk's checkpoint is complete."""
        return self.stores[rewind].done(number)

    def save(self, number: int, rows: slice, params: Params, *, rewind: int = 0) -> None:
        """Writes a chunk without its padding."""
        runs = rows.stop - rows.start
        host = jax.tree.map(lambda a: np.asarray(a)[:runs], params)
        table = self.task.runs
        names = [[records.ROLE_NAMES[r], int(i)] for r, i in zip(table.roles[rows], table.indices[rows])]
        self.stores[rewind].save(number, host, {"runs": names, "finite": finite(host).tolist()})
        self._remember(number, rewind, host)

    def _remember(self, number: int, rewind: int, host: Params) -> None:
        if self._fits:
            self._cache[number, rewind] = host

    def load(self, number: int, rows: slice, rewind: int = 0) -> Params:
        """A chunk of trained parameters."""
        runs = rows.stop - rows.start
        if (number, rewind) not in self._cache:
            like = jax.tree.map(lambda s: jax.ShapeDtypeStruct((runs, *s.shape), s.dtype), self.task.parameter_shapes)
            host = jax.tree.map(np.asarray, self.stores[rewind].load(number, like))
            self._remember(number, rewind, host)
        else:
            host = self._cache[number, rewind]
        return host
