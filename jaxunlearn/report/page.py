"""One self-contained HTML page: finding, overview, table, how to read it, every method, provenance."""

from collections.abc import Sequence
from html import escape
from typing import Any

from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._version import __version__
from jaxunlearn.records import BoundRecord, write_bytes
from jaxunlearn.report import words
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.figures import method_figures
from jaxunlearn.report.load import RunDirectory, flatten, load_directory
from jaxunlearn.report.markup import document, maths, occasion, pairs, versions, wide_figure
from jaxunlearn.report.overview import overview
from jaxunlearn.report.savings import savings
from jaxunlearn.report.section import method_section
from jaxunlearn.report.table import ABSENT, cells, clean, columns, labels, settings


def write_page(directories: Sequence[AnyPath], path: AnyPath) -> AnyPath:
    """Writes the page for one or more run directories.

    Args:
        directories: Run directories, in the order to be shown.
        path: The HTML file.

    Returns:
        ``path``.

    Raises:
        InputError: A directory is missing or holds no readable bound.json.
    """
    runs = [load_directory(as_path(d)) for d in directories]
    methods = [m for run in runs for m in run.methods]
    records = [m.record for m in methods]
    wide, narrow = overview(records), overview(records, narrow=True)
    return write_html(runs, [method_figures(m) for m in methods], (wide, narrow), path)


def write_html(
    runs: Sequence[RunDirectory],
    figures: Sequence[Sequence[Drawing | Missing]],
    overviews: tuple[Drawing, Drawing],
    path: AnyPath,
) -> AnyPath:
    """Writes the page from what is already loaded and drawn.

    Args:
        runs: Run directories.
        figures: The panels of every method, in the order of the runs and their methods.
        overviews: The overview for wide and for narrow screens.
        path: The HTML file.
    """
    methods = [m for run in runs for m in run.methods]
    records = [m.record for m in methods]
    names = labels(records)
    title = _title(runs)
    sections = [method_section(i, m, name, panels) for i, (m, name, panels) in enumerate(zip(methods, names, figures))]
    body = "\n".join(
        [
            _head(title, runs, records),
            wide_figure(*overviews),
            _results(records),
            _guide(records),
            '<section aria-labelledby="methods"><h2 id="methods">Method by method</h2>',
            *sections,
            "</section>",
            _provenance(runs),
        ]
    )
    write_bytes(as_path(path), document(title, body).encode())
    return as_path(path)


def _title(runs: Sequence[RunDirectory]) -> str:
    titles = [clean(run.manifest.get("title") or run.methods[0].record.title or run.path.name) for run in runs]
    return "Unlearning audit: " + "; ".join(dict.fromkeys(titles))


def _head(title: str, runs: Sequence[RunDirectory], records: Sequence[BoundRecord]) -> str:
    parts = [clean(clause) for clause, _, _ in settings(records)]
    created = [clean(str(run.manifest["created"])) for run in runs if run.manifest.get("created")]
    meta = [parts[0] if len(parts) == 1 else "", f"Audited {created[0]}" if created else ""]
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="finding">{maths(words.finding(records))}</p>\n'
        f'<p class="lead">{maths(words.lead(records))}</p>\n'
        f'<p class="meta">{escape(". ".join(m for m in meta if m))}</p>\n</header>'
    )


def _results(records: Sequence[BoundRecord]) -> str:
    used = columns(records)
    kinds = {"method": "text", "claim": "text", "given by": "text", "ε": "key", "proven": "proven"}
    heads = []
    for c in used:
        css = "text" if kinds.get(c.head) == "text" else ""
        heads.append(f'<th scope="col" class="{css}"><abbr title="{escape(c.meaning)}">{escape(c.name)}</abbr></th>')
    rows = []
    for i, row in enumerate(cells(records)):
        first = f'<th scope="row" class="text"><a href="#method-{i}">{escape(row[0])}</a></th>'
        rest = []
        for c, text in zip(used[1:], row[1:]):
            css = kinds.get(c.head, "") if text != ABSENT else ""
            rest.append(f'<td class="{css}">{escape(text)}</td>')
        rows.append(f"<tr>{first}{''.join(rest)}</tr>")
    meanings = "".join(f"<dt>{escape(c.name)}</dt><dd>{escape(c.meaning)}</dd>" for c in used)
    groups = settings(records)
    notes = [clause if len(groups) == 1 else f"{', '.join(who)}: {clause}" for clause, who, _ in groups]
    return (
        '<section aria-labelledby="results"><h2 id="results">Results</h2>\n'
        '<div class="scroll" role="region" aria-labelledby="results" tabindex="0">\n<table class="results">\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>{''.join(rows)}</tbody>\n</table>\n</div>\n"
        + "".join(f'<p class="small">{escape(n)}.</p>\n' for n in notes)
        + f'<details><summary>What the columns mean</summary><dl class="pairs">{meanings}</dl></details>\n</section>'
    )


def _guide(records: Sequence[BoundRecord]) -> str:
    blocks = "".join(f"<div><h3>{maths(h)}</h3><p>{maths(t)}</p></div>" for h, t in words.guide(records))
    head = '<section aria-labelledby="guide"><h2 id="guide">How to read this</h2>'
    return f'{head}\n<div class="guide">{blocks}</div></section>'


def _provenance(runs: Sequence[RunDirectory]) -> str:
    blocks = []
    for run in runs:
        manifest = run.manifest
        name = clean(manifest.get("title") or run.path.name)
        facts: list[tuple[str, Any]] = [("directory", run.path.name)]
        counts = manifest.get("runs")
        if isinstance(counts, dict):
            facts.append(("runs", ", ".join(f"{v} {k}" for k, v in counts.items())))
        facts += occasion(manifest)
        population = manifest.get("population")
        if isinstance(population, dict):
            facts.append(("population", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in population.items())))
        facts += [("not computed again", line) for line in savings(run)]
        facts += versions(manifest)
        facts.append(("files", ", ".join(f for f in ("manifest.json", "signs.npz") if (run.path / f).exists())))
        kept: dict[str, list[str]] = {}
        for method in run.methods:
            found = [
                f
                for f in ("bound.json", "scores.npz", "evaluation.npz", "trajectory.npz")
                if (method.directory / f).exists()
            ]
            kept.setdefault(", ".join(found), []).append(f"{method.directory.name}/")
        facts += [(files, "in " + ", ".join(places)) for files, places in kept.items()]
        blocks.append(f"<h3>{escape(name)}</h3>{pairs([(k, clean(str(v))) for k, v in facts if v])}")
        for key, heading in (("preregistration", "Preregistration"), ("config", "Configuration")):
            if manifest.get(key):
                blocks.append(f"<details><summary>{heading}</summary>{pairs(flatten(manifest[key]))}</details>")
        gone = [k for k in ("config", "versions", "device", "preregistration") if not manifest.get(k)]
        absent = [*run.absent, *([f"Not recorded: {', '.join(gone)}."] if gone and not run.absent else [])]
        blocks += [f'<p class="small">{escape(clean(text))}</p>' for text in absent]
    return (
        f'<section aria-labelledby="provenance"><h2 id="provenance">Provenance</h2>\n{"".join(blocks)}\n'
        f'<p class="meta">Written by jaxunlearn {escape(__version__)}.</p></section>'
    )
