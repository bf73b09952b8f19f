"""One self-contained HTML page of what attacks bring back: finding, figure, tables, controls, pictures, provenance."""

from collections.abc import Sequence
from html import escape
from typing import Any

from jaxunlearn._paths import AnyPath
from jaxunlearn.records import write_bytes
from jaxunlearn.report import frame, markup, measured
from jaxunlearn.report.frame import Panels
from jaxunlearn.report.load import finite, flatten
from jaxunlearn.report.robustness import table, words
from jaxunlearn.report.robustness.figures import curves, overview
from jaxunlearn.report.robustness.load import SHOWN, RobustDirectory, RobustMethod
from jaxunlearn.report.robustness.tasks import strongest, task_of, under
from jaxunlearn.report.style import PICTURES
from jaxunlearn.report.table import clean
from jaxunlearn.robustness import CLEAN, FILE, RobustnessRecord


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
            frame.write_panels(method.directory, drawn)
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
        ("guide", "How to read this", frame.guide(words.guide(records))),
        ("methods", "Method by method", "\n".join(methods)),
        ("provenance", "Provenance", _provenance(run)),
    ]
    return "\n".join(
        [
            _head(run, title, records),
            figure,
            *frame.sections(sections, prefix, suffix),
        ]
    )


def _head(run: RobustDirectory, title: str, records: Sequence[RobustnessRecord]) -> str:
    created = run.manifest.get("created")
    return frame.header(
        _name(run),
        title,
        words.finding(records),
        f"{measured.subject(records)}. {words.lead(records)}",
        f"Attacked {clean(created)}" if created else "",
        [text for record in records for text in table.remarks(record)],
    )


def _results(records: Sequence[RobustnessRecord], prefix: str) -> str:
    """RUB's Table 1."""
    head, body = frame.rows_of_results(records, measured.labels(records), table.columns(records), prefix)
    return (
        f'<div class="scroll" role="region" aria-labelledby="{prefix}results" tabindex="0">\n<table class="results dense">\n'
        f"<thead>{head}</thead>\n<tbody>{body}</tbody>\n</table>\n</div>\n"
        + frame.legend(table.legend(records), table.WARNING)
    )


def _metrics(records: Sequence[RobustnessRecord]) -> str:
    """A table for each metric; those that only the unchanged images have share one."""
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
    return frame.metrics(records, blocks)


def _method(name: str, method: RobustMethod, panels: Panels, run: RobustDirectory) -> str:
    record, task = method.record, task_of([method.record])
    condition = strongest([record])
    pictures, gone = _pictures(method, run, condition)
    rates = ", ".join(f"{v:,.4g} {clean(k)} a second" for k, v in record.throughput.items() if finite(v) is not None)
    facts = [
        ("time", frame.times(record.seconds)),
        ("attack, throughput", rates),
        ("attack, mean steps", _steps(method)),
    ]
    return "\n".join(
        [
            f'<section class="method" aria-labelledby="{name}">',
            frame.method_header(name, record, task.metric, condition, f"{task.short} {clean(condition)}"),
            f"<p>{escape(words.verdict(record, run.records))}</p>",
            *frame.warnings(table.remarks(record)),
            frame.panels_of(panels, name),
            pictures,
            frame.notes([*record.notes, *frame.not_drawn(panels), *gone, *method.absent]),
            f"<h4>Settings and time</h4>{frame.settings(record.settings, facts)}",
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
    return ", ".join(f"{mean:.1f} {under(name)}" for name, mean in zip(attacked.conditions[1:], means))


def _pictures(method: RobustMethod, run: RobustDirectory, condition: str) -> tuple[str, list[str]]:
    """The gallery, and why there is none."""
    if run.targets is None or method.attacked is None:
        return "", []
    html = SHOWN[method.record.task].gallery(method.record.method, run.targets, method.attacked, condition)
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
    return frame.provenance(
        run.path,
        run.manifest,
        ("manifest.json", "targets.npz", "shadows.npz"),
        [method.directory / file for method in run.methods for file in (FILE, "attacked.npz")],
        [("The attack", _common_attack(run)), ("Configuration", run.manifest.get("config"))],
        run.absent,
    )
