"""Direct questions beside recovery by fine-tuning, recovery against utility, and the small panels of each method."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxunlearn.privacy import DIRECT, PrivacyRecord
from jaxunlearn.report.canvas import (
    BLUE,
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
from jaxunlearn.report.measured import REFERENCE, behind, cell, find, lookup, mean, subject
from jaxunlearn.report.privacy.load import AROUND, BASE, TARGET, Predictors, PrivacyMethod
from jaxunlearn.report.privacy.table import (
    KNOWN,
    RETAINED,
    TEXT,
    UNKNOWN,
    asked,
    attack_of,
    last_tuned,
    names,
)
from jaxunlearn.report.table import clean

ROW, GAP, NAME, BOTTOM = 17.0, 10.0, 19.0, 48.0
NAME_LIMIT = 24
SEED: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.4, "alpha": 0.6, "markeredgewidth": 0}
POINT: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 8.5, "markeredgewidth": 1.8, "zorder": 5}
MARK: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 14, "markeredgewidth": 2, "color": GREEN}
KINDS = ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^"), (MUTED, "D"), (INK, "x"))
"""Looks of kinds of facts; whatever comes after the fourth kind shares the last."""
LINES = ((BLUE, "o"), (ORANGE, "s"), (INK, "^"), (MUTED, "D"))
STRETCH = 2.0
"""An axis of losses whose ends differ by more than this factor is logarithmic."""
NARROWEST = 0.2
"""Nats that such an axis covers at least."""
TICKS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 100, 200, 500, 1000)


# --- all methods


def overview(records: Sequence[PrivacyRecord], *, narrow: bool = False) -> Drawing | None:
    """PrivUn's Figure 4: P1 and the last P3 of every method on both sets, every seed, with retraining's P3 beside.

    Args:
        records: One for each method, in the order to be shown from the top.
        narrow: The variant for a small screen, with names above their lines.

    Returns:
        None when no record was asked directly.
    """
    tuned, reference = last_tuned(records), find(records, REFERENCE)
    shown = dict(zip((r.method for r in records), names(records)))
    records = [r for r in records if any(lookup(r, name, DIRECT) for name in (KNOWN, UNKNOWN))]
    if not records:
        return None
    rows, titles, y = [], [], 0.0
    for record in records:
        titles.append(y + (NAME if narrow else ROW) / 2)
        y += NAME if narrow else 0.0
        for name in (KNOWN, UNKNOWN):
            if lookup(record, name, DIRECT):
                rows.append((y + ROW / 2, record, name))
                y += ROW
        y += GAP
    height = y - GAP
    short = [s if len(s) <= NAME_LIMIT else s[: NAME_LIMIT - 1] + "…" for s in (shown[r.method] for r in records)]
    width, right = (400.0, 92.0) if narrow else (900.0, 108.0)
    left = 72.0 if narrow else 72.0 + max(60.0, 7.6 * max(map(len, short)) + 14)
    with style():
        from matplotlib.lines import Line2D

        keys: list[tuple[Any, str]] = [
            (Line2D([], [], color=ORANGE, markerfacecolor=PAPER, **POINT), "P1, asked directly")
        ]
        if tuned:
            keys.append((Line2D([], [], color=ORANGE, **POINT), f"{clean(tuned)}, mean"))
        if tuned and any(record.seeds > 1 for record in records):
            keys.append((Line2D([], [], color=ORANGE, **SEED), "one seed"))
        if tuned and reference:
            keys.append((Line2D([], [], **MARK), f"{REFERENCE}, {clean(tuned)}"))
        per_line = 2 if narrow else len(keys)
        top = 14.0 + 18.0 * -(-len(keys) // per_line)
        figure, axes = surface(width, top + height + BOTTOM, left, right, BOTTOM, top)
        axes.set(ylim=(height, 0), xlim=(-1.5, 101.5), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.set_xticks(range(0, 101, 25 if narrow else 20))
        axes.grid(True, axis="x")
        axes.set_xlabel("private data that are said, %", labelpad=6)
        across, inner = axes.get_yaxis_transform(), width - left - right
        for y, record, name in rows:
            _row(axes, y, record, name, tuned, reference)
            look = {"transform": across, "va": "center_baseline", "fontsize": 10.5, "ha": "right"}
            axes.text(-10 / inner, y, name, color=MUTED, **look)
            both = [cell(record, name, c, 1)[0] for c in (DIRECT, tuned) if c]
            colour = GREEN if record.method == REFERENCE else INK
            axes.text(1 + right / inner, y, " → ".join(both), color=colour, **look)
        for y, record, name in zip(titles, records, short):
            colour = GREEN if record.method == REFERENCE else INK
            look = {"transform": across, "va": "center_baseline", "fontsize": FONT if narrow else 13.0}
            axes.text(-left / inner, y, name, ha="left", color=colour, fontweight="bold", **look)
        place = (-left / inner, 1 + 6 / height)
        key(axes, [k[0] for k in keys], [k[1] for k in keys], ncols=per_line, bbox_to_anchor=place, columnspacing=2.0)
    gap = f" The bar between is what fine-tuning brings back: {asked(tuned, attack_of(records))}." if tuned else ""
    spoken = "; ".join(
        f"{clean(r.method)} {n}: {' to '.join(cell(r, n, c, 1)[0] for c in (DIRECT, tuned) if c)}" for _, r, n in rows
    )
    return Drawing(
        name="overview",
        title="What is said when asked, and after fine-tuning",
        caption=f"{subject(records)}. {behind(records, UNKNOWN)}.{gap}",
        label=f"Share of private data that models say, asked directly and after fine-tuning. {spoken}.",
        figure=figure,
    )


def _row(
    axes: Any, y: float, record: PrivacyRecord, name: str, tuned: str | None, reference: PrivacyRecord | None
) -> None:
    colour = {BASE: MUTED, TARGET: MUTED, REFERENCE: GREEN}.get(record.method, ORANGE)
    direct, after = mean(record, name, DIRECT), lookup(record, name, tuned) if tuned else None
    if after is not None:
        middle = 100 * (after[0].mean(after[1]) or 0.0)
        if direct is not None:
            span = [100 * direct, middle]
            axes.plot(span, [y, y], color=colour, linewidth=5, solid_capstyle="butt", alpha=0.3, zorder=3)
        mark = mean(reference, name, tuned) if reference and tuned and record.method not in AROUND else None
        if mark is not None:
            axes.plot([100 * mark], [y], clip_on=False, zorder=6, **MARK)
        seeds = after[0].by_seed(after[1])
        if len(seeds) > 1:
            axes.plot([100 * v for v in seeds], [y] * len(seeds), color=colour, clip_on=False, zorder=4, **SEED)
        axes.plot([middle], [y], color=colour, clip_on=False, **POINT)
    if direct is not None:
        axes.plot([100 * direct], [y], color=colour, markerfacecolor=PAPER, clip_on=False, **POINT)


def _rows_of(values: Any, length: int) -> np.ndarray | None:
    """[points][seeds] as an array; None when it is not whole."""
    if not isinstance(values, list) or len(values) != length or length < 2:
        return None
    if not all(isinstance(row, list) and row and all(finite(v) is not None for v in row) for row in values):
        return None
    return np.asarray(values, np.float64) if len({len(row) for row in values}) == 1 else None


def _path(record: PrivacyRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """(text nll, P3 in per cent) after each epoch, means over seeds; None without a curve."""
    epochs = record.curve.get("epochs")
    if not isinstance(epochs, list):
        return None
    x, y = (_rows_of(record.curve.get(name), len(epochs)) for name in ("text_nll", "p3"))
    return None if x is None or y is None else (x.mean(axis=1), 100 * y.mean(axis=1))


def _stretched(axes: Any, values: Sequence[float]) -> None:
    """Makes the x axis logarithmic where its range asks for that, and no narrower than differences that matter."""
    low, high = min(values), max(values)
    if high - low < NARROWEST:
        middle = (low + high) / 2
        axes.set_xlim(middle - NARROWEST / 2, middle + NARROWEST / 2)
    if low > 0 and high > STRETCH * low:
        axes.set_xscale("log")
        ticks = [tick for tick in TICKS if 0.9 * low <= tick <= 1.1 * high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def tradeoff(records: Sequence[PrivacyRecord], *, narrow: bool = False) -> Drawing | None:
    """Recovery by fine-tuning against the loss of running text, with curves along unlearning where they were drawn.

    Returns:
        None when there is nothing to compare: fewer than two kinds of models with both numbers.
    """
    tuned = last_tuned(records)
    ends = {
        r.method: (mean(r, TEXT, DIRECT) or 0.0, 100 * (mean(r, UNKNOWN, tuned) or 0.0))
        for r in records
        if tuned and r.method != BASE and lookup(r, TEXT, DIRECT) and lookup(r, UNKNOWN, tuned)
    }
    paths = {r.method: path for r in records if (path := _path(r)) is not None}
    if len(ends) < 2 and not paths:
        return None
    with style():
        size = (400.0, 330.0, 34.0, 12.0) if narrow else (900.0, 400.0, 40.0, 60.0)
        figure, axes = surface(*size, BOTTOM, 50.0)
        inner = size[0] - size[2] - size[3]
        axes.set_xlabel(
            "-log p of a token of unseen text, nats (further left: more useful)".replace("-", "−"), labelpad=6
        )
        axes.set_title(
            "P3: private data that come back, unknown set, %",
            loc="left",
            x=-size[2] / inner,
            fontsize=FONT,
            color=MUTED,
            pad=30,
        )
        axes.spines["left"].set_visible(False)
        axes.grid(True, axis="y")
        handles, labels = [], []
        looks = {name: LINES[i % len(LINES)] for i, name in enumerate(paths)}
        for name, (x, y) in paths.items():
            colour, marker = looks[name]
            (line,) = axes.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=4, alpha=0.85, zorder=3)
            handles.append(line)
            labels.append(f"{clean(name)}, epoch by epoch")
        for name, (x, y) in ends.items():
            colour, marker = looks.get(name, ({REFERENCE: GREEN}.get(name, MUTED), "o"))
            look = {"linestyle": "none", "marker": marker, "markersize": 9, "markeredgewidth": 1.8, "clip_on": False}
            axes.plot([x], [y], color=colour, markerfacecolor=PAPER, zorder=5, **look)
        _stretched(axes, [x for x, _ in ends.values()] + [float(v) for x, _ in paths.values() for v in x])
        highest = max([y for _, y in ends.values()] + [float(v) for _, y in paths.values() for v in y])
        top = min(max(1.1 * highest, 10.0), 104.0)
        axes.set_ylim(-0.04 * top, top)
        axes.locator_params(axis="y", nbins=5)
        _label(figure, axes, ends, {n: GREEN if n == REFERENCE else INK for n in ends}, list(paths.values()))
        if handles:
            key(axes, handles, labels, ncols=1 if narrow and len(handles) > 2 else len(handles), fontsize=10.5)
    caption = "Circles: where a method was stopped, and the models around it."
    if paths:
        caption += (
            " Lines: after every epoch of unlearning, stopped or not, with the loss of fewer pieces of text. Methods stop at "
            "different places; compare them at equal utility."
        )
    spoken = "; ".join(f"{clean(n)} {y:.1f}% at {x:.2f}" for n, (x, y) in ends.items())
    return Drawing(
        name="tradeoff",
        title="P3 against the loss of running text",
        caption=f"{caption} Means over seeds; {clean(tuned or '')}.",
        label=f"P3 on the unknown set against the loss of unseen text: {spoken}.",
        figure=figure,
    )


def _label(
    figure: Any, axes: Any, ends: dict[str, tuple[float, float]], colours: dict[str, str], paths: Sequence[Any]
) -> None:
    """Names beside their points where there is room: to the right, left, above, below, or further off."""
    scale = 72 / figure.dpi
    spots = {name: scale * axes.transData.transform(point) for name, point in ends.items()}
    lines = [scale * axes.transData.transform(np.column_stack(path)) for path in paths]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in spots.values()]
    on_lines = [np.linspace(a, b, 9) for line in lines for a, b in itertools.pairwise(line)]
    crossed = [(x - 2, y - 2, x + 2, y + 2) for points in on_lines for x, y in points]
    left, right = scale * axes.bbox.x0, scale * axes.bbox.x1 + 50
    for name, (x, y) in sorted(spots.items(), key=lambda pair: -pair[1][1]):
        wide, high = 6.2 * len(name) + 2, 12.0
        offers = [(9, -high / 2), (-9 - wide, -high / 2), (-wide / 2, 8), (-wide / 2, -8 - high)]
        offers += [(dx, step * high) for step in (0.4, -1.4, 1.4, -2.4, 2.4) for dx in (12, -12 - wide)]
        boxes = [(x + dx, y + dy, x + dx + wide, y + dy + high) for dx, dy in offers]
        costs = [
            place
            + 9 * _overlaps(box, taken)
            + 4 * (_overlaps(box, crossed) > 0)
            + 30 * (box[0] < left or box[2] > right)
            for place, box in enumerate(boxes)
        ]
        best = costs.index(min(costs))
        taken.append(boxes[best])
        axes.annotate(
            clean(name),
            ends[name],
            xytext=(offers[best][0], offers[best][1] + 2),
            textcoords="offset points",
            fontsize=10.5,
            color=colours[name],
            annotation_clip=False,
        )


def _overlaps(box: tuple[float, ...], others: Sequence[tuple[float, ...]]) -> int:
    """How many of the others (left, bottom, right, top) a box meets."""
    return sum(box[0] < o[2] and box[2] > o[0] and box[1] < o[3] and box[3] > o[1] for o in others)


# --- one method


def panels(
    method: PrivacyMethod, records: Sequence[PrivacyRecord], predictors: Predictors | None
) -> list[Drawing | Missing]:
    """The small figures of one method: on the way, forgetting against its predictors, layers."""
    found: list[Drawing | Missing] = []
    if method.record.trace:
        found.append(trace(method.record))
    if method.record.method not in AROUND:
        found += [
            scatter(method, predictors, "gradient"),
            scatter(method, predictors, None),
        ]
    if method.record.method != TARGET:
        found.append(layers(method.record, find(records, REFERENCE)))
    return found


def _line(axes: Any, x: Any, values: np.ndarray, colour: str, **look: Any) -> Any:
    """A mean over seeds [points][seeds] and a band of one standard deviation; the handle of the line."""
    middle = values.mean(axis=1)
    if values.shape[1] > 1:
        deviation = values.std(axis=1, ddof=1)
        axes.fill_between(x, middle - deviation, middle + deviation, color=colour, alpha=0.18, linewidth=0)
    shape = {"linewidth": 1.8, "marker": "o", "markersize": 4.5, "clip_on": False, "zorder": 4}
    return axes.plot(x, middle, color=colour, **{**shape, **look})[0]


def over(record: PrivacyRecord) -> str:
    """What lines and bands are."""
    return f"Mean over {record.seeds} seeds, band ± one standard deviation" if record.seeds > 1 else "One seed"


def trace(record: PrivacyRecord) -> Drawing | Missing:
    """P1 along unlearning, by reading along with the true answer, and where it was stopped."""
    name, title = "trace", "On the way"
    epochs, chosen = record.trace.get("epochs"), record.trace.get("chosen")
    length = len(epochs) if isinstance(epochs, list) else 0
    lines = {n: _rows_of(record.trace.get(f"p1_{n}"), length) for n in (KNOWN, UNKNOWN)}
    if any(values is None for values in lines.values()):
        reason = "Its numbers are not there for every epoch, or there are fewer than two."
        return Missing(name=name, title=title, reason=reason)
    with style():
        figure, axes = panel("epochs of unlearning", "P1: private data that are said, %")
        handles = []
        for n, colour, dash in ((KNOWN, ORANGE, "-"), (UNKNOWN, BLUE, (0, (4, 2)))):
            handles.append(_line(axes, epochs, 100 * np.asarray(lines[n]), colour, linestyle=dash))
        labels = [KNOWN, UNKNOWN]
        if isinstance(chosen, list) and chosen and all(finite(c) is not None for c in chosen):
            look = {"linestyle": "none", "marker": "v", "markersize": 9, "color": INK, "clip_on": False, "zorder": 6}
            at = sorted(set(chosen))
            handles += axes.plot(at, [0.05] * len(at), transform=axes.get_xaxis_transform(), **look)
            labels.append("stopped")
        axes.set_ylim(0, max(4.0, *(100 * float(v.max()) for v in lines.values() if v is not None)) * 1.06)
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", integer=True)
        key(axes, handles, labels)
    ends = {n: 100 * v.mean(axis=1) for n, v in lines.items() if v is not None}
    spoken = "; ".join(f"{n} from {v[0]:.1f}% to {v[-1]:.1f}%" for n, v in ends.items())
    return Drawing(
        name=name,
        title=title,
        caption=f"{over(record)}; the most likely token at every place of the private data, with the true ones before it.",
        label=f"P1 after each epoch of unlearning: {spoken}.",
        figure=figure,
    )


def coefficients(record: PrivacyRecord, predictor: str, part: str) -> dict[str, list[float]] | None:
    """Of a predictor's correlation: "pearson" and "spearman" -> [value, low, high], over seeds.

    Args:
        record: The method's.
        predictor: "gradient", ...
        part: "pooled", "within", "baseline", "partial", "gain", or a kind of facts.

    Returns:
        The mean of the seeds' values, the lowest and the highest end of their bootstrap intervals; None where one has none.
    """
    rows = record.correlations.get(predictor)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    entries = [row[part] if part in row else (row.get("by_group") or {}).get(part) for row in rows]
    found: dict[str, list[float]] = {}
    for name in ("pearson", "spearman"):
        parts = [entry.get(name) if isinstance(entry, dict) else None for entry in entries]
        taken = [[finite(p.get(k)) for k in ("value", "low", "high")] for p in parts if isinstance(p, dict)]
        if len(taken) < len(rows) or any(v is None for row in taken for v in row):
            return None
        value, low, high = np.asarray(taken, np.float64).T
        found[name] = [float(value.mean()), float(low.min()), float(high.max())]
    return found


def scatter(method: PrivacyMethod, predictors: Predictors | None, predictor: str | None) -> Drawing | Missing:
    """PrivUn's Figure 2: forgetting scores of the unknown facts against an association, or against their loss before.

    Args:
        method: What was loaded.
        predictors: What might predict them.
        predictor: The association; None: the plain baseline, -log p under the target model.
    """
    name = "loss" if predictor is None else predictor
    title = "Forgetting against plain loss" if predictor is None else f"Forgetting against {predictor} association"
    if predictors is None or method.forgetting is None:
        return Missing(name=name, title=title, reason="Forgetting scores of single facts are not at hand.")
    values = predictors.loss if predictor is None else predictors.scores.get(predictor)
    if values is None:
        return Missing(name=name, title=title, reason=f"{predictor} was not saved.")
    good = np.flatnonzero(np.isfinite(method.forgetting).all(axis=1))
    if not good.size:
        return Missing(name=name, title=title, reason="No seed has finite scores.")
    seed = int(good[0])
    x, y = np.asarray(values[seed], np.float64), method.forgetting[seed]
    kinds = list(dict.fromkeys(sorted(predictors.kinds)))
    with style():
        axis = "−log p before unlearning, nats" if predictor is None else f"association by {predictor}"
        figure, axes = panel(axis, "forgetting score, nats", grid="both")
        handles, labels = [], []
        for i, kind in enumerate(kinds):
            colour, marker = KINDS[min(i, len(KINDS) - 1)]
            rows = np.array([k == kind for k in predictors.kinds])
            look = {"linestyle": "none", "marker": marker, "markersize": 5, "alpha": 0.65}
            look["markeredgewidth"] = 1.0 if marker == "x" else 0
            handles += axes.plot(x[rows], y[rows], color=colour, **look)
            labels.append(clean(kind) or "facts")
        first = _first_seed(method.record, predictor or "gradient", "pooled" if predictor else "baseline")
        inner = _first_seed(method.record, predictor, "within") if predictor else ""
        for place, text in enumerate(filter(None, [first, f"within kinds {inner}" if inner else ""])):
            axes.annotate(
                text,
                (1, 1),
                xycoords="axes fraction",
                xytext=(-2, -4 - 14 * place),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=10.5,
                color=INK,
                bbox={"facecolor": PAPER, "alpha": 0.75, "linewidth": 0, "pad": 1},
            )
        axes.locator_params(axis="x", nbins=5)
        axes.locator_params(axis="y", nbins=5)
        axes.margins(y=0.12)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.14 * (high - low))
        key(
            axes, handles, labels, fontsize=9.5, columnspacing=0.9, handletextpad=0.1, handlelength=1.2, markerscale=1.1
        )
    of = f"{len(x):,} unknown facts, seed {seed}"
    more = ": what there is to forget in a fact, a baseline for any association" if predictor is None else ""
    return Drawing(
        name=name,
        title=title,
        caption=f"{of}{more}.",
        label=f"Scatter plot of forgetting scores of {of}, against {axis}. {first}.",
        figure=figure,
    )


def _first_seed(record: PrivacyRecord, predictor: str, part: str) -> str:
    """Both coefficients of the first seed as text."""
    rows = record.correlations.get(predictor)
    if not isinstance(rows, list) or not rows:
        return ""
    found = coefficients(dataclasses.replace(record, correlations={predictor: rows[:1]}), predictor, part)
    return "" if found is None else f"r = {found['pearson'][0]:.2f}, ρ = {found['spearman'][0]:.2f}".replace("-", "−")


def layers(record: PrivacyRecord, reference: PrivacyRecord | None) -> Drawing | Missing:
    """PrivUn's Figure 3: debiased CKA with the target model, layer by layer."""
    name, title = "layers", "Similarity to the target model"
    places = record.cka.get("layers")
    rows = {n: by_layer(record, n) for n in (KNOWN, UNKNOWN, RETAINED)}
    lines = {n: values for n, values in rows.items() if values is not None}
    if not isinstance(places, list) or not lines:
        reason = "There are no similarities by layer: they need at least four facts of a set."
        return Missing(name=name, title=title, reason=reason)
    with style():
        figure, axes = panel("layer (0: embedding)", "debiased CKA, states over private tokens")
        looks = {KNOWN: (ORANGE, "-"), UNKNOWN: (BLUE, (0, (4, 2))), RETAINED: (MUTED, (0, (1, 1.5)))}
        handles, labels = [], []
        for n, values in lines.items():
            handles.append(_line(axes, places, values, looks[n][0], linestyle=looks[n][1]))
            labels.append(n)
        beside = None if reference is None or reference is record else by_layer(reference, UNKNOWN)
        if beside is not None and len(beside) == len(places):
            handles.append(_line(axes, places, beside, GREEN, linewidth=1.4, markersize=3.5))
            labels.append(f"{REFERENCE}, {UNKNOWN}")
        low = min(float(v.min()) for v in (*lines.values(), *([] if beside is None else [beside])))
        axes.set_ylim(min(0.0, 1.05 * low), 1.04)
        axes.locator_params(axis="x", integer=True)
        key(axes, handles, labels, fontsize=10, columnspacing=1.0)
    counts = ", ".join(f"{record.cka[f'n_{n}']} {n}" for n in lines if finite(record.cka.get(f"n_{n}")) is not None)
    spoken = "; ".join(f"{n} from {v.mean(axis=1)[0]:.2f} to {v.mean(axis=1)[-1]:.2f}" for n, v in lines.items())
    return Drawing(
        name=name,
        title=title,
        caption=f"{over(record)}; n = {counts} facts.",
        label=f"Debiased CKA with the target model from the first layer to the last: {spoken}.",
        figure=figure,
    )


def by_layer(record: PrivacyRecord, name: str) -> np.ndarray | None:
    """[layers][seeds]."""
    places, seeds = record.cka.get("layers"), record.cka.get(name)
    if not isinstance(places, list) or not isinstance(seeds, list) or not seeds:
        return None
    if not all(isinstance(row, list) and len(row) == len(places) for row in seeds):
        return None
    return _rows_of([list(column) for column in zip(*seeds)], len(places))
