"""One figure of all methods: what is ruled out, the paper's bound, the ceiling, and what theory proves."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxunlearn.records import BoundRecord
from jaxunlearn.report.canvas import BLUE, FONT, GREEN, INK, MUTED, PAPER, Drawing, key, style, surface
from jaxunlearn.report.load import finite
from jaxunlearn.report.table import at_most, certified, confidence, labels, lower, number

BOTTOM = 48.0
NAME_LIMIT = 34
LINEAR_UP_TO = 12.0
RANGE: dict[str, Any] = {"color": MUTED, "linewidth": 1, "alpha": 0.7, "zorder": 2}
CEILING: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 7,
    "color": MUTED,
    "markerfacecolor": PAPER,
    "zorder": 3,
}
BAR: dict[str, Any] = {"color": BLUE, "linewidth": 5, "solid_capstyle": "butt", "zorder": 4}
REFERENCE: dict[str, Any] = {
    "linestyle": "none",
    "marker": "|",
    "markersize": 17,
    "markeredgewidth": 2,
    "color": INK,
    "zorder": 5,
}
PROVEN: dict[str, Any] = {
    "linestyle": "none",
    "marker": "<",
    "markersize": 11,
    "color": GREEN,
    "markeredgecolor": PAPER,
    "zorder": 5,
}
DOT: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 10, "color": BLUE, "zorder": 6}
NOTHING: dict[str, Any] = {**DOT, "markerfacecolor": PAPER, "markeredgewidth": 2}


def overview(records: Sequence[BoundRecord], *, narrow: bool = False) -> Drawing:
    """All methods on one axis.

    Args:
        records: One for each method, in the order to be shown from the top.
        narrow: The variant for a small screen, with names above their lines.
    """
    names, level = labels(records), " or ".join(sorted({confidence(r.zeta) for r in records}))
    values = [r.epsilon for r in records]
    ceilings = [finite(r.ceiling) for r in records]
    papers = [finite(r.paper_mean) if r.epsilon > 0 else None for r in records]
    proofs = [certified(r) for r in records]
    most = max(1.0, *values, *(v for v in [*ceilings, *papers, *proofs] if v is not None))
    linear = most <= LINEAR_UP_TO
    warp: Callable[[float], float] = float if linear else lambda value: float(np.arcsinh(value))

    row, width = (46.0, 400.0) if narrow else (34.0, 900.0)
    longest = min(max(map(len, names)), NAME_LIMIT)
    left, right = (6.0, 6.0) if narrow else (max(90.0, 7.2 * longest + 12), 92.0)
    inner = width - left - right
    kinds = (
        1
        + any(p is not None for p in papers)
        + any(c is not None for c in ceilings)
        + any(p is not None for p in proofs)
    )
    per_line = 2 if narrow else kinds
    top = 14.0 + 18.0 * math.ceil(kinds / per_line)
    with style():
        figure, axes = surface(width, top + row * len(names) + BOTTOM, left, right, BOTTOM, top)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlim=(0, warp(most) * 1.04), yticks=[])
        axes.spines["left"].set_visible(False)
        ticks = round_values(most, warp, 26 * warp(most) * 1.04 / inner) if not linear else even_values(most)
        axes.set_xticks([warp(t) for t in ticks], [f"{t:g}" for t in ticks])
        axes.grid(True, axis="x")
        axes.set_xlabel("ε in nats; the true value is at the blue dot or beyond", labelpad=6)
        rows = [i + (0.2 if narrow else 0.0) for i in range(len(names))]
        keys = _marks(axes, warp, rows, values, ceilings, papers, proofs, level)
        _text(axes, names, values, narrow, -left / inner, 1 + right / inner)
        place = (-left / inner, 1 + 6 / (row * len(names)))
        key(axes, [k[0] for k in keys], [k[1] for k in keys], ncols=per_line, bbox_to_anchor=place, columnspacing=2.0)
    scale = "The axis is linear." if linear else "The axis is linear near 0 and logarithmic beyond about 2."
    return Drawing(
        name="overview",
        title="What each method provably leaves behind",
        caption=f"Each blue bar covers the ε that the audit rules out for a method, with {level} confidence. {scale}",
        label=f"Lower bounds on epsilon by method. {_spoken(names, values, ceilings, proofs)}.",
        figure=figure,
    )


def _marks(
    axes: Any,
    warp: Callable[[float], float],
    rows: list[float],
    values: list[float],
    ceilings: list[float | None],
    papers: list[float | None],
    proofs: list[float | None],
    level: str,
) -> list[tuple[Any, str]]:
    """Draws the marks; returns the key's entries for the kinds that occur."""
    from matplotlib.lines import Line2D

    for y, value, ceiling in zip(rows, values, ceilings):
        if ceiling is not None:
            axes.plot([warp(value), warp(ceiling)], [y, y], **RANGE)
        if value > 0:
            axes.plot([0, warp(value)], [y, y], **BAR)
    found = [(warp(v), y) for v, y in zip(values, rows) if v > 0]
    silent = [(warp(v), y) for v, y in zip(values, rows) if v <= 0]
    entries = [
        (Line2D([], [], color=BLUE, linewidth=5, marker="o", markersize=9, markevery=[1]), f"ruled out, {level}")
    ]
    for points, look in ((found, DOT), (silent, NOTHING)):
        axes.plot([x for x, _ in points], [y for _, y in points], clip_on=False, **look)
    for optional, look, name in (
        (papers, REFERENCE, "paper’s bound"),
        (ceilings, CEILING, "ceiling"),
        (proofs, PROVEN, "proven: at most this"),
    ):
        points = [(warp(v), y) for v, y in zip(optional, rows) if v is not None]
        if points:
            axes.plot([x for x, _ in points], [y for _, y in points], clip_on=False, **look)
            sample = Line2D([], [], **look)
            sample.set_markersize(min(look["markersize"], 11))
            entries.append((sample, name))
    return entries


