"""Fine-tuning with a penalty that pulls weights to zero (l1-sparse; Jia et al., 2023, arXiv:2304.04934).

The loss of epoch e is that of the retain set plus a_e |theta|_1 over all trainable parameters, a_e = alpha (1 - e / E'),
and 0 from E' = epochs - no_l1_epochs on. It is descended by its sub-gradient, as in the public code: few parameters become
exactly 0.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxunlearn import _validate
from jaxunlearn.types import TaskInfo, Unlearner
from jaxunlearn.unlearn.base import SGD, from_loss, steps_per_epoch, training_loss_of


def add_l1(strength: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Adds the sub-gradient of ``strength(step)`` |theta|_1, which is 0 at 0."""

    def update(updates, state, params=None):
        a = strength(state)
        return jax.tree.map(lambda g, p: g + a * jnp.sign(p), updates, params), state + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


@dataclasses.dataclass(frozen=True, kw_only=True)
class L1Sparse:
    """Fine-tuning on the retain set with an l1 penalty that fades; a heuristic without a guarantee."""

    epochs: int = 10
    """E: epochs over the retain set, >= 1."""
    alpha: float = 1e-3
    """The penalty's weight in the first epoch, >= 0."""
    no_l1_epochs: int = 0
    """Last epochs without the penalty, >= 0 and < epochs."""
    descent: SGD = SGD(schedule="constant", peak=1e-3, momentum=0.9)

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs)
        _validate.non_negative(alpha=self.alpha)
        _validate.at_least(0, no_l1_epochs=self.no_l1_epochs)
        _validate.require(
            self.no_l1_epochs < self.epochs, f"Expected no_l1_epochs={self.no_l1_epochs} < epochs={self.epochs}."
        )

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of descent on the retain set."""
        batch_size = min(task.batch_size, task.retain_size)
        per_epoch = steps_per_epoch(task.retain_size, batch_size)
        loss = training_loss_of(task)
        phase = from_loss(
            lambda params, batch: loss(params, batch.retain),
            optax.chain(
                add_l1(lambda step: self.strength(step // per_epoch)), self.descent.optimizer(self.epochs * per_epoch)
            ),
            source="retain",
            epochs=self.epochs,
            batch_size=batch_size,
        )
        return Unlearner((phase,))

    def strength(self, epoch) -> jax.Array:
        """a_e, the penalty's weight in an epoch."""
        return self.alpha * jnp.maximum(0.0, 1 - epoch / (self.epochs - self.no_l1_epochs))
