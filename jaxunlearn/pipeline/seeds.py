"""Models that differ by their seed alone: trained, unlearned and measured, kept on disk chunk by chunk of seeds.

What commands share that attack unlearned models: ``Seeds`` is a study's population, ``Originals`` its trained models,
``Unlearning`` one method at work. A command says in a subclass what its models are of and what is measured.
"""

import dataclasses
import time
import zlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.engine import checkpoints, store
from jaxunlearn.engine.population import Engine, PhaseRunner, Runs, pad
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline.population import on_host, own_process
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.runs import run_keys
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params, TaskInfo

Arrays = dict[str, np.ndarray]

# Numbers folded into the root key, one per purpose; a command's own are others.
INITIAL, ORDER, TRAINING, UNLEARNING, ATTACK, RETRAINING = 1, 2, 3, 4, 5, 9


@dataclasses.dataclass(frozen=True)
class Seeds:
    """A run is a seed; all train on all examples of the engine.

    Attributes:
        config: The settings; they have ``directory`` and ``quiet``.
        seeds: How many.
        info: What methods are told.
        engine: For the examples and seeds.
        root: Of all keys.
    """

    config: Any
    seeds: int
    info: TaskInfo
    engine: Engine
    root: PRNGKeyArray

    @property
    def identity(self) -> dict[str, Any]:
        """What the original models depend on."""
        raise NotImplementedError

    def given(self) -> Params | None:
        """One model's parameters that take the place of trained ones; None: they are trained."""
        return None

    @cached_property
    def parameter_shapes(self) -> Params:
        """Shapes and types of one model's parameters."""
        return jax.eval_shape(self.info.model.init, self.root)

    def like(self, count: int) -> Params:
        """Those of ``count`` models."""
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), self.parameter_shapes)

    def chunks(self, runs: int | None = None) -> list[slice]:
        """Runs that are worked on between two checkpoints; of all seeds, unless it is said of how many."""
        size, runs = self.engine.plan.runs_per_chunk, self.seeds if runs is None else runs
        return [slice(i, min(i + size, runs)) for i in range(0, runs, size)]

    def numbers(self, rows: slice) -> np.ndarray:
        """The numbers of a chunk's runs, the last one repeated: chunks of one size go through the same programs."""
        return pad(np.arange(rows.start, rows.stop), self.engine.plan.runs_per_chunk)

    def keys(self, purpose: int, numbers: np.ndarray, salt: int = 0) -> PRNGKeyArray:
        """A key for each run and purpose."""
        key = jax.random.fold_in(jax.random.fold_in(self.root, purpose), salt)
        return run_keys(key, np.zeros_like(numbers), numbers)

    def runs(self, rows: slice, *, stage: int, salt: int = 0) -> Runs:
        """A chunk's runs: all train on everything, in an order of their own."""
        numbers = self.numbers(rows)
        member = np.ones((len(numbers), len(self.engine.examples.y)), bool)
        return Runs(member, self.keys(stage, numbers, salt), self.keys(ORDER, numbers, stage))

    def initial(self, rows: slice, purpose: int = INITIAL) -> Params:
        """[chunk, ...] initial weights of each run."""
        return jax.jit(jax.vmap(self.info.model.init))(self.keys(purpose, self.numbers(rows)))


class Originals:
    """The original models, trained once and kept on disk.

    Attributes:
        study: Of the models that are kept: one seed where all share an original.
        label: What progress calls them.
        store: Where they are.
        seconds: How long their training took, once ``train`` has run.
    """

    def __init__(self, study: Seeds, *, shared: bool = False, folder: str = "population", label: str = "train"):
        self.study, self.shared, self.label = study, shared, label
        self.store = checkpoints.ParamsStore(
            study.config.directory / folder, identity=study.identity, process=own_process()
        )
        self.seconds = 0.0

    def train(self) -> None:
        """Trains what is not on disk, or takes what is given."""
        study = self.study
        runner = study.engine.phase_runner(study.info.train_phase("train"), 0)
        bar = Bar(self.label, study.seeds, runner.total, study.config.quiet)
        whole(self.store, study)
        for number, rows in enumerate(study.chunks()):
            count = rows.stop - rows.start
            if self.store.done(number):
                bar.skip(count)
                continue
            began, found = time.perf_counter(), study.given()
            if found is None:
                params = runner(study.runs(rows, stage=TRAINING), study.initial(rows), bar.chunk(count))
            else:
                params = jax.tree.map(lambda a: np.asarray(a)[None], found)
            seconds = time.perf_counter() - began
            self.store.save(
                number, on_host(params, rows), {"runs": list(range(rows.start, rows.stop)), "seconds": seconds}
            )
        self.store.flush()
        bar.close()
        self.seconds = sum(self.store.facts(number)["seconds"] for number in range(len(study.chunks())))

    def load(self, number: int, rows: slice) -> Params:
        """[chunk, ...] the originals of a chunk's seeds."""
        count = rows.stop - rows.start
        if not self.shared:
            return self.store.load(number, self.study.like(count))
        return jax.tree.map(lambda a: np.repeat(a, count, axis=0), self.store.load(0, self.study.like(1)))


def whole(models: checkpoints.ParamsStore, study: Seeds) -> bool:
    """Whether the models of all seeds are on disk, every byte of them; damage is said."""
    numbers = range(len(study.chunks()))
    for number in numbers:
        damage = models.damage(number, checksums=True)
        if damage is not None:
            store.notice(f"{damage}: its models are made again.")
            models.discard(number)
    return all(map(models.done, numbers))


