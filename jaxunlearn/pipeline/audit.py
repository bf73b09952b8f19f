"""Train once, unlearn with every method, score, bound: the stages of ``jaxunlearn audit``."""

import dataclasses
import datetime
import importlib.metadata
import platform
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._validate import require
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.engine.population import PhaseRunner, Progress, pad
from jaxunlearn.engine.train import steps_per_epoch, total_steps
from jaxunlearn.pipeline import bounding
from jaxunlearn.pipeline.task import TRAINING, UNLEARNING, Task, build, make_unlearner
from jaxunlearn.records import BoundRecord, ScoreRecord
from jaxunlearn.types import Params, Unlearner

_PACKAGES = ("jaxunlearn", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy", "scikit-learn")
_ACCURACIES = ("retain", "forget", "unseen", "test")

SAY_EVERY = 20.0
"""Seconds between two lines of progress where there is no terminal."""


class Bar:
    """Progress of one stage over its runs: a bar on a terminal, a few lines elsewhere."""

    def __init__(self, label: str, runs: int, steps: int, quiet: bool):
        layout = "{desc:<22} {percentage:3.0f}% |{bar:24}| {n:.0f}/{total:.0f} runs, {rate_fmt}, {remaining} left"
        self._line = not quiet and not sys.stderr.isatty()
        self._bar = tqdm(
            total=runs,
            desc=label,
            disable=quiet or self._line,
            file=sys.stderr,
            bar_format=layout,
            unit=" runs",
            smoothing=0.1,
            dynamic_ncols=True,
        )
        self._label, self._runs, self._found, self._began = label, runs, 0, time.perf_counter()
        self._done, self._said = 0.0, self._began
        if self._line:
            print(f"{label:<22} {runs:,} runs of {steps:,} steps", file=sys.stderr)

    def chunk(self, runs: int, parts: int = 1) -> Callable[[float], None]:
        """A callback for one chunk of ``runs`` runs whose work comes in ``parts`` phases."""

        def move(share: float) -> None:
            self._bar.update(share * runs / parts)
            self._done += share * runs / parts
            now = time.perf_counter()
            if self._line and now - self._said > SAY_EVERY:
                left = (self._runs - self._found - self._done) * (now - self._began) / self._done
                done = self._found + self._done
                print(f"{self._label:<22} {done:.1f} of {self._runs:,} runs, {left:.0f} s left", file=sys.stderr)
                self._said = now

        return move

    def skip(self, runs: int) -> None:
        """Counts runs that were found finished; they do not enter the rate."""
        self._found += runs
        if not self._bar.disable:
            self._bar.initial += runs
            self._bar.n += runs
            self._bar.refresh()

    def close(self) -> None:
        """Ends the bar's line."""
        self._bar.close()
        if self._line:
            seconds = time.perf_counter() - self._began
            found = f", {self._found} found finished" if self._found else ""
            rate = (self._runs - self._found) / max(seconds, 1e-9)
            print(f"{self._label:<22} {self._runs} runs in {seconds:.1f} s ({rate:.1f} runs/s{found})", file=sys.stderr)


def run(config: configuration.Audit) -> list[Path]:
    """Runs or resumes an audit.

    Args:
        config: The audit.

    Returns:
        The methods' folders in the run directory, each with bound.json, scores.npz and evaluation.npz.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    began = time.perf_counter()
    methods = {name: configuration.resolve_method(name, config.method) for name in config.methods}
    plan = preregister(config)
    directory = config.directory
    # What cannot be served is found out before anything is written: a manifest would refuse the mended command.
    task = build(config)
    unlearners = {name: make_unlearner(task, name, factory) for name, (factory, _) in methods.items()}
    for name, unlearner in unlearners.items():
        check_trajectory(task, name, unlearner)
    with store.exclusive(directory):
        return _run(task, methods, unlearners, plan, began)


def _run(
    task: Task,
    methods: dict[str, tuple[Callable, dict[str, Any]]],
    unlearners: dict[str, Unlearner],
    plan: Preregistration,
    began: float,
) -> list[Path]:
    config, directory = task.config, task.config.directory
    facts = {
        "title": config.dataset,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"python": platform.python_version()},
        "preregistration": plan.to_json(),
    }
    manifest = store.open_manifest(directory, "manifest.json", configuration.audit_identity(config), **facts)
    # The settings may be the same and the defaults of another version still name other bounds.
    validity.check_unchanged(Preregistration.from_json(manifest["preregistration"]), plan)
    table = task.runs
    with store.disk_errors(directory):
        records.write_npz(directory / "signs.npz", signs=table.signs, roles=table.roles, indices=table.indices)
    trained, population = train_population(task, {u.rewind for u in unlearners.values()})
    others = store.register(config.population_directory / "preregistrations.json", plan.to_json())
    notes = [
        f"These evaluation runs were bounded under another preregistration before ({_terms(other, plan)}); "
        "unless it was fixed beforehand that this one counts, it is exploratory."
        for other in others
    ]
    folders = []
    for name, (_, identity) in methods.items():
        folder = directory / configuration.method_directory_name(name)
        with store.disk_errors(folder):
            if not (folder / "bound.json").exists() and not (folder / "chunks").exists():
                (folder / "method.json").unlink(missing_ok=True)  # nothing was computed with it: it binds nobody
        store.open_manifest(folder, "method.json", identity)
        folders.append(folder)
        if not (folder / "bound.json").exists():
            unlearner = unlearners[name]
            scores, on_the_way, seconds = unlearn_and_score(task, name, unlearner, trained, folder)
            seconds |= {"train": population["seconds"]}
            record = bound(task, name, unlearner, scores, plan, seconds, folder, notes, on_the_way)
            with store.disk_errors(folder):
                records.write_json(folder / "bound.json", record.to_json())
            shutil.rmtree(folder / "chunks", ignore_errors=True)
    device = task.engine.mesh.devices.flat[0]
    with store.disk_errors(directory):
        records.write_json(
            directory / "manifest.json",
            manifest
            | {
                "device": f"{task.engine.mesh.devices.size} x {device.device_kind} ({device.platform})",
                "runs": {name: int(np.sum(table.roles == role)) for role, name in enumerate(records.ROLE_NAMES)},
                "methods": sorted({*manifest.get("methods", []), *config.methods}, key=_order(config)),
                "population": population,
                "wall_seconds": round(manifest.get("wall_seconds", 0.0) + time.perf_counter() - began, 1),
            },
        )
    return folders


def _terms(other: dict[str, Any], plan: Preregistration) -> str:
    """What another preregistration has differently."""
    return "; ".join(store.differences(other, plan.to_json()))


def _order(config):
    return lambda name: (config.methods.index(name) if name in config.methods else len(config.methods), name)


def _finite(tree: Any) -> np.ndarray:
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
        return _train_population(task, sorted({0, *rewinds}))


def _train_population(task: Task, rewinds: Sequence[int]) -> tuple["Population", dict[str, Any]]:
    directory = task.config.population_directory
    plan = task.engine.plan
    identity = configuration.training_identity(task.config) | {
        "width": plan.width,
        "runs_per_chunk": plan.runs_per_chunk,
    }
    manifest = store.open_manifest(directory, "manifest.json", identity)
    population = Population(task, rewinds)
    train = PopulationTrainer(task, population)
    bar = Bar("train", len(task.runs), train.steps, task.config.quiet)
    trained = 0
    began = time.perf_counter()
    for number, rows in enumerate(task.chunks):
        runs = rows.stop - rows.start
        if train(number, bar.chunk(runs)):
            trained += runs
        else:
            bar.skip(runs)
    bar.close()
    seconds = manifest.get("seconds", 0.0) + (time.perf_counter() - began if trained else 0.0)
    if trained:
        with store.disk_errors(directory):
            records.write_json(directory / "manifest.json", manifest | {"seconds": seconds})
    facts = {"seconds": round(seconds, 1), "trained_runs": trained, "reused_runs": len(task.runs) - trained}
    return population, facts


class PopulationTrainer:
    """Trains the chunks of a population that are not on disk yet.

    Args:
        task: The audit's task.
        population: Where the models go.
    """

    def __init__(self, task: Task, population: "Population"):
        phase = task.info.train_phase("train")
        self.task, self.population, self.steps = task, population, total_steps(phase, task.engine.sizes)
        self._run = task.engine.phase_runner(phase, 0)
        self._per_epoch = steps_per_epoch(phase, task.engine.sizes)

    def __call__(self, number: int, progress: Progress) -> bool:
        """Trains chunk ``number`` unless all its checkpoints are on disk; says whether it did."""
        missing = [rewind for rewind in self.population.stores if not self.population.done(number, rewind)]
        if not missing:
            return False
        rows = self.task.chunks[number]
        stops = {
            self.steps - rewind * self._per_epoch: partial(self.population.save, number, rows, rewind=rewind)
            for rewind in missing
        }
        self._run(self.task.chunk(rows, stage=TRAINING), self.task.initial(rows), progress, stops)
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
        self.stores[rewind].save(number, host, {"runs": names, "finite": _finite(host).tolist()})
        self._remember(number, rewind, host)

    def _remember(self, number: int, rewind: int, host: Params) -> None:
        if self._fits:
            self._cache[number, rewind] = host

    def load(self, number: int, rows: slice, rewind: int = 0) -> Params:
        """A chunk of trained parameters, padded to the plan's size."""
        runs = rows.stop - rows.start
        if (number, rewind) not in self._cache:
            like = jax.tree.map(lambda s: jax.ShapeDtypeStruct((runs, *s.shape), s.dtype), self.task.parameter_shapes)
            host = jax.tree.map(np.asarray, self.stores[rewind].load(number, like))
            self._remember(number, rewind, host)
        else:
            host = self._cache[number, rewind]
        return pad(host, self.task.engine.plan.runs_per_chunk)


def unlearn_and_score(
    task: Task, name: str, unlearner: Unlearner, population: Population, folder: Path
) -> tuple[ScoreRecord, dict[int, ScoreRecord], dict[str, float]]:
    """Unlearns every trained model with one method and scores the result.

    A run whose scores are not finite is done once more with the same key; if that fails too, it is recorded as failed and
    counts as p = 1. It is never dropped and never gets a new key or sign vector.

    Returns:
        The scores of all runs, those of the models after each step of the configured trajectory, and the seconds spent by
        stage.
    """
    salt = zlib.crc32(name.encode())
    runners = [task.engine.phase_runner(phase, number + 1) for number, phase in enumerate(unlearner.phases)]
    steps = sum(total_steps(phase, task.engine.sizes) for phase in unlearner.phases)
    bar = Bar(name, len(task.runs), steps, task.config.quiet)
    parts: list[dict[str, np.ndarray]] = []
    for number, rows in enumerate(task.chunks):
        runs = rows.stop - rows.start
        path = folder / "chunks" / f"chunk-{number:05d}.npz"
        part = store.read_chunk(path)
        if part is not None and np.array_equal(part.get("rows", ()), (rows.start, rows.stop)):
            bar.skip(runs)
            parts.append(part)
            continue
        part = _unlearn_chunk(task, unlearner, runners, population, number, salt, bar.chunk(runs, max(1, len(runners))))
        part["rows"] = np.array([rows.start, rows.stop])  # another chunk size numbers the chunks differently
        with store.disk_errors(folder):
            records.write_npz(path, **part)
        parts.append(part)
    bar.close()
    whole = {key: np.concatenate([part[key] for part in parts]) for key in parts[0] if key not in ("seconds", "rows")}
    table = task.runs

    def record(prefix: str) -> ScoreRecord:
        return ScoreRecord(
            signs=table.signs,
            roles=table.roles,
            indices=table.indices,
            scores=whole[f"{prefix}scores"],
            accuracy={key: whole[f"{prefix}accuracy_{key}"] for key in _ACCURACIES},
            failed=whole[f"{prefix}failed"],
        )

    seconds = np.sum([part["seconds"] for part in parts], axis=0)
    on_the_way = {step: record(_at(step)) for step in task.config.trajectory}
    return record(""), on_the_way, {"unlearn": float(seconds[0]), "score": float(seconds[1])}


def _at(step: int) -> str:
    """What the arrays of a model on the way are called by."""
    return f"at-{step}-"


def check_trajectory(task: Task, name: str, unlearner: Unlearner) -> None:
    """Refuses steps of ``trajectory`` that a method does not reach, or at which it has no model to score.

    Raises:
        InputError: A step is not below the method's steps, or lies in a phase that hands on more than parameters.
    """
    structure = jax.tree.structure(task.parameter_shapes)
    shapes, total = task.parameter_shapes, 0
    for number, phase in enumerate(unlearner.phases):
        state = jax.eval_shape(phase.init, task.root, shapes)
        shapes = jax.eval_shape(phase.finalize, task.root, state)
        end = total + total_steps(phase, task.engine.sizes)
        inside = [step for step in task.config.trajectory if total <= step < end]
        require(
            not inside or jax.tree.structure(shapes) == structure,
            f"Expected trajectory steps at which {name} has a model, but {inside} lie in its phase {number} of steps "
            f"{total} to {end - 1}, which hands on more than parameters.",
        )
        total = end
    beyond = [step for step in task.config.trajectory if step >= total]
    require(not beyond, f"Expected trajectory steps below the {total} steps of {name}, got {beyond}.")


def _unlearn_chunk(
    task: Task,
    unlearner: Unlearner,
    runners: Sequence[PhaseRunner],
    population: Population,
    number: int,
    salt: int,
    progress: Progress,
) -> dict[str, np.ndarray]:
    """Unlearns and scores one chunk; once more with the same keys if a run's scores are not finite."""
    rows = task.chunks[number]
    chunk = task.chunk(rows, stage=UNLEARNING, salt=salt)
    part: dict[str, np.ndarray] = {}

    def score(prefix: str, params: Params) -> None:
        began = time.perf_counter()
        for key, value in task.score(params, chunk.member).items():
            part[f"{prefix}{key}"] = np.asarray(value)[: rows.stop - rows.start]
        part[f"{prefix}failed"] = ~_finite({"scores": part[f"{prefix}scores"]})
        part["seconds"] += [0.0, time.perf_counter() - began]

    for attempt in range(2):
        part["seconds"] = np.zeros(2)
        began = time.perf_counter()
        params = task.initial(rows) if unlearner.from_scratch else population.load(number, rows, unlearner.rewind)
        before = 0
        for phase, runner in zip(unlearner.phases, runners):
            end = before + total_steps(phase, task.engine.sizes)
            stops = {t - before: partial(score, _at(t)) for t in task.config.trajectory if before <= t < end}
            params = runner(chunk, params, progress if attempt == 0 else None, stops)
            before = end
        part["seconds"][0] = time.perf_counter() - began - part["seconds"][1]
        score("", params)
        if not part["failed"].any():
            break
    return part


def accuracy_summary(scores: ScoreRecord) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over the runs that did not fail."""
    summary = {}
    for name, values in scores.accuracy.items():
        good = values[~scores.failed & np.isfinite(values)]
        if good.size:
            summary[name] = {"mean": float(good.mean()), "sd": float(good.std())}
    return summary


def preregister(config: configuration.Audit) -> Preregistration:
    """What is fixed before the first evaluation run; it is written to the manifest."""
    return Preregistration.default(
        config.predictor,
        m=config.m,
        batch_size=config.candidate_batch_size,
        L=config.evaluation_runs,
        zeta=config.zeta,
        delta=config.delta,
        r=config.r,
    )


def bound(
    task: Task,
    name: str,
    unlearner: Unlearner,
    scores: ScoreRecord,
    plan: Preregistration,
    seconds: dict[str, float],
    folder: Path,
    notes: Sequence[str] = (),
    on_the_way: Mapping[int, ScoreRecord] = MappingProxyType({}),
) -> BoundRecord:
    """Attacks the evaluation runs, bounds epsilon, and writes scores.npz, evaluation.npz and trajectory.npz."""
    evaluation = scores.roles == records.EVALUATION
    notes = [*notes, *unlearner.notes]
    lost = int(scores.failed[~evaluation].sum())
    if lost:
        notes.append(f"{lost} calibration runs failed twice; their non-finite scores are left out of the fits.")
    if task.config.fresh_init:
        notes.append("Every run drew its own initial weights and order, unknown to the attack.")
    with store.disk_errors(folder):
        scores.save(folder / "scores.npz")
        if on_the_way:
            bounding.save_trajectory(folder / "trajectory.npz", on_the_way)
    end = sum(total_steps(phase, task.engine.sizes) for phase in unlearner.phases)
    path = bounding.trajectory(plan, on_the_way, scores, end=end, variance=task.config.variance)
    record, evaluated = bounding.record(
        plan,
        bounding.attack(scores, plan, variance=task.config.variance),
        scores.signs[evaluation],
        scores.failed[evaluation],
        method=name,
        title=task.config.dataset,
        definition="3.2" if task.config.fresh_init else "3.3",
        calibration_runs=int(np.sum(~evaluation)),
        accuracy=accuracy_summary(scores),
        seconds=seconds,
        certificate=unlearner.certificate,
        notes=notes,
        trajectory=path,
    )
    with store.disk_errors(folder):
        records.write_npz(folder / "evaluation.npz", **evaluated)
    return dataclasses.replace(record, batch_size=task.data.batch_size)  # chunks of text hold several windows
