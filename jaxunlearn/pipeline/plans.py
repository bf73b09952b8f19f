"""Which execution plan each stage of an audit takes: fixed, as the run directory was begun, remembered, or measured."""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jaxunlearn import _cache, records
from jaxunlearn import config as configuration
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine import store
from jaxunlearn.engine.plan import Measured, Plan
from jaxunlearn.engine.population import PhaseRunner
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline.task import TRAINING, Task, build, forms_of, make_unlearner
from jaxunlearn.types import Phase, Start, Unlearner

FILE = "plan.json"
"""Beside the results that were computed with it; whoever goes on with them takes it again, to get the same bits."""

PhasesOf = Callable[[str], Sequence[Phase]]
"""The phases of a stage, with the model's layers in the given form."""


def runners(
    task: Task,
    label: str,
    folder: AnyPath,
    phases_of: PhasesOf,
    *,
    first: int,
    identity: Any = None,
    with_initial: bool = False,
) -> list[PhaseRunner]:
    """The phases of a stage, ready to run.

    Args:
        task: The audit's task.
        label: The stage, for messages.
        folder: Where its results go; the plan is kept there.
        phases_of: Makes the phases.
        first: Number of the first phase.
        identity: What else the phases depend on; with model, data and devices it is what a plan is remembered by.
        with_initial: See ``Unlearner``.
    """
    group, stage = task.group, f"plan of {label}"
    group.follow(stage)
    found, made = _read(folder / FILE, task), {}
    if task.config.fixed_plan[0] is not None:
        plan = task.engine.plan
    elif found is not None:
        plan = found
    elif not group.first:
        raise InputError(f"Expected the plan of process 0 in {folder / FILE}; give the same commands again.")
    else:
        plan, made = _remember_or_measure(task, label, phases_of, with_initial, first=first, identity=identity)
    if found is None and group.first:
        with store.disk_errors(folder):
            records.write_json(folder / FILE, {"width": plan.width, "form": plan.form})
    group.announce(stage)
    return made.get(plan) or _make(task, phases_of, plan, first)


def _remember_or_measure(
    task: Task, label: str, phases_of: PhasesOf, with_initial: bool, *, first: int, identity: Any
) -> tuple[Plan, dict[Plan, list[PhaseRunner]]]:
    """The plan, and the phases that were compiled by plan."""
    known = _Remembered(task, label, identity)
    remembered = known.read() if task.config.plan == "auto" else None
    if remembered is not None:
        _say(task, label, f"{remembered}, as measured before")
        return remembered, {}
    plan, rows, why, made = measure(task, phases_of, with_initial, first=first, always=task.config.plan == "measure")
    if len(rows) > 1:
        known.write(plan, why)
    if len(rows) > 1 or first == 0:
        _say(task, label, f"{plan}: {why}")
    return plan, made


def _say(task: Task, label: str, text: str) -> None:
    if not task.config.quiet:
        print(f"{label:<22} plan: {text}", file=sys.stderr)


def _make(task: Task, phases_of: PhasesOf, plan: Plan, first: int) -> list[PhaseRunner]:
    phases = phases_of(plan.form)
    return [task.engine.phase_runner(phase, first + k, width=plan.width) for k, phase in enumerate(phases)]


def measure(
    task: Task, phases_of: PhasesOf, with_initial: bool, *, first: int, always: bool
) -> tuple[Plan, list[Measured], str, dict[Plan, list[PhaseRunner]]]:
    """Measures the plans of a stage on the audit's first chunk.

    Returns:
        The plan, what was measured, why it was picked, and the compiled phases by plan.
    """
    rows = task.chunks[0]
    runs, initial = task.chunk(rows, stage=TRAINING), task.initial(rows)
    made: dict[Plan, list[PhaseRunner]] = {}

    def measure_plan(plan: Plan) -> Measured:
        made[plan] = _make(task, phases_of, plan, first)
        params, seconds = Start(initial, initial) if with_initial else initial, 0.0
        for runner in made[plan]:
            each, params = runner.measure(runs, params)
            if each == float("inf"):
                seconds = each
                break  # what it would hand on is not there
            seconds += each * runner.total
        return Measured(
            plan=plan,
            seconds=seconds / max(1, sum(runner.total for runner in made[plan])),
            bytes=max((runner.bytes for runner in made[plan]), default=0),
            compile_seconds=sum(runner.compile_seconds for runner in made[plan]),
        )

    steps = sum(total_steps(phase, task.engine.sizes) for phase in phases_of(task.engine.plan.form))
    plans = planning.candidates(task.engine.mesh, task.engine.plan, _forms(task))
    plan, measured, why = planning.pick(
        plans,
        measure_plan,
        steps=steps * len(task.runs) // task.group.count,
        limit=task.engine.memory or float("inf"),
        always=always,
    )
    return plan, measured, why, made


