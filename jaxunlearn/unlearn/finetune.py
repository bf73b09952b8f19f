"""Retraining, the exact reference, and fine-tuning on the retain set (audit paper, appendix G.7)."""

import dataclasses

from jaxunlearn import _validate
from jaxunlearn.types import TaskInfo, Unlearner
from jaxunlearn.unlearn.base import SGD, AdamW


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrain:
    """Train again from the initial weights on the retain set alone: exact by definition."""

    def build(self, task: TaskInfo) -> Unlearner:
        """The base training's phase, over the retain set."""
        certificate = {"epsilon": 0.0, "delta": 0.0, "source": "exact: never sees the forget set"}
        return Unlearner((task.train_phase("retain"),), from_scratch=True, certificate=certificate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetune:
    """Go on training on the retain set only; a heuristic without a guarantee."""

    epochs: int = 20
    """Epochs over the retain set, >= 1."""
    descent: SGD | AdamW = SGD()

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of descent on the retain set."""
        return Unlearner((self.descent.finetune(task, self.epochs),))
