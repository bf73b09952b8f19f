"""What the experiments share: run audits into a folder, collect one row a method, print them and write results.json."""

import argparse
import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxunlearn.cli import use_all_cores
from jaxunlearn.config import Audit, Methods, Training
from jaxunlearn.pipeline.diffusion.config import TextToImageRobustness
from jaxunlearn.pipeline.inpainting.config import Inpainting
from jaxunlearn.pipeline.privacy.config import Privacy
from jaxunlearn.pipeline.robustness.config import Robustness, Shadows
from jaxunlearn.pipeline.robustness.presets import PRESETS
from jaxunlearn.records import BoundRecord, read_json, write_json
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.sparsity import L1Sparse

Audits = Mapping[str, Audit]
Row = dict[str, Any]

LIMITS = "nats; every bound is rounded down, and holds with confidence 1 - zeta by itself"


def runs_folder() -> Path:
    """Where run directories go; the same command resumes and reuses them."""
    return Path(os.environ.get("JAXUNLEARN_RUNS", "runs")) / "experiments"


def run(name: str, config: Audit) -> list[BoundRecord]:
    """Runs or resumes one audit; its trained models are shared by all audits of the same ``population``."""
    from jaxunlearn.pipeline import audit

    folder = runs_folder() / name
    population = folder / "population" if config.population is None else runs_folder() / config.population
    folders = audit.run(dataclasses.replace(config, out=folder, population=population))
    return [BoundRecord.from_json(read_json(path / "bound.json")) for path in folders]


def down(value: float, digits: int = 2) -> float:
    """A lower bound, rounded down."""
    scale = 10**digits
    return int(value * scale + 1e-9) / scale


def row(label: str, record: BoundRecord) -> Row:
    """One method's line of a table."""
    return {
        "setting": label,
        "method": record.method,
        "epsilon": down(record.epsilon),
        "statistic": record.statistic,
        "ceiling": down(record.ceiling, 1),
        "paper_mean": down(record.paper_mean),
        "paper_median": down(record.paper_median),
        "proven": None if record.certificate is None else record.certificate["epsilon"],
        "m": record.m,
        "L": record.evaluation_runs,
        "runs": record.calibration_runs + record.evaluation_runs,
        "delta": record.delta,
        "accuracy": {name: round(value["mean"], 4) for name, value in record.accuracy.items()},
    }


