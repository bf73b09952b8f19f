"""Bounds from scores that somebody else computed, in any framework; needs no JAX."""

import csv
import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxunlearn import records
from jaxunlearn._validate import InputError, require
from jaxunlearn.audit import design
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.pipeline import bounding
from jaxunlearn.records import CALIBRATION, EVALUATION, BoundRecord, ScoreRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """Bound epsilon from sign vectors and scores that you have.

    Give --signs with one of: --scores and --calibration; --scores, --in-scores and --out-scores; --llr.
    """

    signs: Path
    """Sign vectors [runs, m] in {-1, +1}: npy, npz (array signs) or CSV. +1 = trained on and unlearned."""
    scores: Path | None = None
    """Scores [runs, m] or [runs, m, B], higher = more likely still in the model; rows as in --signs."""
    calibration: int | None = None
    """The first K rows of --signs and --scores are calibration runs, the others evaluation runs."""
    in_scores: Path | None = None
    """Calibration scores [runs, m] or [runs, m, B] of models that had every candidate, in place of --calibration."""
    out_scores: Path | None = None
    """The same of models that had no candidate; goes with --in-scores."""
    llr: Path | None = None
    """Log-likelihood ratios [runs, m] of evaluation runs, in place of scores: npy, npz (array llr) or CSV."""
    failed_runs: tuple[int, ...] = ()
    """Rows of evaluation runs (from 0, among the evaluation runs) that failed twice; each counts as p = 1."""
    variance: Literal["pooled", "per_example", "shrunken", "batch", "full"] = "pooled"
    """Gaussian fits: pooled variance; one per example and side (the paper's); shrunken: between the two; batch, full:
    pooled, with correlations between the scores of a batch or of the run."""
    r: int | None = None
    """Guess budget of the paper's bounds, even, <= m. Default: about m / 4."""
    zeta: float = 0.05
    """Error level, in (0, 1)."""
    delta: float = 0.0
    """delta of the audited (epsilon, delta) claim, in [0, 1); ``jaxunlearn audit`` has 1e-5."""
    name: str = "scores"
    """What was audited, for headings."""
    definition: Literal["3.3", "3.2"] = "3.3"
    """What your runs had in common, which only you know. 3.3: initial weights and shuffling order. 3.2: each drew its own."""
    json: bool = False
    """Print JSON in place of the table."""
    out: Path | None = None
    """Run directory to write (records, figures and page). Default: nothing is written."""


_FILES = ("signs", "scores", "in_scores", "out_scores", "llr")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_array(path: Path, name: str) -> np.ndarray:
    """Reads npy, npz (the array called ``name``, or the only one) or CSV (numbers, optionally one header line).

    Raises:
        InputError: Absent, unreadable, or no such array; the message names the file.
    """
    require(path.is_file(), f"Expected a file at {name}={path}, found none.")
    try:
        array = _read_csv(path) if path.suffix not in (".npy", ".npz") else _read_numpy(path, name)
    except InputError:
        raise
    except Exception as error:  # every way a file can be something else than it says
        text = " ".join(str(error).split())
        raise InputError(f"Cannot read {name} from {path} ({text}); use npy, npz or CSV with one row a run.") from error
    require(array.dtype.kind in "biuf", f"Expected numbers in {name}={path}, got an array of {array.dtype}.")
    return array


def _read_numpy(path: Path, name: str) -> np.ndarray:
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    arrays = records.read_npz(path)
    if name in arrays:
        return arrays[name]
    require(
        len(arrays) == 1, f"Expected an array called {name} in {path}, found {', '.join(arrays) if arrays else 'none'}."
    )
    return next(iter(arrays.values()))


def _read_csv(path: Path) -> np.ndarray:
    with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets put a byte-order mark first
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(map(_is_number, rows[0])):  # a row that holds a number is no header, even where it is broken
        rows = rows[1:]
    return np.array(rows, np.float64)


def _as_scores(array: np.ndarray, name: str, m: int) -> np.ndarray:
    """[runs, m] or [runs, m, B] as [runs, m, B]."""
    given = array.shape
    array = array[..., None] if array.ndim == 2 else array
    require(
        array.ndim == 3 and array.shape[1] == m and 0 not in array.shape,
        f"Expected {name} of shape [runs, m] or [runs, m, B] with m={m} as in signs, got {given}.",
    )
    return array.astype(np.float64)


def _require_finite(array: np.ndarray, name: str, fix: str, allowed: tuple[int, ...] = ()) -> None:
    finite = np.asarray(np.isfinite(array).reshape(array.shape[0], -1).all(axis=1))
    finite |= np.isin(np.arange(finite.size), allowed)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(f"Expected finite {name}, but row {row} is not; {fix}.")


_EVALUATION_FIX = (
    "run it again with the same seed and sign vector, and if it fails again name it in --failed-runs (counted from 0 among "
    "the evaluation runs), so that it counts as p = 1"
)
_CALIBRATION_FIX = "a calibration run may be left out"


