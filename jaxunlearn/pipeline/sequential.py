"""``jaxunlearn audit`` with a claim or ``--sequential``: train, unlearn, score and test chunk by chunk, and stop.

The run directory is that of the audit with a fixed number of runs, but chunks of scores are kept: a larger
claim, or more runs, go on where the audit ended, with the same results to the bit as if it had been asked at once.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.engine.train import total_steps
from jaxunlearn.pipeline import audit, finished
from jaxunlearn.pipeline.anytime import AnytimeTest, check_reachable
from jaxunlearn.pipeline.population import PopulationTrainer, models_store
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.task import Task
from jaxunlearn.records import EVALUATION, BoundRecord
from jaxunlearn.types import Unlearner

NOTE = (
    "Sequential: the attack on every evaluation run was fitted on the runs before it, so that the bound holds at every "
    "number of runs at once, and whatever claims are tested."
)


def run(
    task: Task,
    methods: dict[str, tuple[Callable, dict[str, Any]]],
    unlearners: dict[str, Unlearner],
    plan: Preregistration,
    began: float,
) -> list[AnyPath]:
    """Runs or resumes a sequential audit; every method is tested, and stops, by itself.

    Args:
        task: The task; its run table is in the order of time.
        methods: Name -> (factory, what its results depend on).
        unlearners: Name -> the algorithm.
        plan: What is preregistered.
        began: When the audit began, by ``time.perf_counter``.

    Returns:
        The methods' folders.

    Raises:
        InputError: The claim is beyond the design, or the directory holds another audit.
    """
    config = task.config
    check_reachable(plan)
    drawn = task.runs.signs[: config.most_runs][task.runs.roles[: config.most_runs] == EVALUATION]
    validity.check_evaluation_signs(drawn)
    manifest = audit.open_run(task, plan)
    folders, most = [], 0
    with PopulationTrainer(task, {u.rewind for u in unlearners.values()}) as trainer:
        notes = [NOTE, *audit.other_looks(config, plan)]
        for name, (_, identity) in methods.items():
            folder = audit.open_method(config.directory, name, identity)
            folders.append(folder)
            models = models_store(task, folder, identity)
            record = _finished(folder, plan)
            if record is None or not audit.models_kept(task, models, record.calibration_runs + record.evaluation_runs):
                with models.writer if models is not None else contextlib.nullcontext():
                    record = _follow(task, name, unlearners[name], trainer, plan, folder, notes, models)
                with store.disk_errors(folder):
                    records.write_json(folder / "bound.json", record.to_json())
            most = max(most, record.calibration_runs + record.evaluation_runs)
        if config.keep == "none":
            trainer.population.clear()
    runs = {"calibration": config.warmup, "evaluation": most - config.warmup}
    audit.close_run(task, manifest, runs=runs, population=trainer.facts(), began=began)
    return folders


def _finished(folder: AnyPath, plan: Preregistration) -> BoundRecord | None:
    """The stored record, if it is whole and answers what is asked now: this claim, falsified or tested on as many runs."""
    if not (folder / "bound.json").exists():
        return None
    try:
        record = finished.read_record(folder / "bound.json")
        records.read_npz(folder / "evaluation.npz", sealed=True)
        records.ScoreRecord.load(folder / "scores.npz")
    except InputError as error:
        store.notice(f"{str(error).rstrip('.')}: computed again from the chunks of scores.")
        return None
    found = record.sequential or {}
    claim = found.get("claim")
    same = (None if claim is None else claim["epsilon"]) == plan.claim_epsilon
    return record if same and found.get("most_runs") == (plan.warmup or 0) + plan.L else None


def _follow(
    task: Task,
    name: str,
    unlearner: Unlearner,
    trainer: PopulationTrainer,
    plan: Preregistration,
    folder: AnyPath,
    notes: list[str],
    models: store.ParamsStore | None,
) -> BoundRecord:
    """Goes through the runs in the order of time until the claim is falsified or the last run is done."""
    config, table = task.config, task.runs
    test = AnytimeTest(plan, variance=config.fit_variance)
    parts: list[dict[str, np.ndarray]] = []
    runs = 0
    for part in _chunks(task, name, unlearner, trainer, folder, models):
        parts.append(part)
        for scores, failed in zip(part["scores"], part["failed"]):
            if test.falsified or runs == config.most_runs:
                break  # the chunk's other runs are there already, and are not looked at
            if table.roles[runs] == EVALUATION:
                test.attack(scores, table.signs[runs], failed=bool(failed))
            else:
                test.teach(scores, table.signs[runs])
            runs += 1
        if test.falsified:
            break
    found, seconds = audit.collect(task, parts, runs)
    lost = int(found.failed[: config.warmup].sum())
    record, evaluated = test.record(
        method=name,
        title=config.dataset,
        definition="3.2" if config.fresh_init else "3.3",
        accuracy=found.accuracy_summary(),
        seconds=seconds | {"train": round(trainer.seconds, 1)},
        certificate=unlearner.certificate,
        notes=[*notes, *audit.run_notes(task, unlearner, lost, "warm-up")],
    )
    with store.disk_errors(folder):
        found.save(folder / "scores.npz")
        records.write_npz(folder / "evaluation.npz", **evaluated)
    return record


def _chunks(
    task: Task,
    name: str,
    unlearner: Unlearner,
    trainer: PopulationTrainer,
    folder: AnyPath,
    models: store.ParamsStore | None,
) -> Iterator[dict[str, np.ndarray]]:
    """Scores of one chunk of runs after the other, computed when asked for or found on disk."""
    most = task.config.most_runs
    runners = [task.engine.phase_runner(phase, number + 1) for number, phase in enumerate(unlearner.phases)]
    steps = sum(total_steps(phase, task.engine.sizes) for phase in unlearner.phases)
    share = trainer.steps / max(trainer.steps + steps, 1)  # of the work that is training
    bar, done = Bar(name, most, trainer.steps + steps, task.config.quiet), 0
    try:
        for number, rows in enumerate(task.chunks):
            runs = min(rows.stop, most) - rows.start
            part = audit.read_scores(task, folder, number, models)
            if part is not None:
                bar.skip(runs)
            else:
                train_progress = bar.chunk(runs, 1 / share) if share else lambda part: None
                if not trainer(number, train_progress):
                    train_progress(1.0)
                progress = bar.chunk(runs, max(1, len(runners)) / max(1 - share, 1e-9))
                salt = zlib.crc32(name.encode())
                part = audit.unlearn_chunk(task, unlearner, runners, trainer.population, number, salt, progress, models)
                audit.write_scores(task, folder, number, part)
            done = rows.start + runs
            yield part
    finally:
        bar.close(done)
