"""Drawing surface: one matplotlib figure that becomes a themed inline SVG or a PNG on white.

Figures are drawn once, in the light palette. The SVG then gets CSS variables in place of the palette's colours, so that
text, axes and marks follow the page's light or dark theme; the PNG keeps the colours and gains a title and a caption.
matplotlib is imported inside functions: importing this package does not load it.
"""

import contextlib
import dataclasses
import io
import re
import textwrap
from collections.abc import Generator
from typing import Any

from jaxunlearn._paths import AnyPath
from jaxunlearn.records import write_bytes

INK, MUTED, RULE, PAPER = "#1b1f24", "#5b6570", "#d5dae0", "#fefefe"
BLUE, ORANGE, GREEN = "#0068a8", "#cf5300", "#00805c"
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    PAPER: "--paper",
    BLUE: "--blue",
    ORANGE: "--orange",
    GREEN: "--green",
}
"""Palette colour -> CSS variable. Blue: our bound. Orange: a trace of the data. Green: theory. Grey: all else."""

FONT = 12.0
WIDTH, HEIGHT = 420.0, 290.0
LEFT, RIGHT, BOTTOM, TOP = 50.0, 12.0, 46.0, 44.0
DPI = 144


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """A figure that cannot be drawn from what is there.

    Attributes:
        name: Short name, as in file names.
        title: Its heading.
        reason: One sentence.
    """

    name: str
    title: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """A finished figure.

    Attributes:
        name: Short name, as in file names.
        title: Its heading; printed on the PNG, and left to the page beside the SVG.
        caption: What is drawn, in one or two sentences.
        label: What it shows, for readers who cannot see it.
        figure: The matplotlib figure.
    """

    name: str
    title: str
    caption: str
    label: str
    figure: Any

    def svg(self, prefix: str) -> str:
        """An ``<svg>`` element for an HTML page, transparent, its colours CSS variables.

        Args:
            prefix: Prepended to every id; must differ between the figures of a page.
        """
        buffer = io.StringIO()
        with style():
            self.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return _inline(buffer.getvalue(), prefix, self.label)

    def write_png(self, path: AnyPath) -> AnyPath:
        """Writes a PNG on white with title and caption, at twice the size of the SVG."""
        figure, pad = self.figure, 14.0
        width, height = (72 * float(side) for side in figure.get_size_inches())
        lines = textwrap.wrap(self.caption, int(width / 5.6))
        full_width, full_height = width + 2 * pad, height + 34 + 14 * len(lines)
        boxes = [(axes, axes.get_position()) for axes in figure.axes]

        def write(text: str, below: float, **options: Any) -> Any:
            return figure.text(pad / full_width, 1 - (pad + below) / full_height, text, va="top", **options)

        with style():
            figure.set_size_inches(full_width / 72, full_height / 72)
            for axes, box in boxes:
                x, wide = (pad + box.x0 * width) / full_width, box.width * width / full_width
                axes.set_position([x, box.y0 * height / full_height, wide, box.height * height / full_height])
            texts = [write(self.title, 0, fontsize=15, fontweight="bold", color=INK)]
            texts += [write(line, 23 + 14 * i, fontsize=10, color=MUTED) for i, line in enumerate(lines)]
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
            for text in texts:
                text.remove()
            figure.set_size_inches(width / 72, height / 72)
            for axes, box in boxes:
                axes.set_position(box)
        write_bytes(path, buffer.getvalue())
        return path


@contextlib.contextmanager
def style() -> Generator[None, None, None]:
    """The drawing style, whatever the user's own matplotlib settings are."""
    import matplotlib

    settings = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT,
        "text.color": INK,
        "text.parse_math": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": MUTED,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "xtick.major.size": 3.5,
        "ytick.major.size": 0,
        "xtick.major.width": 0.8,
        "grid.color": RULE,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "legend.fontsize": 11,
        "svg.fonttype": "none",
        "svg.hashsalt": "report",
        "path.simplify": True,
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


def panel(xlabel: str, ylabel: str, *, grid: str | None = "y") -> tuple[Any, Any]:
    """A figure of the common size with one pair of axes, the same margins in every panel; call inside ``style()``."""
    figure, axes = surface(WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP)
    axes.set_xlabel(xlabel, labelpad=6)
    axes.set_title(ylabel, loc="left", x=-LEFT / (WIDTH - LEFT - RIGHT), fontsize=FONT, color=MUTED, pad=26)
    axes.spines["left"].set_visible(False)
    if grid:
        axes.grid(True, axis=grid)
    return figure, axes


def surface(width: float, height: float, left: float, right: float, bottom: float, top: float) -> tuple[Any, Any]:
    """A figure with one pair of axes inside the given margins, all in points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    FigureCanvasAgg(figure)
    box = (left / width, bottom / height, (width - left - right) / width, (height - bottom - top) / height)
    return figure, figure.add_axes(box)


def key(axes: Any, handles: list[Any], labels: list[str], **options: Any) -> None:
    """The key, in one row above the axes."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "borderaxespad": 0, "borderpad": 0.2}
    shape = {"ncols": len(labels), "handlelength": 1.3, "handletextpad": 0.5, "columnspacing": 1.4}
    legend = axes.legend(handles, labels, **{**place, **shape, **options})
    for text in legend.get_texts():
        text.set_color(INK)


def _inline(svg: str, prefix: str, label: str) -> str:
    """Turns matplotlib's SVG document into an element of a page."""
    from html import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    box = svg.split('viewBox="', 1)[1].split('"', 1)[0]
    start = f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}" class="figure">'
    svg = start + svg[svg.index(">") + 1 :]
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r' id="([^"]+)"', rf' id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    # The page's own font: of "font: 700 12px 'DejaVu Sans', …" only the weight and the size stay.
    svg = re.sub(
        r"font: (?:(\d{3}|bold) )?([\d.]+px)[^;\"]*",
        lambda m: f"font-size: {m[2]}" + (f"; font-weight: {m[1]}" if m[1] else ""),
        svg,
    )
    svg = re.sub(r"font-family: [^;\"]*(; )?", "", svg)
    return re.sub(r"\s*\n\s*", "\n", svg)
