"""The bound that may be looked at after every run: a test supermartingale over p-values."""

import dataclasses
import math

import numpy as np

from jaxunlearn._validate import at_least
from jaxunlearn.audit import _tails, design
from jaxunlearn.audit._bound import Bound, check_levels, check_log_p_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnytimeBound(Bound):
    """A bound that may be looked at after every run, and acted upon.

    Attributes:
        path: The bound after 1, 2, ... runs, nondecreasing; all of them hold together with probability 1 - zeta.
    """

    path: tuple[float, ...] = ()


class EProcess:
    """The any-time valid test, run by run.

    Under the hypothesis q = T(p) is a p-value given the past, so the uniform mixture over kappa of
    prod_l kappa q_l^(kappa - 1) is a test supermartingale; it exceeds 1 / zeta at any time with probability at most
    zeta (Ville). The attack used for run l may be fitted on runs 1..l-1. The true epsilon alone has to be feared: a
    larger claim is rejected only where the true epsilon is, so claims may be chosen, and changed, after looking; m,
    zeta, delta and the statistic may not.

    Args:
        m: Candidate batches.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Attributes:
        path: The bound after 1, 2, ... runs, nondecreasing.

    Raises:
        InputError: An argument is out of range.
    """

    def __init__(self, *, m: int, zeta: float, delta: float = 0.0):
        check_levels(zeta, delta)
        self.m, self.zeta, self.delta = m, zeta, delta
        self.path: list[float] = []
        self._log_p = np.zeros(0)

    @property
    def epsilon(self) -> float:
        """The bound after the runs so far, 0 before the first."""
        return self.path[-1] if self.path else 0.0

    def update(self, log_p: float) -> float:
        """Takes up the log p-value of one more run, in nats, and returns the bound."""
        self._log_p = np.append(self._log_p, check_log_p_values(np.array([log_p]), self.m))
        self.path.append(_e_value_root(self._log_p, self.zeta, self.delta, self.epsilon))
        return self.epsilon

    def log_e_value(self, epsilon: float) -> float:
        """Log of the evidence of the runs so far against epsilon: if epsilon is true, it ever reaches log(1 / zeta) with
        probability at most zeta.
        """
        total = -float(_tails.log_cap(self._log_p, epsilon, self.delta).sum())
        return _tails.log_beta_mixture(total, self._log_p.size)

    def bound(self) -> AnytimeBound:
        """The bound after the runs so far, with the path to it and the ceiling at this number of runs."""
        top = ceiling(len(self.path), m=self.m, zeta=self.zeta, delta=self.delta) if self.path else 0.0
        return AnytimeBound(
            name="e_process",
            epsilon=self.epsilon,
            ceiling=max(self.epsilon, top),
            zeta=self.zeta,
            delta=self.delta,
            path=tuple(self.path),
        )


def e_process(log_p_values: np.ndarray, *, m: int, zeta: float, delta: float = 0.0) -> AnytimeBound:
    """The anytime-valid bound: looked at after every run, stopped whenever one likes (``EProcess``).

    Args:
        log_p_values: [n] natural logs of p-values in the order of the runs.
        m: Candidate batches, for the ceiling.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    process = EProcess(m=m, zeta=zeta, delta=delta)
    for value in check_log_p_values(log_p_values, m):
        process.update(float(value))
    return process.bound()


def ceiling(runs: int, *, m: int, zeta: float, delta: float = 0.0) -> float:
    """The bound after ``runs`` runs if every sign vector is guessed perfectly, in nats: no attack can show more.

    Args:
        runs: Evaluation runs, >= 1.
        m: Candidate batches.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).
    """
    check_levels(zeta, delta)
    at_least(1, runs=runs)
    # The mixture is a moment of order n and so log-convex in n: perfect runs never lower the bound.
    return _e_value_root(np.full(runs, -design.log_support(m)), zeta, delta, 0.0)


def _e_value_root(log_p_values: np.ndarray, zeta: float, delta: float, at_least: float) -> float:
    """The largest epsilon whose mixture e-value reaches 1 / zeta; ``at_least`` if none above it does."""

    def log_reciprocal(above: float) -> float:
        total = -float(_tails.log_cap(log_p_values, at_least + above, delta).sum())
        return -_tails.log_beta_mixture(total, log_p_values.size)

    # From one run to the next the root moves little; a first guess near it keeps thousands of runs within seconds.
    start = 1e-3 if at_least > 0 else max(-float(log_p_values.mean()), 1.0)
    return at_least + _tails.solve(log_reciprocal, math.log(zeta), start)
