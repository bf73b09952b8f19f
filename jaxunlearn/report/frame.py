"""The frame of pages on models that are measured under conditions: header, sections, table of results, notes, provenance."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from jaxunlearn._paths import AnyPath
from jaxunlearn._version import __version__
from jaxunlearn.report import markup, measured
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.load import finite, flatten
from jaxunlearn.report.markup import maths
from jaxunlearn.report.measured import Column, Measured
from jaxunlearn.report.table import clean, duration

Panels = Sequence[Drawing | Missing]


def write_panels(folder: AnyPath, panels: Panels) -> None:
    """Writes a method's small figures as PNG files."""
    for panel in panels:
        if isinstance(panel, Drawing):
            panel.write_png(folder / "figures" / f"{panel.name}.png")


def panels_of(panels: Panels, prefix: str) -> str:
    """A method's small figures; "" where there are none."""
    drawn = "\n".join(markup.panel(p, f"{prefix}-{p.name}") for p in panels if isinstance(p, Drawing))
    return f'<div class="panels">{drawn}</div>' if drawn else ""


def not_drawn(panels: Panels) -> list[str]:
    """Why some figures are missing."""
    return [f"{p.title}: not drawn. {p.reason}" for p in panels if isinstance(p, Missing)]


def header(name: str, title: str, finding: str, lead: str, occasion: str, warnings: Iterable[str]) -> str:
    """What stands above everything of a run.

    Args:
        name: The run's.
        title: The page's, where this run is at its top, else "".
        finding: One sentence.
        lead: What was done, in a few.
        occasion: When, or "".
        warnings: Sentences.
    """
    top = f"<h1>{escape(title)}</h1>" if title else f"<h2>{escape(name)}</h2>"
    return (
        f'<header>\n{top}\n<p class="finding">{escape(finding)}</p>\n<p class="lead">{escape(lead)}</p>\n'
        + (f'<p class="meta">{escape(occasion)}</p>\n' if occasion else "")
        + "".join(f'<p class="warn">{escape(text)}</p>\n' for text in warnings)
        + "</header>"
    )


def sections(parts: Sequence[tuple[str, str, str]], prefix: str, suffix: str) -> list[str]:
    """Sections of a run, those without content left out.

    Args:
        parts: (id, heading, content as HTML).
        prefix: Makes ids unique.
        suffix: Ends the headings.
    """
    return [
        f'<section aria-labelledby="{prefix}{name}"><h2 id="{prefix}{name}">{escape(heading + suffix)}</h2>\n'
        f"{content}\n</section>"
        for name, heading, content in parts
        if content
    ]


def rows_of_results(
    records: Sequence[Measured], names: Sequence[str], used: Sequence[Column], prefix: str, digits: int = 2
) -> tuple[str, str]:
    """The rows of a table of results: those of its head, and one for each record, which leads to the method's section.

    Args:
        records: One for each row.
        names: The rows' names.
        used: Columns.
        prefix: Makes ids unique.
        digits: Of shares.
    """
    groups = ['<th scope="col" class="text" rowspan="2">Method</th>']
    for name, members in itertools.groupby(used, key=lambda column: column.group):
        groups.append(f'<th scope="colgroup" class="group" colspan="{len(list(members))}">{escape(clean(name))}</th>')
    heads = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in used)
    rows = []
    for i, (record, name) in enumerate(zip(records, names)):
        cells = "".join(f"<td>{markup.values(record, c.metric, c.condition, digits=digits)}</td>" for c in used)
        first = f'<th scope="row" class="text"><a href="#{prefix}m{i}">{escape(name)}</a></th>'
        rows.append(f"<tr{markup.row_class(record)}>{first}{cells}</tr>")
    return f"<tr>{''.join(groups)}</tr><tr>{heads}</tr>", "".join(rows)


def legend(notes: Sequence[str], warning: str) -> str:
    """Sentences below a table of results: all but the first, which the header has, and warnings."""
    kept = [note for note in notes[1:] if not note.startswith(warning)]
    return "".join(f'<p class="small">{maths(note)}</p>\n' for note in kept)


def metrics(records: Sequence[Measured], blocks: Sequence[str]) -> str:
    """Tables of everything that was measured, and how to read their cells."""
    several = any(record.seeds > 1 for record in records)
    note = "Mean ± standard deviation, and below it the 95% interval for the mean over seeds. " if several else ""
    return f'<p class="small">{note}Shares in %.</p>\n<div class="metrics">{"".join(blocks)}</div>'


def guide(entries: Iterable[tuple[str, str]]) -> str:
    """Headings and paragraphs that say how to read the page."""
    blocks = "".join(f"<div><h3>{escape(h)}</h3><p>{escape(t)}</p></div>" for h, t in entries)
    return f'<div class="guide">{blocks}</div>'


def method_header(name: str, record: Measured, metric: str, condition: str, label: str) -> str:
    """The heading of a method's section, with its main figure beside, where it has one."""
    found, beside = measured.lookup(record, metric, condition), ""
    if found is not None and found[0].mean(found[1]) is not None:
        value = " ± ".join(filter(None, measured.cell(record, metric, condition, 1)))
        shown = escape(value) + ("%" if found[0].percent else "")
        beside = f'<span class="value"><span class="small">{escape(label)}</span> {shown}</span>'
    return f'<header><h3 id="{name}">{escape(clean(record.method))}</h3>{beside}</header>'


def warnings(remarks: Iterable[str]) -> list[str]:
    """Remarks on a method, each a paragraph."""
    return [f'<p class="warn">{escape(text)}</p>' for text in remarks]


def notes(sentences: Sequence[str]) -> str:
    """A method's notes; "" where there are none."""
    items = "".join(f"<li>{escape(clean(sentence))}</li>" for sentence in sentences)
    return f'<h4>Notes</h4><ul class="notes">{items}</ul>' if sentences else ""


def times(seconds: Mapping[str, Any]) -> str:
    """Wall time by stage, in words."""
    return ", ".join(f"{clean(k)} {duration(v)} s" for k, v in seconds.items() if finite(v) is not None)


def settings(found: Mapping[str, Any], facts: Sequence[tuple[str, str]]) -> str:
    """A method's settings, and facts that are not empty."""
    pairs = [*(flatten(found) if found else []), *facts]
    return markup.pairs([(k, v) for k, v in pairs if v])


def provenance(
    path: AnyPath,
    manifest: Mapping[str, Any],
    files: Sequence[str],
    kept: Sequence[AnyPath],
    folded: Sequence[tuple[str, Any]],
    absent: Sequence[str],
    more: str = "",
) -> str:
    """Where the numbers come from.

    Args:
        path: The run directory.
        manifest: Its manifest.
        files: Those of the run directory that may be there.
        kept: Those in the methods' folders that may be there.
        folded: Headings and settings that are shown on demand.
        absent: Sentences on what was left out.
        more: HTML after the first facts.
    """
    facts: list[tuple[str, Any]] = [("directory", path.name), *markup.occasion(manifest), *markup.versions(manifest)]
    facts.append(("files", ", ".join(file for file in files if (path / file).exists())))
    facts.append(("of the methods", ", ".join(f"{f.parent.name}/{f.name}" for f in kept if f.exists())))
    return (
        markup.pairs([(k, clean(v)) for k, v in facts if v])
        + more
        + "".join(f"<details><summary>{h}</summary>{markup.pairs(flatten(d))}</details>" for h, d in folded if d)
        + "".join(f'<p class="small">{escape(clean(text))}</p>' for text in absent)
        + f'<p class="meta">Written by jaxunlearn {escape(__version__)}.</p>'
    )
