"""The panel of a method's bounds on the way, as if it had stopped after each of the chosen steps."""

import numpy as np

from jaxunlearn.report.canvas import BLUE, MUTED, Drawing, key, panel, style
from jaxunlearn.report.load import Method
from jaxunlearn.report.table import lower

MANY = 30
"""A range of steps wider than this factor is drawn on a logarithmic axis."""


def trajectory_curve(method: Method) -> Drawing | None:
    """Epsilon against the step of unlearning; None when no steps on the way were asked for."""
    path = method.record.trajectory
    steps = np.asarray(path.get("step", []), np.float64)
    if steps.size < 2 or any(len(path.get(name, [])) != steps.size for name in ("epsilon", "paper_mean")):
        return None
    curves = {name: np.asarray(path[name], np.float64) for name in ("epsilon", "paper_mean")}
    with style():
        figure, axes = panel("steps of unlearning", "ε, lower bound (nats)")
        handles = axes.plot(steps, curves["epsilon"], color=BLUE, linewidth=1.8, marker="o", markersize=4.5)
        handles += axes.plot(steps, curves["paper_mean"], color=MUTED, linewidth=1.4, linestyle=(0, (4, 2)))
        if steps[-1] > MANY * max(steps[0], 1.0):
            axes.set_xscale("symlog", linthresh=1.0)
            decades = 10.0 ** np.arange(0, np.log10(steps[-1]) + 1e-9)
            axes.set_xticks([0.0, *decades] if steps[0] < 1 else decades)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.minorticks_off()
        axes.set_ylim(0, max(*curves["epsilon"], *curves["paper_mean"], 0.5) * 1.16)
        axes.locator_params(axis="y", nbins=5)
        key(axes, handles, ["largest preregistered bound", "paper’s bound"])
    caption = (
        f"As if the method had stopped there; {steps.size} points share ζ, so that all of the solid curve holds at once. "
        "The same runs at every point. The headline above is the end at the full ζ."
    )
    label = (
        f"Bounds on epsilon after {steps[0]:g} to {steps[-1]:g} steps: first {lower(curves['epsilon'][0])}, last "
        f"{lower(curves['epsilon'][-1])}."
    )
    return Drawing(name="trajectory", title="Bounds on the way", caption=caption, label=label, figure=figure)
