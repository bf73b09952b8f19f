"""What of a method is finished and whole on disk, so that only what is damaged or missing is computed again."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError
from jaxunlearn.engine import store
from jaxunlearn.pipeline import bounding
from jaxunlearn.pipeline.runs import RunTable
from jaxunlearn.records import BoundRecord, ScoreRecord

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """What is there of a method.

    Attributes:
        record: Its bounds, or None.
        scores: Scores of all runs, or None.
        on_the_way: Step -> scores, or None if some that were asked for are not there.
        evaluation: Whether evaluation.npz is whole.
    """

    record: BoundRecord | None
    scores: ScoreRecord | None
    on_the_way: dict[int, ScoreRecord] | None
    evaluation: bool

    @property
    def scored(self) -> bool:
        """Whether no model is needed."""
        return self.scores is not None and self.on_the_way is not None

    @property
    def whole(self) -> bool:
        """Whether there is nothing left to do."""
        return self.record is not None and self.scored and self.evaluation


def look(folder: AnyPath, table: RunTable, trajectory: tuple[int, ...]) -> Finished:
    """Reads all files of a method; one that is damaged, or missing beside a bound, is named on standard error.

    Args:
        folder: DIR/<method>.
        table: The audit's runs; scores of others are not taken.
        trajectory: Steps on the way that are asked for.
    """
    bounded = (folder / "bound.json").exists()
    from_models = "it is computed again from the method's chunks or the trained models"
    from_scores = "computed again from the scores"
    record = read(folder / "bound.json", read_record, f"the bounds are {from_scores}", bounded)
    scores = read(folder / "scores.npz", lambda path: _scores(path, table), from_models, bounded)
    on_the_way: dict[int, ScoreRecord] | None = {}
    if trajectory:
        load = partial(bounding.load_trajectory, indices=table.indices, steps=trajectory)
        on_the_way = read(folder / "trajectory.npz", load, from_models, bounded)
    load = partial(records.read_npz, sealed=True)
    evaluation = read(folder / "evaluation.npz", load, f"it is {from_scores}", bounded)
    return Finished(record=record, scores=scores, on_the_way=on_the_way, evaluation=evaluation is not None)


def read(path: AnyPath, load: Callable[[AnyPath], T], then: str, expected: bool = True) -> T | None:
    """What a file holds; None if it is damaged or missing, which is said.

    Args:
        path: The file.
        load: Reads it.
        then: What is done in its place, for the message.
        expected: Whether it is to be said if it is missing.
    """
    if not path.exists():
        if expected:
            store.notice(f"{path} is missing: {then}.")
        return None
    try:
        return load(path)
    except InputError as error:
        store.notice(f"{str(error).rstrip('.')}: {then}.")
        return None


def read_record(path: AnyPath) -> BoundRecord:
    """Reads bound.json.

    Raises:
        InputError: It is missing, damaged, or of another schema.
    """
    return BoundRecord.from_json(records.read_json(path, "the same command mends it"))


def _scores(path: AnyPath, table: RunTable) -> ScoreRecord:
    scores = ScoreRecord.load(path)
    for name in ("signs", "roles", "indices"):
        if not np.array_equal(getattr(scores, name), getattr(table, name)):
            raise records.Damaged(f"{path} is of other runs.")
    return scores


def compare(folder: AnyPath, kept: BoundRecord, again: BoundRecord) -> None:
    """Says so if bounds that were computed again differ from those on disk, which stay: they were the first."""
    left_out = ("seconds", "notes")  # notes tell of other looks, which may have come since
    old, new = ({k: v for k, v in record.to_json().items() if k not in left_out} for record in (kept, again))
    if old != new:
        store.notice(
            f"{folder / 'bound.json'} keeps the bounds that were computed first (epsilon {kept.epsilon:.4g}); computed "
            f"again, by another version or on another device, they differ ({again.epsilon:.4g})."
        )
