"""Pieces of HTML that every page shares: the document, figures, lists of facts, what a manifest says."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jaxunlearn.report.canvas import Drawing
from jaxunlearn.report.style import CSS
from jaxunlearn.report.table import clean


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
