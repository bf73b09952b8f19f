"""The sequential test of one method: every run is attacked with what the runs before it taught, and then teaches itself.

Scores in, records out; no JAX, so that scores from outside go the same way. The attack on run l is a function of runs
1..l-1 alone, hence its p-value is one given the past, and the e-process over them may be looked at, and stopped, at any
time (``audit.sequential``).
"""

import time
from typing import Any

import numpy as np

from jaxunlearn._validate import require
from jaxunlearn.attack import likelihood
from jaxunlearn.attack.running import RunningFit
from jaxunlearn.audit import design, null, validity
from jaxunlearn.audit.preregistration import SEQUENTIAL_BOUND, Preregistration
from jaxunlearn.audit.sequential import EProcess, ceiling
from jaxunlearn.records import BoundEntry, BoundRecord


class AnytimeTest:
    """One method's sequential test.

    Args:
        plan: What was preregistered; sequential.
        variance: "pooled" or "per_example", of the attack's fit.

    Attributes:
        process: The e-process over the evaluation runs so far.
        claim: None without a claim, else what has become of it: "epsilon", "delta", "falsified", "evaluation_runs" and
            "log_e_value" (evidence against the claim, in nats) at the run that falsified it, or at the last one.
    """

    def __init__(self, plan: Preregistration, *, variance: str = "pooled"):
        require(plan.sequential, "Expected a sequential preregistration; set warmup.")
        self.plan = plan
        self.process = EProcess(m=plan.m, zeta=plan.zeta, delta=plan.delta)
        self.claim: dict[str, Any] | None = None
        self._fit = RunningFit(plan.m, plan.batch_size, variance=variance)
        self._runs: list[tuple[np.ndarray, np.ndarray, float, bool]] = []
        self._seconds = 0.0

    @property
    def falsified(self) -> bool:
        """Whether the claim is falsified; it stays so."""
        return self.claim is not None and self.claim["falsified"]

    def teach(self, scores: np.ndarray, signs: np.ndarray) -> None:
        """Takes up a warm-up run: scores [m, B], signs [m]."""
        self._fit.add(scores, signs)

    def attack(self, scores: np.ndarray, signs: np.ndarray, *, failed: bool = False) -> float:
        """Takes up a run: first as an evaluation run, then as a calibration run.

        Args:
            scores: [m, B]; higher = more likely still in the model; non-finite ones say nothing.
            signs: [m] the true sign vector, an independent uniform draw.
            failed: Whether the run failed twice with the same key; it counts as p = 1.

        Returns:
            The bound so far.
        """
        epsilon = self.judge(likelihood.batchwise_llr(self._fit.fit(), scores[None])[0], signs, failed=failed)
        self._fit.add(scores, signs)
        return epsilon

    def judge(self, llr: np.ndarray, signs: np.ndarray, *, failed: bool = False) -> float:
        """Takes up an evaluation run whose log-likelihood ratios [m] come from the past alone; returns the bound so far."""
        began = time.perf_counter()
        llr = validity.fail_safe(design.finite_llr(llr)[None], np.array([failed]))[0]
        log_p = null.log_p_value(llr, signs)
        self._runs.append((llr, np.asarray(signs, np.int8), log_p, failed))
        epsilon = self.process.update(log_p)
        claimed = self.plan.claim_epsilon
        if claimed is not None and not self.falsified:
            self.claim = {
                "epsilon": claimed,
                "delta": self.plan.delta,
                "falsified": epsilon > claimed,  # whoever is not certified at more than the claim is not at the claim
                "evaluation_runs": len(self._runs),
                "log_e_value": self.process.log_e_value(claimed),
            }
        self._seconds += time.perf_counter() - began
        return epsilon

    def record(self, **fields: Any) -> tuple[BoundRecord, dict[str, np.ndarray]]:
        """The record of bound.json and the arrays of evaluation.npz.

        Args:
            fields: The fields of BoundRecord that do not follow from the others.

        Raises:
            InputError: There was no evaluation run.
        """
        require(len(self._runs) > 0, "Expected at least one evaluation run; give more runs, or a shorter warm-up.")
        plan, bound = self.plan, self.process.bound()
        llr, signs, log_p, failed = (np.array(column) for column in zip(*self._runs))
        path = list(bound.path)
        entry = BoundEntry(
            name=SEQUENTIAL_BOUND,
            epsilon=bound.epsilon,
            ceiling=bound.ceiling,
            zeta=plan.zeta,
            status="preregistered",
            detail={"delta": plan.delta, "evaluation_runs": len(path)},
        )
        seconds = fields.pop("seconds", {}) | {"bound": self._seconds}
        record = BoundRecord(
            epsilon=bound.epsilon,
            statistic=entry.label,
            delta=plan.delta,
            zeta=plan.zeta,
            ceiling=bound.ceiling,
            paper_mean=None,
            paper_median=None,
            predictor=plan.predictor,
            m=plan.m,
            batch_size=plan.batch_size,
            calibration_runs=plan.warmup or 0,
            evaluation_runs=len(path),
            bounds=[entry],
            log_p_values=log_p.tolist(),
            failed_runs=np.flatnonzero(failed).tolist(),
            seconds=seconds,
            sequential={
                "path": path,
                "warmup": plan.warmup,
                "most_runs": (plan.warmup or 0) + plan.L,
                "claim": self.claim,
            },
            **fields,
        )
        return record, {"signs": signs, "log_p": log_p, "failed": failed, "llr": llr}


def check_reachable(plan: Preregistration) -> None:
    """Refuses a claim that not even perfect guesses in all runs could falsify.

    Raises:
        InputError: The claim is at or above the ceiling; the message says what it is.
    """
    if plan.claim_epsilon is None:
        return
    top = ceiling(plan.L, m=plan.m, zeta=plan.zeta, delta=plan.delta)
    require(
        plan.claim_epsilon < top,
        f"Expected claim_epsilon={plan.claim_epsilon:g} < {top:.4g}, the most that {plan.L} evaluation runs with m={plan.m} "
        "batches can show, whatever the attack; use more runs or batches.",
    )
