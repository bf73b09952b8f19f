"""The trained models D(S) of an audit: made once, shared by all methods, kept on disk."""

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, as_path, remove_tree
from jaxunlearn._validate import require
from jaxunlearn.engine import checkpoints, store
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


class PopulationTrainer:
    """Trains the chunks of a population that are not on disk yet, and keeps count.

    As a context it keeps the directory to this process, and leaves once everything is written.

    Args:
        task: The audit's task.
        rewinds: Epochs before the end at which a checkpoint is wanted as well.

    Attributes:
        population: The models; the directory is held to the training that it was begun with.
        steps: Training steps of a run.

    Raises:
        InputError: The directory holds another training.
    """

    def __init__(self, task: Task, rewinds: Iterable[int]):
        phase = task.info.train_phase("train")
        self._identity = configuration.training_identity(task.config)
        self._identity |= {"runs_per_chunk": task.engine.plan.runs_per_chunk}
        self.task = task
        self.population = Population(task, sorted({0, *rewinds}), self._identity, self._again)
        self.steps = total_steps(phase, task.engine.sizes)
        self._per_epoch = steps_per_epoch(phase, task.engine.sizes)
        self._asked: set[int] = set()
        # Of this and, in a group, the other processes' chunks: which were there when the audit began.
        final = self.population.stores[0]
        self._found = {n for n in range(len(task.chunks)) if task.group.count > 1 and final.done(n)}
        self._lock: contextlib.ExitStack | None = None

    def __enter__(self) -> "PopulationTrainer":
        with contextlib.ExitStack() as stack:
            stack.enter_context(store.exclusive(self.task.config.population_directory, self.task.group.lock))
            self._open_manifest()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        lock, self._lock = self._lock, None
        assert lock is not None  # entered
        with lock:  # which others may have once nothing is being written any more
            self.population.writer.__exit__(kind, *details)

    def _open_manifest(self) -> None:
        directory = self.task.config.population_directory
        try:
            store.open_manifest(directory, "manifest.json", self._identity)
        except records.Damaged:  # nothing is lost: every chunk's commit file says what its models depend on
            path = directory / "manifest.json"
            store.notice(f"{path} is damaged: written again; the trained models are checked against it one by one.")
            with store.disk_errors(directory):
                path.unlink()
            store.open_manifest(directory, "manifest.json", self._identity)

    def facts(self) -> dict[str, Any]:
        """What the report says of the population: "seconds" of training, "trained_runs" of them now, "reused_runs"."""
        self.population.flush()
        final, chunks = self.population.stores[0], self.task.chunks
        numbers = self._asked if self.task.group.count == 1 else filter(final.done, range(len(chunks)))
        asked = {number: chunks[number].stop - chunks[number].start for number in numbers}
        reused = sum(runs for number, runs in asked.items() if number in self._found)
        seconds = sum(final.facts(number).get("seconds", 0.0) for number in asked)
        return {"seconds": round(seconds, 1), "trained_runs": sum(asked.values()) - reused, "reused_runs": reused}

    def all(self) -> None:
        """Trains every chunk of this process that is not on disk."""
        group = self.task.group
        own = {number: rows for number, rows in enumerate(self.task.chunks) if group.mine(number)}
        self.prepare()
        bar = Bar("train", sum(rows.stop - rows.start for rows in own.values()), self.steps, self.task.config.quiet)
        for number, rows in own.items():
            runs = rows.stop - rows.start
            if not self(number, bar.chunk(runs)):
                bar.skip(runs)
        self.population.flush()
        bar.close()

    def prepare(self) -> None:
        """Chooses the plan where other processes wait for it; else that has time until a chunk is trained."""
        if self.task.group.count > 1 and self.task.group.first:
            _ = self._runner

    @cached_property
    def _runner(self) -> PhaseRunner:
        directory = self.task.config.population_directory
        (runner,) = plans.runners(self.task, "train", directory, self._phases, first=0)
        return runner

    def _phases(self, form: str) -> list[Phase]:
        return [self.task.info_in(form).train_phase("train")]

    def __call__(self, number: int, progress: Progress | None = None) -> bool:
        """Trains chunk ``number`` unless all its checkpoints are on disk; says whether it did.

        A chunk is looked at once; one that is damaged afterwards is found when it is loaded.
        """
        if number in self._asked:
            return False
        self._asked.add(number)
        missing = []
        for rewind, chunks in self.population.stores.items():
            damage = chunks.damage(number)
            if damage is not None:
                store.notice(f"{damage}: its runs are trained again.")
            if damage is not None or not chunks.done(number):
                missing.append(rewind)
        if missing:
            self._train(number, missing, progress)
        else:
            self._found.add(number)
        return bool(missing)

    def _train(self, number: int, rewinds: Iterable[int], progress: Progress | None) -> None:
        rows, began = self.task.chunks[number], time.perf_counter()

        def save(rewind: int, params: Params) -> None:
            self.population.save(number, rows, params, rewind=rewind, seconds=time.perf_counter() - began)

        stops = {self.steps - rewind * self._per_epoch: partial(save, rewind) for rewind in rewinds}
        with contextlib.nullcontext() if self._lock is not None else self:
            self.task.group.check()
            self._runner(self.task.chunk(rows, stage=TRAINING), self.task.initial(rows), progress, stops)

    def _again(self, number: int, rewind: int) -> None:
        """Trains a chunk whose checkpoint was found damaged when it was needed."""
        self._train(number, [rewind], None)
        self.population.flush()


