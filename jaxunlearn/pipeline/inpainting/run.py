"""Train, unlearn with every method and seed, attack, measure: ``jaxunlearn robustness digits-inpainting``."""

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
from jaxunlearn.pipeline.inpainting.config import Inpainting, identity
from jaxunlearn.pipeline.inpainting.measure import Looked, describe_attack, look, measure
from jaxunlearn.pipeline.inpainting.presets import expected
from jaxunlearn.pipeline.inpainting.stages import Measurements, Unlearning
from jaxunlearn.pipeline.inpainting.study import FORGOTTEN, Study, build
from jaxunlearn.pipeline.seeds import Arrays, Originals, models_of, require_trained_start, whole
from jaxunlearn.pipeline.task import make_unlearner
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.robustness import FILE, RobustnessRecord

TASK = "image-to-image"


def run(config: Inpainting, devices=None) -> AnyPath:
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
    methods = {name: Method(*found, make_unlearner(study.info, name, found[0])) for name, found in resolved.items()}
    for name, method in methods.items():
        require_trained_start(name, method)
    directory = config.directory
    with store.exclusive(directory):
        manifest = _open(study)
        folders = {name: open_method(directory, name, method.identity) for name, method in methods.items()}
        todo = [name for name, folder in folders.items() if not _finished(folder / FILE, folder / "attacked.npz")]
        originals, judge = Originals(study), study.judge
        kept = {name: models_of(study, method, folders[name]) for name, method in methods.items()}
        lost = [name for name in methods if name not in todo and not whole(kept[name], study)]
        if not todo and not lost and _finished(directory / "original" / FILE, directory / "targets.npz"):
            if whole(originals.store, study) and whole(judge.models.store, judge.models.study):
                return directory
        judge.prepare()
        _tell(directory, manifest, judge=round(judge.accuracy, 4))
        originals.train()
        measurements, real = Measurements(study), judge(study.images.probes)
        targets = _fill(study, originals, measurements)
        clean = look(study, targets[:, None])
        _save_targets(study, targets, clean, real)
        _write(directory / "original", _original(study, clean, real, originals.seconds))
        for name in todo:
            work = Unlearning(study, name, methods[name], folders[name], targets, measurements)
            arrays = work.all(originals)
            began = time.perf_counter()
            looked = look(study, arrays["filled"])
            record = _record(study, work, arrays, looked, clean.outputs[:, 0], real, began)
            _save_attacked(study, work.folder, arrays, looked)
            _write(work.folder, record)
            remove_tree(work.folder / "chunks")
        for name in lost:
            Unlearning(study, name, methods[name], folders[name], targets, measurements).again(originals)
    return directory


def _open(study: Study) -> dict[str, Any]:
    config = study.config
    return measured.open_run(
        config.directory,
        identity(config, study.images.identity),
        command="robustness digits-inpainting",
        mark="hidden_side",
        file=FILE,
        title=config.dataset,
        task=TASK,
        asked=list(config.methods),
        runs_per_chunk=study.engine.plan.runs_per_chunk,
    )


def _tell(directory: AnyPath, manifest: dict[str, Any], **facts: Any) -> None:
    """Adds to the manifest what is known by now."""
    if any(manifest.get(name) != value for name, value in facts.items()):
        with store.disk_errors(directory):
            records.write_json(directory / "manifest.json", manifest | facts)


def _write(folder: AnyPath, record: RobustnessRecord) -> None:
    with store.disk_errors(folder):
        records.write_json(folder / FILE, record.to_json())


def _finished(record: AnyPath, arrays: AnyPath) -> bool:
    """Whether results are whole on disk."""
    return measured.whole(record, arrays, RobustnessRecord.from_json) is not None


