"""Pieces of HTML that every page shares: the document, figures, lists of facts, what a manifest says."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxunlearn.report import measured
from jaxunlearn.report.canvas import Drawing
from jaxunlearn.report.measured import REFERENCE, Measured
from jaxunlearn.report.style import CSS
from jaxunlearn.report.table import clean
from jaxunlearn.robustness import Metric


def document(title: str, body: str, css: str = "") -> str:
    """A whole page, self-contained.

    Args:
        title: Its title, plain text.
        body: What stands in ``<main>``, HTML.
        css: Rules beyond the common style sheet.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{CSS}{css}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def panel(drawing: Drawing, prefix: str) -> str:
    """A small figure with its heading and caption; ``prefix`` makes its ids unique."""
    caption = f"<figcaption><strong>{escape(drawing.title)}</strong>{escape(drawing.caption)}</figcaption>"
    return f"<figure>{caption}\n{drawing.svg(prefix)}</figure>"


def wide_figure(wide: Drawing, narrow: Drawing, prefix: str = "") -> str:
    """A figure across the page, with its variant for small screens; ``prefix`` makes its ids unique."""
    return (
        "<figure "
        f'class="overview">\n<figcaption><strong>{escape(wide.title)}</strong>{escape(wide.caption)}</figcaption>\n'
        f'<div class="wide">{wide.svg(f"{prefix}overview-wide")}</div>\n<div '
        f'class="narrow">{narrow.svg(f"{prefix}overview-narrow")}</div>\n</figure>'
    )


def pairs(facts: Sequence[tuple[str, str]]) -> str:
    """Names and values as a list of definitions."""
    return (
        '<dl class="pairs">'
        + "".join(f"<dt>{escape(clean(k))}</dt><dd>{escape(clean(v))}</dd>" for k, v in facts)
        + "</dl>"
    )


def occasion(manifest: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """When and where it was run, and how long it took, as far as the manifest says."""
    names = ("created", "device", "processes", "wall_seconds")
    return [(k.replace("_", " "), manifest[k]) for k in names if manifest.get(k) is not None]


def versions(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The versions of packages, as far as the manifest says."""
    found = manifest.get("versions")
    return [("versions", ", ".join(f"{k} {v}" for k, v in found.items()))] if isinstance(found, dict) else []


def maths(text: str) -> str:
    """Escapes text, keeps relations such as "ε ≥ 3.1" on one line, and raises exponents.

    >>> maths("a factor e^ε < 10^13.")
    'a factor e<sup>ε</sup> &lt; 10<sup>13</sup>.'
    """
    text = escape(text)
    for sign in ("≥", "≤", "="):
        text = text.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    return re.sub(r"\b(e|10)\^(ε|\d+)", r"\1<sup>\2</sup>", text)


def values(record: Measured, metric: str, condition: str, *, brackets: bool = False, digits: int = 2) -> str:
    """The content of a table's cell: mean ± standard deviation, below it the 95% interval if asked for."""
    middle, spread = map(escape, measured.cell(record, metric, condition, digits))
    entry = middle + (f'<span class="sd"> ± {spread}</span>' if spread else "")
    bounds, found = measured.interval(record, metric, condition), measured.lookup(record, metric, condition)
    if not brackets or bounds is None or found is None:
        return entry
    low, high = (measured.text(found[0], bound, 1) for bound in bounds)
    return f'{entry}<span class="small">[{low}, {high}]</span>'


def row_class(record: Measured) -> str:
    """The attribute that tells retraining's row from others."""
    return ' class="reference"' if record.method == REFERENCE else ""


def about(metric: Metric, records: Sequence[Measured]) -> str:
    """What a metric is, which direction is better, and how many values stand behind it."""
    meaning = f"{clean(metric.meaning).rstrip('.')}. {measured.DIRECTIONS.get(metric.better, '').capitalize()}."
    return f"{meaning} {measured.behind(records, metric.name)}."


def block(
    heading: str,
    abouts: Sequence[str],
    heads: Sequence[tuple[str, str, str]],
    records: Sequence[Measured],
    kind: str = "",
    digits: int = 2,
) -> str:
    """One table, methods down.

    Args:
        heading: Its heading.
        abouts: Paragraphs above it.
        heads: (heading, metric, condition) of each column.
        records: Those without any of the values are left out.
        kind: "wide" takes the whole width.
        digits: Of shares.
    """
    held = [r for r in records if any(measured.lookup(r, metric, condition) for _, metric, condition in heads)]
    columns = "".join(f'<th scope="col">{escape(head)}</th>' for head, _, _ in heads)
    rows = "".join(
        f'<tr{row_class(r)}><th scope="row" class="text">{escape(clean(r.method))}</th>'
        + "".join(
            f"<td>{values(r, metric, condition, brackets=True, digits=digits)}</td>" for _, metric, condition in heads
        )
        + "</tr>"
        for r in held
    )
    return (
        f'<div class="{kind}"><h3>{escape(heading)}</h3>'
        + "".join(f'<p class="small">{maths(text)}</p>' for text in abouts)
        + f'<div class="scroll" role="region" aria-label="{escape(heading)}" tabindex="0"><table class="dense"><thead><tr>'
        f'<th scope="col" class="text">method</th>{columns}</tr></thead><tbody>{rows}</tbody></table></div></div>'
    )
