"""Metrics under conditions, as records of ``robustness`` and ``privacy`` hold them: cells, columns, the terminal's table."""

import dataclasses
import itertools
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from jaxunlearn.report.table import ABSENT, GAP, clean
from jaxunlearn.robustness import Metric

WIDTH = 130
REFERENCE = "retrain"
"""The method that every other is held against."""
ARROWS = {"lower": "↓", "higher": "↑", "": ""}
DIRECTIONS = {"lower": "lower is better", "higher": "higher is better", "": "a control, neither better nor worse"}


class Measured(Protocol):
    """What both kinds of records share."""

    @property
    def method(self) -> str:
        """The unlearning algorithm."""
        ...

    @property
    def title(self) -> str:
        """The data, for headings."""
        ...

    @property
    def scenario(self) -> str:
        """What was to be forgotten, in words."""
        ...

    @property
    def conditions(self) -> list[str]:
        """Names of what was done before it was measured."""
        ...

    @property
    def seeds(self) -> int:
        """Seeds that the metrics are over."""
        ...

    @property
    def metrics(self) -> list[Metric]:
        """The metrics."""
        ...


R = TypeVar("R", bound=Measured)


def find(records: Sequence[R], name: str) -> R | None:
    """The record of a method, or None."""
    return next((record for record in records if record.method == name), None)


@dataclasses.dataclass(frozen=True)
class Column:
    """One metric under one condition.

    Attributes:
        group: What neighbouring columns share: a condition, or the start of their names.
        head: The rest of the heading, with an arrow for the direction that speaks for the unlearning.
        metric: The metric's name.
        condition: The condition's name.
    """

    group: str
    head: str
    metric: str
    condition: str


def titled(metric: Metric) -> str:
    """The label with its arrow: "UA ↓"."""
    return f"{clean(metric.label)} {ARROWS.get(metric.better, '')}".strip()


def metrics(records: Sequence[Measured]) -> list[Metric]:
    """The metrics of all records, each name once, in the order in which they come."""
    return list({metric.name: metric for record in reversed(records) for metric in reversed(record.metrics)}.values())[
        ::-1
    ]


def conditions(records: Sequence[Measured]) -> list[str]:
    """The conditions of all records, in the order in which they come."""
    return list(dict.fromkeys(c for record in records for c in record.conditions))


def lookup(record: Measured, metric: str, condition: str) -> tuple[Metric, int] | None:
    """A metric and the place of a condition that it has values in, or None."""
    found = next((m for m in record.metrics if m.name == metric), None)
    if found is None or condition not in record.conditions:
        return None
    place = record.conditions.index(condition)
    return (found, place) if found.values[place] else None


def mean(record: Measured, metric: str, condition: str) -> float | None:
    """The mean of a metric under a condition, or None."""
    found = lookup(record, metric, condition)
    return None if found is None else found[0].mean(found[1])


def text(metric: Metric, value: float, digits: int = 2) -> str:
    """A value of the metric: shares in per cent.

    The digits are fixed, so that columns line up; 0 and 100 are exact only as far as they go. What is no share has its own.
    """
    return (f"{100 * value:.{digits}f}" if metric.percent else f"{value:.{metric.digits}f}").replace("-", "−")


def share(value: float) -> str:
    """A share in per cent with one decimal; with as many as it takes not to call it 0% or 100% when it is not.

    >>> share(0.325), share(1.0), share(0.99996), share(0.0002), share(0.0)
    ('32.5%', '100%', '99.996%', '0.02%', '0%')
    """
    if value in (0.0, 1.0):
        return f"{100 * value:.0f}%"
    digits = 1
    while digits < 6 and float(f"{100 * value:.{digits}f}") in (0.0, 100.0):
        digits += 1
    return f"{100 * value:.{digits}f}%"


def interval(record: Measured, metric: str, condition: str) -> tuple[float, float] | None:
    """The 95% interval for the mean over seeds, that of a share cut at 0 and 1; None of fewer than two seeds."""
    found = lookup(record, metric, condition)
    bounds = found and found[0].interval(found[1])
    if not found or not bounds or not all(map(math.isfinite, bounds)):
        return None
    return (max(bounds[0], 0.0), min(bounds[1], 1.0)) if found[0].percent else bounds


def cell(record: Measured, metric: str, condition: str, digits: int = 2) -> tuple[str, str]:
    """(mean, standard deviation) as text; "–" and "" where there is none."""
    found = lookup(record, metric, condition)
    if found is None:
        return ABSENT, ""
    middle, spread = found[0].mean(found[1]), found[0].sd(found[1])
    return (
        ABSENT if middle is None else text(found[0], middle, digits),
        "" if spread is None else text(found[0], spread, digits),
    )


def labels(records: Sequence[Measured]) -> list[str]:
    """The methods' names."""
    return [clean(record.method) for record in records]


