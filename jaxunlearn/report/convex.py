"""Tables and figures of the convex audits: the certificate, what is true of the data at hand, and what auditors find."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from jaxunlearn.records import ConvexRecord
from jaxunlearn.report.canvas import BLUE, GREEN, INK, MUTED, ORANGE, Drawing, key, panel, style
from jaxunlearn.report.table import ABSENT, at_most, confidence, lower, number

BOUNDS = {"pairwise": "pairwise", "joint": "joint, δ = 0", "fair": "fair labels", "tuned": "tuned pairwise"}


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths))

    return [line(head), "  ".join("─" * width for width in widths), *(line(row) for row in rows)]


def _rows(record: ConvexRecord) -> tuple[list[str], list[list[str]]]:
    head = ["certified ε", "sigma", "exact ε", "accuracy", *BOUNDS.values()]
    rows = [
        [
            at_most(row.epsilon),
            f"{row.sigma:.4g}",
            number(row.exact),
            f"{row.accuracy:.4f}",
            *(lower(row.bounds[name]) for name in BOUNDS),
        ]
        for row in record.rows
    ]
    ceilings = ["ceiling", "", "", "", *(lower(record.ceilings[name]) for name in BOUNDS)]
    return head, [*rows, ceilings]


def _headline(record: ConvexRecord) -> str:
    return (
        f"{record.problem}: {record.calibration_runs} noisy models a side to fit, {record.evaluation_draws:,} draws to tell "
        f"apart, δ = {record.delta:g}, each bound with confidence {confidence(record.zeta)}"
    )


def _facts(record: ConvexRecord) -> str:
    return (
        f"ρ = {record.ratio:.3g}: the two models are {record.ratio * record.sensitivity:.4g} apart, the noise is made for "
        f"{record.sensitivity:.4g}"
    )


def render(record: ConvexRecord) -> str:
    """The table of one problem for a terminal, like the audit paper's Table 2.

    Bounds are rounded down; "exact" is the epsilon of the two Gaussians at hand, which a bound at delta exceeds with
    probability at most zeta.
    """
    return "\n".join([_headline(record), _facts(record), "", *_grid(*_rows(record)), "", *record.notes])


class SweepPoint(Protocol):
    """What ``render_sweep`` reads of a point."""

    @property
    def settings(self) -> dict[str, float]:
        """What was varied."""
        ...

    @property
    def ratio(self) -> float | None:
        """The ratio rho, or None outside the box."""
        ...


def render_sweep(name: str, points: Sequence[SweepPoint], most: int = 10) -> str:
    """The largest ratios of a sweep, best first."""
    inside = sum(point.ratio is not None for point in points)
    head = [*points[0].settings, "ρ"]
    rows = [
        [*(f"{value:g}" for value in point.settings.values()), ABSENT if point.ratio is None else f"{point.ratio:.4g}"]
        for point in points[:most]
    ]
    title = f"{name}: the {len(rows)} largest of {inside} ratios of distance to Lemma 3's bound"
    left = len(points) - inside
    return "\n".join([title + (f" ({left} minimisers outside the box)" if left else ""), "", *_grid(head, rows)])


def figure(record: ConvexRecord) -> Drawing:
    """Lower bounds against the certified epsilon, with the certificate and the truth."""
    order = np.argsort([row.epsilon for row in record.rows])
    rows = [record.rows[i] for i in order]
    certified = np.array([row.epsilon for row in rows])
    top = 1.12 * max(record.ceilings.values())
    looks: dict[str, dict[str, Any]] = {
        "tuned": {"color": BLUE, "linewidth": 2, "marker": "o", "markersize": 4},
        "fair": {"color": BLUE, "linewidth": 1.3, "linestyle": (0, (4, 2))},
        "pairwise": {"color": INK, "linewidth": 1.3},
        "joint": {"color": MUTED, "linewidth": 1.3, "linestyle": (0, (1, 1.5))},
    }
    with style():
        canvas, axes = panel("certified ε (nats)", "ε, lower bounds (nats)")
        axes.set_xscale("log")
        low, high = certified[0], certified[-1]
        spread = np.geomspace(low, high, 200) if high > low else certified
        handles = axes.plot(spread, spread, color=GREEN, linewidth=1.6)
        handles += axes.plot(certified, [row.exact for row in rows], color=ORANGE, linewidth=1.6)
        for name, look in looks.items():
            handles += axes.plot(certified, [row.bounds[name] for row in rows], **look)
        axes.set_xlim(low / 1.1, high * 1.1)
        axes.set_ylim(0, top)
        axes.minorticks_off()
        decades = [10.0**e for e in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]
        axes.set_xticks(decades or [low], [f"{d:g}" for d in decades or [low]])
        names = ["certified", "exact", "tuned", "fair", "pairwise", "joint"]
        key(axes, handles, names, columnspacing=0.9, handlelength=1.0, fontsize=9.5)
    caption = (
        f"{record.problem}, {record.evaluation_draws:,} draws, δ = {record.delta:g}, confidence {confidence(record.zeta)}. "
        "Certified: what theory proves of any data. Exact: what is true of these. Draws are "
        + (
            "noisy models."
            if record.draws == "mechanism"
            else "from the fitted Gaussians, so the fit is what is audited."
        )
    )
    best = max(max(row.bounds.values()) for row in rows)
    label = f"Lower bounds on epsilon up to {lower(best)} against certified epsilons from {low:g} to {high:g}."
    return Drawing(
        name=record.problem, title=f"Convex audit: {record.problem}", caption=caption, label=label, figure=canvas
    )
