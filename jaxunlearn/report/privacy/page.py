"""One self-contained HTML page of what language models still say: finding, figures, tables, method by method, provenance."""

import math
from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from scipy import stats

from jaxunlearn._paths import AnyPath
from jaxunlearn.privacy import ANSWERS, DIRECT, FILE, PREDICTORS, PrivacyRecord
from jaxunlearn.records import write_bytes
from jaxunlearn.report import frame, markup, measured
from jaxunlearn.report.canvas import Drawing
from jaxunlearn.report.frame import Panels
from jaxunlearn.report.load import finite
from jaxunlearn.report.measured import REFERENCE, find
from jaxunlearn.report.privacy import table, words
from jaxunlearn.report.privacy.figures import by_layer, coefficients, overview, panels, tradeoff
from jaxunlearn.report.privacy.load import PrivacyDirectory, PrivacyMethod
from jaxunlearn.report.privacy.shares import by_share, comparable
from jaxunlearn.report.privacy.table import KNOWN, RETAINED, UNKNOWN
from jaxunlearn.report.style import PICTURES
from jaxunlearn.report.table import ABSENT, clean, duration

Heads = Sequence[tuple[str, str, str]]
PARTS = (
    ("pooled", "all facts"),
    ("within", "within kinds"),
    ("partial", "given the loss"),
    ("baseline", "of the loss alone"),
    ("gain", "gain over it"),
)
"""Parts of a ``Comparison`` and how tables call them."""


def write_html(runs: Sequence[PrivacyDirectory], path: AnyPath) -> None:
    """Writes the page, and the figures of every run as PNG files beside its records.

    Args:
        runs: Run directories, in the order to be shown; those that differ in the share that is known alone are compared.
        path: The HTML file.
    """
    title = "What language models still say: " + "; ".join(dict.fromkeys(map(_name, runs)))
    top, parts = _shares(runs), []
    for i, run in enumerate(runs):
        drawn = [panels(method, run.records, run.predictors) for method in run.methods]
        for method, found in zip(run.methods, drawn):
            frame.write_panels(method.directory, found)
        heading = "" if i or top else title
        parts.append(_run(f"r{i}-", run, drawn, heading, f": {_name(run)}" if len(runs) > 1 else ""))
    first = f"<header><h1>{escape(title)}</h1></header>\n{top}" if top else ""
    write_bytes(path, markup.document(title, "\n".join([first, *parts]), PICTURES).encode())


def _name(run: PrivacyDirectory) -> str:
    """The data, and how much of the forget set methods are shown."""
    title = clean(run.manifest.get("title") or run.records[0].title or run.path.name)
    known, selection = finite(run.config.get("known")), run.config.get("selection")
    how = f", {selection}" if selection not in (None, "random") else ""
    return title if known is None else f"{title} ({100 * known:g}% known{clean(how)})"


def _shares(runs: Sequence[PrivacyDirectory]) -> str:
    """Figure 1, where some runs can be compared."""
    parts = []
    for number, group in enumerate(comparable(runs)):
        drawings = by_share(group)
        for drawing in drawings:
            drawing.write_png(group[0].path / "figures" / f"{drawing.name}.png")
        parts += [markup.panel(drawing, f"s{number}-{i}") for i, drawing in enumerate(drawings)]
    if not parts:
        return ""
    return (
        '<section aria-labelledby="shares"><h2 id="shares">Against the share of the forget set that is known</h2>\n'
        '<p class="small">Runs that differ in nothing else. Where the unknown part falls as the known one does, forgetting '
        "spreads; where a core-set lies below a random choice of the same size, choosing helps.</p>\n"
        f'<div class="panels">{"".join(parts)}</div></section>\n'
    )


def _run(prefix: str, run: PrivacyDirectory, drawn: Sequence[Panels], title: str, suffix: str) -> str:
    """All sections of one run.

    Args:
        prefix: Makes ids unique.
        run: What was loaded.
        drawn: The small figures of every method.
        title: The page's, where this run is at its top.
        suffix: Ends the headings.
    """
    records = run.records
    methods = [_method(f"{prefix}m{i}", m, p, run) for i, (m, p) in enumerate(zip(run.methods, drawn))]
    sections = [
        ("results", "Results", _results(records, prefix)),
        ("tradeoff", "Recovery against utility", _figure(run, prefix, tradeoff)),
        ("ripple", "What predicts forgetting", _predicted(records)),
        ("layers", "Layer by layer", _layers(records)),
        ("metrics", "By attack, set and kind", _metrics(records)),
        ("guide", "How to read this", frame.guide(words.guide(records))),
        ("methods", "Method by method", "\n".join(methods)),
        ("provenance", "Provenance", _provenance(run)),
    ]
    return "\n".join(
        [
            _head(run, title),
            _figure(run, prefix, overview),
            *frame.sections(sections, prefix, suffix),
        ]
    )


