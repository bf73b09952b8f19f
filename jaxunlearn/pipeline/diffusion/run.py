"""Train, unlearn with every method and seed, attack prompts, measure: ``jaxunlearn robustness digits-diffusion``."""

import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, remove_tree
from jaxunlearn._validate import require
from jaxunlearn.data import captions
from jaxunlearn.engine import store
from jaxunlearn.pipeline import measured
from jaxunlearn.pipeline.audit import open_method
from jaxunlearn.pipeline.diffusion import measure
from jaxunlearn.pipeline.diffusion.config import TASK, TextToImageRobustness, identity
from jaxunlearn.pipeline.diffusion.presets import expected
from jaxunlearn.pipeline.diffusion.stages import Measurements, Unlearning
from jaxunlearn.pipeline.diffusion.study import Study, build
from jaxunlearn.pipeline.seeds import Arrays, Originals, models_of, require_trained_start, whole
from jaxunlearn.pipeline.task import make_unlearner
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.robustness import FILE, RobustnessRecord


def run(config: TextToImageRobustness, devices=None) -> AnyPath:
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
        _open(study)
        folders = {name: open_method(directory, name, method.identity) for name, method in methods.items()}
        todo = [name for name, folder in folders.items() if not _finished(folder / FILE, folder / "attacked.npz")]
        originals = Originals(study)
        kept = {name: models_of(study, method, folders[name]) for name, method in methods.items()}
        lost = [name for name in methods if name not in todo and not whole(kept[name], study)]
        fixed = store.read_chunk(directory / "fixed.npz")
        rest = (directory / "original" / FILE, directory / "targets.npz")
        if not todo and not lost and fixed is not None and _finished(*rest) and whole(originals.store, study):
            return directory
        originals.train()
        measurements = Measurements(study)
        targets, real = _targets(study, originals, measurements)
        for name in (*todo, *lost):
            work = Unlearning(study, name, methods[name], folders[name], targets, measurements)
            if name in lost:
                work.again(originals)
                continue
            arrays = work.all(originals)
            _save_attacked(study, work.folder, arrays)
            _write(work.folder, _record(study, work, arrays, real))
            remove_tree(work.folder / "chunks")
    return directory


def _open(study: Study) -> None:
    config = study.config
    measured.open_run(
        config.directory,
        identity(config, study.digits.identity),
        command="robustness digits-diffusion",
        mark="guidance",
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


def _targets(study: Study, originals: Originals, measurements: Measurements) -> tuple[np.ndarray, np.ndarray]:
    """What the originals draw for the concept's prompts, [S, N, h, w, c]; and the judge's logits of real other digits."""
    digits, config, parts = study.digits, study.config, []
    for number, rows in enumerate(study.chunks()):
        parts.append(measurements.look(originals.load(number, rows), rows.stop - rows.start))
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    broken = np.flatnonzero(~_whole(found))
    require(
        broken.size == 0,
        f"The original models of seeds {', '.join(map(str, broken))} diverged: what they draw is not finite. Train with a "
        f"smaller training.rate={config.training.rate} in another --out directory.",
    )
    n, said = digits.attacked, measurements.judged(digits.x_test)
    with store.disk_errors(config.directory):
        records.write_npz(
            config.directory / "targets.npz",
            prompts=digits.prompts,
            texts=np.array(digits.texts),
            words=np.array(captions.vocabulary().words),
            labels=digits.labels,
            attacked=np.arange(len(digits.labels)) < n,
            starts=digits.starts,
            images=found["drawn"],
            logits=found["logits"],
            judge_test_accuracy=np.array(np.mean(said.argmax(-1) == digits.y_test)),
        )
    real = measurements.judged(digits.x[: digits.retain])
    record = RobustnessRecord(
        method="original",
        title=config.dataset,
        task=TASK,
        scenario=digits.scenario,
        conditions=config.conditions,
        seeds=study.seeds,
        metrics=measure.metrics(study, found, real),
        bands=expected(config, "original"),
        settings=study.identity,
        seconds={"train": round(originals.seconds, 1)},
    )
    _write(config.directory / "original", record)
    return found["drawn"][:, :n], real


def _record(study: Study, work: Unlearning, arrays: Arrays, real: np.ndarray) -> RobustnessRecord:
    config = study.config
    good = _whole(arrays)
    kept = {name: value[good] for name, value in arrays.items() if name != "seconds"}
    stages = ("unlearn", "evaluate", *config.attacks)
    return RobustnessRecord(
        method=work.name,
        title=config.dataset,
        task=TASK,
        scenario=study.digits.scenario,
        conditions=config.conditions,
        seeds=int(good.sum()),
        failed=np.flatnonzero(~good).tolist(),
        metrics=measure.metrics(study, kept, real),
        bands=expected(config, work.name),
        attack=measure.describe_attack(config),
        settings=work.method.identity,
        seconds={stage: round(float(value), 2) for stage, value in zip(stages, arrays["seconds"])},
        throughput=work.measurements.throughput(),
        notes=list(work.method.unlearner.notes),
    )


def _whole(arrays: Arrays) -> np.ndarray:
    """[S] whether everything that a seed's model draws is finite."""
    return np.asarray(np.isfinite(arrays["logits"]).all(axis=(1, 2)))


def _save_attacked(study: Study, folder: AnyPath, arrays: Arrays) -> None:
    words = captions.vocabulary()
    texts = [words.text(row) for row in arrays["prompts"].reshape(-1, arrays["prompts"].shape[-1]).tolist()]
    with store.disk_errors(folder):
        records.write_npz(
            folder / "attacked.npz",
            conditions=np.array(study.config.conditions),
            drawn=arrays["drawn"],
            drawn_logits=arrays["logits"],
            prompts=arrays["prompts"],
            texts=np.array(texts).reshape(arrays["prompts"].shape[:-1]),
            added=arrays["added"],
            before=arrays["before"],
            success=arrays["success"],
            steps=arrays["steps"],
            images=arrays["images"],
            said=arrays["labels"],
        )
