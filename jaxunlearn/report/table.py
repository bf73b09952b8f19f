"""The table of results: one definition of the columns for the terminal, Markdown and the page."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxunlearn.records import BoundRecord
from jaxunlearn.report.load import finite

WIDTH = 120
ABSENT = "–"
GAP = "  "

DEFINITIONS = {
    "3.3": "Definition 3.3: initial weights and shuffling order known to the auditor",
    "3.2": "Definition 3.2: initial weights and shuffling order drawn afresh in every run",
}


def lower(value: float) -> str:
    """A lower bound as text, rounded down so that what is printed still holds.

    >>> lower(12.399), lower(0.0), lower(1234.56)
    ('12.39', '0', '1234.5')
    """
    digits = 2 if value < 100 else 1
    floored = math.floor(value * 10**digits + 1e-7) / 10**digits
    return f"{floored:.{digits}f}" if floored else "0"


def number(value: float) -> str:
    """A number that is no guarantee, to about four significant digits.

    >>> number(272.345), number(2.6963), number(0.0)
    ('272.3', '2.70', '0')
    """
    return f"{value:.{2 if abs(value) < 100 else 1}f}" if value else "0"


def at_most(value: float) -> str:
    """A proven upper limit, with as many digits as it was given (up to six)."""
    return f"{value:.6g}"


def duration(seconds: float) -> str:
    """Seconds with three significant digits below 100, whole above."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.3g}"


def confidence(zeta: float) -> str:
    """The confidence 1 - zeta in per cent.

    >>> confidence(0.05), confidence(0.001)
    ('95%', '99.9%')
    """
    return f"{round(100 * (1 - zeta), 6):g}%"


def clean(text: Any) -> str:
    """One line without control characters, so that a name cannot break a table."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def _plain(value: float | None) -> str:
    return "" if value is None else number(value)


def accuracy(record: BoundRecord, name: str) -> tuple[float | None, float | None]:
    """Mean and standard deviation over runs of one accuracy, in [0, 1]; None where not recorded."""
    entry = record.accuracy.get(name)
    return (finite(entry.get("mean")), finite(entry.get("sd"))) if isinstance(entry, Mapping) else (None, None)


def _accuracy(name: str) -> Callable[[BoundRecord], str]:
    def cell(record: BoundRecord) -> str:
        mean, _ = accuracy(record, name)
        return "" if mean is None else f"{100 * mean:.1f}"

    return cell


def ratio(record: BoundRecord) -> float | None:
    """The headline over the paper's mean bound, where the latter is positive."""
    paper = finite(record.paper_mean)
    return record.epsilon / paper if paper else None


def certified(record: BoundRecord) -> float | None:
    """The epsilon that theory proves for the method as configured, or None."""
    return finite((record.certificate or {}).get("epsilon"))


def _ratio(record: BoundRecord) -> str:
    value = ratio(record)
    return "" if value is None else f"×{value:.1f}"


def _certified(record: BoundRecord) -> str:
    value = certified(record)
    return "" if value is None else f"≤ {at_most(value)}"


def tested(record: BoundRecord) -> dict[str, Any] | None:
    """The claim that a sequential audit tested and what became of it (``BoundRecord.sequential``), or None."""
    claim = (record.sequential or {}).get("claim")
    return claim if isinstance(claim, dict) else None


def runs_in_all(record: BoundRecord) -> str:
    """The runs of a sequential audit in words.

    Warm-up runs and evaluation runs are added up, since both had to be trained and unlearned.
    """
    warmup, rest = record.calibration_runs, record.evaluation_runs
    return f"{warmup + rest} runs ({warmup} warm-up + {rest})"


def outcome(record: BoundRecord) -> str:
    """What became of the claim, as one sentence; "" without a claim."""
    claim = tested(record)
    if claim is None:
        return ""
    text = f"claim ε ≤ {at_most(claim['epsilon'])}" + (f" at δ = {claim['delta']:g}" if claim["delta"] else "")
    level = f"any-time valid at {confidence(record.zeta)}"
    if claim["falsified"]:
        runs = record.calibration_runs + claim["evaluation_runs"]
        split = f"({record.calibration_runs} warm-up + {claim['evaluation_runs']})"
        return f"{text} falsified after {runs} runs {split}, {level}."
    ceiling = finite(record.ceiling)
    most = "" if ceiling is None else f"; this many runs could have shown ε ≥ {lower(ceiling)}"
    return f"{text} not falsified by {runs_in_all(record)}, {level}: no evidence against it{most}."