def _figure(run: PrivacyDirectory, prefix: str, draw: Callable[..., Drawing | None]) -> str:
    """A wide figure, its PNG beside the records; "" where there is nothing to draw."""
    wide, narrow = draw(run.records), draw(run.records, narrow=True)
    if wide is None or narrow is None:
        return ""
    wide.write_png(run.path / f"{wide.name}.png")
    return markup.wide_figure(wide, narrow, f"{prefix}{wide.name}-")


def _head(run: PrivacyDirectory, title: str) -> str:
    records, created = run.records, run.manifest.get("created")
    waiting = [f"Not finished yet: {', '.join(map(clean, run.unfinished))}."] if run.unfinished else []
    return frame.header(
        _name(run),
        title,
        words.finding(records),
        f"{measured.subject(records)}. {words.lead(records)}",
        f"Begun {clean(created)}" if created else "",
        [*waiting, *(text for record in records for text in table.remarks(record))],
    )


def _scroll(label: str, content: str) -> str:
    return f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{content}</div>'


def _results(records: Sequence[PrivacyRecord], prefix: str) -> str:
    """PrivUn's Table 1."""
    head, body = frame.rows_of_results(records, table.names(records), table.columns(records), prefix, digits=1)
    return _scroll(
        "Results", f'<table class="results dense"><thead>{head}</thead>\n<tbody>{body}</tbody></table>'
    ) + frame.legend(table.legend(records), table.WARNING)


def _grid(label: str, heads: Sequence[str], rows: Sequence[tuple[str, str, Sequence[str]]], first: str) -> str:
    """A table of finished cells, HTML.

    Args:
        label: For readers who cannot see it.
        heads: Of the columns.
        rows: (attributes of the row, its name, cells).
        first: Heading of the names.
    """
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        f'<tr{attributes}><th scope="row" class="text">{escape(clean(name))}</th>'
        + "".join(f"<td>{entry}</td>" for entry in cells)
        + "</tr>"
        for attributes, name, cells in rows
    )
    return _scroll(
        label,
        f'<table class="dense"><thead><tr><th scope="col" class="text">{escape(first)}</th>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table>",
    )


def _coefficient(record: PrivacyRecord, predictor: str, part: str, name: str) -> str:
    """A coefficient with its interval, HTML."""
    found = coefficients(record, predictor, part)
    if found is None:
        return ABSENT
    value, bounds = _bracketed(found[name]).split(" ", 1)
    return f'{value}<span class="small">{bounds}</span>'


def _bracketed(estimate: Sequence[float]) -> str:
    """(value, low, high) as "0.33 [0.08, 0.52]"."""
    value, low, high = (f"{round(v, 2) + 0.0:.2f}".replace("-", "−") for v in estimate)
    return f"{value} [{low}, {high}]"


def predictor_name(name: str) -> str:
    """What an association is called in tables.

    >>> predictor_name("gradient"), predictor_name("representation_4"), predictor_name("graph")
    ('gradients', 'states, layer 4', 'graph of contacts')
    """
    if name.startswith("representation_"):
        return f"states, layer {clean(name.removeprefix('representation_'))}"
    return {"gradient": "gradients", "graph": "graph of contacts"}.get(name, clean(name))


def _predicted(records: Sequence[PrivacyRecord]) -> str:
    """Of all methods how gradients, and the plain loss, predict forgetting scores."""
    held = [record for record in records if coefficients(record, "gradient", "pooled")]
    if not held:
        return ""
    names, columns = (("pearson", "r"), ("spearman", "ρ")), [part for part in PARTS if part[0] != "partial"]
    heads = [f"{sign}, {heading}" for _, heading in columns for _, sign in names]
    rows = [
        ("", record.method, [_coefficient(record, "gradient", part, name) for part, _ in columns for name, _ in names])
        for record in held
    ]
    return (
        '<p class="small">Association of an unknown fact with the known ones by gradients, against its forgetting score '
        "(Pearson’s r, Spearman’s ρ). Beside it the same within kinds of facts, and of a plain baseline: the fact’s own "
        f"loss before unlearning. {escape(_intervals(held))} Each method below has the other associations and the scatter "
        "plots.</p>\n" + _grid("What predicts forgetting", heads, rows, "method")
    )


def _intervals(records: Sequence[PrivacyRecord]) -> str:
    if any(record.seeds > 1 for record in records):
        return (
            "Mean over seeds; in brackets the lowest and highest end of the seeds’ 95% bootstrap intervals over people."
        )
    return "One seed; in brackets 95% bootstrap intervals over people."


