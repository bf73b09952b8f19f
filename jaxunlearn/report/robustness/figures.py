"""What an attack brings back, by method and strength; and how that depends on the attack's steps and their size."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxunlearn.report.canvas import (
    FONT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    Drawing,
    Missing,
    key,
    panel,
    style,
    surface,
)
from jaxunlearn.report.load import finite
from jaxunlearn.report.measured import REFERENCE, behind, cell, conditions, find, labels, lookup, mean, subject
from jaxunlearn.report.robustness.tasks import ORIGINAL, Task, task_of
from jaxunlearn.report.table import clean
from jaxunlearn.robustness import CLEAN, RobustnessRecord

ROW, GAP, NAME, BOTTOM = 17.0, 13.0, 19.0, 48.0
NAME_LIMIT = 24
MANY = 20
"""A range wider than this factor is drawn on a logarithmic axis."""
SEED: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 4.4,
    "alpha": 0.6,
    "markeredgewidth": 0,
    "zorder": 4,
}
MEAN: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 8.5, "markeredgewidth": 1.8, "zorder": 5}
MARK: dict[str, Any] = {
    "linestyle": "none",
    "marker": "|",
    "markersize": 14,
    "markeredgewidth": 2,
    "color": GREEN,
    "zorder": 6,
}
CURVES = {
    "steps": ("Against the steps of the attack", "steps of the attack"),
    "step_size": ("Against the size of its steps", "step size"),
}


def _colour(record: RobustnessRecord) -> str:
    return {ORIGINAL: MUTED, REFERENCE: GREEN}.get(record.method, ORANGE)


def _rows(
    records: Sequence[RobustnessRecord], narrow: bool
) -> tuple[list[tuple[float, RobustnessRecord, str]], list[float], float]:
    """Heights in points from the top: of each (method, condition), of each method's name; and the full height."""
    rows, names, y = [], [], 0.0
    for record in records:
        names.append(y + (NAME if narrow else ROW) / 2)
        y += NAME if narrow else 0.0
        for condition in conditions(records):
            if lookup(record, task_of(records).metric, condition):
                rows.append((y + ROW / 2, record, condition))
                y += ROW
        y += GAP
    return rows, names, y - GAP


