"""The table of RUB's Table 1: accuracy that is kept, and what each attack brings back, by method."""

import dataclasses
import itertools
import re
import textwrap
from collections.abc import Iterable, Sequence

from jaxunlearn.report.robustness.load import REFERENCE, find
from jaxunlearn.report.table import ABSENT, GAP, clean
from jaxunlearn.robustness import CLEAN, Metric, RobustnessRecord

WIDTH = 130
UA, WARNING = "ua", "Warning: "
MARGIN = 0.05
"""A second attack that recovers more than the first by this share makes the first a weak one."""
ARROWS = {"lower": "↓", "higher": "↑", "": ""}
DIRECTIONS = {"lower": "lower is better", "higher": "higher is better", "": "a control, neither better nor worse"}


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


def metrics(records: Sequence[RobustnessRecord]) -> list[Metric]:
    """The metrics of all records, each name once, in the order in which they come."""
    return list({metric.name: metric for record in reversed(records) for metric in reversed(record.metrics)}.values())[
        ::-1
    ]


def conditions(records: Sequence[RobustnessRecord]) -> list[str]:
    """The conditions of all records, in the order in which they come."""
    return list(dict.fromkeys(c for record in records for c in record.conditions))


def lookup(record: RobustnessRecord, metric: str, condition: str) -> tuple[Metric, int] | None:
    """A metric and the place of a condition that it has values in, or None."""
    found = next((m for m in record.metrics if m.name == metric), None)
    if found is None or condition not in record.conditions:
        return None
    place = record.conditions.index(condition)
    return (found, place) if found.values[place] else None


def mean(record: RobustnessRecord, metric: str, condition: str) -> float | None:
    """The mean of a metric under a condition, or None."""
    found = lookup(record, metric, condition)
    return None if found is None else found[0].mean(found[1])


def text(metric: Metric, value: float, digits: int = 2) -> str:
    """A value of the metric: shares in per cent.

    The digits are fixed, so that columns line up; 0 and 100 are exact only as far as they go.
    """
    return f"{(100 if metric.percent else 1) * value:.{digits}f}".replace("-", "−")


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


def under(condition: str) -> str:
    """A condition in words.

    >>> under("clean"), under("16/255"), under("unbounded")
    ('without an attack', 'under an attack of 16/255', 'under an unbounded attack')
    """
    if condition == CLEAN:
        return "without an attack"
    return "under an unbounded attack" if condition == "unbounded" else f"under an attack of {clean(condition)}"


def cell(record: RobustnessRecord, metric: str, condition: str, digits: int = 2) -> tuple[str, str]:
    """(mean, standard deviation) as text; "–" and "" where there is none."""
    found = lookup(record, metric, condition)
    if found is None:
        return ABSENT, ""
    middle, spread = found[0].mean(found[1]), found[0].sd(found[1])
    return (
        ABSENT if middle is None else text(found[0], middle, digits),
        "" if spread is None else text(found[0], spread, digits),
    )


def columns(records: Sequence[RobustnessRecord]) -> list[Column]:
    """Test accuracies first, then the headline metrics by condition; only what some record has values for."""
    names, first, rest = conditions(records), [], []
    for metric in metrics(records):
        if not (metric.headline or metric.name.startswith("ta_")):
            continue
        used = [c for c in names if any(lookup(record, metric.name, c) for record in records)]
        if metric.name.startswith("ta_") and used == [CLEAN]:
            parts = re.fullmatch(r"(.+?) \((.+)\)", clean(metric.label))
            group, head = (f"{parts[1]} {ARROWS.get(metric.better, '')}", parts[2]) if parts else ("", titled(metric))
            first.append(Column(group.strip(), head, metric.name, CLEAN))
        else:
            rest += [Column(c, titled(metric), metric.name, c) for c in used]
    return first + sorted(rest, key=lambda column: names.index(column.condition))


def labels(records: Sequence[RobustnessRecord]) -> list[str]:
    """The methods' names."""
    return [clean(record.method) for record in records]


def repeats(record: RobustnessRecord, metric: Metric) -> str:
    """How many values stand behind a mean.

    "10 seeds", or "10 seeds × 5 repeats" where every seed was measured several times.
    """
    seeds = f"{record.seeds} seed{'s' * (record.seeds != 1)}"
    return seeds if metric.per_seed == 1 else f"{seeds} × {metric.per_seed} repeats"


def behind(records: Sequence[RobustnessRecord], name: str) -> str:
    """N and the repeats of a metric, over the records that have it; distinct ones are enumerated."""
    found = [
        (record, metric)
        for record in records
        for metric in record.metrics
        if metric.name == name and any(metric.values)
    ]
    counts = " or ".join(dict.fromkeys(f"{metric.count:,}" for _, metric in found))
    return f"N = {counts}; " + " or ".join(dict.fromkeys(repeats(record, metric) for record, metric in found))


