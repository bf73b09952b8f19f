"""The report of ``jaxunlearn robustness``: what attacks bring back from unlearned models, beside retraining."""

from jaxunlearn.report.robustness.table import render, render_markdown

__all__ = ["render", "render_markdown"]
