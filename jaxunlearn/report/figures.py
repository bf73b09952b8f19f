"""The four small panels of a method.

Every panel is drawn from arrays in a run directory and says in its caption what those are. A panel whose arrays are not
there is a ``Missing`` with the reason.
"""

import math
from typing import Any

import numpy as np

from jaxunlearn.records import ScoreRecord
from jaxunlearn.report.canvas import (
    BLUE,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    Drawing,
    Missing,
    key,
    panel,
    style,
)
from jaxunlearn.report.load import Method
from jaxunlearn.report.table import at_most, confidence, lower, number, outcome, tested
from jaxunlearn.report.trajectory import trajectory_curve

MAX_VERTICES = 400


def standardised_scores(record: ScoreRecord) -> tuple[np.ndarray, np.ndarray] | None:
    """Scores of examples that were in the run, and of those that were not, on a common scale.

    Each example is centred halfway between its two means and divided by its pooled standard deviation over runs: easy
    and hard examples can then share an axis, and the distance of the two humps is the attack's signal in standard
    deviations. Failed runs are left out; so are examples with fewer than two runs on a side or with a constant score.

    Returns:
        (in, out), one-dimensional, or None when no example is left.
    """
    keep = ~record.failed & np.isfinite(record.scores).all(axis=(1, 2))
    scores = record.scores[keep].astype(np.float64)
    inside = np.broadcast_to((record.signs[keep] == 1)[..., None], scores.shape)
    count_in, count_out = inside.sum(0), (~inside).sum(0)
    usable = (count_in >= 2) & (count_out >= 2)
    if not usable.any():
        return None
    scores, inside, count_in, count_out = scores[:, usable], inside[:, usable], count_in[usable], count_out[usable]
    mean_in = np.where(inside, scores, 0).sum(0) / count_in
    mean_out = np.where(inside, 0, scores).sum(0) / count_out
    residuals = scores - np.where(inside, mean_in, mean_out)
    sd = np.sqrt((residuals**2).sum(0) / (count_in + count_out - 2))
    varies = sd > 1e-9 * np.maximum(1, np.abs(mean_out))
    if not varies.any():
        return None
    z = (scores[:, varies] - ((mean_in + mean_out) / 2)[varies]) / sd[varies]
    return z[inside[:, varies]], z[~inside[:, varies]]