def _claim(record: BoundRecord) -> str:
    claim = tested(record)
    if claim is None:
        return ""
    runs = record.calibration_runs + claim["evaluation_runs"]
    claimed = f"ε ≤ {at_most(claim['epsilon'])}"
    return f"falsified {claimed} after {runs} runs" if claim["falsified"] else f"{claimed} stands after {runs} runs"


def _unlearn(record: BoundRecord) -> str:
    value = finite(record.seconds.get("unlearn"))
    return "" if value is None else duration(value)


@dataclasses.dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        head: The heading in a terminal.
        name: The heading where there is room.
        meaning: One sentence.
        cell: record -> text, "" when there is nothing to show.
        optional: Left out when no record has it.
    """

    head: str
    name: str
    meaning: str
    cell: Callable[[BoundRecord], str]
    optional: bool = True


METHOD = Column("method", "Method", "The unlearning algorithm that was audited.", lambda r: clean(r.method), False)
COLUMNS = (
    METHOD,
    Column(
        "ε",
        "ε (lower bound)",
        "The headline: with the stated confidence the method's true ε is at least this, in nats, rounded down.",
        lambda r: f"≥ {lower(r.epsilon)}",
        False,
    ),
    Column(
        "claim",
        "Claim",
        "The claim that was tested, and after how many runs in all it was falsified, if it was.",
        lambda r: _claim(r),
    ),
    Column("given by", "Given by", "Which preregistered bound gave the headline.", lambda r: statistic(r), False),
    Column(
        "ceiling",
        "Ceiling",
        "The largest value that this bound could have reached with this many batches and runs.",
        lambda r: _plain(finite(r.ceiling)),
    ),
    Column(
        "paper",
        "Paper’s bound",
        "The audit paper's own mean bound from the same runs, at the full ζ.",
        lambda r: _plain(finite(r.paper_mean)),
    ),
    Column("ratio", "Ratio", "The headline divided by the paper's bound, where that is above 0.", _ratio),
    Column("retain", "Retain acc.", "Accuracy in % on the data that was kept.", _accuracy("retain")),
    Column("forget", "Forget acc.", "Accuracy in % on the batches that were unlearned.", _accuracy("forget")),
    Column(
        "unseen", "Unseen acc.", "Accuracy in % on the candidate batches that the run never saw.", _accuracy("unseen")
    ),
    Column("test", "Test acc.", "Accuracy in % on the test set.", _accuracy("test")),
    Column("sec.", "Unlearn,\u00a0s", "Seconds spent in unlearning, all runs together.", _unlearn),
    Column(
        "proven", "Proven\u00a0ε", "What theory proves for the method as configured: an upper limit on ε.", _certified
    ),
)


_TEXTS = ("method", "claim", "given by")


def statistic(record: BoundRecord) -> str:
    """The label of the bound behind the headline, shortened: "overlap (r = 60)" becomes "overlap r=60"."""
    return clean(record.statistic).replace("(r = ", "r=").replace(")", "")


def columns(records: Sequence[BoundRecord]) -> list[Column]:
    """The columns that have something to show for these records."""
    return [c for c in COLUMNS if not c.optional or any(c.cell(r) for r in records)]


def labels(records: Sequence[BoundRecord]) -> list[str]:
    """A name for each record: the method, with what it was audited on where a name occurs twice."""
    names = [clean(r.method) for r in records]
    return [f"{n} ({clean(r.title)})" if names.count(n) > 1 and r.title else n for n, r in zip(names, records)]


def cells(records: Sequence[BoundRecord]) -> list[list[str]]:
    """The table's text, a row for each record, "–" where there is nothing."""
    used = columns(records)
    names = labels(records)
    return [[name if c is METHOD else c.cell(r) or ABSENT for c in used] for name, r in zip(names, records)]


