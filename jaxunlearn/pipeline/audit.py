"""Train once, unlearn with every method, score, bound: the stages of ``jaxunlearn audit``."""

import contextlib
import datetime
import importlib.metadata
import platform
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, remove_tree
from jaxunlearn._validate import InputError, require
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.engine.processes import Group
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline import bounding, finished
from jaxunlearn.pipeline.population import PopulationTrainer
from jaxunlearn.pipeline.task import Task, build, make_unlearner
from jaxunlearn.pipeline.unlearning import Method, MethodRuns
from jaxunlearn.records import BoundRecord, ScoreRecord
from jaxunlearn.types import Start, Unlearner

PACKAGES = ("jaxunlearn", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "scipy", "scikit-learn")
RESULTS = (
    "bound.json",
    "scores.npz",
    "robustness.json",
    "attacked.npz",
    "privacy.json",
    "answers.npz",
    "chunks",
    "models",
)
"""What a method's folder holds that its settings, method.json, bind."""
Methods = Mapping[str, Method]

OPENED = "opened"
"""The first process's word that all manifests are there."""


def run(config: configuration.Audit, group: Group | None = None) -> list[AnyPath]:
    """Runs or resumes an audit.

    Args:
        config: The audit.
        group: This process among those that share the run directory; None means alone.

    Returns:
        The methods' folders in the run directory, each with bound.json, scores.npz and evaluation.npz.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    began = time.perf_counter()
    group = group or Group()
    resolved = {name: configuration.resolve(config, name) for name in config.methods}
    directory = config.directory
    with contextlib.ExitStack() as stack:
        if group.count > 1:  # the lock first: a command given twice by mistake must not speak for the one that works
            stack.enter_context(store.exclusive(directory, group.lock))
            stack.enter_context(group.working(directory))
            group.follow(OPENED)
        # What cannot be served is found out before anything is written: a manifest would refuse the mended command.
        task = build(config, group=group, runs_per_chunk=chunks_begun(config))
        plan = preregister(config, task.data.batch_size)
        methods = {name: Method(*found, make_unlearner(task.info, name, found[0])) for name, found in resolved.items()}
        for name, method in methods.items():
            check_trajectory(task, name, method.unlearner)
        if group.count == 1:
            stack.enter_context(store.exclusive(directory))
        if config.is_sequential:
            from jaxunlearn.pipeline import sequential  # which is made of the stages below

            folders, trainer = sequential.run(task, methods, plan, began)
        else:
            folders, trainer = _run(task, methods, plan, began)
        group.await_end()
        if config.keep == "none" and group.first:  # nobody reads the models any more
            with trainer:
                trainer.population.clear()
    return folders


def _run(task: Task, methods: Methods, plan: Preregistration, began: float) -> tuple[list[AnyPath], PopulationTrainer]:
    config, group = task.config, task.group
    manifest, works, trainer = open_all(task, methods, plan)
    found = {work.name: finished.look(work.folder, task.runs, config.trajectory) for work in works if group.first}
    todo = {work.name: _todo(work, found[work.name]) for work in works if group.first}
    group.announce(OPENED, todo=todo, asked=list(methods))
    if not group.first:  # which may have begun to write since
        todo = group.follow(OPENED)["todo"]
    with trainer:
        if config.keep != "none" or "scores" in todo.values() or "models" in todo.values():
            trainer.all()
        notes = other_looks(config, plan) if group.first else []
    for work in works:
        made = work.all() if todo[work.name] == "scores" else None
        if todo[work.name] == "models":
            work.save_models()
        if not group.first or not todo[work.name]:
            continue
        there = found[work.name]
        if made is not None:
            scores, on_the_way, seconds = made
        else:
            assert there.scores is not None and there.on_the_way is not None  # or they would have been made
            scores, on_the_way, seconds = there.scores, there.on_the_way, {}
        seconds |= {"train": trainer.facts()["seconds"]}
        record = bound(work, scores, plan, seconds, notes, on_the_way)
        if there.record is None:
            with store.disk_errors(work.folder):
                records.write_json(work.folder / "bound.json", record.to_json())
        else:
            finished.compare(work.folder, there.record, record)
        remove_tree(work.folder / "chunks")
    if group.first:
        table = task.runs
        runs = {name: int(np.sum(table.roles == role)) for role, name in enumerate(records.ROLE_NAMES)}
        close_run(task, manifest, works, runs=runs, trainer=trainer, began=began)
    return [work.folder for work in works], trainer


def _todo(work: MethodRuns, found: finished.Finished) -> str:
    """What is left to do: "scores", "models" that are to be kept, "bounds" alone, or ""."""
    kept = work.models_kept(len(work.task.runs))
    if found.whole and kept:
        return ""
    # Chunks of scores beside whole scores: a kill came between them and the bounds, and they know the seconds.
    if not found.scored or (work.folder / "chunks").exists():
        return "scores"
    return "bounds" if kept else "models"


def chunks_begun(config: configuration.Audit) -> int | None:
    """The chunk size that a population was begun with; it is the same on whatever machine goes on."""
    try:
        return int(records.read_json(config.population_directory / "manifest.json")["config"]["runs_per_chunk"])
    except (InputError, OSError, KeyError, TypeError, ValueError):
        return None  # none yet; or damaged, which whoever opens it says


def open_all(
    task: Task, methods: Methods, plan: Preregistration
) -> tuple[dict[str, Any], list[MethodRuns], PopulationTrainer]:
    """Opens the run directory, the population and the methods' folders; the first process before the others.

    Returns:
        The run directory's manifest, the methods at work, and the trainer of the population.
    """
    directory = task.config.directory
    asked = task.group.follow(OPENED).get("asked", list(methods))
    require(
        asked == list(methods),
        f"Expected the methods of process 0, {' '.join(asked)}, got {' '.join(methods)}; give all processes the same.",
    )
    manifest = open_run(task, plan)
    trainer = PopulationTrainer(task, {method.unlearner.rewind for method in methods.values()})
    first = task.group.first
    with trainer:  # its manifest is there now
        if first:  # nobody else writes yet
            store.sweep(*(chunks.directory for chunks in trainer.population.stores.values()))
    works = [
        MethodRuns(task, name, method, open_method(directory, name, method.identity, first=first), trainer)
        for name, method in methods.items()
    ]
    if first:
        folders = [work.folder for work in works]
        store.sweep(
            directory, *(place for folder in folders for place in (folder, folder / "chunks", folder / "models"))
        )
    return manifest, works, trainer


def open_run(task: Task, plan: Preregistration) -> dict[str, Any]:
    """Writes the manifest and signs.npz, or holds the directory to what it was begun with.

    Raises:
        InputError: The directory holds another configuration or preregistration.
    """
    config, directory = task.config, task.config.directory
    facts = {
        "title": config.dataset,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "preregistration": plan.to_json(),
        "asked": list(config.methods),
        "population_directory": str(config.population_directory),
    }
    require(
        not any(directory.glob("*/robustness.json")),
        f"{directory} holds a run of jaxunlearn robustness; use another --out directory.",
    )
    store.require_manifest(directory / "manifest.json", directory / "signs.npz", *directory.glob("*/bound.json"))
    manifest = store.open_manifest(directory, "manifest.json", configuration.audit_identity(config), **facts)
    # The settings may be the same and the defaults of another version still name other bounds.
    validity.check_unchanged(Preregistration.from_json(manifest["preregistration"]), plan)
    if not task.group.first:
        return manifest
    table = task.runs
    with store.disk_errors(directory):
        records.write_npz(directory / "signs.npz", signs=table.signs, roles=table.roles, indices=table.indices)
    return manifest


def other_looks(config: configuration.Audit, plan: Preregistration) -> list[str]:
    """Registers the preregistration with the population; notes on other ones under which it was bounded before."""
    terms = {name: value for name, value in plan.to_json().items() if name not in plan.may_change}
    terms |= configuration.attack_terms(config) | {"trajectory": list(config.trajectory)}
    folder = config.population_directory
    path, manifest = folder / "preregistrations.json", records.read_json(folder / "manifest.json")
    require(
        path.exists() or not manifest.get("registered"),
        f"{path} is missing, which lists all terms under which these runs were bounded: restore it from a copy, or train new "
        "models in another --population directory with another --seed.",
    )
    others = store.register(path, terms)
    if not manifest.get("registered"):
        with store.disk_errors(folder):
            records.write_json(folder / "manifest.json", manifest | {"registered": True})
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


def open_method(directory: AnyPath, name: str, identity: dict[str, Any], *, first: bool = True) -> AnyPath:
    """The method's folder, held to the hyperparameters that its results were, or are in the first process, computed with."""
    folder = directory / configuration.method_directory_name(name)
    results = [folder / name for name in RESULTS]
    with store.disk_errors(folder):
        if first and not any(path.exists() for path in results):
            (folder / "method.json").unlink(missing_ok=True)  # nothing was computed with it: it binds nobody
    store.require_manifest(folder / "method.json", *results)
    store.open_manifest(folder, "method.json", identity)
    return folder


