"""The result type of all bounds, and the checks of their arguments."""

import dataclasses
from typing import Any

import numpy as np

from jaxunlearn._validate import half_open_unit, not_empty, open_unit, require
from jaxunlearn.audit import design


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon.

    Attributes:
        name: Which bound.
        epsilon: The bound in nats, finite and >= 0.
        ceiling: The value it takes if every run is guessed perfectly: this design cannot give more.
        zeta: Error level: the true epsilon lies below the bound with probability at most zeta.
        delta: The hypothesis's delta.
        epsilon_ldp: For bounds that are halved, the value before (the epsilon of the induced local-privacy mechanism).
        detail: Anything else worth keeping.
    """

    name: str
    epsilon: float
    ceiling: float
    zeta: float
    delta: float = 0.0
    epsilon_ldp: float | None = None
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)


def check_levels(zeta: float, delta: float) -> None:
    """Zeta in (0, 1) and delta in [0, 1)."""
    open_unit(zeta=zeta)
    half_open_unit(delta=delta)


def check_overlaps(overlaps: np.ndarray, r: int) -> np.ndarray:
    """Integers within 0..r, as int64."""
    values = np.atleast_1d(np.asarray(overlaps, np.float64))
    not_empty("overlaps", values)
    bad = ~((values >= 0) & (values <= r) & (values == np.round(values)))
    require(
        not bad.any(), f"Expected overlaps to be integers within 0..{r}, got {values[bad][:1]} in run {np.argmax(bad)}."
    )
    return values.astype(np.int64)


def check_log_p_values(log_p_values: np.ndarray, m: int | None = None) -> np.ndarray:
    """Finite, <= 0 and, where m is given, not below -log |S_m|, which no p-value of a sign vector can undercut."""
    values = np.atleast_1d(np.asarray(log_p_values, np.float64))
    not_empty("log_p_values", values)
    bad = ~(np.isfinite(values) & (values <= 0))
    require(
        not bad.any(), f"Expected log_p_values to be finite and <= 0, got {values[bad][:1]} in run {np.argmax(bad)}."
    )
    if m is not None:
        floor = -design.log_support(m)
        bad = values < floor - 1e-6
        require(
            not bad.any(),
            f"Expected log_p_values >= -log |S_m| = {floor:.6g} for m={m}, got {values[bad][:1]} in run "
            f"{np.argmax(bad)}.",
        )
        values = np.maximum(values, floor)
    return values