def models_of(study: Seeds, method: Method, folder: AnyPath) -> checkpoints.ParamsStore:
    """Where a method's unlearned models are."""
    identity = {"originals": study.identity, "method": method.identity}
    return checkpoints.ParamsStore(folder / "models", identity=identity, process=own_process())


def load_population(folder: AnyPath, init: Callable[[PRNGKeyArray], Params], directory: AnyPath) -> Params:
    """[S, ...] the parameters of all seeds that a folder of a finished run directory holds.

    Raises:
        InputError: There are none, or a chunk is damaged.
    """
    chunks = checkpoints.ParamsStore(folder, process=own_process())
    numbers = chunks.chunks()
    require(
        len(numbers) > 0, f"Expected models in {folder}, found none; give the command that wrote {directory} again."
    )
    shapes = jax.eval_shape(init, jax.random.key(0))

    def like(number):
        count = len(chunks.facts(number)["runs"])
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), shapes)

    loaded = [chunks.load(number, like(number)) for number in numbers]
    return jax.tree.map(lambda *parts: np.concatenate(parts), *loaded)


def require_trained_start(name: str, method: Method) -> None:
    """Raises InputError unless a method starts from the trained model alone, or from initial weights."""
    require(
        not method.unlearner.with_initial,
        f"Expected methods that start from the trained model alone, but {name} asks for the initial one too; audit it "
        "with jaxunlearn audit.",
    )
    require(
        method.unlearner.rewind == 0,
        f"Expected methods that start from the trained model, but {name} rewinds {method.unlearner.rewind} epochs; audit "
        "it with jaxunlearn audit.",
    )


class Unlearning:
    """A method at work in its folder: unlearns and measures, chunk by chunk of seeds.

    Attributes:
        salt: A number of the method's own, for keys.
        models: Where unlearned models are kept.
        stages: Parts of the work beside the unlearning's phases, for the progress; a subclass says.
    """

    stages = 1

    def __init__(self, study: Any, name: str, method: Method, folder: AnyPath):
        self.study, self.name, self.method, self.folder = study, name, method, folder
        self.salt = zlib.crc32(name.encode())
        self.models = models_of(study, method, folder)

    def measure(self, params: Params, rows: slice, progress: Callable[[float], None]) -> Arrays:
        """What is kept of unlearned models.

        Args:
            params: [r, ...] the models of a chunk, on the host.
            rows: Its seeds.
            progress: Told of the share of a stage just done.

        Returns:
            Arrays [r, ...] by name (fewer rows where not all seeds are saved), and "seconds", [s] by stage.
        """
        raise NotImplementedError

    @cached_property
    def _runners(self) -> list[PhaseRunner]:
        phases = self.method.unlearner.phases
        return [self.study.engine.phase_runner(phase, 1 + number) for number, phase in enumerate(phases)]

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return sum(total_steps(phase, self.study.engine.sizes) for phase in self.method.unlearner.phases)

    def all(self, originals: Originals) -> Arrays:
        """The arrays of all seeds as ``measure`` gives them; "seconds" by stage, unlearning first."""
        study = self.study
        bar = Bar(self.name, study.seeds, self.steps, study.config.quiet)
        parts = []
        for number, rows in enumerate(study.chunks()):
            path = self.folder / "chunks" / f"chunk-{number:05d}.npz"
            part = store.read_chunk(path)
            if part is None or not np.array_equal(part.get("rows", ()), (rows.start, rows.stop)):
                part = self._chunk(number, rows, originals, bar)
                with store.disk_errors(self.folder):
                    records.write_npz(path, **part, rows=np.array([rows.start, rows.stop]))
            else:
                bar.skip(rows.stop - rows.start)
            parts.append(part)
        bar.close()
        self.models.flush()
        seconds = np.sum([part.pop("seconds") for part in parts], axis=0)
        names = [name for name in parts[0] if name != "rows"]
        return {name: np.concatenate([part[name] for part in parts]) for name in names} | {"seconds": seconds}

    def again(self, originals: Originals) -> None:
        """Makes the models again that are not on disk; their results are whole."""
        for number, rows in enumerate(self.study.chunks()):
            self.unlearned(number, rows, originals)
        self.models.flush()

    def unlearned(self, number: int, rows: slice, originals: Originals, progress=None) -> tuple[Params, float]:
        """[chunk, ...] unlearned models, from disk or computed, and the seconds that this took."""
        study, unlearner = self.study, self.method.unlearner
        if self.models.done(number):
            try:
                found = self.models.load(number, study.like(rows.stop - rows.start))
                return found, float(self.models.facts(number)["seconds"])
            except records.Damaged as error:
                store.notice(f"{str(error).rstrip('.')}: its seeds are unlearned again.")
        began = time.perf_counter()
        runs = study.runs(rows, stage=UNLEARNING, salt=self.salt)
        scratch = unlearner.from_scratch
        params = study.initial(rows, RETRAINING) if scratch else originals.load(number, rows)
        for runner in self._runners:
            params = runner(runs, params, progress)
        params = on_host(params, rows)
        seconds = time.perf_counter() - began
        self.models.save(number, params, {"runs": list(range(rows.start, rows.stop)), "seconds": seconds})
        return params, seconds

    def _chunk(self, number: int, rows: slice, originals: Originals, bar: Bar) -> Arrays:
        parts = len(self.method.unlearner.phases) + self.stages
        progress = bar.chunk(rows.stop - rows.start, max(1, parts))
        params, unlearning = self.unlearned(number, rows, originals, progress)
        found = self.measure(params, rows, progress)
        return found | {"seconds": np.concatenate([[unlearning], found["seconds"]])}