def show(config: configuration.Audit) -> str:
    """Measures the plans of training and of every method, as a table; nothing is trained, and nothing written.

    Args:
        config: The audit.
    """
    task = build(config)
    lines = [("stage", "plan", "a run-step", "on a device", "compiling", "")]
    for label, first, made_of in _stages(task):
        with_initial = made_of(task.engine.plan.form).with_initial
        plan, rows, _, _ = measure(
            task, lambda form, made_of=made_of: made_of(form).phases, with_initial, first=first, always=True
        )
        for row in rows:
            fits = row.seconds < float("inf")
            lines.append(
                (
                    label if row is rows[0] else "",
                    str(row.plan),
                    planning.show_time(row.seconds) if fits else "does not fit",
                    planning.show_size(row.bytes),
                    f"{row.compile_seconds:.1f} s",
                    "taken" if row.plan == plan else "",
                )
            )
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


def _stages(task: Task) -> Iterator[tuple[str, int, Callable[[str], Unlearner]]]:
    yield "train", 0, lambda form: Unlearner((task.info_in(form).train_phase("train"),))
    for name in task.config.methods:
        factory, _ = configuration.resolve(task.config, name)
        yield name, 1, lambda form, name=name, factory=factory: make_unlearner(task.info_in(form), name, factory)


def _forms(task: Task) -> tuple[str, ...]:
    return forms_of(task.config.model, task.engine.mesh.devices.flat[0].platform, task.config.precision)


def _read(path: AnyPath, task: Task) -> Plan | None:
    """The plan that results were begun with, if these devices can take it."""
    mesh, plan = task.engine.mesh, task.engine.plan
    try:
        found = records.read_json(path)
        width, form = int(found["width"]), str(found["form"])
    except (InputError, KeyError, TypeError, ValueError):
        return None
    if width < 1 or form not in _forms(task):
        return None  # begun on another kind of device
    share = -(-plan.runs_per_chunk // mesh.shape[planning.AXIS])
    return dataclasses.replace(plan, width=min(width, share), form=form)


class _Remembered:
    """The plan of a stage in the cache folder, by everything that its speed depends on."""

    def __init__(self, task: Task, label: str, identity: Any):
        mesh, config = task.engine.mesh, task.config
        self._path = _cache.cache_dir() / "plans.json"
        self._terms = {
            "stage": label,
            "identity": records.as_json(identity),
            "training": records.as_json(config.training),
            "model": config.model,
            "text": records.as_json(config.text) if config.model == "lstm" else None,
            **({"decoder": records.as_json(config.decoder)} if config.model == "decoder" else {}),
            "precision": config.precision,
            "examples": [list(task.data.x.shape), task.data.retain, task.data.outputs],
            "device": mesh.devices.flat[0].device_kind,
            "processor": _cache.processor() if planning.is_cpu(mesh) else None,
            "mesh": list(mesh.devices.shape),
            "runs_per_chunk": task.engine.plan.runs_per_chunk,
            "jax": jax.__version__,
        }
        text = json.dumps(self._terms, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._first = task.engine.plan

    def _all(self) -> dict[str, Any]:
        try:
            found = records.read_json(self._path)
        except (InputError, OSError):
            return {}
        return found if isinstance(found, dict) else {}

    def read(self) -> Plan | None:
        entry = self._all().get(self._key)
        return dataclasses.replace(self._first, width=entry["width"], form=entry["form"]) if entry else None

    def write(self, plan: Plan, why: str) -> None:
        entry = {"width": plan.width, "form": plan.form, "why": why, "for": self._terms}
        try:
            records.write_json(self._path, self._all() | {self._key: entry})
        except OSError:  # a home that cannot be written: the next audit measures again
            return