def density(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A Gaussian kernel density (Silverman's bandwidth) on an even grid, through a histogram."""
    step = grid[1] - grid[0]
    edges = np.concatenate([grid - step / 2, [grid[-1] + step / 2]])
    counts = np.histogram(values, edges)[0] / (values.size * step)
    low, high = np.quantile(values, [0.25, 0.75])
    spread = min(float(values.std()), (high - low) / 1.349) or float(values.std())
    width = max(0.9 * spread * values.size**-0.2, 1.5 * step)
    reach = int(4 * width / step)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    return np.convolve(counts, kernel / kernel.sum(), mode="full")[reach : reach + grid.size]


def score_densities(method: Method) -> Drawing | Missing:
    """Densities of the attack's scores for examples that were unlearned and for examples that were never seen."""
    name, title = "scores", "Attack scores"
    if method.scores is None:
        return Missing(name=name, title=title, reason="No scores were handed in, so their densities are not drawn.")
    pair = standardised_scores(method.scores)
    if pair is None:
        reason = "No example has scores that vary over at least two runs on each side, so there is no density to draw."
        return Missing(name=name, title=title, reason=reason)
    inside, outside = pair
    distance = float(inside.mean() - outside.mean())
    with style():
        figure, axes = panel("score, standardised per example (sd)", "density", grid=None)
        reach = float(np.clip(np.quantile(np.abs(np.concatenate(pair)), 0.998) * 1.12, 3, 15))
        grid = np.linspace(-reach, reach, 241)
        curves = (outside, MUTED, 0.16), (inside, ORANGE, 0.22)
        heights = [density(v, grid) for v, _, _ in curves]
        handles = []
        for (_, colour, alpha), height in zip(curves, heights):
            axes.fill_between(grid, height, color=colour, alpha=alpha, linewidth=0)
            handles += axes.plot(grid, height, color=colour, linewidth=1.8)
        top = max(float(h.max()) for h in heights)
        axes.set_xlim(-reach, reach)
        axes.set_ylim(0, top * 1.12)
        axes.set_yticks([])
        text = f"distance of means {distance:.2f} sd".replace("-", "−")
        axes.text(0.99, 0.97, text, transform=axes.transAxes, ha="right", va="top", fontsize=11, color=INK)
        key(axes, handles, ["never seen", "trained on, then unlearned"])
    runs = int((~method.scores.failed).sum())
    caption = (
        f"{runs} calibration and evaluation runs, every candidate example; each example is centred between its two "
        "means and divided by its own standard deviation over runs. Right: more likely still in the model."
    )
    label = f"Densities of attack scores of unlearned and of never seen examples, means {distance:.2f} sd apart."
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)


def roc(llr: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The ROC of log-likelihood ratios against membership; ties move both rates at once.

    Args:
        llr: Any shape; non-finite values count as 0, as in the bounds.
        signs: The same shape, +1 for candidates that were in.

    Returns:
        (false positive rates, true positive rates, area), rates ascending from 0 to 1.
    """
    values = np.where(np.isfinite(llr), llr, 0.0).ravel()
    inside = signs.ravel() == 1
    order = np.argsort(-values, kind="stable")
    last = np.append(np.diff(values[order]) != 0, True)
    true = np.concatenate([[0], np.cumsum(inside[order])[last]]) / inside.sum()
    false = np.concatenate([[0], np.cumsum(~inside[order])[last]]) / (~inside).sum()
    return false, true, float(np.trapezoid(true, false))


def _thin(false: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most about MAX_VERTICES vertices, dense at both ends of a logarithmic and of a linear axis."""
    if false.size <= MAX_VERTICES:
        return false, true
    n = MAX_VERTICES // 2
    picks = np.concatenate([np.linspace(0, false.size - 1, n), np.geomspace(1, false.size - 1, n), [0]])
    index = np.unique(picks.astype(np.int64))
    return false[index], true[index]


def roc_curve(method: Method) -> Drawing | Missing:
    """ROC over candidates, with the corner of low false positive rates on logarithmic axes."""
    name, title = "roc", "Candidate by candidate"
    llr, signs = method.evaluation.get("llr"), method.evaluation.get("signs")
    if llr is None or signs is None or llr.shape != signs.shape:
        reason = (
            f"The {method.record.predictor} predictor scores whole sign vectors, so there is no ROC over single "
            "candidates."
            if method.record.predictor in ("joint", "pairwise")
            else "There are no log-likelihood ratios of single candidates, so there is no ROC."
        )
        return Missing(name=name, title=title, reason=reason)
    if len(np.unique(signs)) < 2:
        return Missing(name=name, title=title, reason="All candidates have the same sign, so there is no ROC.")
    if np.ptp(np.where(np.isfinite(llr), llr, 0.0)) == 0:
        reason = "All log-likelihood ratios are equal: the attack tells no candidate from another, AUC 0.5."
        return Missing(name=name, title=title, reason=reason)
    false, true, area = roc(llr, signs)
    negatives = int((signs != 1).sum())
    at = 0.01 if negatives >= 200 else 0.1
    corner = negatives >= 100
    low = float(true[np.searchsorted(false, at, side="right") - 1])
    false, true = _thin(false, true)
    with style():
        figure, axes = panel("false positive rate", "true positive rate", grid="both")
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
        axes.plot(false, true, color=ORANGE, linewidth=2)
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        ticks = [0, 0.25, 0.5, 0.75, 1]
        axes.set_xticks(ticks, ["0", ".25", ".5", ".75", "1"])
        axes.set_yticks(ticks, ["0", ".25", ".5", ".75", "1"])
        if corner:
            _corner(axes, false, true, max(1 / negatives, 1e-4))
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], color=ORANGE, linewidth=2),
            Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (3, 3))),
        ]
        key(axes, handles, [f"attack, AUC {area:.3f}", "chance"])
    caption = (
        f"Log-likelihood ratios of {signs.size:,} candidates in {signs.shape[0]} evaluation runs. At a false positive "
        "rate "
        f"of {at:.0%} the attack finds {low:.1%} of the unlearned candidates."
    )
    if corner:
        caption += " Inset: both axes logarithmic."
    label = (
        f"ROC curve over candidates with area {area:.3f}; true positive rate {low:.3f} at false positive rate {at:g}."
    )
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)


def _corner(axes: Any, false: np.ndarray, true: np.ndarray, floor: float) -> None:
    inset = axes.inset_axes([0.60, 0.13, 0.385, 0.39])
    inset.patch.set_facecolor(PAPER)
    inset.plot([floor, 1], [floor, 1], color=MUTED, linewidth=0.9, linestyle=(0, (3, 3)))
    inset.plot(false[false > 0], true[false > 0], color=ORANGE, linewidth=1.5)
    decades = [10.0**e for e in range(math.ceil(math.log10(1.5 * floor)), 1)]
    for axis in (inset.xaxis, inset.yaxis):
        axis.set_tick_params(labelsize=9, pad=2, length=0)
    inset.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.05))
    inset.minorticks_off()
    names = [f"{d:g}".removeprefix("0") for d in decades]
    inset.set_xticks(decades, names)
    inset.set_yticks(decades, names)
    inset.grid(True)


