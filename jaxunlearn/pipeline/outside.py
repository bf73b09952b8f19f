"""Bounds from scores that somebody else computed, in any framework; needs no JAX."""

import dataclasses
import hashlib
import os
from typing import Annotated, Any, Literal

import numpy as np

from jaxunlearn import records
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, require
from jaxunlearn.attack.likelihood import Variance
from jaxunlearn.audit import design, validity
from jaxunlearn.audit.preregistration import WARMUP_RUNS, Preregistration
from jaxunlearn.engine import store
from jaxunlearn.pipeline import bounding, design_runs
from jaxunlearn.pipeline.anytime import AnytimeTest, check_reachable
from jaxunlearn.pipeline.arrays import as_scores, read_array, require_finite, rows_of_runs
from jaxunlearn.records import CALIBRATION, EVALUATION, BoundRecord, ScoreRecord


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """Bound epsilon from sign vectors and scores that you have.

    Give --design with --scores; or --signs with one of: --scores and --calibration; --scores, --in-scores and
    --out-scores; --llr; or, with --sequential, rows in the order of time and --scores or --llr.
    """

    design: Annotated[PathOption | None, UNSAID] = None
    """Directory that ``jaxunlearn design`` wrote: sign vectors, which run is what, and all terms are read from there."""
    signs: Annotated[PathOption | None, UNSAID] = None
    """Sign vectors [runs, m] in {-1, +1}: npy, npz (array signs) or CSV. +1 = trained on and unlearned."""
    scores: Annotated[PathOption | None, UNSAID] = None
    """Scores [runs, m] or [runs, m, B], higher = more likely still in the model; rows as in --signs or in runs.csv."""
    calibration: Annotated[int | None, UNSAID] = None
    """The first K rows of --signs and --scores are calibration runs, the others evaluation runs."""
    in_scores: Annotated[PathOption | None, UNSAID] = None
    """Calibration scores [runs, m] or [runs, m, B] of models that had every candidate, in place of --calibration."""
    out_scores: Annotated[PathOption | None, UNSAID] = None
    """The same of models that had no candidate; goes with --in-scores."""
    llr: Annotated[PathOption | None, UNSAID] = None
    """Log-likelihood ratios [runs, m] of evaluation runs, in place of scores: npy, npz (array llr) or CSV."""
    sequential: bool = False
    """Rows are runs in the order of time, each attacked with what the rows before it taught: a bound at every number of
    runs at once. With --llr all rows are evaluation runs, whose ratios you made from the runs before each."""
    warmup: Annotated[int | None, UNSAID] = None
    """Sequential: first rows of --scores, which only teach the attack. Default: 4."""
    claim_epsilon: Annotated[float | None, UNSAID] = None
    """Sequential: say whether, and after how many runs, the claim "(epsilon, delta)-certified" is falsified."""
    failed_runs: Annotated[tuple[int, ...], UNSAID] = ()
    """Evaluation runs that failed twice, numbered from 0 (with --design: as in runs.csv); each counts as p = 1."""
    variance: Annotated[Variance | None, UNSAID] = None
    """Gaussian fits: pooled variance; one per example and side (the paper's); shrunken: between the two; batch, full:
    pooled, with correlations between the scores of a batch or of the run. Default: full; sequential: pooled."""
    r: Annotated[int | None, UNSAID] = None
    """Guess budget of the paper's bounds, even, <= m. Default: about m / 4."""
    zeta: Annotated[float | None, UNSAID] = None
    """Error level, in (0, 1). Default: 0.05."""
    delta: Annotated[float | None, UNSAID] = None
    """delta of the audited (epsilon, delta) claim, in [0, 1); ``jaxunlearn audit`` has 1e-5. Default: 0."""
    name: str = "scores"
    """What was audited, for headings."""
    definition: Literal["3.3", "3.2"] = "3.3"
    """What your runs had in common, which only you know. 3.3: initial weights and shuffling order. 3.2: each drew its own."""
    json: bool = False
    """Print JSON in place of the table."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory to write (records, figures and page). Default: DESIGN/results; without --design nothing is written."""

    @property
    def directory(self) -> AnyPath | None:
        """The run directory, or None if nothing is written."""
        return self.out if self.out is not None or self.design is None else self.design / "results"


