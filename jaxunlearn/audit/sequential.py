"""The bound that may be looked at after every run: a test supermartingale over p-values."""

import dataclasses
import math

import numpy as np

from jaxunlearn.audit import _tails, design
from jaxunlearn.audit._bound import Bound, check_levels, check_log_p_values


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnytimeBound(Bound):
    """A bound that may be looked at after every run, and acted upon.

    Attributes:
        path: The bound after 1, 2, ... runs, nondecreasing; all of them hold together with probability 1 - zeta.
    """

    path: tuple[float, ...] = ()


def e_process(log_p_values: np.ndarray, *, m: int, zeta: float, delta: float = 0.0) -> AnytimeBound:
    """The anytime-valid bound: looked at after every run, stopped whenever one likes.

    Under the hypothesis q = T(p) is a p-value given the past, so the uniform mixture over kappa of
    prod_l kappa q_l^(kappa - 1) is a test supermartingale; it exceeds 1 / zeta at any time with probability at most
    zeta (Ville). The attack used for run l may be fitted on runs 1..l-1.

    Args:
        log_p_values: [n] natural logs of p-values in the order of the runs.
        m: Candidate batches, for the ceiling.
        zeta: Error level in (0, 1).
        delta: The hypothesis's delta in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    check_levels(zeta, delta)
    values = check_log_p_values(log_p_values, m)
    path, best = [], 0.0
    for n in range(1, values.size + 1):
        best = _e_value_root(values[:n], zeta, delta, best)
        path.append(best)
    # The mixture is a moment of order n and so log-convex in n: perfect runs never lower the bound.
    perfect = np.full(values.size, -design.log_support(m))
    ceiling = _e_value_root(perfect, zeta, delta, 0.0)
    return AnytimeBound(
        name="e_process", epsilon=best, ceiling=max(best, ceiling), zeta=zeta, delta=delta, path=tuple(path)
    )


def _e_value_root(log_p_values: np.ndarray, zeta: float, delta: float, at_least: float) -> float:
    """The largest epsilon whose mixture e-value reaches 1 / zeta; ``at_least`` if none above it does."""

    def log_reciprocal(above: float) -> float:
        total = -float(_tails.log_cap(log_p_values, at_least + above, delta).sum())
        return -_tails.log_beta_mixture(total, log_p_values.size)

    # From one run to the next the root moves little; a first guess near it keeps thousands of runs within seconds.
    start = 1e-3 if at_least > 0 else max(-float(log_p_values.mean()), 1.0)
    return at_least + _tails.solve(log_reciprocal, math.log(zeta), start)
