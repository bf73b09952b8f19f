"""What an audit did not have to compute: models that several methods share, runs after a stop, models on the way."""

from typing import Any

from jaxunlearn.report.load import RunDirectory, finite
from jaxunlearn.report.table import duration, labels


def savings(run: RunDirectory) -> list[str]:
    """Sentences, one for each kind of work that was not done; seconds are those that the work would have taken here."""
    records = [method.record for method in run.methods]
    lines = _shared(run.manifest.get("population"))
    for name, record in zip(labels(records), records):
        found = record.sequential
        if found is not None:
            used = record.calibration_runs + record.evaluation_runs
            if used < found["most_runs"]:
                spent = sum(finite(record.seconds.get(stage)) or 0.0 for stage in ("unlearn", "score"))
                lines.append(
                    f"{name}: stopped after {used} of {found['most_runs']} runs; the others would have taken about "
                    f"{duration(spent * (found['most_runs'] / used - 1))} s and their training."
                )
        steps = [step for step in record.trajectory.get("step", ()) if step > 0]
        if len(steps) > 1:
            spent = (finite(record.seconds.get("unlearn")) or 0.0) * sum(steps[:-1]) / steps[-1]
            lines.append(
                f"{name}: {len(steps)} models of every run from one pass; passes of their own would have taken about "
                f"{duration(spent)} s more."
            )
    return lines


def _shared(population: Any) -> list[str]:
    if not isinstance(population, dict):
        return []
    trained, reused = population.get("trained_runs", 0), population.get("reused_runs", 0)
    methods, seconds = population.get("methods", 0), finite(population.get("seconds")) or 0.0
    runs = trained + reused
    saved = runs * max(methods - 1, 0) + reused
    if not saved or not runs:
        return []
    found = f", {reused} of them found from before" if reused else ""
    return [
        f"{runs} models trained once for {methods} method{'s' if methods != 1 else ''}{found}: {saved} trainings, about "
        f"{duration(saved * seconds / runs)} s, not done again."
    ]
