"""Train once, unlearn with every method, score, bound: the stages of ``jaxunlearn audit``."""

import contextlib
import datetime
import importlib.metadata
import platform
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, remove_tree
from jaxunlearn._validate import require
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.engine.population import PhaseRunner, Progress
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline import bounding, finished
from jaxunlearn.pipeline.population import Population, PopulationTrainer, finite, models_store, on_host, run_names
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.task import UNLEARNING, Task, build, make_unlearner
from jaxunlearn.records import BoundRecord, ScoreRecord
from jaxunlearn.types import Params, Unlearner

_PACKAGES = ("jaxunlearn", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy", "scikit-learn")
_ACCURACIES = ("retain", "forget", "unseen", "test")


def run(config: configuration.Audit) -> list[AnyPath]:
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
    directory = config.directory
    # What cannot be served is found out before anything is written: a manifest would refuse the mended command.
    task = build(config)
    plan = preregister(config, task.data.batch_size)
    unlearners = {name: make_unlearner(task, name, factory) for name, (factory, _) in methods.items()}
    for name, unlearner in unlearners.items():
        check_trajectory(task, name, unlearner)
    with store.exclusive(directory):
        if config.is_sequential:
            from jaxunlearn.pipeline import sequential  # which is made of the stages below

            return sequential.run(task, methods, unlearners, plan, began)
        return _run(task, methods, unlearners, plan, began)


def _run(
    task: Task,
    methods: dict[str, tuple[Callable, dict[str, Any]]],
    unlearners: dict[str, Unlearner],
    plan: Preregistration,
    began: float,
) -> list[AnyPath]:
    config, directory = task.config, task.config.directory
    manifest = open_run(task, plan)
    folders = {name: open_method(directory, name, identity) for name, (_, identity) in methods.items()}
    models = {name: models_store(task, folders[name], identity) for name, (_, identity) in methods.items()}
    found = {name: finished.look(folder, task.runs, config.trajectory) for name, folder in folders.items()}
    kept = {name: models_kept(task, models[name], len(task.runs)) for name in methods}
    todo = [name for name in methods if not (found[name].whole and kept[name])]
    trainer = PopulationTrainer(task, {u.rewind for u in unlearners.values()})
    with trainer:
        if config.keep != "none" or not all(found[name].scored for name in todo):
            trainer.all()
        notes = other_looks(config, plan)
    population = trainer.facts()
    for name in todo:
        unlearner, folder, there = unlearners[name], folders[name], found[name]
        scores, on_the_way, seconds = there.scores, there.on_the_way, {}
        if scores is None or on_the_way is None or not kept[name] or (folder / "chunks").exists():
            scores, on_the_way, seconds = unlearn_and_score(
                task, name, unlearner, trainer.population, folder, models[name]
            )
        seconds |= {"train": population["seconds"]}
        record = bound(task, name, unlearner, scores, plan, seconds, folder, notes, on_the_way)
        if there.record is None:
            with store.disk_errors(folder):
                records.write_json(folder / "bound.json", record.to_json())
        else:
            finished.compare(folder, there.record, record)
        remove_tree(folder / "chunks")
    if config.keep == "none":
        with trainer:
            trainer.population.clear()
    table = task.runs
    runs = {name: int(np.sum(table.roles == role)) for role, name in enumerate(records.ROLE_NAMES)}
    close_run(task, manifest, runs=runs, population=population, began=began)
    return [*folders.values()]


def open_run(task: Task, plan: Preregistration) -> dict[str, Any]:
    """Writes the manifest and signs.npz, or holds the directory to what it was begun with.

    Raises:
        InputError: The directory holds another configuration or preregistration.
    """
    config, directory = task.config, task.config.directory
    facts = {
        "title": config.dataset,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"python": platform.python_version()},
        "preregistration": plan.to_json(),
    }
    store.require_manifest(directory / "manifest.json", directory / "signs.npz")
    manifest = store.open_manifest(directory, "manifest.json", configuration.audit_identity(config), **facts)
    # The settings may be the same and the defaults of another version still name other bounds.
    validity.check_unchanged(Preregistration.from_json(manifest["preregistration"]), plan)
    table = task.runs
    with store.disk_errors(directory):
        records.write_npz(directory / "signs.npz", signs=table.signs, roles=table.roles, indices=table.indices)
    return manifest