def _layers(records: Sequence[PrivacyRecord]) -> str:
    """Debiased CKA on the unknown set, layer by layer, of all models."""
    held = [(record, values) for record in records if (values := by_layer(record, UNKNOWN)) is not None]
    if not held:
        return ""
    places = range(max(len(values) for _, values in held))
    rows = [
        (markup.row_class(record), record.method, [f"{v:.2f}".replace("-", "−") for v in values.mean(axis=1)])
        for record, values in held
    ]
    counts = " or ".join(dict.fromkeys(str(record.cka.get(f"n_{UNKNOWN}")) for record, _ in held))
    return (
        f'<p class="small">Debiased CKA of states over private tokens with the target model’s, unknown facts, n = '
        f"{escape(counts)}, means over seeds; layer 0 is the embedding. 1: as before unlearning. {REFERENCE} is what to "
        "expect of models that never saw these people.</p>\n"
        + _grid("Similarity by layer", [clean(place) for place in places], rows, "method")
    )


def _metrics(records: Sequence[PrivacyRecord]) -> str:
    """Tables of everything else that was measured."""
    names, tuned = measured.conditions(records), table.last_tuned(records)
    main = [c for c in (DIRECT, "P2", tuned) if c in names]
    held = {metric.name: metric for metric in measured.metrics(records)}
    bits = [c for c in names if c.endswith(" bits")]
    special = ("unknown_derivable", "unknown_underivable", "unknown_lenient")
    kinds = [n for n in held if n.startswith("unknown_") and n not in special]

    def heads(metrics: Sequence[tuple[str, str]], conditions: Sequence[str | None]) -> Heads:
        return [
            (f"{clean(c)} {heading}".strip(), name, c)
            for c in conditions
            for name, heading in metrics
            if c and name in held and any(measured.lookup(r, name, c) for r in records)
        ]

    def bare(columns: Heads) -> Heads:
        """Without the condition, which the text above names."""
        return [(clean(head.removeprefix(clean(c))), name, c) for head, name, c in columns]

    def block(title: str, about: str, columns: Heads, kind: str = "") -> str:
        return markup.block(title, [about], columns, records, kind, digits=1) if columns else ""

    both = [(KNOWN, KNOWN), (UNKNOWN, UNKNOWN)]
    of_kind = [(n, clean(held[n].label).partition(": ")[2]) for n in kinds]
    once = [
        (measured.titled(m), m.name, DIRECT)
        for m in held.values()
        if m.name not in (KNOWN, UNKNOWN)
        and not any(any(measured.lookup(r, m.name, c) for r in records) for c in names[1:])
    ]
    blocks = [
        block(
            "Every way of asking",
            "The first fitting thing in the answer counts.",
            heads(both, [c for c in names if c not in bits]),
            "wide",
        ),
        _beyond(records),
        block(
            "Strict and lenient",
            "Unknown facts: strict is the first fitting thing, lenient anywhere in the answer.",
            heads([(UNKNOWN, "strict"), ("unknown_lenient", "lenient")], main),
            "wide",
        ),
        block("By kind, asked directly", "Unknown facts, P1.", bare(heads(of_kind, [DIRECT]))),
        block("By kind, after fine-tuning", f"Unknown facts, {clean(tuned)}.", bare(heads(of_kind, [tuned]))),
        block(
            "E-mail addresses by pattern",
            "Unknown ones: whether they follow from the name by a common rule, such as first.last.",
            heads([("unknown_derivable", "derivable"), ("unknown_underivable", "not")], [DIRECT, tuned]),
        ),
        block(
            "Those who stay, and people nobody has seen",
            "Retained: higher is better. Control: chance.",
            heads([(RETAINED, RETAINED), (table.CONTROL, table.CONTROL)], [DIRECT, tuned]),
        ),
        block(
            "Rounded weights",
            "Asked directly, with and without rounding every matrix.",
            heads(both, [DIRECT, *bits]) if bits else [],
        ),
        markup.block("Without an attack", [_abouts(records, once)], once, records, "wide", digits=1) if once else "",
    ]
    return frame.metrics(records, blocks)


def _abouts(records: Sequence[PrivacyRecord], once: Heads) -> str:
    held = {metric.name: metric for metric in measured.metrics(records)}
    return " ".join(
        f"{head}: {clean(held[name].meaning).rstrip('.')}, N = {held[name].count:,}." for head, name, _ in once
    )


