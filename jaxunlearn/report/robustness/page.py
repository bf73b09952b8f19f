"""One self-contained HTML page of what attacks bring back: finding, figure, tables, controls, pictures, provenance."""

import itertools
from collections.abc import Sequence
from html import escape
from typing import Any

from jaxunlearn._paths import AnyPath
from jaxunlearn._version import __version__
from jaxunlearn.records import write_bytes
from jaxunlearn.report import markup, measured
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.load import finite, flatten
from jaxunlearn.report.markup import maths
from jaxunlearn.report.robustness import table, words
from jaxunlearn.report.robustness.figures import curves, overview
from jaxunlearn.report.robustness.load import RobustDirectory, RobustMethod
from jaxunlearn.report.robustness.pictures import gallery
from jaxunlearn.report.style import PICTURES
from jaxunlearn.report.table import clean, duration
from jaxunlearn.robustness import CLEAN, RobustnessRecord

Panels = Sequence[Drawing | Missing]


def write_html(runs: Sequence[RobustDirectory], path: AnyPath) -> None:
    """Writes the page, and the figures of every run as PNG files beside its records.

    Args:
        runs: Run directories, in the order to be shown.
        path: The HTML file.
    """
    title = "Unlearned models under attack: " + "; ".join(dict.fromkeys(map(_name, runs)))
    parts = []
    for i, run in enumerate(runs):
        wide, narrow = overview(run.records), overview(run.records, narrow=True)
        panels = [curves(run.records, record) for record in run.records]
        if wide is not None:
            wide.write_png(run.path / "overview.png")
        for method, drawn in zip(run.methods, panels):
            for panel in drawn:
                if isinstance(panel, Drawing):
                    panel.write_png(method.directory / "figures" / f"{panel.name}.png")
        figure = "" if wide is None or narrow is None else markup.wide_figure(wide, narrow, f"r{i}-")
        suffix = f": {_name(run)}" if len(runs) > 1 else ""
        parts.append(_run(f"r{i}-", run, figure, panels, "" if i else title, suffix))
    write_bytes(path, markup.document(title, "\n".join(parts), PICTURES).encode())


def _name(run: RobustDirectory) -> str:
    return clean(run.manifest.get("title") or run.records[0].title or run.path.name)


def _run(prefix: str, run: RobustDirectory, figure: str, panels: Sequence[Panels], title: str, suffix: str) -> str:
    """All sections of one run.

    Args:
        prefix: Makes ids unique.
        run: What was loaded.
        figure: The main figure, HTML.
        panels: The small figures of every method.
        title: The page's, where this run is the first.
        suffix: Ends the headings.
    """
    records = run.records
    methods = [_method(f"{prefix}m{i}", m, p, run) for i, (m, p) in enumerate(zip(run.methods, panels))]
    sections = [
        ("results", "Results", _results(records, prefix)),
        ("metrics", "Every metric", _metrics(records)),
        ("guide", "How to read this", _guide(records)),
        ("methods", "Method by method", "\n".join(methods)),
        ("provenance", "Provenance", _provenance(run)),
    ]
    return "\n".join(
        [
            _head(run, title, records),
            figure,
            *(
                f'<section aria-labelledby="{prefix}{name}"><h2 id="{prefix}{name}">{escape(heading + suffix)}</h2>\n'
                f"{content}\n</section>"
                for name, heading, content in sections
            ),
        ]
    )


def _head(run: RobustDirectory, title: str, records: Sequence[RobustnessRecord]) -> str:
    top = f"<h1>{escape(title)}</h1>" if title else f"<h2>{escape(_name(run))}</h2>"
    created = run.manifest.get("created")
    return (
        f'<header>\n{top}\n<p class="finding">{escape(words.finding(records))}</p>\n'
        f'<p class="lead">{escape(f"{measured.subject(records)}. {words.lead(records)}")}</p>\n'
        + (f'<p class="meta">Attacked {escape(clean(created))}</p>\n' if created else "")
        + "".join(f'<p class="warn">{escape(text)}</p>\n' for record in records for text in table.remarks(record))
        + "</header>"
    )


def _results(records: Sequence[RobustnessRecord], prefix: str) -> str:
    """RUB's Table 1."""
    used = table.columns(records)
    groups = ['<th scope="col" class="text" rowspan="2">Method</th>']
    for name, members in itertools.groupby(used, key=lambda column: column.group):
        groups.append(f'<th scope="colgroup" class="group" colspan="{len(list(members))}">{escape(clean(name))}</th>')
    heads = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in used)
    rows = []
    for i, (record, name) in enumerate(zip(records, measured.labels(records))):
        cells = "".join(f"<td>{markup.values(record, c.metric, c.condition)}</td>" for c in used)
        first = f'<th scope="row" class="text"><a href="#{prefix}m{i}">{escape(name)}</a></th>'
        rows.append(f"<tr{markup.row_class(record)}>{first}{cells}</tr>")
    notes = [note for note in table.legend(records)[1:] if not note.startswith(table.WARNING)]
    return (
        f'<div class="scroll" role="region" aria-labelledby="{prefix}results" tabindex="0">\n<table class="results dense">\n'
        f"<thead><tr>{''.join(groups)}</tr><tr>{heads}</tr></thead>\n<tbody>{''.join(rows)}</tbody>\n</table>\n</div>\n"
        + "".join(f'<p class="small">{maths(note)}</p>\n' for note in notes)
    )


