"""From scores to a BoundRecord: fit the attack on calibration runs, apply it to evaluation runs, bound."""

import time
from typing import Any

import numpy as np

from jaxunlearn.attack import likelihood
from jaxunlearn.audit import design, validity
from jaxunlearn.audit.headline import evaluate
from jaxunlearn.audit.preregistration import Preregistration
from jaxunlearn.records import CALIBRATION, EVALUATION, BoundRecord, ScoreRecord


def attack(scores: ScoreRecord, plan: Preregistration, *, variance: str) -> dict[str, np.ndarray]:
    """Fits on the calibration runs and scores the evaluation runs.

    Args:
        scores: All runs.
        plan: What was preregistered; its predictor chooses the attack.
        variance: "pooled" or "per_example".

    Returns:
        {"llr": [L, m]} for the batchwise predictor, else {"log_likelihoods": [L, M']}.

    Raises:
        InputError: A run serves as calibration and as evaluation, or an example has no calibration score.
    """
    fit, test = scores.roles == CALIBRATION, scores.roles == EVALUATION
    validity.check_separate(
        calibration_ids=scores.indices[fit].tolist(),
        evaluation_ids=[("evaluation", i) for i in scores.indices[test].tolist()],
        calibration_signs=scores.signs[fit],
        evaluation_signs=scores.signs[test],
    )
    if plan.predictor == "batchwise":
        gaussians = likelihood.fit_batchwise(scores.scores[fit], scores.signs[fit], variance=variance)
        return {"llr": likelihood.batchwise_llr(gaussians, scores.scores[test])}
    vector = design.sign_index(scores.signs[fit])
    counts = np.bincount(vector, minlength=design.support(plan.m))
    by_vector = scores.scores[fit][np.argsort(vector, kind="stable")]
    by_vector = by_vector.reshape(counts.size, int(counts[0]), *by_vector.shape[1:])
    gaussians = likelihood.fit_joint(by_vector, variance=variance)
    return {"log_likelihoods": likelihood.joint_log_likelihoods(gaussians, scores.scores[test])}


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
    found = evaluate(
        plan, signs=signs, failed=failed, llr=outputs.get("llr"), log_likelihoods=outputs.get("log_likelihoods")
    )
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