def overview(records: Sequence[RobustnessRecord], *, narrow: bool = False) -> Drawing | None:
    """The task's metric of all methods under all conditions, every seed, with retraining's under the same condition.

    Args:
        records: One for each method, in the order to be shown from the top; those without it are left out.
        narrow: The variant for a small screen, with names above their lines.

    Returns:
        None when no record has the metric.
    """
    task = task_of(records)
    records = [r for r in records if any(lookup(r, task.metric, c) for c in r.conditions)]
    if not records:
        return None
    reference = find(records, REFERENCE)
    rows, names, height = _rows(records, narrow)
    longest = max(len(condition) for _, _, condition in rows)
    spare = 7.0 * longest + 14
    shown = [name if len(name) <= NAME_LIMIT else name[: NAME_LIMIT - 1] + "…" for name in labels(records)]
    width, right = (400.0, 92.0) if narrow else (900.0, 104.0)
    left = spare if narrow else spare + max(60.0, 7.6 * max(map(len, shown)) + 14)
    several = any(record.seeds > 1 for record in records)
    with style():
        from matplotlib.lines import Line2D

        keys: list[tuple[Any, str]] = [(Line2D([], [], color=ORANGE, **MEAN), "attacked, mean")]
        keys.append((Line2D([], [], color=ORANGE, markerfacecolor=PAPER, **MEAN), "not attacked"))
        if several:
            keys.append((Line2D([], [], color=ORANGE, **SEED), "one seed"))
        if reference:
            keys.append((Line2D([], [], **MARK), f"{REFERENCE}, same attack"))
        per_line = 2 if narrow else len(keys)
        top = 14.0 + 18.0 * -(-len(keys) // per_line)
        figure, axes = surface(width, top + height + BOTTOM, left, right, BOTTOM, top)
        axes.set(ylim=(height, 0), yticks=[])
        axes.spines["left"].set_visible(False)
        if task.shares:
            axes.set_xlim(-1.5, 101.5)
            axes.set_xticks(range(0, 101, 25 if narrow else 20))
        else:
            axes.set_xlim(0, 1.05 * max(_largest(record, task) for record in records))
        axes.grid(True, axis="x")
        axes.set_xlabel(task.axis, labelpad=6)
        for y, record, condition in rows:
            _row(axes, y, record, condition, reference, task)
        across = axes.get_yaxis_transform()
        inner = width - left - right
        for y, record, condition in rows:
            look = {"transform": across, "va": "center_baseline", "fontsize": 10.5}
            axes.text(-10 / inner, y, condition, ha="right", color=MUTED, **look)
            value = _value(record, condition, task)
            weight = "normal" if condition == CLEAN else "bold"
            axes.text(1 + right / inner, y, value, ha="right", color=_ink(record), fontweight=weight, **look)
        for y, record, name in zip(names, records, shown):
            look = {"transform": across, "va": "center_baseline", "fontsize": FONT if narrow else 13.0}
            axes.text(-left / inner, y, name, ha="left", color=_ink(record), fontweight="bold", **look)
        place = (-left / inner, 1 + 6 / height)
        key(axes, [k[0] for k in keys], [k[1] for k in keys], ncols=per_line, bbox_to_anchor=place, columnspacing=2.0)
    beside = (
        " Bars reach from retraining to the method: what the attack finds beyond what was never seen."
        if reference
        else ""
    )
    return Drawing(
        name="overview",
        title="What attacks bring back",
        caption=f"{subject(records)}. {task.short}; {behind(records, task.metric)}.{beside}",
        label=f"{task.axis[0].upper() + task.axis[1:]}, by method and attack. {_spoken(rows, task)}.",
        figure=figure,
    )


def _ink(record: RobustnessRecord) -> str:
    return GREEN if record.method == REFERENCE else INK


def _value(record: RobustnessRecord, condition: str, task: Task) -> str:
    return " ± ".join(filter(None, cell(record, task.metric, condition, 1)))


def _largest(record: RobustnessRecord, task: Task) -> float:
    found = [lookup(record, task.metric, condition) for condition in record.conditions]
    return max((v for pair in found if pair is not None for v in pair[0].values[pair[1]]), default=0.0)


def _row(
    axes: Any, y: float, record: RobustnessRecord, condition: str, reference: RobustnessRecord | None, task: Task
) -> None:
    found = lookup(record, task.metric, condition)
    if found is None:
        return
    scale = task.scale
    colour, middle = _colour(record), scale * (found[0].mean(found[1]) or 0.0)
    mark = None if reference is None or record.method == ORIGINAL else mean(reference, task.metric, condition)
    if mark is not None and record is not reference:
        axes.plot(
            [scale * mark, middle], [y, y], color=colour, linewidth=3.5, solid_capstyle="butt", alpha=0.3, zorder=3
        )
        axes.plot([scale * mark], [y], clip_on=False, **MARK)
    seeds = found[0].by_seed(found[1])
    if len(seeds) > 1:
        axes.plot([scale * v for v in seeds], [y] * len(seeds), color=colour, clip_on=False, **SEED)
    inside = PAPER if condition == CLEAN else colour
    axes.plot([middle], [y], color=colour, markerfacecolor=inside, clip_on=False, **MEAN)


def _spoken(rows: Sequence[tuple[float, RobustnessRecord, str]], task: Task) -> str:
    return "; ".join(f"{clean(r.method)} {clean(c)}: {_value(r, c, task)}" for _, r, c in rows)


def curves(records: Sequence[RobustnessRecord], record: RobustnessRecord) -> list[Drawing | Missing]:
    """One panel for each curve of a record: accuracy on the forgotten images against what was varied.

    Retraining's is drawn beside where it has the same curve, and has panels of its own only where no other method has.

    Args:
        records: Those of all methods.
        record: The method's.
    """
    if record.method == REFERENCE:
        others = {name for other in records if other is not record for name in other.curves}
        return [_curve(name, record, None) for name in record.curves if name not in others]
    return [_curve(name, record, find(records, REFERENCE)) for name in record.curves]


def _points(record: RobustnessRecord | None, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(x, mean, standard deviation or NaN), in per cent, by growing x; None when the curve is absent or broken."""
    curve = record.curves.get(name) if record else None
    if not isinstance(curve, dict):
        return None
    x, values = curve.get("x"), curve.get("values")
    if not isinstance(x, list) or not isinstance(values, list) or len(x) != len(values) or len(x) < 2:
        return None
    numbers = [v for row in values if isinstance(row, list) for v in row]
    if not all(isinstance(row, list) and row for row in values) or any(finite(v) is None for v in [*x, *numbers]):
        return None
    order = np.argsort(x)
    rows = [100 * np.asarray(values[i], np.float64) for i in order]
    deviations = [float(row.std(ddof=1)) if row.size > 1 else np.nan for row in rows]
    return np.asarray(x, np.float64)[order], np.array([row.mean() for row in rows]), np.array(deviations)


def _curve(name: str, record: RobustnessRecord, reference: RobustnessRecord | None) -> Drawing | Missing:
    title, axis = CURVES.get(name, (f"Against {clean(name).replace('_', ' ')}", clean(name).replace("_", " ")))
    points = _points(record, name)
    if points is None:
        reason = "Its numbers are not there for every point, or there are fewer than two points."
        return Missing(name=name, title=title, reason=reason)
    axis = clean(record.curves[name].get("label") or axis)
    lines = [(clean(record.method), _colour(record), points)]
    beside = _points(reference, name)
    if beside is not None:
        lines.append((REFERENCE, GREEN, beside))
    with style():
        figure, axes = panel(axis, task_of([record]).axis)
        handles, spread = [], False
        for _, colour, (x, middle, deviation) in lines:
            if np.isfinite(deviation).all():
                low, high = np.clip([middle - deviation, middle + deviation], 0, 100)
                axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
                spread = True
            handles += axes.plot(
                x, middle, color=colour, linewidth=1.8, marker="o", markersize=4.5, clip_on=False, zorder=4
            )
        x = points[0]
        if x[0] > 0 and x[-1] > MANY * x[0]:
            axes.set_xscale("log")
            ticks = [x[0]]
            for value in x[1:]:
                if np.log(value / ticks[-1]) > np.log(x[-1] / x[0]) / 8:
                    ticks.append(value)
            axes.set_xticks(ticks, [f"{value:.3g}" for value in ticks])
            axes.minorticks_off()
        axes.set_ylim(0, 104)
        axes.set_yticks(range(0, 101, 25))
        key(axes, handles, [label for label, _, _ in lines])
    over = f"Mean over {record.seeds} seeds, band ± one standard deviation" if spread else "One seed"
    caption = f"{over}; the strongest attack, all else as in the table."
    label = f"{title}: from {points[1][0]:.1f}% at {x[0]:g} to {points[1][-1]:.1f}% at {x[-1]:g}."
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)