def _metrics(records: Sequence[RobustnessRecord]) -> str:
    """A table for each metric; those that only the unchanged images have share one."""
    several = any(record.seeds > 1 for record in records)
    note = "Mean ± standard deviation, and below it the 95% interval for the mean over seeds. " if several else ""
    once, blocks = [], []
    for metric in measured.metrics(records):
        used = [c for c in measured.conditions(records) if any(measured.lookup(r, metric.name, c) for r in records)]
        if used in ([], [CLEAN]):
            once.append(metric)
        else:
            heads = [(clean(c), metric.name, c) for c in used]
            blocks.append(markup.block(measured.titled(metric), [markup.about(metric, records)], heads, records))
    if once:
        abouts = [f"{measured.titled(metric)}: {markup.about(metric, records)}" for metric in once]
        heads = [(measured.titled(m), m.name, CLEAN) for m in once]
        blocks.insert(0, markup.block("Without an attack", abouts, heads, records, kind="wide"))
    return f'<p class="small">{note}Shares in %.</p>\n<div class="metrics">{"".join(blocks)}</div>'


def _guide(records: Sequence[RobustnessRecord]) -> str:
    blocks = "".join(f"<div><h3>{escape(h)}</h3><p>{escape(t)}</p></div>" for h, t in words.guide(records))
    return f'<div class="guide">{blocks}</div>'


def _method(name: str, method: RobustMethod, panels: Panels, run: RobustDirectory) -> str:
    record, condition = method.record, words.strongest([method.record])
    drawn = "\n".join(markup.panel(p, f"{name}-{p.name}") for p in panels if isinstance(p, Drawing))
    missing = [f"{p.title}: not drawn. {p.reason}" for p in panels if isinstance(p, Missing)]
    pictures, gone = _pictures(method, run, condition)
    value = " ± ".join(filter(None, measured.cell(record, words.UA, condition, 1)))
    times = ", ".join(f"{clean(k)} {duration(v)} s" for k, v in record.seconds.items() if finite(v) is not None)
    rates = ", ".join(f"{v:,.4g} {clean(k)} a second" for k, v in record.throughput.items() if finite(v) is not None)
    notes = [*record.notes, *missing, *gone, *method.absent]
    facts = [
        *(flatten(record.settings) if record.settings else []),
        ("time", times),
        ("attack, throughput", rates),
        ("attack, mean steps", _steps(method)),
    ]
    return "\n".join(
        [
            f'<section class="method" aria-labelledby="{name}">',
            f'<header><h3 id="{name}">{escape(clean(record.method))}</h3><span class="value">'
            f'<span class="small">UA {escape(clean(condition))}</span> {escape(value)}%</span></header>',
            f"<p>{escape(words.verdict(record, run.records))}</p>",
            *(f'<p class="warn">{escape(text)}</p>' for text in table.remarks(record)),
            f'<div class="panels">{drawn}</div>' if drawn else "",
            pictures,
            f'<h4>Notes</h4><ul class="notes">{"".join(f"<li>{escape(clean(n))}</li>" for n in notes)}</ul>'
            if notes
            else "",
            f"<h4>Settings and time</h4>{markup.pairs([(k, v) for k, v in facts if v])}",
            _attack(record) if record.attack != _common_attack(run) else "",
            "</section>",
        ]
    )


def _steps(method: RobustMethod) -> str:
    """How many steps the attack took under each condition, over images and seeds."""
    attacked = method.attacked
    if attacked is None or attacked.iterations is None or not attacked.iterations.size:
        return ""
    means = attacked.iterations.mean(axis=(0, 2))
    return ", ".join(f"{mean:.1f} {table.under(name)}" for name, mean in zip(attacked.conditions[1:], means))


def _pictures(method: RobustMethod, run: RobustDirectory, condition: str) -> tuple[str, list[str]]:
    """The gallery, and why there is none."""
    if run.targets is None or method.attacked is None:
        return "", []
    html = gallery(method.record.method, run.targets, method.attacked, condition)
    return html, [] if html else ["No attacked images were kept, so there are no pictures."]


def _attack(record: RobustnessRecord) -> str:
    return (
        f"<details><summary>The attack</summary>{markup.pairs(flatten(record.attack))}</details>"
        if record.attack
        else ""
    )


def _common_attack(run: RobustDirectory) -> dict[str, Any]:
    """The settings of the attack of the first method that has some; all share them, as a rule."""
    return next((record.attack for record in run.records if record.attack), {})


def _provenance(run: RobustDirectory) -> str:
    manifest = run.manifest
    facts: list[tuple[str, Any]] = [
        ("directory", run.path.name),
        *markup.occasion(manifest),
        *markup.versions(manifest),
    ]
    places = ("manifest.json", "targets.npz", "shadows.npz")
    facts.append(("files", ", ".join(f for f in places if (run.path / f).exists())))
    kept = [
        f"{m.directory.name}/{f}"
        for m in run.methods
        for f in ("robustness.json", "attacked.npz")
        if (m.directory / f).exists()
    ]
    facts.append(("of the methods", ", ".join(kept)))
    folded = [("The attack", _common_attack(run)), ("Configuration", manifest.get("config"))]
    return (
        markup.pairs([(k, clean(v)) for k, v in facts if v])
        + "".join(f"<details><summary>{h}</summary>{markup.pairs(flatten(d))}</details>" for h, d in folded if d)
        + "".join(f'<p class="small">{escape(clean(text))}</p>' for text in run.absent)
        + f'<p class="meta">Written by jaxunlearn {escape(__version__)}.</p>'
    )
