"""Reads run directories for the report: what is optional and absent is noted, what is required and broken refused."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, require
from jaxunlearn.records import BoundRecord, ScoreRecord, read_json, read_npz

T = TypeVar("T")
M = TypeVar("M", bound=Any)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """One audited method: what DIR/<method>/ holds.

    Attributes:
        directory: DIR/<method>.
        record: The bounds.
        scores: Scores of all runs, or None.
        evaluation: Arrays of evaluation.npz, possibly none.
        absent: Sentences that say which optional file was left out, and why.
    """

    directory: AnyPath
    record: BoundRecord
    scores: ScoreRecord | None = None
    evaluation: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    absent: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """One audit: the manifest and its methods.

    Attributes:
        path: DIR.
        manifest: manifest.json, {} when there is none.
        methods: In the manifest's order where it gives one, else by falling epsilon.
        absent: Sentences on what was left out.
    """

    path: AnyPath
    manifest: dict[str, Any]
    methods: list[Method]
    absent: list[str] = dataclasses.field(default_factory=list)


def finite(value: Any) -> float | None:
    """The value as a finite float, or None when it is missing, not a number, or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        return None
    return float(value) if math.isfinite(value) else None


def _load_record(path: AnyPath) -> BoundRecord:
    data = read_json(path, "give the same command again, and the bounds are computed again")
    require(isinstance(data, Mapping), f"Expected an object in {path}; delete it and run the audit again.")
    try:
        record = BoundRecord.from_json(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    for name in ("epsilon", "zeta", "delta", "m", "evaluation_runs"):
        value = getattr(record, name)
        require(
            finite(value) is not None,
            f"Expected {name} to be a finite number in {path}, got {value!r}; run the audit again.",
        )
    for name in ("method", "title", "statistic", "predictor", "definition"):
        value = getattr(record, name)
        require(isinstance(value, str), f"Expected {name} to be text in {path}, got {value!r}; run the audit again.")
    return record


def _load_scores(path: AnyPath) -> ScoreRecord:
    scores = ScoreRecord.load(path)
    require(
        scores.scores.ndim == 3
        and scores.scores.shape[:2] == scores.signs.shape
        and len(scores.failed) == len(scores.signs),
        f"its scores {scores.scores.shape} and signs {scores.signs.shape} do not match",
    )
    return scores


def optional(read: Callable[[AnyPath], Any], path: AnyPath, absent: list[str], default: Any) -> Any:
    """Reads a file that may be missing or damaged: then the default, with a sentence added to ``absent``."""
    if not path.exists():
        absent.append(f"There is no {path.name}.")
        return default
    try:
        return read(path)
    except InputError as error:
        absent.append(f"{path.name} was left out: {error}")
        return default


def read_manifest(path: AnyPath, absent: list[str]) -> dict[str, Any]:
    """What DIR/manifest.json holds; {} when that is nothing, with a sentence added to ``absent``."""
    manifest = optional(read_json, path / "manifest.json", absent, {})
    if isinstance(manifest, dict):
        return manifest
    absent.append("manifest.json was left out: it does not hold an object.")
    return {}


def load_measured(path: AnyPath, read: Callable[[Mapping[str, Any]], T]) -> T:
    """A record of metrics under conditions.

    Args:
        path: Its JSON file.
        read: Makes it of what the file holds.

    Raises:
        InputError: The file is missing, broken, or of another schema.
    """
    data = read_json(path, "give the same command again, and the results are computed again")
    require(isinstance(data, Mapping), f"Expected an object in {path}; delete it and run the command again.")
    try:
        return read(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def take(arrays: Mapping[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Arrays of a file by their names.

    Raises:
        InputError: It lacks some.
    """
    gone = [name for name in names if name not in arrays]
    require(not gone, f"it lacks {', '.join(gone)}.")
    return [arrays[name] for name in names]


def folders_with(path: AnyPath, file: str) -> list[AnyPath]:
    """Folders of a run directory that hold a record.

    Raises:
        InputError: There are none.
    """
    found = sorted(child.parent for child in path.glob(f"*/{file}"))
    require(
        len(found) > 0,
        f"Expected at least one <method>/{file} under {path}, found none; finish the command that writes there.",
    )
    return found


def asked(manifest: Mapping[str, Any]) -> list[str]:
    """The methods that were asked for, as far as a manifest says."""
    found = manifest.get("asked")
    return [*map(str, found)] if isinstance(found, list) else []


def in_order(methods: Sequence[M], order: Sequence[str]) -> list[M]:
    """Methods in the order of their names; those without a place come last, by name."""

    def rank(method: M) -> tuple[int, str]:
        name = method.record.method
        return (order.index(name) if name in order else len(order)), name

    return sorted(methods, key=rank)


def load_method(directory: AnyPath) -> Method:
    """Reads DIR/<method>.

    Raises:
        InputError: bound.json is missing or broken.
    """
    absent: list[str] = []
    return Method(
        directory=directory,
        record=_load_record(directory / "bound.json"),
        scores=optional(_load_scores, directory / "scores.npz", absent, None),
        evaluation=optional(partial(read_npz, sealed=True), directory / "evaluation.npz", absent, {}),
        absent=absent,
    )


def _manifest_order(manifest: Mapping[str, Any]) -> list[str]:
    config = manifest.get("config")
    for place in (manifest, config if isinstance(config, Mapping) else {}):
        names = place.get("methods")
        if isinstance(names, (list, tuple, dict)):
            return [n.get("name", "") if isinstance(n, Mapping) else str(n) for n in names]
    return []


def no_results(path: AnyPath) -> str:
    """What is wrong with a directory in which no method has results."""
    return (
        f"Expected at least one <method>/privacy.json, robustness.json or bound.json under {path}, found none; finish the "
        "command that writes there."
    )


def load_directory(path: AnyPath) -> RunDirectory:
    """Reads a run directory.

    Raises:
        InputError: It does not exist, holds no bound.json, or one that is broken.
    """
    require(path.is_dir(), f"Expected a run directory at {path}, found none; give the --out of an audit.")
    found = sorted(child.parent for child in path.glob("*/bound.json"))
    require(len(found) > 0, no_results(path))
    absent: list[str] = []
    manifest = read_manifest(path, absent)
    methods = [load_method(directory) for directory in found]
    order = {name: i for i, name in reversed(list(enumerate(_manifest_order(manifest))))}

    def key(method: Method) -> tuple[int, float, str]:
        rank = min(order.get(method.record.method, len(order)), order.get(method.directory.name, len(order)))
        return rank, -method.record.epsilon, method.record.method

    return RunDirectory(path=path, manifest=manifest, methods=sorted(methods, key=key), absent=absent)


def flatten(data: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as (dotted name, text) pairs; long values are cut.

    >>> flatten({"audit": {"m": 400, "grid": [1, 2]}, "fresh": False})
    [('audit.m', '400'), ('audit.grid', '[1, 2]'), ('fresh', 'False')]
    """
    if isinstance(data, Mapping) and data:
        return [pair for k, v in data.items() for pair in flatten(v, f"{prefix}.{k}" if prefix else str(k))]
    text = data if isinstance(data, str) else json.dumps(data) if isinstance(data, (list, dict)) else str(data)
    return [(prefix, text if len(text) <= 160 else f"{text[:150]} … ({len(text)} characters)")]
