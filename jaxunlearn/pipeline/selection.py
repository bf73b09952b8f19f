"""The choice of an attack by cross-validation on calibration runs.

It looks at no evaluation run, so that the bound of the chosen attack stays one that was fixed before the first of them.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxunlearn._validate import not_empty
from jaxunlearn.attack import combine
from jaxunlearn.attack.combine import Attack
from jaxunlearn.audit import null


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What cross-validation found.

    Attributes:
        name: The chosen attack.
        evidence: Attack -> mean of -log p over the calibration runs, in nats, simplest first.
    """

    name: str
    evidence: dict[str, float]

    @property
    def note(self) -> str:
        """A sentence for the reader."""
        others = ", ".join(f"{name} {value:.2f}" for name, value in self.evidence.items() if name != self.name)
        return (
            f"The attack ({self.name}) was chosen by cross-validation on the calibration runs alone: mean evidence "
            f"{self.evidence[self.name]:.2f} nats a run; {others}."
        )


def candidates(signals: int) -> dict[str, Attack]:
    """The attacks to choose from, simplest first; those that combine only where there are ``signals`` > 1."""
    names = [("gaussian", v) for v in ("pooled", "shrunken", "per_example", "full")]
    if signals > 1:
        names += [(kind, v) for kind in ("multivariate", "stacked") for v in ("pooled", "full")]
    return {f"{kind}, {variance}": combine.make_attack(kind, variance) for kind, variance in names}


def choose(attacks: Mapping[str, Attack], calibration: np.ndarray, signs: np.ndarray) -> Choice:
    """Chooses the attack with the most evidence a run, -log p of the true sign vector, of ties the first.

    Every calibration run is attacked with a fit on the runs of other folds (``combine.cross_fit``).

    Args:
        attacks: Name -> attack, simplest first.
        calibration: [K, n, m, B] scores of calibration runs.
        signs: [n, m] their signs, balanced.

    Raises:
        InputError: Nothing to choose from, or too few calibration runs for cross-fitting.
    """
    not_empty("attacks", attacks)
    evidence = {
        name: abs(float(null.log_p_values(combine.cross_fit(attack, calibration, signs), signs).mean()))
        for name, attack in attacks.items()
    }
    return Choice(name=max(evidence, key=evidence.__getitem__), evidence=evidence)
