"""Ascent on the forget set and interleaved descent-ascent (audit paper, appendices G.5 and G.6).

The forget gradient is that of D_f(S), the batches the run really trained on, as the paper defines it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jaxunlearn import _validate
from jaxunlearn.types import Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn import base
from jaxunlearn.unlearn.base import SGD


def interleaved_phase(task: TaskInfo, *, epochs: int, learning_rate, forget_weight, retain_steps: int) -> Phase:
    """Equation (16): descent on the retain set, minus ``forget_weight`` times the forget gradient every so often.

    Args:
        task: What is unlearned.
        epochs: E_f, epochs over the retain set.
        learning_rate: Constant step size.
        forget_weight: lambda, factor of the forget gradient.
        retain_steps: q; the forget gradient acts at steps t with t = 0 modulo q + 1.

    Returns:
        The phase; forget batches cycle through D_f(S).
    """

    def update(key, params, batch, step):
        descent = jax.grad(task.loss)(params, batch.retain)

        def with_ascent():
            ascent = jax.grad(task.loss)(params, batch.forget)
            return jax.tree.map(lambda r, f: r - forget_weight * f, descent, ascent)

        direction = lax.cond(step % (retain_steps + 1) == 0, with_ascent, lambda: descent)
        return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction)

    return Phase(
        "retain",
        epochs,
        task.batch_size,
        lambda key, params: params,
        update,
        lambda key, params: params,
        companion="forget",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ascent:
    """Gradient ascent on the forget set, then fine-tuning on the retain set."""

    ascent_epochs: int = 2
    """Epochs of ascent over the forget set, >= 1."""
    learning_rate: float = 1e-3
    """Constant step size of the ascent, > 0."""
    epochs: int = 20
    """Epochs in all, ascent included, > ascent_epochs."""
    descent: SGD = SGD()

    def __post_init__(self):
        _validate.at_least(1, ascent_epochs=self.ascent_epochs)
        _validate.positive(learning_rate=self.learning_rate)
        _validate.at_least(self.ascent_epochs + 1, epochs=self.epochs)

    def build(self, task: TaskInfo) -> Unlearner:
        """Ascent on D_f(S), equation (17), then descent on the retain set."""
        ascent = base.from_loss(
            lambda params, batch: -task.loss(params, batch.forget),
            base.sgd(self.learning_rate),
            source="forget",
            epochs=self.ascent_epochs,
            batch_size=task.batch_size,
        )
        return Unlearner((ascent, self.descent.finetune(task, self.epochs - self.ascent_epochs)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class IDA:
    """Interleaved descent-ascent, then fine-tuning on the retain set."""

    retain_steps: int = 1
    """q: plain retain steps between two forget steps, >= 1."""
    forget_weight: float = 0.75
    """lambda: factor of the forget gradient, > 0."""
    interleaved_epochs: int = 10
    """E_f: epochs of the interleaved phase, >= 1."""
    learning_rate: float = 1e-3
    """Constant step size of the interleaved phase, > 0."""
    epochs: int = 20
    """Epochs in all, >= interleaved_epochs."""
    descent: SGD = SGD()

    def __post_init__(self):
        _validate.at_least(1, retain_steps=self.retain_steps, interleaved_epochs=self.interleaved_epochs)
        _validate.positive(forget_weight=self.forget_weight, learning_rate=self.learning_rate)
        _validate.at_least(self.interleaved_epochs, epochs=self.epochs)

    def build(self, task: TaskInfo) -> Unlearner:
        """Equation (16) for E_f epochs, then descent on the retain set."""
        interleaved = interleaved_phase(
            task,
            epochs=self.interleaved_epochs,
            learning_rate=jnp.float32(self.learning_rate),
            forget_weight=jnp.float32(self.forget_weight),
            retain_steps=self.retain_steps,
        )
        return Unlearner((interleaved, self.descent.finetune(task, self.epochs - self.interleaved_epochs)))