def run(chosen: Bound) -> BoundRecord:
    """Computes the bounds and, with ``out``, writes the records.

    Raises:
        InputError: Anything wrong with the input; the message names the argument and the fix.
    """
    require(
        chosen.name not in ("", ".", "..") and not set(chosen.name) & {"/", os.sep},
        f"Expected name={chosen.name!r} to be usable as a folder's name, without a slash.",
    )
    signs = read_array(chosen.signs, "signs")
    require(signs.ndim == 2, f"Expected signs of shape [runs, m], got {signs.shape}.")
    signs = design.check_signs(signs)
    m = signs.shape[1]
    require(
        {name for name in ("calibration", *_FILES[1:]) if getattr(chosen, name) is not None}
        in ({"scores", "calibration"}, {"scores", "in_scores", "out_scores"}, {"llr"}),
        "Expected exactly one of: --scores with --calibration; --scores with --in-scores and --out-scores; --llr.",
    )
    scores = None if chosen.llr is not None else _score_record(chosen, signs)
    evaluation = signs if scores is None else scores.signs[scores.roles == EVALUATION]
    runs = evaluation.shape[0]
    for row in chosen.failed_runs:
        require(0 <= row < runs, f"Expected failed_runs within 0..{runs - 1}, got {row}.")
    plan = Preregistration.default(
        "batchwise",
        m=m,
        batch_size=1 if scores is None else scores.scores.shape[2],
        L=runs,
        zeta=chosen.zeta,
        delta=chosen.delta,
        r=chosen.r,
    )
    record, evaluated = bounding.record(
        plan,
        {"llr": _read_llr(chosen, signs)}
        if scores is None
        else bounding.attack(scores, plan, variance=chosen.variance),
        evaluation,
        np.isin(np.arange(runs), chosen.failed_runs),
        method=chosen.name,
        title=chosen.name,
        definition=chosen.definition,
        calibration_runs=0 if scores is None else int(np.sum(scores.roles == CALIBRATION)),
        notes=[
            "Scores came from outside: it rests on whoever made them that the sign vectors were drawn independently and "
            "uniformly, that every run had its own noise, and that zeta, delta, r and the number of runs were fixed before "
            f"the first evaluation run. Definition {chosen.definition} is as you stated it (--definition)."
        ],
    )
    if chosen.out is not None:
        folder = chosen.out / chosen.name
        facts = {"title": chosen.name, "preregistration": plan.to_json()}
        store.open_manifest(chosen.out, "manifest.json", _identity(chosen), **facts)
        with store.disk_errors(folder):
            records.write_npz(folder / "evaluation.npz", **evaluated)
            if scores is not None:
                scores.save(folder / "scores.npz")
            records.write_json(folder / "bound.json", record.to_json())
    return record


def _identity(chosen: Bound) -> dict[str, Any]:
    """What the results depend on: settings, and the content of the files rather than their names."""
    settings = {k: v for k, v in dataclasses.asdict(chosen).items() if k not in ("out", "json", *_FILES)}
    paths = {name: getattr(chosen, name) for name in _FILES}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path is not None}
    return settings | {"failed_runs": list(chosen.failed_runs), "sha256": digests}


def _read_llr(chosen: Bound, signs: np.ndarray) -> np.ndarray:
    assert chosen.llr is not None
    llr = read_array(chosen.llr, "llr")
    require(llr.shape == signs.shape, f"Expected llr of shape {signs.shape} = signs.shape, got {llr.shape}.")
    _require_finite(llr, "llr", _EVALUATION_FIX, chosen.failed_runs)
    return llr.astype(np.float64)


def _score_record(chosen: Bound, signs: np.ndarray) -> ScoreRecord:
    """Calibration and evaluation scores with their signs, from either way of handing them in."""
    m = signs.shape[1]

    def read(path: Path | None, name: str) -> np.ndarray:
        assert path is not None  # the ways of handing scores in were checked
        return _as_scores(read_array(path, name), name, m)

    scores = read(chosen.scores, "scores")
    require(
        scores.shape[0] == signs.shape[0],
        f"Expected as many rows in scores as in signs, got {scores.shape[0]} and {signs.shape[0]}.",
    )
    if chosen.calibration is not None:
        k, runs = chosen.calibration, scores.shape[0]
        require(
            2 <= k < runs,
            f"Expected 2 <= calibration={k} < {runs} rows of scores, so that some are left for evaluation.",
        )
        calibration, calibration_signs, scores, signs = scores[:k], signs[:k], scores[k:], signs[k:]
    else:
        parts = read(chosen.in_scores, "in_scores"), read(chosen.out_scores, "out_scores")
        shapes = [part.shape[1:] for part in parts]
        require(shapes[0] == shapes[1], f"Expected one shape per run in in_scores and out_scores, got {shapes}.")
        calibration = np.concatenate(parts)
        sides = np.repeat(np.array([1, -1], np.int8), [part.shape[0] for part in parts])
        calibration_signs = np.repeat(sides[:, None], m, axis=1)
    require(
        calibration.shape[1:] == scores.shape[1:],
        f"Expected one shape per run in calibration and evaluation scores, got {calibration.shape[1:]} and "
        f"{scores.shape[1:]}.",
    )
    _require_finite(scores, "scores of evaluation runs", _EVALUATION_FIX, chosen.failed_runs)
    _require_finite(calibration, "calibration scores", _CALIBRATION_FIX)
    counts = (calibration.shape[0], scores.shape[0])
    return ScoreRecord(
        signs=np.concatenate([calibration_signs, signs]).astype(np.int8),
        roles=np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), counts),
        indices=np.concatenate([np.arange(n) for n in counts]),
        scores=np.concatenate([calibration, scores]),
        accuracy={},
        failed=np.concatenate([np.zeros(counts[0], bool), np.isin(np.arange(counts[1]), chosen.failed_runs)]),
    )
