"""The report of ``jaxunlearn privacy``: what language models still say of the people they were made to forget."""

from jaxunlearn.report.privacy.table import render, render_markdown

__all__ = ["render", "render_markdown"]