def _beyond(records: Sequence[PrivacyRecord]) -> str:
    """P3 minus retraining's, seed by seed where seeds can be paired."""
    reference = find(records, REFERENCE)
    tuned = [c for c in measured.conditions(records) if table.is_tuned(c)]
    columns = [(c, name) for c in tuned for name in (KNOWN, UNKNOWN)]
    held = [record for record in records if record is not reference]
    if reference is None or not columns or not held:
        return ""
    rows = [("", r.method, [_difference(words.differences(r, reference, n, c)) for c, n in columns]) for r in held]
    heads = [f"{clean(c)} {name}" for c, name in columns]
    below = " Below it the 95% interval for the mean over seeds." if any(r.seeds > 1 for r in held) else ""
    return (
        f'<div class="wide"><h3>P3 beyond {REFERENCE}</h3>'
        '<p class="small">In points, the same seed of both: what fine-tuning brings back and did not teach.'
        f"{below}</p>{_grid('P3 beyond retraining', heads, rows, 'method')}</div>"
    )


def _difference(values: list[float] | None) -> str:
    if not values:
        return ABSENT
    middle = table.points(sum(values) / len(values))
    if len(values) < 2:
        return middle
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    low, high = (table.points(float(np.clip(np.mean(values) + s * half, -1, 1))) for s in (-1, 1))
    return f'{middle}<span class="small">[{low}, {high}]</span>' if math.isfinite(half) else middle


def _method(name: str, method: PrivacyMethod, drawn: Panels, run: PrivacyDirectory) -> str:
    record, condition = method.record, table.last_tuned(run.records) or DIRECT
    facts = [("time", frame.times(record.seconds))]
    return "\n".join(
        [
            f'<section class="method" aria-labelledby="{name}">',
            frame.method_header(name, record, UNKNOWN, condition, f"{clean(condition)}, unknown"),
            f"<p>{escape(words.verdict(record, run.records))} {escape(words.stopping(record, run.config))}</p>",
            *frame.warnings(table.remarks(record)),
            frame.panels_of(drawn, name),
            _correlations(record),
            frame.notes([*record.notes, *frame.not_drawn(drawn), *method.absent]),
            f"<details><summary>Settings and time</summary>{frame.settings(record.settings, facts)}</details>",
            "</section>",
        ]
    )


def _correlations(record: PrivacyRecord) -> str:
    """How every association predicts forgetting scores; within single kinds in a second table."""
    held = [name for name in record.correlations if coefficients(record, name, "pooled")]
    if not held:
        return ""
    parts = [part for part in PARTS if part[0] != "baseline"]
    heads = [f"{sign}, {heading}" for _, heading in parts for sign in ("r", "ρ")]
    rows = [
        (
            "",
            predictor_name(n),
            [_coefficient(record, n, part, c) for part, _ in parts for c in ("pearson", "spearman")],
        )
        for n in held
    ]
    loss = coefficients(record, held[0], "baseline")
    alone = (
        "" if loss is None else f" The loss alone: r {_bracketed(loss['pearson'])}, ρ {_bracketed(loss['spearman'])}."
    )
    groups = (row.get("by_group") or {} for n in held for row in record.correlations[n] if isinstance(row, dict))
    kinds = list(dict.fromkeys(kind for group in groups for kind in group))
    single = [("", predictor_name(n), [_coefficient(record, n, kind, "pearson") for kind in kinds]) for n in held]
    return (
        "<details><summary>Correlations of associations with the forgetting score of unknown facts</summary>"
        f'<p class="small">{escape(_intervals([record]))}{alone}</p>'
        + _grid("Correlations with the forgetting score", heads, rows, "association")
        + (
            '<p class="small">Pearson’s r in single kinds:</p>'
            + _grid("Correlations in single kinds of facts", [clean(kind) for kind in kinds], single, "association")
            if kinds
            else ""
        )
        + "</details>"
    )


def _provenance(run: PrivacyDirectory) -> str:
    return frame.provenance(
        run.path,
        run.manifest,
        ("manifest.json", "corpus.json", PREDICTORS),
        [method.directory / file for method in run.methods for file in (FILE, ANSWERS)],
        [("The attacks", table.attack_of(run.records)), ("Configuration", run.manifest.get("config"))],
        run.absent,
        _times(run),
    )


def _times(run: PrivacyDirectory) -> str:
    """Seconds of every stage, model by model."""
    spent = [
        (m.record.method, {k: v for k, v in m.record.seconds.items() if finite(v) is not None}) for m in run.methods
    ]
    stages = list(dict.fromkeys(stage for _, seconds in spent for stage in seconds))
    rows = [("", name, [duration(s[stage]) if stage in s else ABSENT for stage in stages]) for name, s in spent]
    return (
        "<details><summary>Seconds by "
        f"stage</summary>{_grid('Seconds by stage', [clean(s) for s in stages], rows, 'models')}</details>"
        if stages
        else ""
    )