def setting(record: BoundRecord) -> str:
    """The design in one clause: confidence, zeta, delta, L, m, the definition."""
    sequential = record.sequential
    parts = [
        f"ζ = {record.zeta:g}",
        f"δ = {record.delta:g}",
        f"L = {record.evaluation_runs} evaluation runs"
        if sequential is None
        else f"any-time valid, at most {sequential['most_runs']} runs with {sequential['warmup']} to warm up",
        f"m = {record.m} candidate batches",
    ]
    return f"{', '.join(parts)}; {DEFINITIONS.get(record.definition, f'Definition {clean(record.definition)}')}"


def settings(records: Sequence[BoundRecord]) -> list[tuple[str, list[str], float]]:
    """The distinct designs among the records: (clause, names of the methods, zeta)."""
    groups: dict[str, tuple[list[str], float]] = {}
    for name, record in zip(labels(records), records):
        groups.setdefault(setting(record), ([], record.zeta))[0].append(name)
    return [(clause, names, zeta) for clause, (names, zeta) in groups.items()]


def legend(records: Sequence[BoundRecord]) -> list[str]:
    """Sentences to print below the table."""
    groups = settings(records)
    levels = sorted({confidence(r.zeta) for r in records})
    lines = [
        f"ε ≥ x: the true ε (nats) is at least x with confidence 1 − ζ = {' or '.join(levels)}, "
        "for each method by itself; 0 does not prove unlearning.",
    ]
    for clause, names, _ in groups:
        lines.append(clause + "." if len(groups) == 1 else f"{', '.join(names)}: {clause}.")
    heads = {c.head for c in columns(records)}
    explained = {
        "ceiling": "ceiling: the most this bound could have shown",
        "paper": "paper: the audit paper's mean bound, same runs",
        "retain": "accuracies in %",
        "sec.": "sec.: seconds of unlearning, all runs",
        "proven": "proven: what theory guarantees",
    }
    lines.append(
        "; ".join(text for head, text in explained.items() if head in heads) + "." if heads & explained.keys() else ""
    )
    for name, record in zip(labels(records), records):
        if tested(record):
            lines.append(f"{name}: {outcome(record)}")
        if record.failed_runs:
            count = len(record.failed_runs)
            verb = "runs failed and count" if count > 1 else "run failed and counts"
            lines.append(f"{name}: {count} evaluation {verb} as p = 1.")
    return [line for line in lines if line]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def render(records: list[BoundRecord]) -> str:
    """The table for a terminal, at most 120 columns wide, with a legend below.

    Args:
        records: One for each method, in the order to be shown.

    Returns:
        Lines joined by newlines, no trailing newline.
    """
    if not records:
        return "No methods."
    used, body = columns(records), cells(records)
    rows = [[c.head for c in used], *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(used))]
    texts = [i for i, c in enumerate(used) if c.head in _TEXTS]
    for i in reversed(texts):  # the name of the bound gives way first, then the method's
        spare = WIDTH - sum(widths) - len(GAP) * (len(widths) - 1)
        widths[i] = max(min(widths[i], 10), widths[i] + min(spare, 0))

    def line(row: list[str]) -> str:
        return GAP.join(
            _cut(text, w).ljust(w) if i in texts else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths))
        ).rstrip()

    rule = "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
    notes = [part for text in legend(records) for part in textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
    return "\n".join([line(rows[0]), rule, *(line(row) for row in body), rule, *notes])


def render_markdown(records: list[BoundRecord]) -> str:
    """The same table as GitHub Markdown, with the legend as a paragraph below."""
    if not records:
        return "No methods."

    def line(row: list[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|").replace("<", "&lt;") for text in row) + " |"

    used = columns(records)
    marks = [":--" if c.head in _TEXTS else "--:" for c in used]
    head = [line([c.name for c in used]), "| " + " | ".join(marks) + " |"]
    rows = [line(row) for row in cells(records)]
    return "\n".join([*head, *rows, "", " ".join(legend(records)).replace("<", "&lt;")])
