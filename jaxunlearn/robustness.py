"""What ``jaxunlearn robustness`` finds out about one unlearned model, or many seeds of it: named metrics.

Host side, without jax. A *condition* is what was done to the inputs: nothing ("clean"), or an attack of some strength.

Layout of a run directory::

    DIR/manifest.json            configuration and versions
    DIR/population/              the original models, one for each seed (orbax, with checksums)
    DIR/targets.npz              the images that are attacked, their labels and rows, and what the original models say of them
    DIR/shadows.npz              logits of the shadow models, and what they were trained on
    DIR/original/robustness.json the original models, not attacked
    DIR/<method>/robustness.json RobustnessRecord
    DIR/<method>/attacked.npz    logits and predictions before and under attack, and attacked images, by condition and seed
    DIR/<method>/models/         the unlearned models
    DIR/report.html              one self-contained page
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from jaxunlearn._validate import InputError, require

SCHEMA = 1
T = TypeVar("T")
CLEAN = "clean"
FILE = "robustness.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric under all conditions, for all seeds.

    Attributes:
        name: Stable name ("ua").
        label: Short name for tables ("UA").
        meaning: One sentence for the reader: what share of what.
        better: Which direction speaks for the unlearning: "lower", "higher"; "" of a control, which speaks for neither.
        count: Examples behind each value, N.
        values: [conditions][repeats], a repeat for every seed and, within it, for every seed of the measurement; an empty
            list where a condition has none.
        per_seed: Repeats that share a seed of the unlearning; they are averaged before an interval is drawn.
        percent: Whether values are shares, shown as percentages.
        headline: Whether the short table shows it.
        counts: N by condition, where it differs; None: ``count`` everywhere.
        digits: Shown after the point of what is no share.
    """

    name: str
    label: str
    meaning: str
    better: str
    count: int
    values: list[list[float]]
    per_seed: int = 1
    percent: bool = True
    headline: bool = False
    counts: list[int] | None = None
    digits: int = 2

    def n(self, condition: int) -> int:
        """Examples behind each value under a condition."""
        return self.count if self.counts is None else self.counts[condition]

    @property
    def is_finite(self) -> bool:
        """Whether all values are finite numbers."""
        return all(isinstance(v, (int, float)) and math.isfinite(v) for row in self.values for v in row)

    def mean(self, condition: int) -> float | None:
        """Mean over all repeats, or None."""
        values = self.values[condition]
        return sum(values) / len(values) if values else None

    def sd(self, condition: int) -> float | None:
        """Standard deviation over all repeats (with n - 1), or None of fewer than two."""
        values = self.values[condition]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    def by_seed(self, condition: int) -> list[float]:
        """The mean of each seed's repeats."""
        values, size = self.values[condition], self.per_seed
        return [sum(values[i : i + size]) / size for i in range(0, len(values), size)]

    def interval(self, condition: int, confidence: float = 0.95) -> tuple[float, float] | None:
        """Student's interval for the mean over seeds of unlearning, or None of fewer than two."""
        means = self.by_seed(condition)
        if len(means) < 2:
            return None
        half = float(stats.t.ppf((1 + confidence) / 2, len(means) - 1) * stats.sem(means))
        middle = sum(means) / len(means)
        return middle - half, middle + half


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """Where a metric's mean is expected under a preset.

    Attributes:
        method: The method.
        metric: The metric's name.
        condition: The condition's name.
        low: Smallest expected mean.
        high: Largest expected mean.
    """

    method: str
    metric: str
    condition: str
    low: float
    high: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustnessRecord:
    """Everything that DIR/<method>/robustness.json holds.

    Attributes:
        method: The unlearning algorithm, or "original".
        title: What was attacked, for headings ("digits").
        task: "classification", "image-to-image" or "text-to-image".
        scenario: What was to be forgotten, in words.
        conditions: Names of the conditions, "clean" first.
        seeds: Seeds of the unlearning that the metrics are over.
        failed: Numbers of those that are left out, since what their models say is not finite.
        metrics: The metrics; those of the short table first.
        bands: Where the preset expects means of this method.
        curves: Name ("steps", "step_size") -> {"x": numbers, "values": [x][seeds] accuracies on the forget set under the
            strongest attack, "label": of the axis}.
        attack: The attack's settings.
        settings: The method's settings.
        seconds: Wall time by stage ("unlearn", "evaluate", "attack", "membership").
        throughput: "images" attacked a second, a condition and seed counting as an image each time.
        notes: Sentences for the reader.
    """

    method: str
    title: str
    task: str
    scenario: str
    conditions: list[str]
    seeds: int
    metrics: list[Metric]
    failed: list[int] = dataclasses.field(default_factory=list)
    bands: list[Band] = dataclasses.field(default_factory=list)
    curves: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    attack: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    throughput: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA

    def metric(self, name: str) -> Metric:
        """A metric by name.

        Raises:
            InputError: There is none of that name.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise InputError(f"Unknown metric={name!r}; choose from {', '.join(m.name for m in self.metrics)}.")

    def surprises(self) -> list[str]:
        """Seeds that failed, and means outside their expected bands, a sentence each."""
        found = []
        if self.failed:
            lost = ", ".join(map(str, self.failed))
            found.append(
                f"{self.method}: the models of seeds {lost} diverged (what they say is not finite) and are left out; try a "
                "smaller step."
            )
        for band in self.bands:
            if band.condition not in self.conditions:
                continue
            metric = self.metric(band.metric)
            mean = metric.mean(self.conditions.index(band.condition))
            if mean is not None and not band.low <= mean <= band.high:
                scale, fine, coarse = (100, 1, 0) if metric.percent else (1, metric.digits, metric.digits)
                found.append(
                    f"{self.method}: {metric.label} {band.condition} is {scale * mean:.{fine}f}, expected between "
                    f"{scale * band.low:.{coarse}f} and {scale * band.high:.{coarse}f} with this preset."
                )
        return found

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "RobustnessRecord":
        """The inverse of ``to_json``.

        Raises:
            InputError: The file was written by another schema, lacks a field, or its numbers do not fit its conditions.
        """
        return read_record(cls, data, FILE, SCHEMA)


def read_record(kind: type[T], data: Mapping[str, Any], file: str, schema: int) -> T:
    """A record with metrics and bands out of its JSON; fields that it does not know are left out.

    Args:
        kind: The record's dataclass.
        data: As ``to_json`` gives it.
        file: What the file is called, for messages.
        schema: What it must have been written by.

    Raises:
        InputError: The file was written by another schema, lacks a field, or its numbers do not fit its conditions.
    """
    require(
        data.get("schema") == schema,
        f"Expected schema={schema} in {file}, got {data.get('schema')!r}; run the command again with this version.",
    )
    names = {f.name for f in dataclasses.fields(kind)}  # pyrefly: ignore
    try:
        fields: dict[str, Any] = {k: v for k, v in data.items() if k in names}
        fields["metrics"] = [Metric(**m) for m in data["metrics"]]
        fields["bands"] = [Band(**b) for b in data.get("bands", [])]
        record: Any = kind(**fields)
    except (KeyError, TypeError) as error:
        raise InputError(f"{file} lacks a field ({error}); run the command again.") from error
    for metric in record.metrics:
        require(
            len(metric.values) == len(record.conditions) and metric.is_finite,
            f"Expected metric {metric.name} in {file} to have finite values for {len(record.conditions)} conditions.",
        )
    return record


def strength(epsilon: float) -> str:
    """A condition's name: the radius in 255ths of the image range; infinite, "unbounded".

    >>> strength(8), strength(2.5), strength(float("inf"))
    ('8/255', '2.5/255', 'unbounded')
    """
    return "unbounded" if math.isinf(epsilon) else f"{epsilon:g}/255"