def reference_note(records: Sequence[RobustnessRecord]) -> str:
    """Which row the others are to be held against, or that there is none."""
    if find(records, REFERENCE) is None:
        return (
            f"There is no {REFERENCE} here: without models that never saw the data, what an attack brings back cannot be "
            "told from what it makes up."
        )
    return (
        f"{REFERENCE} is the reference: it never saw the forgotten data, so hold every row against it under the same "
        "condition."
    )


def subject(records: Sequence[RobustnessRecord]) -> str:
    """What was attacked and what was to be forgotten, one line."""
    parts = ((clean(r.title), f"to be forgotten: {clean(r.scenario)}" if r.scenario else "") for r in records)
    return "; ".join(dict.fromkeys(", ".join(filter(None, pair)) for pair in parts))


def remarks(record: RobustnessRecord) -> list[str]:
    """What a reader should be warned of: means outside their bands, and attacks that a second one outdid clearly."""
    found = [clean(sentence) for sentence in record.surprises()]
    for condition in record.conditions:
        first, second = mean(record, UA, condition), mean(record, "ua_second", condition)
        if first is not None and second is not None and second > first + MARGIN:
            found.append(
                f"{clean(record.method)}: the second attack brings back more, {share(second)} rather than {share(first)} "
                f"{under(condition)}; UA is not the most that can be brought back."
            )
    return found


def legend(records: Sequence[RobustnessRecord]) -> list[str]:
    """Sentences to print below the table; warnings come last."""
    shown = {column.metric for column in columns(records)}
    held = [metric for record in records for metric in record.metrics if metric.name in shown]
    several = any(len(values) > 1 for metric in held for values in metric.values)
    used = [metric for metric in metrics(records) if metric.name in shown]
    shares = all(metric.percent for metric in used)
    return [
        f"{subject(records)}.",
        ("In % (MIA too, which RUB prints as a fraction): " if shares else "Shares in %: ")
        + ("mean ± standard deviation over repeats; " if several else "one repeat, so there is no spread; ")
        + "↑ higher and ↓ lower speak for the unlearning.",
        *(f"{clean(m.label)}: {clean(m.meaning).rstrip('.')}; {behind(records, m.name)}." for m in used),
        reference_note(records),
        *(f"{WARNING}{sentence}" for record in records for sentence in remarks(record)),
    ]


def _join(cells: Sequence[tuple[str, str]]) -> list[str]:
    """Means and deviations of one column, aligned."""
    left, right = (max(len(pair[i]) for pair in cells) for i in (0, 1))
    return [m.rjust(left) + (f" ± {s.rjust(right)}" if s else " " * (right + 3) * bool(right)) for m, s in cells]


def _block(records: Sequence[RobustnessRecord], used: Sequence[Column], digits: int) -> list[str]:
    names = ["method", *labels(records)]
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


def _fit(records: Sequence[RobustnessRecord], used: Sequence[Column]) -> list[str]:
    """The columns in one block, with fewer digits if need be; else in two, between groups."""
    for digits in (2, 1):
        block = _block(records, used, digits)
        if max(map(len, block)) <= WIDTH:
            return block
    groups = list(dict.fromkeys(column.group for column in used))
    if len(groups) == 1:
        return block
    head = groups[: (len(groups) + 1) // 2]
    return [
        *_fit(records, [column for column in used if column.group in head])[:-1],
        *_fit(records, [column for column in used if column.group not in head]),
    ]


def render(records: Sequence[RobustnessRecord]) -> str:
    """The table for a terminal, with a legend below.

    At most 130 columns with three conditions; with more, columns lose a digit, then continue in a second block.

    Args:
        records: One for each method, in the order to be shown.

    Returns:
        Lines joined by newlines, no trailing newline.
    """
    used = columns(records)
    if not used:
        return "No metrics."
    block = _fit(records, used)
    width = max(map(len, block))
    notes = [line for note in legend(records) for line in textwrap.wrap(note, max(width, 80), subsequent_indent="  ")]
    return "\n".join([*block, *notes])


def render_markdown(records: Sequence[RobustnessRecord]) -> str:
    """The same table as GitHub Markdown, with the legend as a paragraph below."""
    used = columns(records)
    if not used:
        return "No metrics."

    def line(entries: Iterable[str]) -> str:
        return "| " + " | ".join(entry.replace("|", "\\|").replace("<", "&lt;") for entry in entries) + " |"

    heads = [": ".join(filter(None, [column.group, column.head])) for column in used]
    rows = [
        [name, *(" ± ".join(filter(None, cell(record, c.metric, c.condition))) for c in used)]
        for name, record in zip(labels(records), records)
    ]
    return "\n".join(
        [
            line(["Method", *heads]),
            "| :-- | " + " | ".join("--:" for _ in used) + " |",
            *map(line, rows),
            "",
            " ".join(legend(records)).replace("<", "&lt;"),
        ]
    )