def table(rows: list[Row], columns: Mapping[str, Callable[[Row], Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for one in rows:
        cells = [column(one) for column in columns.values()]
        lines.append("| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def percent(one: Row) -> str:
    """Retain / forget / unseen / test accuracy."""
    found = [one["accuracy"].get(name) for name in ("retain", "forget", "unseen", "test")]
    return " / ".join("–" if value is None else f"{100 * value:.1f}" for value in found)


COLUMNS: dict[str, Callable[[Row], Any]] = {
    "setting": lambda r: r["setting"],
    "method": lambda r: r["method"],
    "ε ≥": lambda r: r["epsilon"],
    "paper's bound": lambda r: r["paper_mean"],
    "proven ε ≤": lambda r: r["proven"],
    "ceiling": lambda r: r["ceiling"],
    "retain / forget / unseen / test, %": percent,
}


def main(
    file: str,
    small: Audits,
    paper: Audits,
    columns: Mapping[str, Callable[[Row], Any]] = COLUMNS,
    collect: Callable[[str, BoundRecord], list[Row]] = lambda label, record: [row(label, record)],
) -> None:
    """The command of an experiment: ``python experiments/NAME/run.py [--paper] [--only LABEL ...]``.

    Args:
        file: The caller's ``__file__``.
        small: Presets that were run here; results.json holds their rows.
        paper: The paper's settings, for an accelerator; their rows go to results-paper.json.
        columns: What is printed.
        collect: The rows of one audited method.
    """

    def rows_of(label: str, config: Audit) -> list[Row]:
        records = run(f"{Path(file).parent.name}/{label}", config)
        return [one for record in records for one in collect(label, record)]

    _command(file, small, paper, rows_of, columns, LIMITS)


def _command(
    file: str,
    small: Mapping[str, Any],
    paper: Mapping[str, Any],
    rows_of: Callable[[str, Any], list[Row]],
    columns: Mapping[str, Callable[[Row], Any]],
    unit: str,
) -> None:
    parser = argparse.ArgumentParser(description=f"Presets: {', '.join(small)}; with --paper: {', '.join(paper)}.")
    parser.add_argument("--paper", action="store_true", help="the paper's settings: one accelerator, hours")
    parser.add_argument("--only", nargs="+", default=None, help="some of the presets; nothing is written then")
    chosen = parser.parse_args()
    folder = Path(file).parent
    use_all_cores()
    rows, began = [], time.perf_counter()
    for label, config in (paper if chosen.paper else small).items():
        if chosen.only is None or label in chosen.only:
            rows += rows_of(label, config)
    print(table(rows, columns))
    if chosen.only is None:
        import jax

        facts = {
            "machine": f"{jax.device_count()} x {jax.devices()[0].device_kind}, {os.cpu_count()} cores, {platform.machine()}",
            "seconds": round(time.perf_counter() - began, 1),
            "unit": unit,
        }
        write_json(folder / ("results-paper.json" if chosen.paper else "results.json"), facts | {"rows": rows})
        print(f"\n{json.dumps(facts)}")


def paper_robustness(dataset: str) -> Robustness:
    """The paper's settings of a data set."""
    return PRESETS[dataset][1]


def small_robustness(
    paper: Robustness, *, model: str, training: Training, method_epochs: int, width: int | None = None
) -> Robustness:
    """The paper's study on a processor: a smaller model, two seeds with an original each, 30 images attacked.

    Args:
        paper: The paper's settings.
        model: Architecture.
        training: Of the originals and of retraining.
        method_epochs: Of fine-tuning and the methods that train on substitutes.
        width: Channels of a residual network's first stage.
    """
    descent = SGD(peak=0.01, schedule="constant", momentum=0.9)
    short: Any = {"epochs": method_epochs, "descent": descent}
    return dataclasses.replace(
        paper,
        model=model,
        width=width,
        seeds=2,
        shared_original=False,
        attacked=30,
        second_attack="none",
        augmentation="none",
        shadows=Shadows(models=0),
        curves=(),
        training=training,
        method=Methods(
            finetune=Finetune(**short),
            rl=RandomLabel(**short),
            influence=Influence(alpha=2.0, samples=256),  # at 20 it ruins models that fit less well than RUB's
            l1_sparse=L1Sparse(**short, alpha=1e-4),
            salun=SalUn(**short),
        ),
    )


def robustness_rows(name: str, label: str, config: Robustness | Inpainting | TextToImageRobustness) -> list[Row]:
    """Runs or resumes one study of robustness; a row for the original models and one for each method."""
    from jaxunlearn.pipeline import attacked
    from jaxunlearn.robustness import FILE, RobustnessRecord

    directory = attacked.run(dataclasses.replace(config, out=runs_folder() / name / label))
    rows = []
    for method in ("original", *config.methods):
        record = RobustnessRecord.from_json(read_json(directory / method / FILE))
        rows.append(_measured(label, record) | {"curves": record.curves})
    return rows


def privacy_rows(name: str, label: str, config: Privacy) -> list[Row]:
    """Runs or resumes one study of privacy; a row for each model around unlearning and for each method."""
    from jaxunlearn.pipeline.privacy import run as pipeline
    from jaxunlearn.privacy import FILE, PrivacyRecord

    directory = pipeline.run(dataclasses.replace(config, out=runs_folder() / name / label))
    rows = []
    for method in dict.fromkeys(("base", "target", *pipeline.method_names(config))):
        record = PrivacyRecord.from_json(read_json(directory / method / FILE))
        more = {
            "correlations": _overall(record.correlations),
            "cka": record.cka,
            "trace": record.trace,
            "curve": record.curve,
        }
        rows.append(_measured(label, record) | more)
    return rows


def _overall(correlations: Any) -> Any:
    """Correlations over all facts and within kinds, to four decimals; those of each kind stay in the run directory."""
    if isinstance(correlations, dict):
        return {key: _overall(value) for key, value in correlations.items() if key != "by_group"}
    if isinstance(correlations, (list, tuple)):
        return [_overall(value) for value in correlations]
    return round(correlations, 4) if isinstance(correlations, float) else correlations


def _measured(label: str, record: Any) -> Row:
    """The metrics of a record, under "METRIC CONDITION"."""
    found: Row = {"setting": label, "method": record.method, "forgotten": record.scenario, "seeds": record.seeds}
    for metric in record.metrics:
        for number, condition in enumerate(record.conditions):
            if metric.values[number]:
                scale = 100 if metric.percent else 1
                deviation = metric.sd(number)
                digits = 2 if metric.percent else 4
                found[f"{metric.name} {condition}"] = {
                    "mean": round(scale * (metric.mean(number) or 0.0), digits),
                    "sd": None if deviation is None else round(scale * deviation, digits),
                    "n": metric.count,
                }
    return found | {"seconds": record.seconds, "notes": record.notes}


def _cell(key: str, digits: int = 1) -> Callable[[Row], Any]:
    """Mean and sd of a metric under a condition."""

    def show(one: Row) -> str | None:
        found = one.get(key)
        if found is None:
            return None
        mean = f"{found['mean']:.{digits}f}"
        return mean if found["sd"] is None else f"{mean} ± {found['sd']:.{digits}f}"

    return show


def robustness_main(file: str, small: Mapping[str, Robustness], paper: Mapping[str, Robustness]) -> None:
    """The command of an experiment on robustness, with the options of ``main``."""
    name = Path(file).parent.name
    configs = [*small.values(), *paper.values()]
    conditions = list(dict.fromkeys(condition for config in configs for condition in config.conditions))

    columns: dict[str, Callable[[Row], Any]] = {"setting": lambda r: r["setting"], "method": lambda r: r["method"]}
    columns |= {"TA retain": _cell("ta_retain_classes clean"), "TA all": _cell("ta_all clean")}
    for condition in conditions:
        columns |= {
            f"{label}, {condition}": _cell(f"{key} {condition}")
            for label, key in (
                ("UA", "ua"),
                ("UA of unseen", "ua_control"),
                ("MIA", "mia"),
                ("its control", "mia_control"),
            )
        }
    _command(
        file, small, paper, lambda label, config: robustness_rows(name, label, config), columns, "percent, mean and sd"
    )


def inpainting_main(file: str, small: Mapping[str, Inpainting]) -> None:
    """The command of an experiment on images that are filled in, with the options of ``main``."""
    name = Path(file).parent.name
    conditions = list(dict.fromkeys(condition for config in small.values() for condition in config.conditions))
    columns: dict[str, Callable[[Row], Any]] = {"method": lambda r: r["method"], "attack": lambda r: r["condition"]}
    for group, ending in (("forgotten", ""), ("unseen", "_control"), ("retained", "_retain")):
        columns |= {f"L1, {group}": _cell(f"l1{ending}", 3), f"judged right, {group}": _cell(f"judged{ending}")}
        if ending != "_control":
            columns |= {f"FID, {group}": _cell(f"fid{ending}"), f"IS, {group}": _cell(f"is{ending}", 2)}

    def by_condition(one: Row) -> list[Row]:
        """A row a condition, of what was measured under it."""
        found = [
            {key.removesuffix(f" {condition}"): value for key, value in one.items() if key.endswith(f" {condition}")}
            for condition in conditions
        ]
        told = {key: one[key] for key in ("setting", "method", "forgotten", "seeds", "seconds", "notes")}
        return [told | {"condition": condition} | part for condition, part in zip(conditions, found) if part]

    def rows_of(label: str, config: Inpainting) -> list[Row]:
        return [part for one in robustness_rows(name, label, config) for part in by_condition(one)]

    unit = "L1: a share of the range of pixels; judged right: percent; mean and sd over seeds"
    _command(file, small, {}, rows_of, columns, unit)


def diffusion_main(file: str, small: Mapping[str, TextToImageRobustness]) -> None:
    """The command of an experiment on prompts, with the options of ``main``."""
    name = Path(file).parent.name
    conditions = list(dict.fromkeys(c for config in small.values() for c in config.conditions))
    columns: dict[str, Callable[[Row], Any]] = {"setting": lambda r: r["setting"], "method": lambda r: r["method"]}
    columns |= {"retained": _cell("retained clean"), "FID retain": _cell("fid_retain clean")}
    columns |= {f"ASR, {condition}": _cell(f"asr {condition}") for condition in conditions}
    columns |= {f"steps, {condition}": _cell(f"steps {condition}") for condition in conditions[1:]}
    _command(
        file, small, {}, lambda label, config: robustness_rows(name, label, config), columns, "percent, mean and sd"
    )


def privacy_main(file: str, small: Mapping[str, Privacy], paper: Mapping[str, Privacy]) -> None:
    """The command of an experiment on language models, with the options of ``main``."""
    name = Path(file).parent.name
    conditions = list(dict.fromkeys(c for config in (*small.values(), *paper.values()) for c in config.conditions))
    columns: dict[str, Callable[[Row], Any]] = {"setting": lambda r: r["setting"], "method": lambda r: r["method"]}
    for condition in conditions:
        columns |= {f"{condition}, {part}": _cell(f"{part} {condition}") for part in ("known", "unknown")}
    columns |= {"retained": _cell("retained P1"), "QA": _cell("rouge P1"), "text nll": _cell("text_nll P1")}
    _command(
        file, small, paper, lambda label, config: privacy_rows(name, label, config), columns, "percent, mean and sd"
    )