class Population:
    """The trained models by chunk, on disk; in memory are the one in use, the next one, and small ones used lately.

    Args:
        task: The audit's task.
        rewinds: Epochs before the end at which there are checkpoints; 0 is the trained model.
        identity: What the models depend on.
        again: Trains a chunk once more, given its number and the epochs before the end.

    Attributes:
        stores: Epochs before the end -> chunks on disk.
        writer: The thread that writes all of them.
    """

    def __init__(self, task: Task, rewinds: Iterable[int], identity: Any, again: Callable[[int, int], None]):
        self.task, self.writer, self._again = task, checkpoints.Writer(), again
        directory = task.config.population_directory
        self.stores = {
            k: checkpoints.ParamsStore(
                directory / f"rewound-{k}" if k else directory,
                identity=identity,
                process=own_process(),
                writer=self.writer,
            )
            for k in rewinds
        }
        self._lately: OrderedDict[tuple[int, int], Params] = OrderedDict()

    def flush(self) -> None:
        """Waits until everything is on disk."""
        self.writer.flush()

    def save(self, number: int, rows: slice, params: Params, *, rewind: int = 0, seconds: float = 0.0) -> None:
        """Writes a chunk without its padding, in the background; ``seconds`` is how long its training took."""
        host = on_host(params, rows)
        facts = run_names(self.task, rows) | {"finite": finite(host).tolist(), "seconds": round(seconds, 3)}
        self.stores[rewind].save(number, host, facts)
        self._remember(number, rewind, host)

    def _remember(self, number: int, rewind: int, host: Params) -> None:
        self._lately[number, rewind] = host
        self._lately.move_to_end((number, rewind))
        while sum(map(_bytes, self._lately.values())) > MOST_REMEMBERED:
            self._lately.popitem(last=False)

    def load(self, number: int, rows: slice, rewind: int = 0) -> Params:
        """A chunk of trained parameters; this process's next one is read meanwhile.

        A damaged chunk is trained again.
        """
        host = self._lately.get((number, rewind))
        if host is None:
            try:
                host = self.stores[rewind].load(number, self._like(number))
            except records.Damaged as error:
                store.notice(f"{str(error).rstrip('.')}: its runs are trained again.")
                self._again(number, rewind)
                host = self.stores[rewind].load(number, self._like(number))
        self._remember(number, rewind, host)
        following = number + self.task.group.count
        if following < len(self.task.chunks) and (following, rewind) not in self._lately:
            if self.stores[rewind].done(following):
                self.stores[rewind].prefetch(following, self._like(following))
        return host

    def _like(self, number: int) -> Params:
        rows = self.task.chunks[number]
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((rows.stop - rows.start, *s.shape), s.dtype), self.task.parameter_shapes
        )

    def clear(self) -> None:
        """Deletes the models; what they depend on, and all terms under which they were bounded, stay on record."""
        self._lately.clear()
        for chunks in self.stores.values():
            chunks.clear()
        for folder in self.task.config.population_directory.glob("rewound-*"):
            remove_tree(folder)


MOST_REMEMBERED = 1 << 24
"""Bytes of models used lately that stay in memory, whatever the number of runs."""


def _bytes(tree: Params) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def own_process() -> int | None:
    """This process's index where several share one program, else None."""
    return jax.process_index() if jax.process_count() > 1 else None


def on_host(params: Params, rows: slice) -> Params:
    """The models of a chunk's runs as host arrays of their own, without padding."""
    return jax.tree.map(lambda a: np.array(np.asarray(a)[: rows.stop - rows.start]), params)


def run_names(task: Task, rows: slice) -> dict[str, Any]:
    """Which runs a chunk holds, for its commit file."""
    table = task.runs
    return {"runs": [[records.ROLE_NAMES[r], int(i)] for r, i in zip(table.roles[rows], table.indices[rows])]}


def models_store(task: Task, folder: AnyPath, identity: Any) -> checkpoints.ParamsStore | None:
    """Where a method's unlearned models are kept, if they are."""
    if task.config.keep != "all":
        return None
    whole = {
        "training": configuration.training_identity(task.config),
        "method": identity,
        "runs_per_chunk": task.engine.plan.runs_per_chunk,
    }
    return checkpoints.ParamsStore(folder / "models", identity=whole, process=own_process())


def load_models(directory: AnyPath | str, method: str | None = None) -> tuple[Params, np.ndarray, np.ndarray]:
    """Loads the models of an audit that kept them.

    Args:
        directory: The run directory.
        method: The models that it unlearned (kept with ``--keep all``), or None for the trained ones (a population's
            directory is taken as well).

    Returns:
        The parameters, nested dictionaries of host arrays [R, ...]; roles [R] int8, ``records.CALIBRATION`` or
        ``records.EVALUATION``; indices [R] int64, a run's number within its role. With the role it is the same run in every
        file of the directory.

    Raises:
        InputError: There are none, or a chunk is damaged.
    """
    directory = as_path(directory)
    if method is None:
        folder = directory / "population" if (directory / "population").is_dir() else directory
    else:
        folder = directory / configuration.method_directory_name(method) / "models"
    chunks = checkpoints.ParamsStore(folder, process=own_process())
    numbers = chunks.chunks()
    require(
        len(numbers) > 0, f"Expected models in {folder}, found none; audit with --keep {'all' if method else 'final'}."
    )
    loaded, names = [], []
    for number, following in zip(numbers, [*numbers[1:], None]):
        loaded.append(chunks.load(number))
        names += chunks.facts(number)["runs"]
        if following is not None:
            chunks.prefetch(following)
    params = jax.tree.map(lambda *parts: np.concatenate(parts), *loaded)
    roles = np.array([records.ROLE_NAMES.index(role) for role, _ in names], np.int8)
    return params, roles, np.array([index for _, index in names], np.int64)
