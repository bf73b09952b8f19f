"""Reads run directories of ``jaxunlearn privacy``: optional files that are absent or damaged are noted, others refused."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, require
from jaxunlearn.privacy import ANSWERS, FILE, PREDICTORS, PrivacyRecord
from jaxunlearn.records import read_arrays, read_json, read_npz
from jaxunlearn.report.load import asked, folders_with, in_order, load_measured, optional, read_manifest
from jaxunlearn.report.measured import REFERENCE

BASE, TARGET = "base", "target"
AROUND = (BASE, TARGET, REFERENCE)
"""The models that no method made, in the order of rows."""
SCORE = "score_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictors:
    """What might predict how far the unknown facts are forgotten: predictors.npz.

    Attributes:
        unknown: [u] their places among all facts.
        loss: [seeds, u] their -log p under the target models, in nats.
        scores: Name -> [seeds, u] associations with the known facts.
        kinds: [u] what kinds of facts they are; "" where nobody tells.
    """

    unknown: np.ndarray
    loss: np.ndarray
    scores: dict[str, np.ndarray]
    kinds: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyMethod:
    """One method, or the models around: what DIR/<method>/ holds.

    Attributes:
        directory: DIR/<method>.
        record: Its metrics.
        forgetting: [seeds, u] forgetting scores of the unknown facts in nats, NaN of seeds that failed; or None.
        absent: Sentences that say what was left out, and why.
    """

    directory: AnyPath
    record: PrivacyRecord
    forgetting: np.ndarray | None = None
    absent: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyDirectory:
    """One run.

    Attributes:
        path: DIR.
        manifest: manifest.json, {} when there is none.
        predictors: Of the unknown facts, or None.
        methods: base, target and retrained models first, then the methods in the order in which they were asked for.
        unfinished: Methods that were asked for and have no results yet.
        absent: Sentences on what was left out.
    """

    path: AnyPath
    manifest: dict[str, Any]
    predictors: Predictors | None
    methods: list[PrivacyMethod]
    unfinished: list[str] = dataclasses.field(default_factory=list)
    absent: list[str] = dataclasses.field(default_factory=list)

    @property
    def records(self) -> list[PrivacyRecord]:
        """The records of all methods."""
        return [method.record for method in self.methods]

    @property
    def config(self) -> dict[str, Any]:
        """The settings, as far as the manifest says."""
        found = self.manifest.get("config")
        return found if isinstance(found, dict) else {}


def _kinds(path: AnyPath, unknown: np.ndarray) -> list[str]:
    """What kinds of facts these are, by corpus.json.

    Raises:
        InputError: It does not tell.
    """
    data = read_json(path)
    try:
        facts = data["facts"]
        return [str(facts[int(place)]["kind"]) for place in unknown]
    except (KeyError, TypeError, IndexError) as error:
        raise InputError(f"it holds no fact of each place in {PREDICTORS} ({error}).") from error


def _load_predictors(path: AnyPath) -> Predictors:
    arrays = read_npz(path, sealed=True)
    gone = [name for name in ("unknown", "loss") if name not in arrays]
    require(not gone, f"it lacks {', '.join(gone)}.")
    unknown, loss = arrays["unknown"], np.asarray(arrays["loss"], np.float64)
    scores = {name.removeprefix(SCORE): array for name, array in arrays.items() if name.startswith(SCORE)}
    shapes = {name: array.shape for name, array in scores.items()}
    require(
        loss.ndim == 2 and loss.shape[1] == len(unknown) and all(shape == loss.shape for shape in shapes.values()),
        f"its loss {loss.shape} does not fit {len(unknown)} unknown facts or its scores {shapes}.",
    )
    return Predictors(unknown=unknown, loss=loss, scores=scores, kinds=[""] * len(unknown))


def _load_forgetting(path: AnyPath, predictors: Predictors) -> np.ndarray:
    """[seeds, u] by how many nats the unknown facts became less likely."""
    log_p = np.asarray(read_arrays(path, "log_p")["log_p"], np.float64)
    places, seeds = predictors.unknown, len(predictors.loss)
    fits = (
        log_p.ndim == 2
        and len(log_p) == seeds
        and (not len(places) or 0 <= places.min() <= places.max() < log_p.shape[1])
    )
    require(
        fits, f"its log_p {log_p.shape} does not fit {PREDICTORS} with {seeds} seeds and {len(places)} unknown facts."
    )
    fell = -predictors.loss - log_p[:, places]
    return np.where(np.isfinite(fell).all(axis=1, keepdims=True), fell, np.nan)


def _load_method(directory: AnyPath, predictors: Predictors | None) -> PrivacyMethod:
    absent: list[str] = []
    record, forgetting = load_measured(directory / FILE, PrivacyRecord.from_json), None
    if record.method not in AROUND and predictors is not None and len(predictors.unknown):
        read = partial(_load_forgetting, predictors=predictors)
        forgetting = optional(read, directory / ANSWERS, absent, None)
    return PrivacyMethod(directory=directory, record=record, forgetting=forgetting, absent=absent)


def load_privacy(path: AnyPath) -> PrivacyDirectory:
    """Reads a run directory; of an unfinished one what is there.

    Raises:
        InputError: It does not exist, holds no privacy.json, or one that is broken.
    """
    found = folders_with(path, FILE)
    absent: list[str] = []
    manifest = read_manifest(path, absent)
    predictors = optional(_load_predictors, path / PREDICTORS, absent, None)
    if predictors is not None:
        kinds = optional(partial(_kinds, unknown=predictors.unknown), path / "corpus.json", absent, predictors.kinds)
        predictors = dataclasses.replace(predictors, kinds=kinds)
    methods = [_load_method(directory, predictors) for directory in found]
    named = asked(manifest)
    there = {method.record.method for method in methods}
    return PrivacyDirectory(
        path=path,
        manifest=manifest,
        predictors=predictors,
        methods=in_order(methods, [*AROUND, *(name for name in named if name not in AROUND)]),
        unfinished=[name for name in named if name not in there and name != "all"],
        absent=absent,
    )