_FILES = ("signs", "scores", "in_scores", "out_scores", "llr")
_TERMS = {"variance": "full", "zeta": 0.05, "delta": 0.0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Given:
    """What the files say: the terms, and what the attack makes of the scores."""

    plan: Preregistration
    outputs: dict[str, np.ndarray]
    signs: np.ndarray
    failed: np.ndarray
    scores: ScoreRecord | None
    calibration_runs: int
    note: str


_EVALUATION_FIX = (
    "run it again with the same seed and sign vector, and if it fails again name it in --failed-runs (counted from 0 among "
    "the evaluation runs), so that it counts as p = 1"
)
_CALIBRATION_FIX = "a calibration run may be left out"


def run(chosen: Bound) -> BoundRecord:
    """Computes the bounds and, with a directory to write to, writes the records.

    Raises:
        InputError: Anything wrong with the input; the message names the argument and the fix.
    """
    require(
        chosen.name not in ("", ".", "..") and not set(chosen.name) & {"/", os.sep},
        f"Expected name={chosen.name!r} to be usable as a folder's name, without a slash.",
    )
    if chosen.sequential:
        return _sequential(chosen)
    require(
        chosen.warmup is None and chosen.claim_epsilon is None,
        "Expected --sequential beside --warmup and --claim-epsilon; a claim is tested run by run.",
    )
    given = _undesigned(chosen) if chosen.design is None else _designed(chosen, chosen.design)
    title = chosen.name if chosen.design is None else chosen.design.resolve().name
    record, evaluated = bounding.record(
        given.plan,
        given.outputs,
        given.signs,
        given.failed,
        method=chosen.name,
        title=title,
        definition=chosen.definition,
        calibration_runs=given.calibration_runs,
        notes=[f"{given.note} Definition {chosen.definition} is as you stated it (--definition)."],
    )
    _write(chosen, title, given.plan, record, evaluated, given.scores)
    return record


def _write(
    chosen: Bound,
    title: str,
    plan: Preregistration,
    record: BoundRecord,
    evaluated: dict[str, np.ndarray],
    scores: ScoreRecord | None,
) -> None:
    """With a directory to write to, writes the records."""
    out = chosen.directory
    if out is None:
        return
    folder = out / chosen.name
    facts = {"title": title, "preregistration": plan.to_json()}
    if chosen.design is None:
        store.open_manifest(out, "manifest.json", _identity(chosen), **facts)
    else:  # several methods may be bounded by one design
        store.open_manifest(out, "manifest.json", {"design": records.read_json(chosen.design / "design.json")}, **facts)
        store.open_manifest(folder, "method.json", _identity(chosen))
    with store.disk_errors(folder):
        records.write_npz(folder / "evaluation.npz", **evaluated)
        if scores is not None:
            scores.save(folder / "scores.npz")
        records.write_json(folder / "bound.json", record.to_json())


def _read_signs(chosen: Bound) -> np.ndarray:
    if chosen.signs is None:
        raise InputError("Expected --design DIR, as jaxunlearn design wrote it, or --signs FILE.")
    signs = read_array(chosen.signs, "signs")
    require(signs.ndim == 2, f"Expected signs of shape [runs, m], got {signs.shape}.")
    return design.check_signs(signs)


def _undesigned(chosen: Bound) -> _Given:
    """Sign vectors from a file, terms from the command line."""
    signs = _read_signs(chosen)
    m = signs.shape[1]
    require(
        {name for name in ("calibration", *_FILES[1:]) if getattr(chosen, name) is not None}
        in ({"scores", "calibration"}, {"scores", "in_scores", "out_scores"}, {"llr"}),
        "Expected exactly one of: --scores with --calibration; --scores with --in-scores and --out-scores; --llr.",
    )
    require(
        chosen.llr is None or chosen.variance is None,
        f"Expected no variance={chosen.variance!r} with --llr: nothing is fitted; leave it out.",
    )
    scores = None if chosen.llr is not None else _score_record(chosen, signs)
    evaluation = signs if scores is None else scores.signs[scores.roles == EVALUATION]
    runs = evaluation.shape[0]
    for row in chosen.failed_runs:
        require(0 <= row < runs, f"Expected failed_runs within 0..{runs - 1}, got {row}.")
    terms = _terms(chosen)
    plan = Preregistration.default(
        "batchwise",
        m=m,
        batch_size=1 if scores is None else scores.scores.shape[2],
        L=runs,
        zeta=terms["zeta"],
        delta=terms["delta"],
        r=chosen.r,
    )
    return _Given(
        plan=plan,
        outputs={"llr": _read_llr(chosen, signs)}
        if scores is None
        else bounding.attack(scores, plan, variance=terms["variance"]),
        signs=evaluation,
        failed=np.isin(np.arange(runs), chosen.failed_runs),
        scores=scores,
        calibration_runs=0 if scores is None else int(np.sum(scores.roles == CALIBRATION)),
        note="Scores came from outside: it rests on whoever made them that the sign vectors were drawn independently and "
        "uniformly, that every run had its own noise, and that zeta, delta, r and the number of runs were fixed before "
        "the first evaluation run.",
    )


def _designed(chosen: Bound, directory: AnyPath) -> _Given:
    """Sign vectors, roles and terms from a design; what the command line repeats has to agree with it."""
    said = [f"--{name.replace('_', '-')}" for name in ("calibration", *_FILES) if getattr(chosen, name) is not None]
    require(
        said == ["--scores"],
        f"Expected --design with --scores alone, got {' '.join(said) or 'neither'}; the design says everything else.",
    )
    made = design_runs.load(directory)
    requested = {name: getattr(chosen, name) for name in ("zeta", "delta", "r") if getattr(chosen, name) is not None}
    validity.check_unchanged(made.plan, dataclasses.replace(made.plan, **requested))
    variance = made.settings["variance"]
    require(
        chosen.variance in (None, variance),
        f"Expected variance={variance!r} as preregistered, got {chosen.variance!r}; it cannot change once a design is "
        "written: design a new audit, with new runs.",
    )
    assert chosen.scores is not None  # said so above
    runs = len(made.roles)
    for row in chosen.failed_runs:
        require(0 <= row < runs, f"Expected failed_runs within 0..{runs - 1}, as numbered in runs.csv, got {row}.")
    scores = rows_of_runs(chosen.scores, runs, chosen.failed_runs)
    m, B = made.plan.m, made.plan.batch_size
    if scores.ndim == 2 and scores.shape[1] == m * B:
        scores = scores.reshape(runs, m, B)
    scores = as_scores(scores, "scores", m)
    require(
        scores.shape[2] in (1, B),
        f"Expected scores of {B} examples a batch as in the design, or one score a batch, got {scores.shape[2]}.",
    )
    require_finite(scores, "scores", _DESIGNED_FIX, chosen.failed_runs)
    failed, calibration = np.isin(np.arange(runs), chosen.failed_runs), made.roles == CALIBRATION
    scores[failed] = np.nan  # a failed calibration run is left out of the fits, whatever it holds
    record = ScoreRecord(
        signs=made.signs,
        roles=made.roles,
        indices=np.concatenate([np.arange(np.sum(made.roles == role)) for role in (CALIBRATION, EVALUATION)]),
        scores=scores,
        accuracy={},
        failed=failed,
    )
    note = (
        "Sign vectors, zeta, delta, r, the number of runs and the bounds were preregistered in the design of "
        f"{made.created} (sha256 of signs.npy {made.digest[:16]}…). It rests on whoever made the scores that each run had "
        "the batches of its row and its own noise, and that there was one score a candidate, chosen beforehand."
    )
    if failed.any():
        numbers = ", ".join(map(str, np.flatnonzero(failed)))
        note += (
            f" Failed, as numbered in runs.csv: {numbers}; evaluation runs among them count as p = 1, calibration runs are "
            "left out of the fits."
        )
    return _Given(
        plan=made.plan,
        outputs=bounding.attack(record, made.plan, variance=variance),
        signs=made.signs[~calibration],
        failed=failed[~calibration],
        scores=record,
        calibration_runs=int(np.sum(calibration)),
        note=note,
    )


_DESIGNED_FIX = (
    "run it again with the same seed and batches, and if it fails again name it in --failed-runs (numbered as in runs.csv), "
    "so that it counts as p = 1"
)


def _terms(chosen: Bound) -> dict[str, Any]:
    """The terms that were said, with defaults for those that were not."""
    defaults = _TERMS | ({"variance": "pooled"} if chosen.sequential else {})
    return {
        name: default if getattr(chosen, name) is None else getattr(chosen, name) for name, default in defaults.items()
    }


def _sequential(chosen: Bound) -> BoundRecord:
    """The any-time bound from rows in the order of time."""
    require(
        chosen.design is None,
        f"Expected no design={chosen.design} with --sequential: a design fixes the number of runs; give --signs.",
    )
    require(chosen.r is None, f"Expected no r={chosen.r} with --sequential, which guesses nothing; leave it out.")
    require(
        chosen.variance in (None, "pooled", "per_example"),
        f"Expected variance='pooled' or 'per_example' with --sequential, got {chosen.variance!r}, which is not fitted run by "
        "run.",
    )
    signs, terms = _read_signs(chosen), _terms(chosen)
    given = {name for name in ("calibration", *_FILES[1:]) if getattr(chosen, name) is not None}
    require(
        given in ({"scores"}, {"llr"}),
        "Expected --sequential with --scores or --llr alone: every row after the --warmup is evaluated, then calibrates.",
    )
    require(
        chosen.llr is None or chosen.warmup is None,
        f"Expected no warmup={chosen.warmup} with --llr, whose rows are all evaluation runs; leave the warm-up rows out.",
    )
    warmup = 0 if chosen.llr is not None else WARMUP_RUNS if chosen.warmup is None else chosen.warmup
    runs = signs.shape[0] - warmup
    require(
        0 <= warmup < signs.shape[0],
        f"Expected 0 <= warmup={warmup} < {signs.shape[0]} rows of signs, so that some are left for evaluation.",
    )
    for row in chosen.failed_runs:
        require(0 <= row < runs, f"Expected failed_runs within 0..{runs - 1}, got {row}.")
    failed = np.isin(np.arange(runs), chosen.failed_runs)
    scores = None if chosen.llr is not None else _sequential_scores(chosen, signs, warmup)
    validity.check_evaluation_signs(signs[warmup:])
    validity.check_separate(
        calibration_ids=range(warmup),
        evaluation_ids=range(warmup, signs.shape[0]),
        calibration_signs=signs[:warmup],
        evaluation_signs=signs[warmup:],
    )
    plan = Preregistration.default(
        "batchwise",
        m=signs.shape[1],
        batch_size=1 if scores is None else scores.scores.shape[2],
        L=runs,
        zeta=terms["zeta"],
        delta=terms["delta"],
        warmup=warmup,
        claim_epsilon=chosen.claim_epsilon,
    )
    check_reachable(plan)
    test = AnytimeTest(plan, variance=terms["variance"])
    if scores is None:
        for llr, row, lost in zip(_read_llr(chosen, signs), signs, failed):
            test.judge(llr, row, failed=bool(lost))
        attack = "the ratios of every run were made from the runs before it alone"
    else:
        for values, row in zip(scores.scores[:warmup], signs):
            test.teach(values, row)
        for values, row, lost in zip(scores.scores[warmup:], signs[warmup:], failed):
            test.attack(values, row, failed=bool(lost))
        attack = "rows are in the order of time"
    record, evaluated = test.record(
        method=chosen.name,
        title=chosen.name,
        definition=chosen.definition,
        notes=[
            "Scores came from outside: it rests on whoever made them that the sign vectors were drawn independently and "
            f"uniformly, that every run had its own noise, that {attack}, that none was left out, and that zeta, delta and "
            "the warm-up were fixed before the first evaluation run; the number of runs and the claim may be chosen at any "
            f"time. Definition {chosen.definition} is as you stated it (--definition)."
        ],
    )
    _write(chosen, chosen.name, plan, record, evaluated, scores)
    return record


def _sequential_scores(chosen: Bound, signs: np.ndarray, warmup: int) -> ScoreRecord:
    assert chosen.scores is not None  # the ways of handing scores in were checked
    scores = as_scores(read_array(chosen.scores, "scores"), "scores", signs.shape[1])
    require(
        scores.shape[0] == signs.shape[0],
        f"Expected as many rows in scores as in signs, got {scores.shape[0]} and {signs.shape[0]}.",
    )
    require_finite(scores[warmup:], "scores of evaluation runs", _EVALUATION_FIX, chosen.failed_runs)
    if warmup:
        require_finite(scores[:warmup], "warm-up scores", _CALIBRATION_FIX)
    counts = (warmup, signs.shape[0] - warmup)
    return ScoreRecord(
        signs=signs,
        roles=np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), counts),
        indices=np.concatenate([np.arange(n) for n in counts]),
        scores=scores,
        accuracy={},
        failed=np.concatenate([np.zeros(warmup, bool), np.isin(np.arange(counts[1]), chosen.failed_runs)]),
    )


