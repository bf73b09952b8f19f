"""From scores to a BoundRecord: fit the attack on calibration runs, apply it to evaluation runs, bound."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.attack import combine, likelihood
from jaxunlearn.audit import design, validity
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.pipeline import selection
from jaxunlearn.pipeline.selection import Choice
from jaxunlearn.records import CALIBRATION, EVALUATION, BoundRecord, Damaged, ScoreRecord, read_npz, write_npz


def attack(scores: ScoreRecord, plan: Preregistration, *, variance: str) -> dict[str, np.ndarray]:
    """Fits on the calibration runs and scores the evaluation runs.

    Args:
        scores: All runs.
        plan: What was preregistered; its predictor chooses the attack.
        variance: One of ``likelihood.VARIANCES``.

    Returns:
        {"llr": [L, m]} for the batchwise predictor, else {"log_likelihoods": [L, M']}.

    Raises:
        InputError: A run serves as calibration and as evaluation, or an example has no calibration score.
    """
    fit, test = _roles(scores)
    if plan.predictor == "batchwise":
        gaussians = likelihood.fit_batchwise(scores.scores[fit], scores.signs[fit], variance=variance)
        return {"llr": likelihood.batchwise_llr(gaussians, scores.scores[test])}
    vector = design.sign_index(scores.signs[fit])
    counts = np.bincount(vector, minlength=design.support(plan.m))
    by_vector = scores.scores[fit][np.argsort(vector, kind="stable")]
    by_vector = by_vector.reshape(counts.size, int(counts[0]), *by_vector.shape[1:])
    gaussians = likelihood.fit_joint(by_vector, variance=variance)
    return {"log_likelihoods": likelihood.joint_log_likelihoods(gaussians, scores.scores[test])}


def attack_with(
    kind: str, scores: ScoreRecord, plan: Preregistration, *, variance: str
) -> tuple[dict[str, np.ndarray], Choice | None]:
    """As ``attack``, with any attack.

    Args:
        kind: "gaussian" (``attack``), "multivariate", "stacked" (``combine.make_attack``), or "auto" (``selection``: the best
            on the calibration runs, whatever ``variance``).
        scores: All runs, with their signals.
        plan: What was preregistered; other attacks than "gaussian" are for its batchwise predictor.
        variance: One of ``likelihood.VARIANCES``.

    Returns:
        What ``attack`` returns; with "auto" beside it the choice, and among the outputs "attacks" and "attack_evidence".

    Raises:
        InputError: As ``attack``; or too few calibration runs for cross-fitting.
    """
    if kind == "gaussian":
        return attack(scores, plan, variance=variance), None
    require(
        plan.predictor == "batchwise", f"Expected predictor='batchwise' for attack={kind!r}, got {plan.predictor!r}."
    )
    fit, test = _roles(scores)
    values, signs = scores.stacked(), scores.signs[fit]
    if kind != "auto":
        return {"llr": combine.make_attack(kind, variance)(values[:, fit], signs, values[:, test])}, None
    attacks = selection.candidates(values.shape[0])
    choice = selection.choose(attacks, values[:, fit], signs)
    return {
        "llr": attacks[choice.name](values[:, fit], signs, values[:, test]),
        "attacks": np.array(list(choice.evidence)),
        "attack_evidence": np.array(list(choice.evidence.values())),
    }, choice


def _roles(scores: ScoreRecord) -> tuple[np.ndarray, np.ndarray]:
    """[runs] bool of calibration and of evaluation runs, after the check that they are separate."""
    fit, test = scores.roles == CALIBRATION, scores.roles == EVALUATION
    validity.check_separate(
        calibration_ids=scores.indices[fit].tolist(),
        evaluation_ids=[("evaluation", i) for i in scores.indices[test].tolist()],
        calibration_signs=scores.signs[fit],
        evaluation_signs=scores.signs[test],
    )
    return fit, test


def _kinds(outputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """The attack's outputs as keyword arguments of ``evaluate``."""
    return {name: outputs.get(name) for name in ("llr", "log_likelihoods")}


def save_trajectory(path: AnyPath, on_the_way: Mapping[int, ScoreRecord]) -> None:
    """Writes the scores and signals [steps, runs, m, B] and accuracies [steps, runs] of the models on the way."""
    parts = list(on_the_way.values())
    arrays = {f"accuracy_{key}": np.stack([part.accuracy[key] for part in parts]) for key in parts[0].accuracy}
    arrays |= {f"signal_{key}": np.stack([part.signals[key] for part in parts]) for key in parts[0].signals}
    arrays |= {"scores": np.stack([part.scores for part in parts]), "failed": np.stack([part.failed for part in parts])}
    write_npz(path, steps=np.array(list(on_the_way)), signs=parts[0].signs, roles=parts[0].roles, **arrays)


def load_trajectory(path: AnyPath, indices: np.ndarray, steps: Sequence[int]) -> dict[int, ScoreRecord]:
    """Reads what ``save_trajectory`` wrote.

    Args:
        path: The file.
        indices: [runs] the runs' numbers within their roles, which the file does not hold.
        steps: Those that are asked for.

    Raises:
        InputError: It is missing, damaged, or of other steps or runs.
    """
    arrays = read_npz(path, sealed=True)
    if arrays.get("steps", np.array([])).tolist() != list(steps) or len(arrays["roles"]) != len(indices):
        raise Damaged(f"{path} is of other steps than {' '.join(map(str, steps))}, or of other runs.")

    def at(i: int, prefix: str) -> dict[str, np.ndarray]:
        return {key.removeprefix(prefix): value[i] for key, value in arrays.items() if key.startswith(prefix)}

    return {
        step: ScoreRecord(
            signs=arrays["signs"],
            roles=arrays["roles"],
            indices=indices,
            scores=arrays["scores"][i],
            accuracy=at(i, "accuracy_"),
            failed=arrays["failed"][i],
            signals=at(i, "signal_"),
        )
        for i, step in enumerate(steps)
    }


def trajectory(
    plan: Preregistration,
    on_the_way: Mapping[int, ScoreRecord],
    final: ScoreRecord,
    *,
    end: int,
    kind: str,
    variance: str,
) -> dict[str, list[float]]:
    """Bounds after chosen steps of unlearning, as if the method had stopped there, and at its end (the paper's Figure 1a).

    With n steps on the way every point is at level zeta / (n + 1), so that the whole curve holds at once and its largest
    value may be quoted. The runs are the same at every step; the union bound asks for no independence.

    Args:
        plan: What was preregistered for the end.
        on_the_way: Step -> scores.
        final: Scores at the end.
        end: Steps of the whole method.
        kind: As in ``attack_with``.
        variance: As in ``attack_with``.

    Returns:
        Lists "step", "epsilon", "paper_mean", "ceiling" and the mean "accuracy_..."; {} without steps.
    """
    if not on_the_way:
        return {}
    each = dataclasses.replace(plan, zeta=plan.zeta / (len(on_the_way) + 1))
    path: dict[str, list[float]] = {"step": [], "epsilon": [], "paper_mean": [], "ceiling": []}
    for step, scores in (*sorted(on_the_way.items()), (end, final)):
        test = scores.roles == EVALUATION
        outputs, _ = attack_with(kind, scores, each, variance=variance)
        found = evaluate(each, signs=scores.signs[test], failed=scores.failed[test], curves=False, **_kinds(outputs))
        path["step"].append(step)
        path["epsilon"].append(found.headline.epsilon)
        path["paper_mean"].append(found.paper_mean)
        path["ceiling"].append(found.headline.ceiling)
        for name, found_accuracy in scores.accuracy_summary().items():
            path.setdefault(f"accuracy_{name}", []).append(found_accuracy["mean"])
    return path


def record(
    plan: Preregistration,
    outputs: dict[str, np.ndarray],
    signs: np.ndarray,
    failed: np.ndarray,
    **fields: Any,
) -> tuple[BoundRecord, dict[str, np.ndarray]]:
    """Bounds from the attack's outputs.

    Args:
        plan: What was preregistered.
        outputs: What ``attack`` returned.
        signs: [L, m] sign vectors of the evaluation runs.
        failed: [L] bool, runs that count as p = 1.
        fields: The fields of BoundRecord that do not follow from the others.

    Returns:
        The record of bound.json, and the arrays of evaluation.npz.
    """
    began = time.perf_counter()
    found = evaluate(plan, signs=signs, failed=failed, **_kinds(outputs))
    arrays = {
        "signs": signs,
        "log_p": np.array(found.log_p_values),
        "overlaps": np.array(found.overlaps[plan.r]),
        "failed": failed,
        **outputs,
    }
    seconds = fields.pop("seconds", {}) | {"bound": time.perf_counter() - began}
    record = BoundRecord(
        epsilon=found.headline.epsilon,
        statistic=found.headline.label,
        delta=plan.delta,
        zeta=plan.zeta,
        ceiling=found.headline.ceiling,
        paper_mean=found.paper_mean,
        paper_median=found.paper_median,
        predictor=plan.predictor,
        m=plan.m,
        batch_size=plan.batch_size,
        evaluation_runs=plan.L,
        bounds=found.bounds,
        by_r=found.by_r,
        log_p_values=found.log_p_values,
        failed_runs=found.failed_runs,
        seconds=seconds,
        **fields,
    )
    return record, arrays