def close_run(
    task: Task,
    manifest: dict[str, Any],
    works: Sequence[MethodRuns],
    *,
    runs: dict[str, int],
    trainer: PopulationTrainer,
    began: float,
) -> None:
    """Adds to the manifest what is known once all methods are done."""
    config, directory = task.config, task.config.directory
    device = task.engine.mesh.devices.flat[0]
    users = sum(not work.unlearner.from_scratch for work in works)
    facts = {
        "device": f"{task.engine.mesh.devices.size} x {device.device_kind} ({device.platform})",
        "processes": task.group.count,
        "runs": runs,
        "methods": sorted({*manifest.get("methods", []), *config.methods}, key=_order(config)),
        "population": trainer.facts() | {"methods": users},
        "wall_seconds": round(manifest.get("wall_seconds", 0.0) + time.perf_counter() - began, 1),
    }
    with store.disk_errors(directory):
        records.write_json(directory / "manifest.json", manifest | facts)


def _order(config):
    return lambda name: (config.methods.index(name) if name in config.methods else len(config.methods), name)


def check_trajectory(task: Task, name: str, unlearner: Unlearner) -> None:
    """Refuses steps of ``trajectory`` that a method does not reach, or at which it has no model to score.

    Raises:
        InputError: A step is not below the method's steps, or lies in a phase that hands on more than parameters.
    """
    structure = jax.tree.structure(task.parameter_shapes)
    shapes: Any = task.parameter_shapes
    total = 0
    if unlearner.with_initial:
        shapes = Start(shapes, shapes)
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
    work: MethodRuns,
    scores: ScoreRecord,
    plan: Preregistration,
    seconds: dict[str, float],
    notes: Sequence[str] = (),
    on_the_way: Mapping[int, ScoreRecord] = MappingProxyType({}),
) -> BoundRecord:
    """Attacks the evaluation runs, bounds epsilon, and writes scores.npz, evaluation.npz and trajectory.npz."""
    task, unlearner, folder = work.task, work.unlearner, work.folder
    evaluation = scores.roles == records.EVALUATION
    notes = [*notes, *run_notes(task, unlearner, int(scores.failed[~evaluation].sum()), "calibration")]
    with store.disk_errors(folder):
        scores.save(folder / "scores.npz")
        if on_the_way:
            bounding.save_trajectory(folder / "trajectory.npz", on_the_way)
    kind, variance = task.config.attack, task.config.fit_variance
    lost_on_the_way = {step: int(part.failed.sum()) for step, part in on_the_way.items() if part.failed.any()}
    if lost_on_the_way:
        counts = ", ".join(f"{count} after {step} steps" for step, count in sorted(lost_on_the_way.items()))
        notes.append(
            f"On the way, runs whose scores are not finite: {counts}; evaluation runs among them count as p = 1."
        )
    path = bounding.trajectory(plan, on_the_way, scores, end=work.steps, kind=kind, variance=variance)
    outputs, choice = bounding.attack_with(kind, scores, plan, variance=variance)
    notes += [choice.note] if choice else []
    record, evaluated = bounding.record(
        plan,
        outputs,
        scores.signs[evaluation],
        scores.failed[evaluation],
        method=work.name,
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