def budget_curve(method: Method) -> Drawing | Missing:
    """Epsilon against the guess budget r, with the headline and the preregistered choices."""
    name, title = "budget", "Bounds against the guess budget"
    record = method.record
    budgets = np.asarray(record.by_r.get("r", []), np.float64)
    curves = {
        label: np.asarray(record.by_r[field], np.float64)
        for field, label in (("overlap", "overlap bound"), ("paper_mean", "paper’s bound"))
        if len(record.by_r.get(field, [])) == budgets.size > 0
    }
    curves = {label: values for label, values in curves.items() if np.isfinite(values).any()}
    if not curves:
        reason = "No bounds over a grid of guess budgets r were recorded, so the curve is not drawn."
        return Missing(name=name, title=title, reason=reason)
    if record.epsilon <= 0 and all(np.nanmax(values) <= 0 for values in curves.values()):
        return Missing(name=name, title=title, reason="The bound is 0 at every guess budget r.")
    with style():
        figure, axes = panel("guess budget r (guesses per run)", "ε, lower bound (nats)")
        handles, names = [], []
        looks = {"overlap bound": (BLUE, "-"), "paper’s bound": (MUTED, (0, (4, 2)))}
        for label, values in curves.items():
            colour, dashes = looks[label]
            handles += axes.plot(budgets, values, color=colour, linewidth=1.4, linestyle=dashes, alpha=0.75)
            names.append(label)
        marks = [b for b in record.bounds if b.r is not None and b.status == "preregistered"]
        if marks:
            look = {"linestyle": "none", "marker": "o", "markersize": 6, "color": BLUE, "clip_on": False, "zorder": 5}
            handles += axes.plot([b.r for b in marks], [b.epsilon for b in marks], **look)
            names.append("preregistered r")
        axes.axhline(record.epsilon, color=BLUE, linewidth=2)
        top = max(record.epsilon, *(float(np.nanmax(v)) for v in curves.values()), *(b.epsilon for b in marks), 0.5)
        axes.set_xlim(0, budgets.max() * 1.02)
        axes.set_ylim(0, top * 1.16)
        axes.locator_params(axis="y", nbins=5)
        text = f"headline ε ≥ {lower(record.epsilon)}"
        ground = {"facecolor": PAPER, "alpha": 0.8, "linewidth": 0, "pad": 1}
        place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 5), "textcoords": "offset points"}
        look = {"ha": "right", "va": "bottom", "fontsize": 11, "fontweight": "bold", "color": BLUE, "zorder": 6}
        axes.annotate(text, (1, record.epsilon), bbox=ground, **place, **look)
        key(axes, handles, names)
    caption = (
        "Curves are exploratory, each point at the full ζ: picking their maximum after looking is not a valid bound. "
        "The horizontal line is the headline; dots share ζ with the other preregistered bounds."
    )
    span = f"{budgets.min():g} to {budgets.max():g}"
    label = f"Bounds on epsilon for guess budgets from {span}; the headline is {lower(record.epsilon)}."
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)


def log_count(m: int) -> float:
    """Log of the number of balanced sign vectors, in nats."""
    half = m // 2
    return math.lgamma(m + 1) - math.lgamma(half + 1) - math.lgamma(m - half + 1)


