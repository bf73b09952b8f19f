"""Hessian-based unlearning: one Newton-style step by LiSSA, then noise (Zhang et al., 2024; audit paper, appendix G.4).

theta <- theta - H^{-1} g + N(0, sigma^2), equation (15). H is the Hessian of the retain loss with weight decay, g a gradient
without it. H^{-1} g comes from the Neumann series h_0 = g, h <- g + h - H h / scale (LiSSA; Agarwal et al., 2017), with a
new batch of the retain set in every step; ``scale`` must exceed the largest eigenvalue of H. The certificate that Zhang et
al. prove needs a convex loss, so none is claimed for a network.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.types import Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import add_noise, steps_per_epoch


class _WithGradient(NamedTuple):
    """What the first phase hands on: the trained parameters and a gradient at them."""

    params: Params
    gradient: Params


class _Sum(NamedTuple):
    params: Params
    total: Params
    weight: Float[Array, ""]


class _Neumann(NamedTuple):
    start: _WithGradient
    solution: Params
    total: Params


def hessian_vector_product(loss, params: Params, batch, vector: Params) -> Params:
    """H v for the Hessian of ``loss(params, batch)``, by forward over reverse: two gradients' work, no matrix."""
    return jax.jvp(lambda p: jax.grad(loss)(p, batch), (params,), (vector,))[1]


def gradient_phase(task: TaskInfo, source: str, sign: float, weight_decay: float = 0.0) -> Phase:
    """One pass over "forget" or "retain" that leaves the parameters alone and hands on ``sign`` times the mean gradient.

    ``weight_decay`` times the parameters is added to the mean gradient.
    """

    def init(key, params):
        return _Sum(params, jax.tree.map(jnp.zeros_like, params), jnp.float32(0))

    def update(key, state, batch, step):
        part = batch.forget if source == "forget" else batch.retain
        weight = jnp.sum(part.weight)
        gradient = jax.grad(task.loss)(state.params, part)
        total = jax.tree.map(lambda t, g: t + weight * g, state.total, gradient)
        return _Sum(state.params, total, state.weight + weight)

    def finalize(key, state):
        mean = jax.tree.map(lambda t, p: t / state.weight + weight_decay * p, state.total, state.params)
        return _WithGradient(state.params, jax.tree.map(lambda g: sign * g, mean))

    return Phase(source, 1, task.batch_size, init, update, finalize)


def newton_phase(
    task: TaskInfo, *, samples: int, depth: int, scale: float, batch_size: int, weight_decay: float, sigma: float
) -> Phase:
    """LiSSA: ``samples`` recursions of ``depth`` steps one after the other; their mean is subtracted, noise is added."""
    loss = task.curvature_loss or task.loss

    def init(key, start):
        return _Neumann(start, start.gradient, jax.tree.map(jnp.zeros_like, start.params))

    def update(key, state, batch, step):
        gradient, params = state.start.gradient, state.start.params
        begins = step % depth == 0
        h = jax.tree.map(lambda g, h: jnp.where(begins, g, h), gradient, state.solution)
        product = hessian_vector_product(loss, params, batch.retain, h)
        h = jax.tree.map(lambda g, h, p: g + h - (p + weight_decay * h) / scale, gradient, h, product)
        ends = step % depth == depth - 1
        total = lax.cond(
            ends, lambda: jax.tree.map(lambda t, h: t + h / (scale * samples), state.total, h), lambda: state.total
        )
        return _Neumann(state.start, h, total)

    def finalize(key, state):
        return add_noise(key, jax.tree.map(jnp.subtract, state.start.params, state.total), sigma)

    batch_size = min(batch_size, task.retain_size)
    steps = samples * depth
    epochs = steps_per_epoch(steps, steps_per_epoch(task.retain_size, batch_size))
    return Phase("retain", epochs, batch_size, init, update, finalize, max_steps=steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hessian:
    """Hessian-based unlearning by LiSSA, with noise; nothing is proven for a network."""

    gradient: Literal["forget", "retain", "newton"] = "forget"
    """forget: g is the forget gradient, as equation (15) prints it. retain: the retain gradient, as the authors' code has it.
    newton: minus n_f / n_r times the gradient of forget loss and decay, the step that takes D_f(S) out of a quadratic
    loss exactly."""
    samples: int = 10
    """s1: independent recursions that are averaged, >= 1."""
    depth: int = 1000
    """s2: steps of a recursion, >= 1."""
    scale: float = 1000.0
    """Upper bound of the Hessian's largest eigenvalue, > 0; too small diverges, too large undershoots."""
    batch_size: int = 10
    """Examples of the retain set in a step of the recursion, >= 1."""
    weight_decay: float = 5e-4
    """lambda, added to the Hessian, not to the gradient, >= 0."""
    sigma: float = 1e-3
    """Standard deviation of the final noise, >= 0."""

    def __post_init__(self):
        _validate.one_of("gradient", self.gradient, ("forget", "retain", "newton"))
        _validate.at_least(1, samples=self.samples, depth=self.depth, batch_size=self.batch_size)
        _validate.positive(scale=self.scale)
        _validate.non_negative(weight_decay=self.weight_decay, sigma=self.sigma)

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass for the gradient, then the recursions."""
        source = "retain" if self.gradient == "retain" else "forget"
        sign = -task.forget_size / task.retain_size if self.gradient == "newton" else 1.0
        newton = newton_phase(
            task,
            samples=self.samples,
            depth=self.depth,
            scale=self.scale,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
            sigma=self.sigma,
        )
        decay = self.weight_decay if self.gradient == "newton" else 0.0
        return Unlearner((gradient_phase(task, source, sign, decay), newton))
