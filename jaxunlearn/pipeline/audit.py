"""Train once, unlearn with every method, score, bound: the stages of ``jaxunlearn audit``."""

import datetime
import importlib.metadata
import platform
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.engine.population import Progress, Runs, pad
from jaxunlearn.engine.train import total_steps
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
    trained, population = train_population(task)
    terms = plan.to_json() | configuration.attack_terms(config)
    others = store.register(config.population_directory / "preregistrations.json", terms)
    notes = [
        f"These evaluation runs were bounded under another preregistration before ({'; '.join(_changes(other, terms))}); "
        "unless it was fixed beforehand that this one counts, it is exploratory."
        for other in others
        if _changes(other, terms)
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
            scores, seconds = unlearn_and_score(task, name, unlearner, trained, folder)
            seconds |= {"train": population["seconds"]}
            record = bound(task, name, unlearner, scores, plan, seconds, folder, notes)
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


def _changes(other: dict[str, Any], terms: dict[str, Any]) -> list[str]:
    """What another preregistration has differently, as far as it says (those of older versions name no attack)."""
    return store.differences(other, {name: value for name, value in terms.items() if name in other})


def _order(config):
    return lambda name: (config.methods.index(name) if name in config.methods else len(config.methods), name)


def _finite(tree: Any) -> np.ndarray:
    """[R] whether every array of a run is finite."""
    flags = [np.isfinite(np.asarray(leaf)).reshape(leaf.shape[0], -1).all(axis=1) for leaf in jax.tree.leaves(tree)]
    return np.logical_and.reduce(flags)


def train_population(task: Task) -> tuple["Population", dict[str, Any]]:
    """Trains D(S) for all runs, or reuses what is on disk.

    Returns:
        The population, and {"seconds", "trained_runs", "reused_runs"} for the report.
    """
    with store.exclusive(task.config.population_directory):
        return _train_population(task)


def _train_population(task: Task) -> tuple["Population", dict[str, Any]]:
    directory = task.config.population_directory
    plan = task.engine.plan
    identity = configuration.training_identity(task.config) | {
        "width": plan.width,
        "runs_per_chunk": plan.runs_per_chunk,
    }
    manifest = store.open_manifest(directory, "manifest.json", identity)
    population = Population(task, store.ParamsStore(directory))
    phase = task.info.train_phase("train")
    run_phase = task.engine.phase_runner(phase, 0)
    bar = Bar("train", len(task.runs), total_steps(phase, task.engine.sizes), task.config.quiet)
    trained = 0
    began = time.perf_counter()
    for number, rows in enumerate(task.chunks):
        runs = rows.stop - rows.start
        if population.store.done(number):
            bar.skip(runs)
            continue
        params = run_phase(task.chunk(rows, stage=TRAINING), task.initial(rows), bar.chunk(runs))
        population.save(number, rows, params)
        trained += runs
    bar.close()
    seconds = manifest.get("seconds", 0.0) + (time.perf_counter() - began if trained else 0.0)
    if trained:
        with store.disk_errors(directory):
            records.write_json(directory / "manifest.json", manifest | {"seconds": seconds})
    facts = {"seconds": round(seconds, 1), "trained_runs": trained, "reused_runs": len(task.runs) - trained}
    return population, facts


class Population:
    """The trained models by chunk; small ones stay in memory, all are on disk."""

    def __init__(self, task: Task, params_store: store.ParamsStore):
        self.task, self.store = task, params_store
        leaves = jax.tree.leaves(task.parameter_shapes)
        self._bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * len(task.runs)
        self._cache: dict[int, Params] = {}

    def save(self, number: int, rows: slice, params: Params) -> None:
        """Writes a chunk without its padding."""
        runs = rows.stop - rows.start
        host = jax.tree.map(lambda a: np.asarray(a)[:runs], params)
        table = self.task.runs
        names = [[records.ROLE_NAMES[r], int(i)] for r, i in zip(table.roles[rows], table.indices[rows])]
        self.store.save(number, host, {"runs": names, "finite": _finite(host).tolist()})
        self._remember(number, host)

    def _remember(self, number: int, host: Params) -> None:
        if self._bytes < 1 << 30:
            self._cache[number] = host

    def load(self, number: int, rows: slice) -> Params:
        """A chunk of trained parameters, padded to the plan's size."""
        runs = rows.stop - rows.start
        if number not in self._cache:
            like = jax.tree.map(lambda s: jax.ShapeDtypeStruct((runs, *s.shape), s.dtype), self.task.parameter_shapes)
            host = jax.tree.map(np.asarray, self.store.load(number, like))
            self._remember(number, host)
        else:
            host = self._cache[number]
        return pad(host, self.task.engine.plan.runs_per_chunk)


def unlearn_and_score(
    task: Task, name: str, unlearner: Unlearner, population: Population, folder: Path
) -> tuple[ScoreRecord, dict[str, float]]:
    """Unlearns every trained model with one method and scores the result.

    A run whose scores are not finite is done once more with the same key; if that fails too, it is recorded as failed and
    counts as p = 1. It is never dropped and never gets a new key or sign vector.

    Returns:
        The scores of all runs, and the seconds spent by stage.
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
    scores = ScoreRecord(
        signs=table.signs,
        roles=table.roles,
        indices=table.indices,
        scores=whole["scores"],
        accuracy={key: whole[f"accuracy_{key}"] for key in _ACCURACIES},
        failed=whole["failed"],
        signals={key.removeprefix("signal_"): whole[key] for key in whole if key.startswith("signal_")},
    )
    seconds = np.sum([part["seconds"] for part in parts], axis=0)
    return scores, {"unlearn": float(seconds[0]), "score": float(seconds[1])}


def _unlearn_chunk(
    task: Task,
    unlearner: Unlearner,
    runners: Sequence[Callable[[Runs, Params, Progress | None], Params]],
    population: Population,
    number: int,
    salt: int,
    progress: Progress,
) -> dict[str, np.ndarray]:
    """Unlearns and scores one chunk; once more with the same keys if a run's scores are not finite."""
    rows = task.chunks[number]
    chunk = task.chunk(rows, stage=UNLEARNING, salt=salt)
    part: dict[str, np.ndarray] = {}
    for attempt in range(2):
        began = time.perf_counter()
        params = task.initial(rows) if unlearner.from_scratch else population.load(number, rows)
        for runner in runners:
            params = runner(chunk, params, progress if attempt == 0 else None)
        unlearned = time.perf_counter()
        part = {
            key: np.asarray(value)[: rows.stop - rows.start] for key, value in task.score(params, chunk.member).items()
        }
        part["failed"] = ~_finite(
            [value for key, value in part.items() if key == "scores" or key.startswith("signal_")]
        )
        part["seconds"] = np.array([unlearned - began, time.perf_counter() - unlearned])
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
) -> BoundRecord:
    """Attacks the evaluation runs, bounds epsilon, and writes scores.npz and evaluation.npz."""
    evaluation = scores.roles == records.EVALUATION
    notes = list(notes)
    lost = int(scores.failed[~evaluation].sum())
    if lost:
        notes.append(f"{lost} calibration runs failed twice; their non-finite scores are left out of the fits.")
    if task.config.fresh_init:
        notes.append("Every run drew its own initial weights and order, unknown to the attack.")
    with store.disk_errors(folder):
        scores.save(folder / "scores.npz")
    outputs, choice = bounding.attack_with(task.config.attack, scores, plan, variance=task.config.variance)
    notes += [choice.note] if choice else []
    record, evaluated = bounding.record(
        plan,
        outputs,
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
    )
    with store.disk_errors(folder):
        records.write_npz(folder / "evaluation.npz", **evaluated)
    return record
