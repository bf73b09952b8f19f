"""From records to a table in the terminal, figures, and one self-contained HTML page.

Host only: NumPy, and matplotlib once something is drawn.
"""

from collections.abc import Callable, Sequence

from jaxunlearn import privacy as privacies
from jaxunlearn import robustness as robustnesses
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import not_empty, require
from jaxunlearn.report.load import no_results
from jaxunlearn.report.table import render, render_markdown

__all__ = ["render", "render_markdown", "write_report"]


def write_report(directories: Sequence[AnyPath | str], *, out: AnyPath | str | None = None) -> tuple[str, AnyPath]:
    """Writes the figures (DIR/<method>/figures/*.png, DIR/overview.png) and the page for one or more run directories.

    Args:
        directories: Run directories of audits, of robustness or of privacy runs, in the order to be shown.
        out: The page; by default report.html in the directory or, of several, report-together.html in the first, so that
            the first one's own page stays.

    Returns:
        (the table for a terminal, the path of the page).

    Raises:
        InputError: A directory is missing, holds no results or broken ones, or several kinds are among them.
    """
    not_empty("directories", directories)
    paths = [as_path(directory) for directory in directories]
    name = "report.html" if len(paths) == 1 else "report-together.html"
    page = as_path(out) if out is not None else paths[0] / name
    for path in paths:
        require(path.is_dir(), f"Expected a run directory at {path}, found none; give the --out of a command.")
    kinds = {path: [name for name in WRITERS if any(path.glob(f"*/{name}"))] for path in paths}
    for path, names in kinds.items():
        require(len(names) > 0, no_results(path))
    found = list(dict.fromkeys(name for names in kinds.values() for name in names))
    holding = "; ".join(f"{path} holds {' and '.join(names)}" for path, names in kinds.items())
    require(len(found) == 1, f"Expected directories of one kind, but {holding}; make a page of each kind.")
    return WRITERS[found[0]](paths, page), page


def _write_robustness(paths: Sequence[AnyPath], page: AnyPath) -> str:
    from jaxunlearn.report import robustness
    from jaxunlearn.report.robustness.load import load_robustness
    from jaxunlearn.report.robustness.page import write_html

    runs = [load_robustness(path) for path in paths]
    write_html(runs, page)
    return "\n\n".join(robustness.render(run.records) for run in runs)


def _write_privacy(paths: Sequence[AnyPath], page: AnyPath) -> str:
    from jaxunlearn.report import privacy
    from jaxunlearn.report.privacy.load import load_privacy
    from jaxunlearn.report.privacy.page import write_html

    runs = [load_privacy(path) for path in paths]
    write_html(runs, page)
    waiting = [f"Not finished yet: {', '.join(run.unfinished)}." if run.unfinished else "" for run in runs]
    return "\n\n".join("\n".join(filter(None, [privacy.render(r.records), text])) for r, text in zip(runs, waiting))


def _write_audits(paths: Sequence[AnyPath], page: AnyPath) -> str:
    from jaxunlearn.report.canvas import Drawing
    from jaxunlearn.report.figures import method_figures
    from jaxunlearn.report.load import load_directory
    from jaxunlearn.report.overview import overview
    from jaxunlearn.report.page import write_html

    runs = [load_directory(path) for path in paths]
    methods = [method for run in runs for method in run.methods]
    records = [method.record for method in methods]
    figures = [method_figures(method) for method in methods]
    for method, panels in zip(methods, figures):
        for panel in panels:
            if isinstance(panel, Drawing):
                panel.write_png(method.directory / "figures" / f"{panel.name}.png")
    wide = overview(records)
    for run in runs:
        own = wide if len(runs) == 1 else overview([method.record for method in run.methods])
        own.write_png(run.path / "overview.png")
    write_html(runs, figures, (wide, overview(records, narrow=True)), page)
    return render(records)


WRITERS: dict[str, Callable[[Sequence[AnyPath], AnyPath], str]] = {
    privacies.FILE: _write_privacy,
    robustnesses.FILE: _write_robustness,
    "bound.json": _write_audits,
}
"""The file of a method's results, by which a kind of directory is known -> what writes its figures and page."""