def other_looks(config: configuration.Audit, plan: Preregistration) -> list[str]:
    """Registers the preregistration with the population; notes on other ones under which it was bounded before."""
    terms = {name: value for name, value in plan.to_json().items() if name not in plan.may_change}
    terms |= configuration.attack_terms(config) | {"trajectory": list(config.trajectory)}
    others = store.register(config.population_directory / "preregistrations.json", terms)
    changes = ["; ".join(store.differences(other, terms)) for other in others]
    return [
        f"These evaluation runs were bounded under another preregistration before ({change}); "
        "unless it was fixed beforehand that this one counts, it is exploratory."
        for change in changes
    ]


def run_notes(task: Task, unlearner: Unlearner, lost: int, role: str) -> list[str]:
    """What a method's reader must know of its runs: the method's own notes, ``lost`` runs that only fit, fresh weights."""
    notes = list(unlearner.notes)
    if lost:
        notes.append(f"{lost} {role} runs failed twice; their non-finite scores are left out of the fits.")
    if task.config.fresh_init:
        notes.append("Every run drew its own initial weights and order, unknown to the attack.")
    return notes


def open_method(directory: AnyPath, name: str, identity: dict[str, Any]) -> AnyPath:
    """The method's folder, held to the hyperparameters that its results were computed with."""
    folder = directory / configuration.method_directory_name(name)
    results = [folder / name for name in ("bound.json", "scores.npz", "chunks", "models")]
    with store.disk_errors(folder):
        store.sweep(directory, folder, folder / "chunks", folder / "models")
        if not any(path.exists() for path in results):
            (folder / "method.json").unlink(missing_ok=True)  # nothing was computed with it: it binds nobody
    store.require_manifest(folder / "method.json", *results)
    store.open_manifest(folder, "method.json", identity)
    return folder


def close_run(
    task: Task, manifest: dict[str, Any], *, runs: dict[str, int], population: dict[str, Any], began: float
) -> None:
    """Adds to the manifest what is known once all methods are done."""
    config, directory = task.config, task.config.directory
    device = task.engine.mesh.devices.flat[0]
    with store.disk_errors(directory):
        records.write_json(
            directory / "manifest.json",
            manifest
            | {
                "device": f"{task.engine.mesh.devices.size} x {device.device_kind} ({device.platform})",
                "runs": runs,
                "methods": sorted({*manifest.get("methods", []), *config.methods}, key=_order(config)),
                "population": population,
                "wall_seconds": round(manifest.get("wall_seconds", 0.0) + time.perf_counter() - began, 1),
            },
        )


def _order(config):
    return lambda name: (config.methods.index(name) if name in config.methods else len(config.methods), name)


