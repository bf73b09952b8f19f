"""``jaxunlearn status``: how far an audit is, how fast it goes, who works on it, and whether what is there is whole."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import numpy as np
import tyro

from jaxunlearn import privacy, records
from jaxunlearn._options import PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import InputError
from jaxunlearn.config import method_directory_name
from jaxunlearn.engine import checkpoints
from jaxunlearn.pipeline import finished
from jaxunlearn.pipeline import judge as judging
from jaxunlearn.privacy import ANSWERS, PREDICTORS, PrivacyRecord
from jaxunlearn.report.measured import REFERENCE
from jaxunlearn.report.privacy.load import BASE, TARGET
from jaxunlearn.report.table import lower
from jaxunlearn.robustness import FILE, RobustnessRecord

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """Say how far the audit of a run directory is; nothing in it is changed."""

    directory: Annotated[PathOption, tyro.conf.Positional]
    """Run directory, as given to --out."""
    verify: bool = False
    """Compare the checksum of every file, not only sizes."""
    json: bool = False
    """Print JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Training, or one method.

    Attributes:
        name: "train", or the method.
        done: Runs that are finished.
        failed: Runs of them whose scores are not finite.
        remaining: Runs still to do.
        seconds: Time spent on those that are done, where it is known.
        outcome: What came out, in words, or "".
        damage: Sentences on what is not as it was written.
    """

    name: str
    done: int
    failed: int
    remaining: int
    seconds: float | None = None
    outcome: str = ""
    damage: list[str] = dataclasses.field(default_factory=list)

    @property
    def rate(self) -> float | None:
        """Runs a second of each process that worked on them."""
        return self.done / self.seconds if self.seconds and self.done else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that works in the directory, as far as its file tells.

    Attributes:
        process: Its number.
        state: "working", "done" or "failed".
        silent: Seconds since its file changed, infinite where it does not tell.
        error: What it failed with, or "".
    """

    process: int
    state: str
    silent: float
    error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overview:
    """What ``run`` returns: the runs in all, the stages, and the processes, if there are several."""

    title: str
    runs: int
    stages: list[Stage]
    workers: list[Worker]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps; stages with their rate."""
        found = dataclasses.asdict(self)
        for row, stage in zip(found["stages"], self.stages):
            row["runs_per_second"] = stage.rate
        return found

    @property
    def damaged(self) -> bool:
        """Whether anything is not as it was written."""
        return any(stage.damage for stage in self.stages)


def run(status: Status) -> Overview:
    """Reads a run directory.

    Raises:
        InputError: It is none, or its manifest is damaged.
    """
    directory = status.directory
    manifest = records.read_json(directory / "manifest.json")
    for mark, look in _OTHERS.items():
        if mark in manifest.get("config", {}):
            return look(directory, manifest, status.verify)
    try:
        table = records.read_npz(directory / "signs.npz", sealed=True)
    except InputError as error:
        raise InputError(f"{str(error).rstrip('.')}; the command that began this audit writes it again.") from error
    config = manifest["config"]
    runs = len(table["roles"])
    population = _population(directory, manifest)
    stages = [_training(population, runs, status.verify)]
    names = list(dict.fromkeys([*manifest.get("asked", []), *manifest.get("methods", [])]))
    others = [p.name for p in directory.iterdir() if (p / "method.json").exists()]
    for name in [*names, *sorted(set(others) - {method_directory_name(name) for name in names})]:
        stages.append(
            _method(directory / method_directory_name(name), name, runs, status.verify, "warmup_runs" in config)
        )
    workers = [_worker(path) for path in sorted((directory / "processes").glob("*.json")) if path.stem.isdecimal()]
    return Overview(title=str(manifest.get("title", "")), runs=runs, stages=stages, workers=workers)


def _population(directory: AnyPath, manifest: dict[str, Any]) -> AnyPath:
    own = directory / "population"
    named = manifest.get("population_directory")
    return own if own.exists() or not named else as_path(named)


def _training(folder: AnyPath, runs: int, verify: bool) -> Stage:
    damage: list[str] = []
    facts = _chunks(folder, verify, damage)
    for rewound in sorted(folder.glob("rewound-*")):
        _chunks(rewound, verify, damage)
    for name in ("manifest.json", "preregistrations.json", "plan.json"):
        _read(folder / name, records.read_json, damage)
    done = sum(len(each["runs"]) for each in facts)
    seconds = sum(each.get("seconds", 0.0) for each in facts)
    gone = not done and (folder / "preregistrations.json").exists()
    return Stage(
        name="train",
        done=done,
        failed=0,
        remaining=0 if gone else max(runs - done, 0),
        seconds=seconds,
        outcome="deleted after use (--keep none)" if gone else "",
        damage=damage,
    )


def _chunks(folder: AnyPath, verify: bool, damage: list[str]) -> list[dict[str, Any]]:
    """What the commit files of the whole chunks of models say; what is wrong with the others is noted."""
    chunks, found = checkpoints.ParamsStore(folder), []
    for number in chunks.chunks():
        try:
            found.append(chunks.verify(number) if verify else chunks.facts(number))
        except InputError as error:
            damage.append(str(error))
    return found


def _method(folder: AnyPath, name: str, runs: int, verify: bool, sequential: bool) -> Stage:
    damage: list[str] = []
    _chunks(folder / "models", verify, damage)
    for file in ("method.json", "plan.json"):
        _read(folder / file, records.read_json, damage)
    for file in ("evaluation.npz", "trajectory.npz"):
        _read(folder / file, partial(records.read_npz, sealed=True), damage)
    parts = list(_parts(folder, damage))
    seconds = sum(float(np.sum(part["seconds"])) for part in parts)
    scores = _read(folder / "scores.npz", records.ScoreRecord.load, damage)
    record = _read(folder / "bound.json", finished.read_record, damage)
    if record is not None:
        seconds = seconds or sum(record.seconds.get(stage, 0.0) for stage in ("unlearn", "score"))
    if record is not None and scores is not None:
        failed, done = int(scores.failed.sum()), len(scores.failed)
        remaining = 0 if sequential else runs - done  # a sequential audit may have stopped
    else:
        failed, done = sum(int(part["failed"].sum()) for part in parts), sum(len(part["failed"]) for part in parts)
        remaining = max(runs - done, 0)
    outcome = "" if record is None else f"ε ≥ {lower(record.epsilon)}"
    return Stage(
        name=name, done=done, failed=failed, remaining=remaining, seconds=seconds, outcome=outcome, damage=damage
    )


def _robustness(directory: AnyPath, manifest: dict[str, Any], verify: bool) -> Overview:
    """The same of ``jaxunlearn robustness``, whose runs are seeds."""
    config = manifest["config"]
    seeds, shadows = config["seeds"], config.get("shadows", {"models": 0})["models"]
    if "training" in config:
        stages = [_training(directory / "population", 1 if config.get("shared_original") else seeds, verify)]
    else:  # published models are given
        done = int((directory / "original" / FILE).exists())
        stages = [Stage(name="original", done=done, failed=0, remaining=1 - done)]
    sealed = partial(records.read_npz, sealed=True)
    for name in ("targets.npz", "fixed.npz"):
        _read(directory / name, sealed, stages[0].damage)
    if shadows:
        damage: list[str] = []
        found = _read(directory / "shadows.npz", sealed, damage)
        done, seconds = (0, None) if found is None else (shadows, float(found["seconds"]))
        stages.append(
            Stage(name="shadow models", done=done, failed=0, remaining=shadows - done, seconds=seconds, damage=damage)
        )
    _read(directory / "original" / FILE, _read_robustness, stages[0].damage)
    return _of_methods(directory, manifest, stages, verify)


def _inpainting(directory: AnyPath, manifest: dict[str, Any], verify: bool) -> Overview:
    """The same of ``jaxunlearn robustness digits-inpainting``."""
    training = _training(directory / "population", manifest["config"]["seeds"], verify)
    judge = dataclasses.replace(_training(directory / judging.FOLDER, 1, verify), name=judging.FOLDER)
    if "judge" in manifest:
        judge = dataclasses.replace(judge, outcome=f"right on {manifest['judge']:.1%} of test images")
    _read(directory / "targets.npz", partial(records.read_npz, sealed=True), training.damage)
    _read(directory / "original" / FILE, _read_robustness, training.damage)
    return _of_methods(directory, manifest, [judge, training], verify)


def _of_methods(directory: AnyPath, manifest: dict[str, Any], stages: list[Stage], verify: bool) -> Overview:
    """The stages of a run directory with those of its attacked methods after them."""
    seeds = manifest["config"]["seeds"]
    asked = {method_directory_name(name): name for name in manifest.get("asked", [])}
    others = sorted(p.name for p in directory.iterdir() if (p / "method.json").exists() and p.name not in asked)
    attacked = [
        _attacked(directory / folder, name, seeds, verify)
        for folder, name in (asked | dict(zip(others, others))).items()
    ]
    title = f"{manifest.get('title', '')}, robustness"
    return Overview(title=title, runs=seeds, stages=[*stages, *attacked], workers=[])


def _read_robustness(path: AnyPath) -> RobustnessRecord:
    return RobustnessRecord.from_json(records.read_json(path))


def _attacked(folder: AnyPath, name: str, seeds: int, verify: bool) -> Stage:
    damage: list[str] = []
    _chunks(folder / "models", verify, damage)
    _read(folder / "method.json", records.read_json, damage)
    _read(folder / "attacked.npz", partial(records.read_npz, sealed=True), damage)
    parts = list(_parts(folder, damage))
    record = _read(folder / FILE, _read_robustness, damage)
    if record is None:
        done = sum(int(part["rows"][1] - part["rows"][0]) for part in parts)
        seconds = sum(float(np.sum(part["seconds"])) for part in parts)
        return Stage(name=name, done=done, failed=0, remaining=seeds - done, seconds=seconds, damage=damage)
    metric = record.metrics[0] if record.task != "classification" else record.metric("ua")
    shown = {c: metric.mean(place) for place, c in enumerate(record.conditions)}
    outcome = ", ".join(
        f"{metric.label} {c}: " + (f"{100 * mean:.1f}%" if metric.percent else f"{mean:.3f}")
        for c, mean in shown.items()
        if mean is not None
    )
    return Stage(
        name=name,
        done=seeds,
        failed=seeds - record.seeds,
        remaining=0,
        seconds=sum(record.seconds.values()),
        outcome=outcome,
        damage=damage,
    )


def _privacy(directory: AnyPath, manifest: dict[str, Any], verify: bool) -> Overview:
    """The same of ``jaxunlearn privacy``, whose runs are seeds."""
    config, population = manifest["config"], _population(directory, manifest)
    seeds, asked = config["seeds"], [str(name) for name in manifest.get("asked", [])]
    around = [BASE, TARGET] + [REFERENCE] * (REFERENCE in asked or "all" in asked)
    if config["decoder"]["weights"] is not None:
        around.remove(BASE)  # pretrained: nothing is trained for it, but it was asked
    stages = [_taught(population / name, directory / name, name, seeds, verify) for name in around]
    if BASE not in around:
        _answers(directory / BASE, stages[0].damage)
    for name in ("corpus.json", PREDICTORS):
        read = records.read_json if name.endswith(".json") else partial(records.read_npz, sealed=True)
        _read(directory / name, read, stages[0].damage)
    folders = {method_directory_name(name): name for name in asked if name not in (REFERENCE, "all")}
    others = sorted(p.name for p in directory.iterdir() if (p / "method.json").exists() and p.name not in folders)
    for folder, name in (folders | dict(zip(others, others))).items():
        stages.append(_unlearnt(directory / folder, name, seeds, verify))
    return Overview(title=f"{manifest.get('title', '')}, privacy", runs=seeds, stages=stages, workers=[])


def _taught(models: AnyPath, folder: AnyPath, name: str, seeds: int, verify: bool) -> Stage:
    """Base, target or retrained models."""
    damage: list[str] = []
    facts = _chunks(models, verify, damage)
    record = _answers(folder, damage)
    done = sum(len(each["runs"]) for each in facts)
    return Stage(
        name=name,
        done=done,
        failed=0 if record is None else len(record.failed),
        remaining=max(seeds - done, 0),
        seconds=sum(each.get("seconds", 0.0) for each in facts),
        outcome="" if record is None else _recovered(record),
        damage=damage,
    )


def _unlearnt(folder: AnyPath, name: str, seeds: int, verify: bool) -> Stage:
    damage: list[str] = []
    _chunks(folder / "models", verify, damage)
    _read(folder / "method.json", records.read_json, damage)
    parts = list(_parts(folder, damage))
    record = _answers(folder, damage)
    if record is None:
        done = sum(int(part["rows"][1] - part["rows"][0]) for part in parts)
        seconds = sum(float(np.sum(part["seconds"])) for part in parts)
        return Stage(name=name, done=done, failed=0, remaining=seeds - done, seconds=seconds, damage=damage)
    return Stage(
        name=name,
        done=seeds,
        failed=len(record.failed),
        remaining=0,
        seconds=sum(record.seconds.values()),
        outcome=_recovered(record),
        damage=damage,
    )


def _answers(folder: AnyPath, damage: list[str]) -> PrivacyRecord | None:
    """The record of a folder, if it is there and whole; what is wrong with its files is noted."""
    _read(folder / ANSWERS, partial(records.read_npz, sealed=True), damage)
    return _read(folder / privacy.FILE, lambda path: PrivacyRecord.from_json(records.read_json(path)), damage)


def _recovered(record: PrivacyRecord) -> str:
    """What is said of the unknown facts, directly and after the longest fine-tuning."""
    metric = next((m for m in record.metrics if m.name == "unknown"), None)
    tuned = [c for c in record.conditions if c.startswith("P3")][-1:]
    shares = {c: metric.mean(record.conditions.index(c)) for c in (privacy.DIRECT, *tuned)} if metric else {}
    return "; ".join(f"{c}: {100 * mean:.1f}%" for c, mean in shares.items() if mean is not None)


_OTHERS: dict[str, Callable[[AnyPath, dict[str, Any], bool], Overview]] = {
    "hidden_side": _inpainting,
    "epsilons": _robustness,
    "guidance": _robustness,
    "stop_below": _privacy,
}
"""A setting that no other command has -> what looks at its directories; those of audits have none of these."""


def _read(path: AnyPath, read: Callable[[AnyPath], T], damage: list[str]) -> T | None:
    """What a file holds; None if it is not there or, which is noted, damaged."""
    if not path.exists():
        return None
    try:
        return read(path)
    except InputError as error:
        damage.append(str(error))
        return None


def _parts(folder: AnyPath, damage: list[str]) -> Iterator[dict[str, np.ndarray]]:
    for path in sorted((folder / "chunks").glob("chunk-*.npz")):
        part = _read(path, partial(records.read_npz, sealed=True), damage)
        if part is not None:
            yield part


def _worker(path: AnyPath) -> Worker:
    try:
        found = records.read_json(path)
        silent = max(0.0, time.time() - float(found["time"]))
        return Worker(process=found["process"], state=found["state"], silent=silent, error=found.get("error", ""))
    except (InputError, KeyError, TypeError, ValueError):
        return Worker(process=int(path.stem), state="unknown", silent=float("inf"))


def render(overview: Overview) -> str:
    """The table for a terminal."""
    working = sum(worker.state == "working" and worker.silent < 60 for worker in overview.workers) or 1
    rows = [("stage", "done", "failed", "remaining", "runs/s", "left", "")]
    for stage in overview.stages:
        rate = None if stage.rate is None else stage.rate * working
        left = "–" if not stage.remaining else _duration(stage.remaining / rate) if rate else "?"
        counts = (str(stage.done), str(stage.failed), str(stage.remaining))
        rows.append((stage.name, *counts, "–" if rate is None else f"{rate:.3g}", left, stage.outcome))
    lines = [f"{overview.title}: {overview.runs} runs a stage", *_aligned(rows)]
    for worker in overview.workers:
        heard = "" if worker.silent == float("inf") else f", heard of {_duration(worker.silent)} ago"
        ended = f", {worker.error}" if worker.error else ""
        lines.append(f"process {worker.process}: {worker.state}{heard}{ended}")
    damage = [text for stage in overview.stages for text in stage.damage]
    if damage:
        lines += [*damage, "The command that began this computes just that again, or says what cannot be."]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    left = (0, len(widths) - 1)
    return [
        "  ".join(
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def _duration(seconds: float) -> str:
    """Seconds in the unit that reads best.

    >>> _duration(4.2), _duration(4000), _duration(1e6)
    ('4 s', '67 min', '278 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