def _text(axes: Any, names: list[str], values: list[float], narrow: bool, start: float, end: float) -> None:
    """Names at the left or above, values at the right."""
    across = axes.get_yaxis_transform()
    size, up, va = (FONT, 0.12, "bottom") if narrow else (13.0, 0.0, "center_baseline")
    common = {"transform": across, "va": va, "fontsize": size}
    for i, (name, value) in enumerate(zip(names, values)):
        cut = name if len(name) <= NAME_LIMIT else name[: NAME_LIMIT - 1] + "…"
        axes.text(0 if narrow else start, i - up, cut, ha="left", color=INK, **common)
        shown = f"ε ≥ {lower(value)}"
        axes.text(1 if narrow else end, i - up, shown, ha="right", color=BLUE, fontweight="bold", **common)


def _spoken(names: list[str], values: list[float], ceilings: list[float | None], proofs: list[float | None]) -> str:
    parts = []
    for name, value, ceiling, proof in zip(names, values, ceilings, proofs):
        text = f"{name}: at least {lower(value)}"
        text += f", proven at most {at_most(proof)}" if proof is not None else ""
        parts.append(text + (f", ceiling {number(ceiling)}" if ceiling is not None else ""))
    return "; ".join(parts)


def even_values(most: float) -> list[float]:
    """Ticks for a linear axis from 0 to ``most`` <= LINEAR_UP_TO.

    >>> even_values(2.7)
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    """
    step = next(s for s in (0.25, 0.5, 1.0, 2.0) if most / s <= 8.5)
    return [step * i for i in range(int(most / step) + 1)]


def round_values(most: float, warp: Callable[[float], float], gap: float) -> list[float]:
    """Ticks 0, 1, 2, 5, 10, ... up to ``most``, none closer than ``gap`` to the one before after ``warp``.

    >>> round_values(60.0, lambda value: float(np.arcsinh(value)), 0.5)
    [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]
    """
    ticks = [0.0]
    for value in (a * 10.0**e for e in range(math.ceil(math.log10(most)) + 1) for a in (1, 2, 5)):
        if value <= most * 1.02 and warp(value) - warp(ticks[-1]) >= gap:
            ticks.append(value)
    return ticks