def unlearn_and_score(
    task: Task,
    name: str,
    unlearner: Unlearner,
    population: Population,
    folder: AnyPath,
    models: store.ParamsStore | None = None,
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
    with models.writer if models is not None else contextlib.nullcontext():
        for number, rows in enumerate(task.chunks):
            runs = rows.stop - rows.start
            part = read_scores(task, folder, number, models)
            if part is not None:
                bar.skip(runs)
            else:
                progress = bar.chunk(runs, max(1, len(runners)))
                part = unlearn_chunk(task, unlearner, runners, population, number, salt, progress, models)
                write_scores(task, folder, number, part)
            parts.append(part)
    bar.close()
    scores, seconds = collect(task, parts, len(task.runs))
    on_the_way = {t: collect(task, parts, len(task.runs), _at(t))[0] for t in task.config.trajectory}
    return scores, on_the_way, seconds


def models_kept(task: Task, models: store.ParamsStore | None, runs: int) -> bool:
    """Whether the unlearned models of the first ``runs`` runs are on disk, if they are to be; a damaged chunk is said."""
    if models is None:
        return True
    numbers = [number for number, rows in enumerate(task.chunks) if rows.start < runs]
    for damage in filter(None, map(models.damage, numbers)):
        store.notice(f"{damage}: its runs are unlearned again.")
    return all(map(models.done, numbers))


def read_scores(
    task: Task, folder: AnyPath, number: int, models: store.ParamsStore | None = None
) -> dict[str, np.ndarray] | None:
    """A finished chunk of scores whose models are kept if they are to be, or None."""
    if models is not None and not models.done(number):
        return None
    rows, chunks = task.chunks[number], folder / "chunks"
    path = chunks / f"chunk-{number:05d}.npz"
    if not path.exists() and (chunks / f"chunk-{number + 1:05d}.npz").exists():
        store.notice(f"{path} is missing: its runs are unlearned and scored again.")
    part = store.read_chunk(path)
    # Another chunk size numbers the chunks differently.
    same = part is not None and np.array_equal(part.get("rows", ()), (rows.start, rows.stop))
    return part if same else None


def write_scores(task: Task, folder: AnyPath, number: int, part: dict[str, np.ndarray]) -> None:
    """Writes a finished chunk of scores."""
    rows = task.chunks[number]
    with store.disk_errors(folder):
        records.write_npz(folder / "chunks" / f"chunk-{number:05d}.npz", **part, rows=np.array([rows.start, rows.stop]))


def collect(
    task: Task, parts: Sequence[dict[str, np.ndarray]], runs: int, prefix: str = ""
) -> tuple[ScoreRecord, dict[str, float]]:
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


def unlearn_chunk(
    task: Task,
    unlearner: Unlearner,
    runners: Sequence[PhaseRunner],
    population: Population,
    number: int,
    salt: int,
    progress: Progress,
    models: store.ParamsStore | None = None,
) -> dict[str, np.ndarray]:
    """Unlearns and scores one chunk; once more with the same keys if a run's scores are not finite.

    The unlearned models go to ``models``, if it is given, in the background.
    """
    rows = task.chunks[number]
    chunk = task.chunk(rows, stage=UNLEARNING, salt=salt)
    part: dict[str, np.ndarray] = {}

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
    if models is not None:
        models.save(number, on_host(params, rows), run_names(task, rows))
    return part


def preregister(config: configuration.Audit, batch_size: int) -> Preregistration:
    """What is fixed before the first evaluation run; it is written to the manifest. ``batch_size`` is the data's B."""
    return Preregistration.default(
        config.predictor,
        m=config.m,
        batch_size=batch_size,
        L=config.most_runs - config.warmup if config.is_sequential else config.evaluation_runs,
        zeta=config.zeta,
        delta=config.audited_delta,
        r=None if config.is_sequential else config.r,
        warmup=config.warmup if config.is_sequential else None,
        claim_epsilon=config.claim_epsilon,
    )


def bound(
    task: Task,
    name: str,
    unlearner: Unlearner,
    scores: ScoreRecord,
    plan: Preregistration,
    seconds: dict[str, float],
    folder: AnyPath,
    notes: Sequence[str] = (),
    on_the_way: Mapping[int, ScoreRecord] = MappingProxyType({}),
) -> BoundRecord:
    """Attacks the evaluation runs, bounds epsilon, and writes scores.npz, evaluation.npz and trajectory.npz."""
    evaluation = scores.roles == records.EVALUATION
    notes = [*notes, *run_notes(task, unlearner, int(scores.failed[~evaluation].sum()), "calibration")]
    with store.disk_errors(folder):
        scores.save(folder / "scores.npz")
        if on_the_way:
            bounding.save_trajectory(folder / "trajectory.npz", on_the_way)
    end = sum(total_steps(phase, task.engine.sizes) for phase in unlearner.phases)
    kind, variance = task.config.attack, task.config.fit_variance
    lost_on_the_way = {step: int(part.failed.sum()) for step, part in on_the_way.items() if part.failed.any()}
    if lost_on_the_way:
        counts = ", ".join(f"{count} after {step} steps" for step, count in sorted(lost_on_the_way.items()))
        notes.append(
            f"On the way, runs whose scores are not finite: {counts}; evaluation runs among them count as p = 1."
        )
    path = bounding.trajectory(plan, on_the_way, scores, end=end, kind=kind, variance=variance)
    outputs, choice = bounding.attack_with(kind, scores, plan, variance=variance)
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
        accuracy=scores.accuracy_summary(),
        seconds=seconds,
        certificate=unlearner.certificate,
        notes=notes,
        trajectory=path,
    )
    with store.disk_errors(folder):
        records.write_npz(folder / "evaluation.npz", **evaluated)
    return record