def _identity(chosen: Bound) -> dict[str, Any]:
    """What the results depend on: settings, and the content of the files rather than their names."""
    # A claim may be chosen, and changed, after looking.
    left_out = (
        "out",
        "json",
        "design",
        "claim_epsilon",
        *_FILES,
        *(() if chosen.sequential else ("sequential", "warmup")),
    )
    settings = {k: v for k, v in dataclasses.asdict(chosen).items() if k not in left_out}
    settings |= {"failed_runs": list(chosen.failed_runs)}
    if chosen.design is None:
        settings |= _terms(chosen)
    else:
        settings = {k: v for k, v in settings.items() if k in ("name", "definition", "failed_runs")}
    paths = {name: getattr(chosen, name) for name in _FILES}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items() if path is not None}
    return settings | {"sha256": digests}


def _read_llr(chosen: Bound, signs: np.ndarray) -> np.ndarray:
    assert chosen.llr is not None
    llr = read_array(chosen.llr, "llr")
    require(llr.shape == signs.shape, f"Expected llr of shape {signs.shape} = signs.shape, got {llr.shape}.")
    require_finite(llr, "llr", _EVALUATION_FIX, chosen.failed_runs)
    return llr.astype(np.float64)


def _score_record(chosen: Bound, signs: np.ndarray) -> ScoreRecord:
    """Calibration and evaluation scores with their signs, from either way of handing them in."""
    m = signs.shape[1]

    def read(path: AnyPath | None, name: str) -> np.ndarray:
        assert path is not None  # the ways of handing scores in were checked
        return as_scores(read_array(path, name), name, m)

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
        require(
            not np.array_equal(parts[0], parts[1]),
            "Expected in_scores and out_scores of different models, but they hold the same numbers.",
        )
        calibration = np.concatenate(parts)
        sides = np.repeat(np.array([1, -1], np.int8), [part.shape[0] for part in parts])
        calibration_signs = np.repeat(sides[:, None], m, axis=1)
    require(
        calibration.shape[1:] == scores.shape[1:],
        f"Expected one shape per run in calibration and evaluation scores, got {calibration.shape[1:]} and "
        f"{scores.shape[1:]}.",
    )
    require_finite(scores, "scores of evaluation runs", _EVALUATION_FIX, chosen.failed_runs)
    require_finite(calibration, "calibration scores", _CALIBRATION_FIX)
    counts = (calibration.shape[0], scores.shape[0])
    return ScoreRecord(
        signs=np.concatenate([calibration_signs, signs]).astype(np.int8),
        roles=np.repeat(np.array([CALIBRATION, EVALUATION], np.int8), counts),
        indices=np.concatenate([np.arange(n) for n in counts]),
        scores=np.concatenate([calibration, scores]),
        accuracy={},
        failed=np.concatenate([np.zeros(counts[0], bool), np.isin(np.arange(counts[1]), chosen.failed_runs)]),
    )
