"""Rewind-to-delete: back to an earlier checkpoint, descent on the retain set, noise (Mu and Klabjan, 2025; appendix G.2).

Training takes T full-batch steps of size eta on D(S). Unlearning starts from the checkpoint after T - K of them, takes K
steps on the retain set, and adds Gaussian noise once. Had the whole training been on the retain set, the weights would be
within Delta of these (Theorem 3.1 there, ``certificates.rewind_sensitivity``), so the analytic Gaussian mechanism proves
(epsilon, delta). Delta rests on a smoothness constant L and a gradient bound G of the loss; constants that are estimated on
the run at hand depend on its forget set, and then so does the noise: nothing is proven.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.certificates import gaussian_sigma, rewind_sensitivity
from jaxunlearn.types import Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import SGD, add_noise, norm, steps_per_epoch

ESTIMATED = (
    "The noise of rewind-to-delete was set from smoothness and gradient bounds estimated in every run, so it depends on the "
    "run's forget set: nothing is proven. Give smoothness and gradient_bound to have a certificate."
)


class _Estimates(NamedTuple):
    """State of the descent that also watches how steep and how curved the loss is."""

    params: Params
    optimizer: optax.OptState
    previous: tuple[Params, Params]  # parameters and gradient of the step before
    gradient_bound: Float[Array, ""]
    smoothness: Float[Array, ""]


def _log_sensitivity(learning_rate, smoothness, gradient_bound, *, epochs: int, rewound: int, size: int, forget: int):
    """Log of ``certificates.rewind_sensitivity`` for traced constants."""
    growth = (epochs - rewound) * jnp.log1p(learning_rate * smoothness * size / (size - forget))
    log_h = growth + jnp.log(-jnp.expm1(-growth)) + rewound * jnp.log1p(learning_rate * smoothness)
    return math.log(2 * forget / size) + jnp.log(gradient_bound) - jnp.log(smoothness) + log_h


def descent_phase(task: TaskInfo, descent: SGD, *, epochs: int, sigma: float) -> Phase:
    """The last K epochs of training again, on the retain set; N(0, sigma^2) is added to every parameter at the end."""
    phase = descent.finetune(task, epochs, skip_epochs=task.train_epochs - epochs)
    return phase._replace(finalize=lambda key, state: add_noise(key, phase.finalize(key, state), sigma))


def estimating_phase(task: TaskInfo, descent: SGD, *, epochs: int, sigma_per_sensitivity: float) -> Phase:
    """The same, with L and G estimated on the way and the noise scaled to the sensitivity that follows from them.

    G is the largest gradient norm met, L the largest ratio of a change of the gradient to the step that caused it.
    """
    plain = descent_phase(task, descent, epochs=epochs, sigma=0.0)
    per_epoch = steps_per_epoch(task.retain_size, plain.batch_size)
    optimizer = descent.optimizer(task.train_epochs * per_epoch, skip=(task.train_epochs - epochs) * per_epoch)

    def init(key, params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return _Estimates(params, optimizer.init(params), (params, zeros), jnp.float32(0), jnp.float32(0))

    def update(key, state, batch, step):
        gradient = jax.grad(task.loss)(state.params, batch.retain)
        moved = norm(jax.tree.map(jnp.subtract, state.params, state.previous[0]))
        turned = norm(jax.tree.map(jnp.subtract, gradient, state.previous[1]))
        ratio = jnp.where(step > 0, turned / jnp.maximum(moved, 1e-12), 0.0)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
        return _Estimates(
            optax.apply_updates(state.params, updates),
            optimizer_state,
            (state.params, gradient),
            jnp.maximum(state.gradient_bound, norm(gradient)),
            jnp.maximum(state.smoothness, ratio),
        )

    def finalize(key, state):
        log_sensitivity = _log_sensitivity(
            descent.peak,
            jnp.maximum(state.smoothness, 1e-6),
            state.gradient_bound,
            epochs=task.train_epochs,
            rewound=epochs,
            size=task.retain_size + task.forget_size,
            forget=task.forget_size,
        )
        return add_noise(key, state.params, sigma_per_sensitivity * jnp.exp(log_sensitivity))

    return plain._replace(init=init, update=update, finalize=finalize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rewind:
    """Rewind-to-delete; certified when epsilon, smoothness and gradient_bound are given and training was full-batch."""

    epochs: int | None = None
    """K: epochs of training that are undone, and epochs on the retain set after that, >= 1. Default: 5, or all there are."""
    epsilon: float | None = None
    """Target epsilon in nats, > 0; None adds noise of sigma and proves nothing."""
    certified_delta: float = 1e-3
    """Target delta, in (0, 1); used with epsilon."""
    smoothness: float | None = None
    """L: the loss's gradient is L-Lipschitz, > 0; None estimates it in every run."""
    gradient_bound: float | None = None
    """G: no gradient of the loss is longer, > 0; None estimates it in every run."""
    sigma: float = 1e-3
    """Standard deviation of the noise when epsilon is None, >= 0."""

    def __post_init__(self):
        if self.epochs is not None:
            _validate.at_least(1, epochs=self.epochs)
        _validate.non_negative(sigma=self.sigma)
        _validate.require(
            (self.smoothness is None) == (self.gradient_bound is None),
            f"Expected smoothness={self.smoothness!r} and gradient_bound={self.gradient_bound!r} together or neither.",
        )
        for name in ("epsilon", "smoothness", "gradient_bound"):
            value = getattr(self, name)
            if value is not None:
                _validate.positive(**{name: value})
        _validate.open_unit(certified_delta=self.certified_delta)

    def build(self, task: TaskInfo) -> Unlearner:
        """K epochs on the retain set from the checkpoint K epochs before the end, then noise.

        Raises:
            InputError: Training has fewer than K epochs (K + 1 with epsilon), or the constants cannot be estimated from so
                few steps.
        """
        kept = 0 if self.epsilon is None else 1  # of nothing but the initial weights there is nothing to prove
        epochs = max(1, min(5, task.train_epochs - kept)) if self.epochs is None else self.epochs
        least = epochs + kept
        _validate.require(
            task.train_epochs >= least,
            f"Expected rewind epochs={epochs} with at least {least} epochs of training, got {task.train_epochs}.",
        )
        descent = task.descent if task.descent is not None else SGD(schedule="constant")
        if self.epsilon is None:
            phase = descent_phase(task, descent, epochs=epochs, sigma=self.sigma)
            return Unlearner((phase,), rewind=epochs)
        gaps = self._gaps(task, descent)
        if self.smoothness is None or self.gradient_bound is None:
            _validate.require(
                epochs * steps_per_epoch(task.retain_size, task.batch_size) >= 2,
                f"Expected rewind epochs={epochs} >= 2, to estimate the smoothness from two gradients.",
            )
            scale = gaussian_sigma(self.epsilon, self.certified_delta, 1.0)
            phase = estimating_phase(task, descent, epochs=epochs, sigma_per_sensitivity=scale)
            return Unlearner((phase,), rewind=epochs, notes=(ESTIMATED, *gaps))
        sensitivity = rewind_sensitivity(
            learning_rate=descent.peak,
            epochs=task.train_epochs,
            rewound=epochs,
            smoothness=self.smoothness,
            gradient_bound=self.gradient_bound,
            size=task.retain_size + task.forget_size,
            forget_size=task.forget_size,
        )
        sigma = gaussian_sigma(self.epsilon, self.certified_delta, sensitivity)
        phase = descent_phase(task, descent, epochs=epochs, sigma=sigma)
        source = (
            f"Mu and Klabjan (2025), Theorem 3.1, if the loss has smoothness {self.smoothness:g} and gradients up to "
            f"{self.gradient_bound:g}: sensitivity {sensitivity:.4g}, sigma {sigma:.4g}"
        )
        proven: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.certified_delta, "source": source}
        return Unlearner((phase,), certificate=None if gaps else proven, rewind=epochs, notes=gaps)

    def _gaps(self, task: TaskInfo, descent: SGD) -> tuple[str, ...]:
        """Where the training at hand is not what the theorem is about."""
        full = task.batch_size >= task.retain_size + task.forget_size
        plain = descent.schedule == "constant" and descent.momentum == 0 and descent.clip_norm is None
        missing = [
            text
            for missed, text in (
                (not full, "full batches"),
                (not plain, "a constant step without momentum or clipping"),
            )
            if missed
        ]
        if not missing:
            return ()
        return (
            f"Rewind-to-delete is certified for training with {' and '.join(missing)} only; nothing is proven here.",
        )
