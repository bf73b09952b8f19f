"""The table of RUB's Table 1: accuracy that is kept, and what each attack brings back, by method."""

import re
from collections.abc import Sequence

from jaxunlearn.report.measured import (
    ARROWS,
    REFERENCE,
    Column,
    behind,
    conditions,
    find,
    labels,
    lookup,
    markdown_columns,
    mean,
    metrics,
    render_columns,
    share,
    subject,
    titled,
)
from jaxunlearn.report.robustness.tasks import under
from jaxunlearn.report.table import clean
from jaxunlearn.robustness import CLEAN, RobustnessRecord

WARNING = "Warning: "
MARGIN = 0.05
"""A second attack that recovers more than the first by this share makes the first a weak one."""


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


def remarks(record: RobustnessRecord) -> list[str]:
    """What a reader should be warned of: means outside their bands, and attacks that a second one outdid clearly."""
    found = [clean(sentence) for sentence in record.surprises()]
    for condition in record.conditions:
        first, second = mean(record, "ua", condition), mean(record, "ua_second", condition)
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
    fraction = " (MIA too, which RUB prints as a fraction)" if "mia" in shown else ""
    return [
        f"{subject(records)}.",
        (f"In %{fraction}: " if shares else "Shares in %: ")
        + ("mean ± standard deviation over repeats; " if several else "one repeat, so there is no spread; ")
        + "↑ higher and ↓ lower speak for the unlearning.",
        *(f"{clean(m.label)}: {clean(m.meaning).rstrip('.')}; {behind(records, m.name)}." for m in used),
        reference_note(records),
        *(f"{WARNING}{sentence}" for record in records for sentence in remarks(record)),
    ]


def render(records: Sequence[RobustnessRecord]) -> str:
    """The table for a terminal, with a legend below.

    At most 130 columns with three conditions; with more, columns lose a digit, then continue in a second block.

    Args:
        records: One for each method, in the order to be shown.

    Returns:
        Lines joined by newlines, no trailing newline.
    """
    return render_columns(records, columns(records), legend(records), labels(records))


def render_markdown(records: Sequence[RobustnessRecord]) -> str:
    """The same table as GitHub Markdown, with the legend as a paragraph below."""
    return markdown_columns(records, columns(records), legend(records), labels(records))
