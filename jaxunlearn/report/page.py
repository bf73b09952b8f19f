"""One self-contained HTML page: finding, overview, table, how to read it, every method, provenance."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from jaxunlearn._version import __version__
from jaxunlearn.records import BoundRecord, write_bytes
from jaxunlearn.report import words
from jaxunlearn.report.canvas import Drawing, Missing
from jaxunlearn.report.figures import method_figures, overview
from jaxunlearn.report.load import Method, RunDirectory, finite, flatten, load_directory
from jaxunlearn.report.style import CSS
from jaxunlearn.report.table import ABSENT, cells, clean, columns, duration, labels, lower, number, settings

ACCURACIES = {
    "retain": "data that was kept",
    "forget": "batches that were unlearned",
    "unseen": "candidates the run never saw",
    "test": "test set",
}
STAGES = {"train": "training", "unlearn": "unlearning", "score": "scoring", "bound": "bounds"}


def write_page(directories: Sequence[Path], path: Path) -> Path:
    """Writes the page for one or more run directories.

    Args:
        directories: Run directories, in the order to be shown.
        path: The HTML file.

    Returns:
        ``path``.

    Raises:
        InputError: A directory is missing or holds no readable bound.json.
    """
    runs = [load_directory(Path(d)) for d in directories]
    methods = [m for run in runs for m in run.methods]
    records = [m.record for m in methods]
    wide, narrow = overview(records), overview(records, narrow=True)
    return write_html(runs, [method_figures(m) for m in methods], (wide, narrow), path)


def write_html(
    runs: Sequence[RunDirectory],
    figures: Sequence[Sequence[Drawing | Missing]],
    overviews: tuple[Drawing, Drawing],
    path: Path,
) -> Path:
    """Writes the page from what is already loaded and drawn.

    Args:
        runs: Run directories.
        figures: The panels of every method, in the order of the runs and their methods.
        overviews: The overview for wide and for narrow screens.
        path: The HTML file.
    """
    methods = [m for run in runs for m in run.methods]
    records = [m.record for m in methods]
    names = labels(records)
    title = _title(runs)
    sections = [_method(i, m, name, panels) for i, (m, name, panels) in enumerate(zip(methods, names, figures))]
    body = "\n".join(
        [
            _head(title, runs, records),
            _overview(*overviews),
            _results(records),
            _guide(records),
            '<section aria-labelledby="methods"><h2 id="methods">Method by method</h2>',
            *sections,
            "</section>",
            _provenance(runs),
        ]
    )
    html = (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    write_bytes(Path(path), html.encode())
    return Path(path)


def _title(runs: Sequence[RunDirectory]) -> str:
    titles = [clean(run.manifest.get("title") or run.methods[0].record.title or run.path.name) for run in runs]
    return "Unlearning audit: " + "; ".join(dict.fromkeys(titles))


def _head(title: str, runs: Sequence[RunDirectory], records: Sequence[BoundRecord]) -> str:
    parts = [clean(clause) for clause, _, _ in settings(records)]
    created = [clean(str(run.manifest["created"])) for run in runs if run.manifest.get("created")]
    meta = [parts[0] if len(parts) == 1 else "", f"Audited {created[0]}" if created else ""]
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="finding">{_maths(words.finding(records))}</p>\n'
        f'<p class="lead">{_maths(words.lead(records))}</p>\n'
        f'<p class="meta">{escape(". ".join(m for m in meta if m))}</p>\n</header>'
    )


def _maths(text: str) -> str:
    """Escapes, keeps "ε ≥ 3.1" on one line, and sets "10^13" with a superscript."""
    text = escape(text)
    for sign in ("≥", "≤", "="):
        text = text.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    head, caret, tail = text.partition("10^")
    if caret:
        digits = tail.split(" ", 1)
        text = f"{head}10<sup>{digits[0]}</sup> {digits[1] if len(digits) > 1 else ''}"
    return text


def _overview(wide: Drawing, narrow: Drawing) -> str:
    return (
        f'<figure class="overview">\n<figcaption><strong>{escape(wide.title)}</strong>{escape(wide.caption)}</figcaption>\n'
        f'<div class="wide">{wide.svg("overview-wide")}</div>\n<div class="narrow">{narrow.svg("overview-narrow")}</div>\n</figure>'
    )


def _results(records: Sequence[BoundRecord]) -> str:
    used = columns(records)
    kinds = {"method": "text", "given by": "text", "ε": "key", "proven": "proven"}
    heads = []
    for c in used:
        css = "text" if kinds.get(c.head) == "text" else ""
        heads.append(f'<th scope="col" class="{css}"><abbr title="{escape(c.meaning)}">{escape(c.name)}</abbr></th>')
    rows = []
    for i, row in enumerate(cells(records)):
        first = f'<th scope="row" class="text"><a href="#method-{i}">{escape(row[0])}</a></th>'
        rest = []
        for c, text in zip(used[1:], row[1:]):
            css = kinds.get(c.head, "") if text != ABSENT else ""
            rest.append(f'<td class="{css}">{escape(text)}</td>')
        rows.append(f"<tr>{first}{''.join(rest)}</tr>")
    meanings = "".join(f"<dt>{escape(c.name)}</dt><dd>{escape(c.meaning)}</dd>" for c in used)
    groups = settings(records)
    notes = [clause if len(groups) == 1 else f"{', '.join(who)}: {clause}" for clause, who, _ in groups]
    return (
        '<section aria-labelledby="results"><h2 id="results">Results</h2>\n'
        '<div class="scroll" role="region" aria-labelledby="results" tabindex="0">\n<table class="results">\n'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>{''.join(rows)}</tbody>\n</table>\n</div>\n"
        + "".join(f'<p class="small">{escape(n)}.</p>\n' for n in notes)
        + f'<details><summary>What the columns mean</summary><dl class="pairs">{meanings}</dl></details>\n</section>'
    )


def _guide(records: Sequence[BoundRecord]) -> str:
    level = " or ".join(sorted({words.confidence(r.zeta) for r in records}))
    error = " or ".join(f"{100 * z:g}%" for z in sorted({r.zeta for r in records}))
    several = len(records) > 1
    texts = [
        (
            f"ε ≥ x, with confidence {level}",
            "Unlearning is (ε, δ)-certified if there is one reference, made without the data, from which the unlearned model cannot "
            "be told apart better than a factor e^ε in probability, up to δ. Data were put in at random, trained on and unlearned; "
            "an attack then guessed from the model what had been in. If the true ε were below x, guesses this good would come about "
            f"with a probability of at most ζ = {error}.",
        ),
        (
            "The ceiling",
            "A finite number of batches and runs can only prove so much, even with a perfect attack. The ceiling is the most that the "
            "bound could have shown here. A bound at its ceiling says that the test, not the method, set the limit.",
        ),
        (
            "ε ≥ 0 does not prove unlearning",
            "It says that this attack, with these runs, proved nothing. A better attack, or more runs, can only be tried. Lower bounds "
            "rule methods out; only a proof, the green mark, can vouch for one.",
        ),
        (
            "Definitions 3.3 and 3.2",
            "All runs may share initial weights and shuffling order, known to the auditor: Definition 3.3 in the audit paper. If "
            "they are drawn afresh in each run and hidden from the attack, Definition 3.2 is audited, the usual one. A guarantee published for 3.2 is "
            "contradicted by a bound for 3.3 only if it is conditional on initial weights and order.",
        ),
        (
            "One headline, several bounds",
            "The headline is the largest of the preregistered bounds; they share ζ, so this choice is paid for. Reference bounds are the audit "
            "paper’s own. Exploratory ones were chosen after looking and guarantee nothing.",
        ),
    ]
    if several:
        texts.append(
            (
                "Each method by itself",
                f"The confidence of {level} is for one method at a time, not for all {len(records)} at once: to claim all together, "
                f"divide ζ by {len(records)}.",
            )
        )
    blocks = "".join(f"<div><h3>{_maths(h)}</h3><p>{_power(t)}</p></div>" for h, t in texts)
    return f'<section aria-labelledby="guide"><h2 id="guide">How to read this</h2>\n<div class="guide">{blocks}</div></section>'


def _power(text: str) -> str:
    return escape(text).replace("e^ε", "e<sup>ε</sup>")


def _method(index: int, method: Method, name: str, panels: Sequence[Drawing | Missing]) -> str:
    record = method.record
    remarks = words.remarks(record)
    drawn = "\n".join(_panel(p, f"m{index}-{p.name}") for p in panels)
    notes = [*record.notes, *method.absent]
    return "\n".join(
        [
            f'<section class="method" aria-labelledby="method-{index}">',
            f'<header><h3 id="method-{index}">{escape(name)}</h3><span class="value">ε ≥ {lower(record.epsilon)}</span></header>',
            f'<p class="small">{escape(_design(record))}</p>',
            f"<p>{_maths(words.verdict(record))}</p>",
            *(f'<p class="warn">{_maths(clean(text))}</p>' for text in remarks),
            f'<div class="panels">{drawn}</div>',
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
        f"{record.calibration_runs} calibration and {record.evaluation_runs} evaluation runs",
        f"{record.m} candidate batches of {record.batch_size} example{plural}",
        f"{clean(record.predictor)} predictor",
        f"Definition {clean(str(record.definition))}",
        f"δ = {record.delta:g}",
        f"ζ = {record.zeta:g}",
    ]
    return " · ".join(parts)


def _panel(panel: Drawing | Missing, prefix: str) -> str:
    if isinstance(panel, Missing):
        return f'<figure class="missing"><figcaption><strong>{escape(panel.title)}</strong></figcaption><p>{escape(panel.reason)}</p></figure>'
    caption = f"<figcaption><strong>{escape(panel.title)}</strong>{escape(panel.caption)}</figcaption>"
    return f"<figure>{caption}\n{panel.svg(prefix)}</figure>"


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
        f'{heads}<th scope="col" class="text">status</th></tr></thead><tbody>{"".join(rows)}</tbody></table></div></div>'
    )


def _measures(record: BoundRecord) -> str:
    rows = []
    for name in [*ACCURACIES, *(k for k in record.accuracy if k not in ACCURACIES)]:
        entry = record.accuracy.get(name) or {}
        mean, sd = finite(entry.get("mean")), finite(entry.get("sd"))
        if mean is not None:
            spread = "" if sd is None else f"± {100 * sd:.1f}"
            rows.append(
                f'<tr><th scope="row" class="text">{escape(clean(name))}</th><td>{100 * mean:.1f}</td><td>{spread}</td>'
                f'<td class="text small">{ACCURACIES.get(name, "")}</td></tr>'
            )
    parts = ["<div><h4>Accuracy</h4>"]
    if rows:
        parts.append(
            '<table><thead><tr><th scope="col" class="text">on</th><th scope="col">mean, %</th><th scope="col">sd over runs</th>'
            f'<th scope="col" class="text">what</th></tr></thead><tbody>{"".join(rows)}</tbody></table>'
        )
    else:
        parts.append('<p class="small">No accuracies were recorded.</p>')
    stages = [(STAGES.get(k, clean(k)), finite(v)) for k, v in record.seconds.items()]
    times = ", ".join(f"{name} {duration(v)} s" for name, v in stages if v is not None)
    parts.append(f'<p class="small">Time, all runs together: {escape(times)}.</p></div>' if times else "</div>")
    return "".join(parts)


def _provenance(runs: Sequence[RunDirectory]) -> str:
    blocks = []
    for run in runs:
        manifest = run.manifest
        name = clean(manifest.get("title") or run.path.name)
        facts: list[tuple[str, Any]] = [("directory", run.path.name)]
        counts = manifest.get("runs")
        if isinstance(counts, dict):
            facts.append(("runs", ", ".join(f"{v} {k}" for k, v in counts.items())))
        facts += [
            (k.replace("_", " "), manifest[k])
            for k in ("created", "device", "wall_seconds")
            if manifest.get(k) is not None
        ]
        population = manifest.get("population")
        if isinstance(population, dict):
            facts.append(("population", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in population.items())))
        versions = manifest.get("versions")
        if isinstance(versions, dict):
            facts.append(("versions", ", ".join(f"{k} {v}" for k, v in versions.items())))
        facts.append(("files", f"manifest.json, signs.npz, {', '.join(m.directory.name for m in run.methods)}"))
        facts.append(("in each method", "bound.json, scores.npz, evaluation.npz, figures/"))
        blocks.append(f"<h3>{escape(name)}</h3>{_pairs([(k, clean(str(v))) for k, v in facts])}")
        for key, heading in (("preregistration", "Preregistration"), ("config", "Configuration")):
            if manifest.get(key):
                blocks.append(f"<details><summary>{heading}</summary>{_pairs(flatten(manifest[key]))}</details>")
        gone = [k for k in ("config", "versions", "device", "preregistration") if not manifest.get(k)]
        absent = [*run.absent, *([f"Not recorded: {', '.join(gone)}."] if gone and not run.absent else [])]
        blocks += [f'<p class="small">{escape(clean(text))}</p>' for text in absent]
    return (
        f'<section aria-labelledby="provenance"><h2 id="provenance">Provenance</h2>\n{"".join(blocks)}\n'
        f'<p class="meta">Written by jaxunlearn {escape(__version__)}.</p></section>'
    )


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return (
        '<dl class="pairs">'
        + "".join(f"<dt>{escape(clean(k))}</dt><dd>{escape(clean(v))}</dd>" for k, v in pairs)
        + "</dl>"
    )