def evidence_bars(method: Method) -> Drawing | Missing:
    """Evidence -log p of every evaluation run, against the headline and the most one run can give."""
    name, title = "evidence", "Evidence of each run"
    record = method.record
    log_p = np.asarray(
        record.log_p_values if len(record.log_p_values) else method.evaluation.get("log_p", []), np.float64
    )
    log_p = log_p.ravel()
    if log_p.size == 0:
        return Missing(name=name, title=title, reason="No p-values of single runs were recorded, so there are no bars.")
    evidence = np.where(np.isfinite(log_p), np.maximum(-log_p, 0), 0.0)
    if evidence.max() == 0:
        reason = f"All {evidence.size} evaluation runs have p = 1: the true sign vector stands out in none."
        return Missing(name=name, title=title, reason=reason)
    limit = log_count(record.m)
    runs = np.arange(evidence.size)
    with style():
        figure, axes = panel("evaluation run", "−log p (nats)")
        axes.bar(runs, evidence, width=0.62 if runs.size <= 40 else 0.9, color=ORANGE, linewidth=0)
        axes.axhline(record.epsilon, color=BLUE, linewidth=2)
        top = max(float(evidence.max()), record.epsilon, 0.5)
        fits = limit <= 1.9 * top
        if fits:
            axes.axhline(limit, color=MUTED, linewidth=1, linestyle=(0, (3, 3)))
            text = f"log M′ = {number(limit)}, the most one run can give"
            axes.annotate(
                text, (0, limit), xycoords=("axes fraction", "data"), xytext=(2, 3), textcoords="offset points",
                ha="left", va="bottom", fontsize=10, color=MUTED,
            )  # fmt: skip
        failed = [run for run in record.failed_runs if 0 <= run < runs.size]
        if failed:
            axes.plot(
                failed,
                np.zeros(len(failed)),
                "x",
                color=INK,
                markersize=6,
                markeredgewidth=1.6,
                clip_on=False,
                zorder=6,
            )
        axes.set_xlim(-0.6, runs.size - 0.4)
        axes.set_ylim(0, max(top * 1.16, limit * 1.12 if fits else 0))
        axes.locator_params(axis="y", nbins=5)
        stride = next((s for s in (1, 2, 5, 10, 20, 50, 100) if runs.size / s <= 12), 1000)
        axes.set_xticks(runs[::stride])
        axes.tick_params(axis="x", length=0)
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles = [Patch(facecolor=ORANGE), Line2D([], [], color=BLUE, linewidth=2)]
        names = ["one run", f"headline ε ≥ {lower(record.epsilon)}"]
        if failed:
            handles.append(Line2D([], [], linestyle="none", marker="x", color=INK, markeredgewidth=1.6))
            names.append("failed, p = 1")
        key(axes, handles, names, handlelength=1.0)
    caption = "How surprising the true sign vector is to the attack, had the model not depended on it."
    if any(bound.name == "evidence" for bound in record.bounds):
        caption += " The evidence bound is about the mean of the bars less a price for chance."
    if not fits:
        caption += f" One run can give at most log M′ = {number(limit)}, off the axis."
    spread = f"mean {evidence.mean():.2f}, largest {evidence.max():.2f}"
    label = f"Bars of minus log p for {runs.size} evaluation runs, {spread}."
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)


def anytime_path(method: Method) -> Drawing | Missing:
    """The any-time bound after every run of a sequential audit, with the claim and where it fell."""
    name, title = "path", "The bound run by run"
    record = method.record
    sequential = record.sequential or {}
    path = np.asarray(sequential.get("path", []), np.float64)
    if path.size == 0:
        return Missing(
            name=name, title=title, reason="No bound after every run was recorded, so its path is not drawn."
        )
    warmup, claim = record.calibration_runs, tested(record)
    last = warmup + path.size
    steps, values = np.arange(warmup, last + 1), np.concatenate([[0.0], path])
    with style():
        figure, axes = panel("runs so far, warm-up included", "ε, lower bound (nats)")
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles, names = [], []
        if warmup:
            axes.axvspan(0, warmup, color=MUTED, alpha=0.13, linewidth=0)
            handles.append(Patch(facecolor=MUTED, alpha=0.25))
            names.append("warm-up")
        axes.plot(steps, values, color=BLUE, linewidth=2, drawstyle="steps-post", zorder=4)
        axes.plot(last, path[-1], "o", color=BLUE, markersize=6, clip_on=False, zorder=5)
        handles.append(Line2D([], [], color=BLUE, linewidth=2))
        names.append(f"any-time bound, {confidence(record.zeta)}")
        top = max(float(path.max()), 0.5)
        if claim:
            top = max(top, 1.15 * claim["epsilon"])
            axes.axhline(claim["epsilon"], color=ORANGE, linewidth=1.4, linestyle=(0, (4, 2)), zorder=3)
            handles.append(Line2D([], [], color=ORANGE, linewidth=1.4, linestyle=(0, (4, 2))))
            names.append(f"claim ε ≤ {at_most(claim['epsilon'])}")
        axes.set_xlim(0, last * 1.03)
        axes.set_ylim(0, top * 1.16)
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", nbins=8, integer=True)
        axes.annotate(
            f"ε ≥ {lower(float(path[-1]))}", (last, path[-1]), xytext=(-3, 6), textcoords="offset points", ha="right",
            va="bottom", fontsize=11, fontweight="bold", color=BLUE, zorder=6,
        )  # fmt: skip
        key(axes, handles, names, columnspacing=1.0)
    caption = "All points hold together: one may look after every run, stop, and go on."
    if claim:
        text = outcome(record)
        caption = f"{text[0].upper()}{text[1:]} {caption}"
    label = (
        f"The any-time bound rises from 0 after {warmup} warm-up runs to {lower(float(path[-1]))} after {last} runs."
    )
    return Drawing(name=name, title=title, caption=caption, label=label, figure=figure)


def method_figures(method: Method) -> list[Drawing | Missing]:
    """The four panels of a method, always in the same order, and the trajectory where one was asked for.

    A sequential audit has its path, and no guess budget.
    """
    third = budget_curve if method.record.sequential is None else anytime_path
    panels = [score_densities(method), roc_curve(method), third(method), evidence_bars(method)]
    on_the_way = trajectory_curve(method)
    return panels if on_the_way is None else [*panels, on_the_way]
