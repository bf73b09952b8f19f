"""The page's section on one method: verdict, figures, bounds, accuracy, notes."""

from collections.abc import Sequence
from html import escape

from jaxunlearn.records import BoundRecord
from jaxunlearn.report import words
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.load import Method, finite
from jaxunlearn.report.markup import maths, panel
from jaxunlearn.report.table import ABSENT, accuracy, clean, duration, lower, number

ACCURACIES = {
    "retain": "data that was kept",
    "forget": "batches that were unlearned",
    "unseen": "candidates the run never saw",
    "test": "test set",
}
STAGES = {"train": "training", "unlearn": "unlearning", "score": "scoring", "bound": "bounds"}


def method_section(index: int, method: Method, name: str, panels: Sequence[Drawing | Missing]) -> str:
    """The section of one method.

    Args:
        index: The method's number on the page; makes ids unique.
        method: What was loaded.
        name: Its heading.
        panels: Its figures.
    """
    record = method.record
    drawn = "\n".join(panel(p, f"m{index}-{p.name}") for p in panels if isinstance(p, Drawing))
    missing = "".join(f"<li>{escape(p.title)}: {escape(p.reason)}</li>" for p in panels if isinstance(p, Missing))
    notes = [*record.notes, *method.absent]
    return "\n".join(
        [
            f'<section class="method" aria-labelledby="method-{index}">',
            f'<header><h3 id="method-{index}">{escape(name)}</h3><span class="value">ε ≥ '
            f"{lower(record.epsilon)}</span></header>",
            f'<p class="small">{escape(_design(record))}</p>',
            f"<p>{maths(words.verdict(record))}</p>",
            *(f'<p class="{kind}">{maths(clean(text))}</p>' for kind, text in words.remarks(record)),
            f'<div class="panels">{drawn}</div>' if drawn else "",
            f'<h4>Not drawn</h4><ul class="notes small">{missing}</ul>' if missing else "",
            '<div class="columns">',
            _bounds(record),
            _measures(record),
            "</div>",
            f'<h4>Notes</h4><ul class="notes">{"".join(f"<li>{escape(clean(n))}</li>" for n in notes)}</ul>'
            if notes
            else "",
            "</section>",
        ]
    )


def _design(record: BoundRecord) -> str:
    plural = "s" if record.batch_size != 1 else ""
    parts = [
        f"Given by {clean(record.statistic)}",
        f"{record.calibration_runs} {'warm-up' if record.sequential else 'calibration'} and {record.evaluation_runs} "
        "evaluation runs",
        f"{record.m} candidate batches of {record.batch_size} example{plural}",
        f"{clean(record.predictor)} predictor",
        f"Definition {clean(record.definition)}",
        f"δ = {record.delta:g}",
        f"ζ = {record.zeta:g}",
    ]
    return " · ".join(parts)


def _bounds(record: BoundRecord) -> str:
    if not record.bounds:
        return "<div><h4>Bounds</h4><p class='small'>Only the headline was recorded.</p></div>"
    rows = []
    for bound in record.bounds:
        epsilon, ceiling = finite(bound.epsilon), finite(bound.ceiling)
        label = escape(clean(bound.label.replace("_", " ")))
        if bound.name in words.BOUNDS:
            label = f'<abbr title="{escape(words.BOUNDS[bound.name])}">{label}</abbr>'
        status = escape(clean(bound.status))
        meaning = escape(words.STATUS.get(bound.status, ""))
        css = " key" if bound.label == record.statistic and bound.status == "preregistered" else ""
        rows.append(
            f'<tr><th scope="row" class="text">{label}</th>'
            f'<td class="num{css}">{ABSENT if epsilon is None else "≥ " + lower(epsilon)}</td>'
            f"<td>{ABSENT if ceiling is None else number(ceiling)}</td><td>{bound.zeta:.3g}</td>"
            f'<td class="text"><span class="status {status}" title="{meaning}">{status}</span></td></tr>'
        )
    heads = '<th scope="col" class="text">bound</th>' + "".join(
        f'<th scope="col">{h}</th>' for h in ("ε", "ceiling", "ζ")
    )
    return (
        '<div><h4>Bounds</h4><div class="scroll" role="region" aria-label="Bounds" tabindex="0"><table><thead><tr>'
        f'{heads}<th scope="col" '
        f'class="text">status</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></div>'
    )


def _measures(record: BoundRecord) -> str:
    rows = []
    for name in [*ACCURACIES, *(k for k in record.accuracy if k not in ACCURACIES)]:
        mean, sd = accuracy(record, name)
        if mean is not None:
            spread = "" if sd is None else f"± {100 * sd:.1f}"
            rows.append(
                f'<tr><th scope="row" class="text">{escape(clean(name))}</th><td>{100 * mean:.1f}</td><td>{spread}</td>'
                f'<td class="text small">{ACCURACIES.get(name, "")}</td></tr>'
            )
    parts = ["<div><h4>Accuracy</h4>"]
    if rows:
        parts.append(
            '<div class="scroll" role="region" aria-label="Accuracy" tabindex="0"><table><thead><tr>'
            '<th scope="col" class="text">on</th><th scope="col">mean, %</th><th scope="col">sd over runs</th>'
            f'<th scope="col" class="text">what</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        )
    else:
        parts.append('<p class="small">No accuracies were recorded.</p>')
    stages = [(STAGES.get(k, clean(k)), finite(v)) for k, v in record.seconds.items()]
    times = ", ".join(f"{name} {duration(v)} s" for name, v in stages if v is not None)
    parts.append(f'<p class="small">Time, all runs together: {escape(times)}.</p></div>' if times else "</div>")
    return "".join(parts)
