"""From records to a table in the terminal, figures, and one self-contained HTML page.

Host only: NumPy, and matplotlib once something is drawn.
"""

from collections.abc import Sequence

from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import not_empty
from jaxunlearn.report.table import render, render_markdown

__all__ = ["render", "render_markdown", "write_report"]


def write_report(directories: Sequence[AnyPath | str], *, out: AnyPath | str | None = None) -> tuple[str, AnyPath]:
    """Writes DIR/<method>/figures/*.png, DIR/overview.png and the page for one or more run directories.

    Args:
        directories: Run directories, in the order to be shown.
        out: The page; by default report.html in the directory or, of several, report-together.html in the first, so that
            the first one's own page stays.

    Returns:
        (the table for a terminal, the path of the page).

    Raises:
        InputError: A directory is missing, or holds no bound.json or a broken one.
    """
    from jaxunlearn.report.canvas import Drawing
    from jaxunlearn.report.figures import method_figures
    from jaxunlearn.report.load import load_directory
    from jaxunlearn.report.overview import overview
    from jaxunlearn.report.page import write_html

    not_empty("directories", directories)
    runs = [load_directory(as_path(directory)) for directory in directories]
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
    name = "report.html" if len(runs) == 1 else "report-together.html"
    path = as_path(out) if out is not None else runs[0].path / name
    write_html(runs, figures, (wide, overview(records, narrow=True)), path)
    return render(records), path
