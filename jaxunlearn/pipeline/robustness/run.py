"""Train, unlearn with every method and seed, attack, measure: the command ``jaxunlearn robustness``."""

import time
from typing import Any

import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, remove_tree
from jaxunlearn._validate import require
from jaxunlearn.engine import store
from jaxunlearn.pipeline import measured
from jaxunlearn.pipeline.audit import open_method
from jaxunlearn.pipeline.robustness import measure
from jaxunlearn.pipeline.robustness.config import Robustness, identity
from jaxunlearn.pipeline.robustness.presets import expected
from jaxunlearn.pipeline.robustness.stages import Measurements, Unlearning, shadow_logits, shadow_membership
from jaxunlearn.pipeline.robustness.study import Study, build
from jaxunlearn.pipeline.seeds import Arrays, Originals, models_of, require_trained_start, whole
from jaxunlearn.pipeline.task import make_unlearner
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.robustness import FILE, RobustnessRecord

OF_ONE_MODE = ("ascent", "ida", "clipping", "clipping-uncertified", "hessian")
"""Methods that know no other mode of a model than evaluation, and take BatchNorm's statistics for weights."""


def run(config: Robustness, devices=None) -> AnyPath:
    """Runs or resumes the command.

    Args:
        config: The settings.
        devices: JAX devices; None means all.

    Returns:
        The run directory.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    resolved = {name: configuration.resolve_method(name, config.method) for name in config.methods}
    study = build(config, devices, runs_per_chunk=measured.chunks_begun(config.directory / "manifest.json"))
    members = shadow_membership(study)
    methods = {name: Method(*found, make_unlearner(study.info, name, found[0])) for name, found in resolved.items()}
    for name, method in methods.items():
        require(
            name not in OF_ONE_MODE or study.info.model.train is None,
            f"Expected a model with GroupNorm for {name}, which would move the statistics of BatchNorm, got "
            f"model={config.model!r}; use {config.model}-gn.",
        )
        require_trained_start(name, method)
    directory = config.directory
    with store.exclusive(directory):
        _open(study)
        folders = {name: open_method(directory, name, method.identity) for name, method in methods.items()}
        todo = [name for name, folder in folders.items() if not _finished(folder / FILE, folder / "attacked.npz")]
        originals = Originals(study.originals, shared=config.one_original)
        kept = {name: models_of(study, method, folders[name]) for name, method in methods.items()}
        lost = [name for name in methods if name not in todo and not whole(kept[name], study)]
        rest = (directory / "original" / FILE, directory / "targets.npz")
        shadows = directory / "shadows.npz"
        if not todo and not lost and _finished(*rest) and whole(originals.store, originals.study):
            if members is None or store.read_chunk(shadows) is not None:
                return directory
        originals.train()
        measurements = Measurements(study)
        clean = _targets(study, originals, measurements)
        attacks = measure.shadow_attacks(study, shadow_logits(study, members))
        _write(directory / "original", _original(study, clean, attacks, originals.seconds))
        for name in todo:
            work = Unlearning(study, name, methods[name], folders[name], clean["logits"], measurements)
            arrays = work.all(originals)
            record = _record(study, work, arrays, attacks, originals)
            _save_attacked(study, work.folder, arrays)
            _write(work.folder, record)
            remove_tree(work.folder / "chunks")
        for name in lost:
            Unlearning(study, name, methods[name], folders[name], clean["logits"], measurements).again(originals)
    return directory


def _open(study: Study) -> None:
    config = study.config
    measured.open_run(
        config.directory,
        identity(config, study.data),
        command="robustness",
        mark="epsilons",
        file=FILE,
        title=config.dataset,
        asked=list(config.methods),
        runs_per_chunk=study.engine.plan.runs_per_chunk,
    )


def _write(folder: AnyPath, record: RobustnessRecord) -> None:
    with store.disk_errors(folder):
        records.write_json(folder / FILE, record.to_json())


def _finished(record: AnyPath, arrays: AnyPath) -> bool:
    """Whether results are whole on disk."""
    return measured.whole(record, arrays, RobustnessRecord.from_json) is not None


def _targets(study: Study, originals: Originals, measurements: Measurements) -> Arrays:
    """What the originals say of clean images, [S or 1, ...]: computed once for all methods and conditions."""
    images, parts = study.images, []
    for number, rows in enumerate(originals.study.chunks()):
        params = originals.load(number, rows)
        parts.append(measurements.look(params, rows.stop - rows.start))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    lost = np.flatnonzero(~_whole(found))
    require(
        lost.size == 0,
        f"The original models of seeds {', '.join(map(str, lost))} diverged: what they say is not finite. "
        + (
            f"Train with a smaller training.descent.peak={study.config.training.descent.peak} in another --out directory."
            if study.config.original is None
            else f"Give another file than original={study.config.original}."
        ),
    )
    y = images.probe_labels
    arrays = {
        "images": images.probes,
        "labels": y,
        "rows": np.concatenate([images.rows[images.forgotten], images.controls]),
        "is_member": np.arange(len(y)) < len(images.forgotten),
        "logits": found["probes"],
        "mean": np.array(study.statistics[0], np.float32),
        "std": np.array(study.statistics[1], np.float32),
        "class_names": np.array(images.class_names, str),
    }
    with store.disk_errors(study.config.directory):
        records.write_npz(study.config.directory / "targets.npz", **arrays)
    return {"logits": found["probes"], "test": found["test"], "retain_accuracy": found["retain_accuracy"]}


def _original(study: Study, clean: Arrays, attacks: Any, seconds: float) -> RobustnessRecord:
    config = study.config
    metrics = measure.utility(study, clean["test"], clean["retain_accuracy"])
    metrics += measure.recovery(study, clean["logits"][:, None], attacks)
    return RobustnessRecord(
        method="original",
        title=config.dataset,
        task="classification",
        scenario=study.images.scenario,
        conditions=config.conditions,
        seeds=len(clean["logits"]),
        metrics=metrics,
        bands=expected(config, "original"),
        settings=study.identity,
        seconds={"train": round(seconds, 1)},
    )


def _record(study: Study, work: Unlearning, arrays: Arrays, attacks: Any, originals: Originals) -> RobustnessRecord:
    config = study.config
    began = time.perf_counter()
    good = _whole(arrays)
    kept = {name: value[good] for name, value in arrays.items() if name not in ("seconds", "inputs")}
    logits = _by_condition(kept, "")
    second = _by_condition(kept, "second_") if "second_outputs" in kept else None
    metrics = measure.utility(study, kept["test"], kept["retain_accuracy"])
    metrics += measure.recovery(study, logits, attacks, second)
    membership = time.perf_counter() - began
    curves = work.curves(originals, good) if work.name in config.curves else {}
    unlearning, looking, attacking = (round(float(value), 2) for value in arrays["seconds"])
    return RobustnessRecord(
        method=work.name,
        title=config.dataset,
        task="classification",
        scenario=study.images.scenario,
        conditions=config.conditions,
        seeds=int(good.sum()),
        failed=np.flatnonzero(~good).tolist(),
        metrics=metrics,
        bands=expected(config, work.name),
        curves=curves,
        attack=measure.describe_attack(config),
        settings=work.method.identity,
        seconds={
            "unlearn": unlearning,
            "evaluate": looking,
            "attack": attacking,
            "membership": round(membership, 2),
        },
        throughput=work.measurements.throughput(),
        notes=list(work.method.unlearner.notes),
    )


def _whole(arrays: Arrays) -> np.ndarray:
    """[S] whether everything that a seed's model says is finite."""
    named = ("test", "probes", "outputs", "second_outputs")
    flags = [np.isfinite(arrays[name]).reshape(len(arrays[name]), -1).all(axis=1) for name in named if name in arrays]
    return np.logical_and.reduce(flags)


def _by_condition(arrays: Arrays, prefix: str) -> np.ndarray:
    """[S, E + 1, n, C] logits on the probes, clean ones first."""
    clean = arrays["probes"][:, None]
    attacked = arrays.get(f"{prefix}outputs")
    return clean if attacked is None else np.concatenate([clean, attacked], axis=1)


def _save_attacked(study: Study, folder: AnyPath, arrays: Arrays) -> None:
    config = study.config
    none = np.zeros((0, 0, 0, *study.images.x.shape[1:]), np.float32)
    with store.disk_errors(folder):
        records.write_npz(
            folder / "attacked.npz",
            conditions=np.array(config.conditions),
            logits=_by_condition(arrays, ""),
            test_logits=arrays["test"],
            images=arrays.get("inputs", none),
            saved=np.arange(len(study.images.probe_labels)),
            iterations=arrays.get("iterations", np.zeros((config.seeds, 0, 0), np.int32)),
        )