def _fill(study: Study, originals: Originals, measurements: Measurements) -> np.ndarray:
    """[S, p, H, q] what the originals fill in on clean probes: computed once for all methods and conditions."""
    parts = [
        measurements.fill(originals.load(number, rows), rows.stop - rows.start)
        for number, rows in enumerate(study.chunks())
    ]
    found = np.concatenate(parts)
    lost = np.flatnonzero(~_whole(found))
    require(
        lost.size == 0,
        f"The original models of seeds {', '.join(map(str, lost))} diverged: what they fill in is not finite. Train with a "
        f"smaller training.descent.peak={study.config.training.descent.peak} in another --out directory.",
    )
    return found


def _whole(filled: np.ndarray) -> np.ndarray:
    """[S] whether everything that a seed's model fills in is finite."""
    return np.all(np.isfinite(filled).reshape(len(filled), -1), axis=1)


def _save_targets(study: Study, filled: np.ndarray, clean: Looked, real: Arrays) -> None:
    images = study.images
    arrays = {
        "images": images.probes,
        "labels": images.labels,
        "rows": images.places,
        "groups": images.groups,
        "is_member": images.groups == FORGOTTEN,
        "mask": study.masked.mask.hidden.reshape(study.masked.model.grid, -1),
        "filled": filled,
        "outputs": clean.outputs[:, 0],
        "judged": clean.logits[:, 0],
        "judged_images": real["logits"],
        "class_names": np.array(images.data.class_names or (), str),
    }
    with store.disk_errors(study.config.directory):
        records.write_npz(study.config.directory / "targets.npz", **arrays)


def _original(study: Study, clean: Looked, real: Arrays, seconds: float) -> RobustnessRecord:
    config = study.config
    return RobustnessRecord(
        method="original",
        title=config.dataset,
        task=TASK,
        scenario=study.images.scenario,
        conditions=config.conditions,
        seeds=config.seeds,
        metrics=measure(study, clean, None, real),
        bands=expected(config, "original"),
        settings=study.identity,
        seconds={"train": round(seconds, 1)},
        notes=[study.judge.note],
    )


def _record(
    study: Study, work: Unlearning, arrays: Arrays, looked: Looked, originals: np.ndarray, real: Arrays, began: float
) -> RobustnessRecord:
    config, good = study.config, _whole(arrays["filled"])
    metrics = measure(study, Looked(*(part[good] for part in looked)), originals[good], real)
    unlearning, looking, attacking = (float(value) for value in arrays["seconds"])
    looking += time.perf_counter() - began
    return RobustnessRecord(
        method=work.name,
        title=config.dataset,
        task=TASK,
        scenario=study.images.scenario,
        conditions=config.conditions,
        seeds=int(good.sum()),
        failed=np.flatnonzero(~good).tolist(),
        metrics=metrics,
        bands=expected(config, work.name),
        attack=describe_attack(config),
        settings=work.method.identity,
        seconds={"unlearn": round(unlearning, 2), "evaluate": round(looking, 2), "attack": round(attacking, 2)},
        throughput=work.measurements.throughput(),
        notes=[study.judge.note, *work.method.unlearner.notes],
    )


def _save_attacked(study: Study, folder: AnyPath, arrays: Arrays, looked: Looked) -> None:
    """Numbers of all seeds, pictures of those that are saved."""
    images, masked, config = study.images, study.masked, study.config
    shape, saved = images.probes.shape, config.images_saved
    none = np.zeros((saved, 0, len(images.probes), 0, 0), np.float32)
    visible = arrays.get("inputs", none)
    hidden = masked.hidden(images.probes)
    inputs = [masked.image(attacked, hidden) for seed in visible for attacked in seed]
    with store.disk_errors(folder):
        records.write_npz(
            folder / "attacked.npz",
            conditions=np.array(config.conditions),
            inputs=np.array(inputs, np.float32).reshape(*visible.shape[:2], *shape),
            outputs=looked.outputs[:saved],
            filled=arrays["filled"],
            judged=looked.logits,
            saved=np.arange(len(images.probes)),
            iterations=arrays.get("iterations", np.zeros((config.seeds, 0, len(images.probes)), np.int32)),
        )