def repeats(record: Measured, metric: Metric) -> str:
    """How many values stand behind a mean.

    "10 seeds", or "10 seeds × 5 repeats" where every seed was measured several times.
    """
    seeds = f"{record.seeds} seed{'s' * (record.seeds != 1)}"
    return seeds if metric.per_seed == 1 else f"{seeds} × {metric.per_seed} repeats"


def behind(records: Sequence[Measured], name: str) -> str:
    """N and the repeats of a metric, over the records that have it; distinct ones are enumerated."""
    found = [
        (record, metric)
        for record in records
        for metric in record.metrics
        if metric.name == name and any(metric.values)
    ]
    counts = " or ".join(dict.fromkeys(f"{metric.count:,}" for _, metric in found))
    return f"N = {counts}; " + " or ".join(dict.fromkeys(repeats(record, metric) for record, metric in found))


def subject(records: Sequence[Measured]) -> str:
    """What was attacked and what was to be forgotten, one line."""
    parts = ((clean(r.title), f"to be forgotten: {clean(r.scenario)}" if r.scenario else "") for r in records)
    return "; ".join(dict.fromkeys(", ".join(filter(None, pair)) for pair in parts))


def _join(cells: Sequence[tuple[str, str]]) -> list[str]:
    """Means and deviations of one column, aligned."""
    left, right = (max(len(pair[i]) for pair in cells) for i in (0, 1))
    return [m.rjust(left) + (f" ± {s.rjust(right)}" if s else " " * (right + 3) * bool(right)) for m, s in cells]


def _block(records: Sequence[Measured], used: Sequence[Column], rows: Sequence[str], digits: int) -> list[str]:
    names = ["method", *rows]
    first = max(map(len, names))
    grid, widths = [], []
    for column in used:
        body = _join([cell(record, column.metric, column.condition, digits) for record in records])
        width = max(len(column.head), *map(len, body))
        grid.append([column.head.rjust(width), *(entry.rjust(width) for entry in body)])
        widths.append(width)
    groups = []
    for name, members in itertools.groupby(zip(used, widths), key=lambda pair: pair[0].group):
        sizes = [width for _, width in members]
        span = sum(sizes) + len(GAP) * (len(sizes) - 1)
        groups.append(f" {name} ".center(span, "─") if name else " " * span)
    lines = [GAP.join([" " * first, *groups]).rstrip()]
    lines += [GAP.join([name.ljust(first), *cells]).rstrip() for name, *cells in zip(names, *grid)]
    rule = "─" * (first + sum(widths) + len(GAP) * len(widths))
    return [*lines[:2], rule, *lines[2:], rule]


def _fit(records: Sequence[Measured], used: Sequence[Column], rows: Sequence[str]) -> list[str]:
    """The columns in one block, with fewer digits if need be; else in two, between groups."""
    for digits in (2, 1):
        block = _block(records, used, rows, digits)
        if max(map(len, block)) <= WIDTH:
            return block
    groups = list(dict.fromkeys(column.group for column in used))
    if len(groups) == 1:
        return block
    head = groups[: (len(groups) + 1) // 2]
    return [
        *_fit(records, [column for column in used if column.group in head], rows)[:-1],
        *_fit(records, [column for column in used if column.group not in head], rows),
    ]


def render_columns(
    records: Sequence[Measured], used: Sequence[Column], notes: Sequence[str], rows: Sequence[str]
) -> str:
    """The table for a terminal, with notes below; at most 130 wide, or in several blocks.

    Args:
        records: One for each row.
        used: Columns; none: "No metrics."
        notes: Sentences below it.
        rows: The rows' names.

    Returns:
        Lines joined by newlines, no trailing newline.
    """
    if not used:
        return "No metrics."
    block = _fit(records, used, rows)
    width = max(map(len, block))
    below = [line for note in notes for line in textwrap.wrap(note, max(width, 80), subsequent_indent="  ")]
    return "\n".join([*block, *below])


def markdown_columns(
    records: Sequence[Measured], used: Sequence[Column], notes: Sequence[str], rows: Sequence[str]
) -> str:
    """The same as GitHub Markdown, the notes as a paragraph below."""
    if not used:
        return "No metrics."

    def line(entries: Iterable[str]) -> str:
        return "| " + " | ".join(entry.replace("|", "\\|").replace("<", "&lt;") for entry in entries) + " |"

    heads = [": ".join(filter(None, [column.group, column.head])) for column in used]
    body = [
        [name, *(" ± ".join(filter(None, cell(record, c.metric, c.condition))) for c in used)]
        for name, record in zip(rows, records)
    ]
    return "\n".join(
        [
            line(["Method", *heads]),
            "| :-- | " + " | ".join("--:" for _ in used) + " |",
            *map(line, body),
            "",
            " ".join(notes).replace("<", "&lt;"),
        ]
    )
