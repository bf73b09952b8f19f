"""PrivUn's Figure 1: what comes back against the share of the forget set that the method was shown, over several runs."""

import json
import re
from collections.abc import Sequence
from typing import Any

from jaxunlearn.privacy import DIRECT
from jaxunlearn.report.canvas import BLUE, GREEN, MUTED, ORANGE, PAPER, Drawing, key, panel, style
from jaxunlearn.report.load import finite
from jaxunlearn.report.measured import REFERENCE, find, mean
from jaxunlearn.report.privacy.load import AROUND, PrivacyDirectory
from jaxunlearn.report.privacy.table import KNOWN, UNKNOWN, last_tuned
from jaxunlearn.report.table import clean

VARIED = ("known", "selection")
SELECTIONS = ("random", "core-set")


def comparable(runs: Sequence[PrivacyDirectory]) -> list[list[PrivacyDirectory]]:
    """Runs whose settings differ in nothing but the share that is known and how it is chosen, two or more together."""
    groups: dict[str, list[PrivacyDirectory]] = {}
    for run in runs:
        if finite(run.config.get("known")) is not None:
            rest = {name: value for name, value in run.config.items() if name not in VARIED}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    varied = [[tuple(run.config.get(name) for name in VARIED) for run in group] for group in groups.values()]
    return [group for group, values in zip(groups.values(), varied) if len(set(values)) > 1]


def by_share(runs: Sequence[PrivacyDirectory]) -> list[Drawing]:
    """A panel for each method that two or more of the runs have: P1 and P3 against the share that is known.

    Args:
        runs: As ``comparable`` gives them.
    """
    methods = dict.fromkeys(r.method for run in runs for r in run.records if r.method not in AROUND)
    found = [_panel(runs, method) for method in methods]
    return [drawing for drawing in found if drawing is not None]


def _points(
    runs: Sequence[PrivacyDirectory], method: str, selection: str, name: str, condition: str
) -> list[tuple[float, float]]:
    """(share that is known, share that is said), both in per cent, by growing share."""
    points = []
    for run in runs:
        record = find(run.records, method)
        value = None if record is None else mean(record, name, condition)
        if value is not None and run.config.get("selection", "random") == selection:
            points.append((100 * float(run.config["known"]), 100 * value))
    return sorted(points)


def _panel(runs: Sequence[PrivacyDirectory], method: str) -> Drawing | None:
    tuned = last_tuned([record for run in runs for record in run.records])
    lines = {
        (condition, name, selection): points
        for condition in (DIRECT, tuned)
        if condition
        for selection in SELECTIONS
        for name in (KNOWN, UNKNOWN)
        if (points := _points(runs, method, selection, name, condition))
    }
    if len({x for points in lines.values() for x, _ in points}) < 2 and len({s for _, _, s in lines}) < 2:
        return None
    with style():
        figure, axes = panel("share of the forget set that is known, %", "private data that are said, %")
        from matplotlib.lines import Line2D

        for (condition, name, selection), points in lines.items():
            colour = BLUE if condition == DIRECT else ORANGE
            look: dict[str, Any] = {
                "linewidth": 1.6,
                "marker": "o" if selection == "random" else "D",
                "markersize": 5.5,
            }
            look["linestyle"] = "-" if selection == "random" else (0, (4, 2))
            inside = colour if name == KNOWN else PAPER
            axes.plot(*zip(*points), color=colour, markerfacecolor=inside, clip_on=False, zorder=4, **look)
        mark = [
            100 * v
            for run in runs
            if (r := find(run.records, REFERENCE)) and tuned and (v := mean(r, UNKNOWN, tuned)) is not None
        ]
        if mark:
            axes.axhline(sum(mark) / len(mark), color=GREEN, linewidth=1.4, linestyle=(0, (1, 1.5)))
        axes.set(ylim=(-2, 104), xlim=(0, 102))
        axes.set_yticks(range(0, 101, 25))
        used = [s for s in SELECTIONS if any(key[2] == s for key in lines)]
        handles = [Line2D([], [], color=BLUE, linewidth=1.6), Line2D([], [], color=ORANGE, linewidth=1.6)]
        labels = ["P1", "P3"]
        for selection in used:
            dash, marker = ("-", "o") if selection == "random" else ((0, (4, 2)), "D")
            handles.append(Line2D([], [], color=MUTED, linestyle=dash, marker=marker, markersize=5, linewidth=1.4))
            labels.append(selection)
        if mark:
            handles.append(Line2D([], [], color=GREEN, linewidth=1.4, linestyle=(0, (1, 1.5))))
            labels.append(f"{REFERENCE}, P3")
        key(axes, handles, labels, fontsize=10, columnspacing=1.0)
    spoken = "; ".join(
        f"{c} {n} {s}: {', '.join(f'{y:.1f}% at {x:g}%' for x, y in p)}" for (c, n, s), p in lines.items()
    )
    return Drawing(
        name="share-" + re.sub(r"[^\w.-]", "-", method),
        title=clean(method),
        caption=f"Filled: the known part; hollow: the unknown one. Means over seeds; {clean(tuned or DIRECT)}.",
        label=f"Recovery against the known share for {clean(method)}: {spoken}.",
        figure=figure,
    )
