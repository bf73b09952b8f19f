"""``jaxunlearn audit`` with a claim or ``--sequential``: train, unlearn, score and test chunk by chunk, and stop.

The run directory is that of the audit with a fixed number of runs, but chunks of scores are kept: a larger
claim, or more runs, go on where the audit ended, with the same results to the bit as if it had been asked at once.
"""

from collections.abc import Iterator
from functools import partial

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn.audit import validity
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.engine import store
from jaxunlearn.pipeline import audit, finished
from jaxunlearn.pipeline.anytime import AnytimeTest, check_reachable
from jaxunlearn.pipeline.population import PopulationTrainer
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.task import Task
from jaxunlearn.pipeline.unlearning import MethodRuns, Part, collect
from jaxunlearn.records import EVALUATION, BoundRecord

NOTE = (
    "Sequential: the attack on every evaluation run was fitted on the runs before it, so that the bound holds at every "
    "number of runs at once, and whatever claims are tested."
)


def run(
    task: Task, methods: audit.Methods, plan: Preregistration, began: float
) -> tuple[list[AnyPath], PopulationTrainer]:
    """Runs or resumes a sequential audit; every method is tested, and stops, by itself.

    Args:
        task: The task; its run table is in the order of time.
        methods: Name -> the method.
        plan: What is preregistered.
        began: When the audit began, by ``time.perf_counter``.

    Returns:
        The methods' folders, and the trainer of the population.

    Raises:
        InputError: The claim is beyond the design, or the directory holds another audit.
    """
    config, group = task.config, task.group
    check_reachable(plan)
    drawn = task.runs.signs[: config.most_runs][task.runs.roles[: config.most_runs] == EVALUATION]
    validity.check_evaluation_signs(drawn)
    manifest, works, trainer = audit.open_all(task, methods, plan)
    group.announce(audit.OPENED, asked=list(methods))
    most = 0
    with trainer:
        trainer.prepare()
        notes = [NOTE, *(audit.other_looks(config, plan) if group.first else [])]
        for work in works:
            kept, whole = _finished(work.folder, plan)
            record = kept
            if not whole or kept is None or not work.models_kept(kept.calibration_runs + kept.evaluation_runs):
                with work.writing():
                    record = _follow(work, plan, notes)
                if group.first and kept is not None:
                    finished.compare(work.folder, kept, record)
                elif group.first:
                    with store.disk_errors(work.folder):
                        records.write_json(work.folder / "bound.json", record.to_json())
            assert record is not None
            most = max(most, record.calibration_runs + record.evaluation_runs)
        if group.first:
            runs = {"calibration": config.warmup, "evaluation": most - config.warmup}
            audit.close_run(task, manifest, works, runs=runs, trainer=trainer, began=began)
    return [work.folder for work in works], trainer


def _finished(folder: AnyPath, plan: Preregistration) -> tuple[BoundRecord | None, bool]:
    """The stored record if it answers what is asked now (this claim, falsified or tested on as many runs), and whether all
    that it was computed from is whole.
    """
    if not (folder / "bound.json").exists():
        return None, False
    then = "computed again from the chunks of scores"
    record = finished.read(folder / "bound.json", finished.read_record, then)
    evaluation = finished.read(folder / "evaluation.npz", partial(records.read_npz, sealed=True), then)
    scores = finished.read(folder / "scores.npz", records.ScoreRecord.load, then)
    whole = record is not None and evaluation is not None and scores is not None
    found = (record.sequential if record is not None else None) or {}
    claim = found.get("claim")
    same = (None if claim is None else claim["epsilon"]) == plan.claim_epsilon
    return (record if same and found.get("most_runs") == (plan.warmup or 0) + plan.L else None), whole


def _follow(work: MethodRuns, plan: Preregistration, notes: list[str]) -> BoundRecord:
    """Goes through the runs in the order of time until the claim is falsified or the last run is done.

    All processes follow the same test, so that they stop together; the first one writes what came out.
    """
    task, config, table = work.task, work.task.config, work.task.runs
    test = AnytimeTest(plan, variance=config.fit_variance)
    parts: list[Part] = []
    runs = 0
    for part in _chunks(work):
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
    found, seconds = collect(task, parts, runs)
    lost = int(found.failed[: config.warmup].sum())
    record, evaluated = test.record(
        method=work.name,
        title=config.dataset,
        definition="3.2" if config.fresh_init else "3.3",
        accuracy=found.accuracy_summary(),
        seconds=seconds | {"train": work.trainer.facts()["seconds"]},
        certificate=work.unlearner.certificate,
        notes=[*notes, *audit.run_notes(task, work.unlearner, lost, "warm-up")],
    )
    if task.group.first:
        with store.disk_errors(work.folder):
            found.save(work.folder / "scores.npz")
            records.write_npz(work.folder / "evaluation.npz", **evaluated)
    return record


def _chunks(work: MethodRuns) -> Iterator[Part]:
    """Scores of one chunk of runs after the other, computed when asked for or found on disk.

    Of every round of chunks, one a process, each process computes its own before it waits for those of the others.
    """
    task, trainer, group = work.task, work.trainer, work.task.group
    most = task.config.most_runs
    share = trainer.steps / max(trainer.steps + work.steps, 1)  # of the work that is training
    bar, done = Bar(work.name, most, trainer.steps + work.steps, task.config.quiet), 0
    work.prepare()
    parts: dict[int, Part] = {}
    try:
        for number, rows in enumerate(task.chunks):
            own = number // group.count * group.count + group.index
            if own not in parts and own < len(task.chunks):
                parts[own] = _part(work, own, bar, share)
            runs = min(rows.stop, most) - rows.start
            if number not in parts:
                parts[number] = work.awaited(number)
                bar.skip(runs)
            done = rows.start + runs
            yield parts[number]
    finally:
        bar.close(done)


def _part(work: MethodRuns, number: int, bar: Bar, share: float) -> Part:
    """A chunk of this process, trained, unlearned and scored if it is not on disk; ``share`` of that is training."""
    rows = work.task.chunks[number]
    runs = min(rows.stop, work.task.config.most_runs) - rows.start
    part = work.read(number)
    if part is not None:
        bar.skip(runs)
        return part
    train_progress = bar.chunk(runs, 1 / share) if share else lambda part: None
    if not work.trainer(number, train_progress):
        train_progress(1.0)
    return work.compute(number, bar.chunk(runs, max(1, len(work.unlearner.phases)) / max(1 - share, 1e-9)))
