"""Model clipping: noisy projected descent, then fine-tuning (Koloskova et al., 2025; audit paper, appendix G.1).

Phase 1, equation (14): x_0 = Pi_{C0}(x_hat) + xi_0 and x_{t+1} = Pi_{C2}(x_t - gamma (g_t + lambda x_t)) + xi_{t+1}, with
fresh Gaussian noise at every step. The number of steps that proves (epsilon, delta) comes from their Theorem 4.2; without a
target the steps are a number of epochs and nothing is proven. Phase 2 sees the retain set only, so it keeps the guarantee.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxunlearn import _validate
from jaxunlearn.certificates import noisy_steps
from jaxunlearn.types import Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import SGD, add_noise, norm, steps_per_epoch


def project(params: Params, radius) -> Params:
    """The nearest point of the centred l2 ball of ``radius``, over all parameters together."""
    factor = jnp.minimum(1.0, radius / jnp.maximum(norm(params), 1e-30))
    return jax.tree.map(lambda p: p * factor, params)


def noisy_phase(
    task: TaskInfo, *, steps: int, learning_rate, weight_decay, clip_initial, clip, sigma, sigma_initial
) -> Phase:
    """Phase 1 of model clipping, ``steps`` steps on the retain set."""

    def init(key, params):
        return add_noise(key, project(params, clip_initial), sigma_initial)

    def update(key, params, batch, step):
        gradient = jax.grad(task.loss)(params, batch.retain)
        moved = jax.tree.map(lambda p, g: p - learning_rate * (g + weight_decay * p), params, gradient)
        return add_noise(key, project(moved, clip), sigma)

    epochs = steps_per_epoch(steps, steps_per_epoch(task.retain_size, task.batch_size))
    return Phase("retain", epochs, task.batch_size, init, update, lambda key, params: params, max_steps=steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clipping:
    """Model clipping: certified when epsilon is given, else the uncertified variant."""

    epsilon: float | None = 10.0
    """Target epsilon in nats; None runs noisy_epochs epochs and proves nothing."""
    certified_delta: float = 1e-5
    """Target delta, in (0, 1); used with epsilon."""
    noisy_epochs: int = 2
    """Epochs of phase 1 when epsilon is None, >= 1."""
    clip_initial: float = 30.0
    """C0: the trained model is projected onto this l2 ball first, > 0."""
    clip: float = 0.1
    """C2: radius of the projection at every step, > 0."""
    sigma: float = 0.02
    """Standard deviation of the noise at every step, > 0."""
    sigma_initial: float = 0.0
    """Standard deviation of the noise before the first step, >= 0."""
    learning_rate: float = 1e-3
    """Step size of phase 1, > 0."""
    weight_decay: float = 5e-4
    """lambda in phase 1, >= 0."""
    epochs: int = 20
    """Epochs of fine-tuning on the retain set after phase 1, >= 1."""
    descent: SGD = SGD()

    def __post_init__(self):
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon)
            _validate.open_unit(certified_delta=self.certified_delta)
        _validate.at_least(1, noisy_epochs=self.noisy_epochs, epochs=self.epochs)
        _validate.positive(
            clip_initial=self.clip_initial, clip=self.clip, sigma=self.sigma, learning_rate=self.learning_rate
        )
        _validate.non_negative(sigma_initial=self.sigma_initial, weight_decay=self.weight_decay)

    def build(self, task: TaskInfo) -> Unlearner:
        """Phase 1 with as many steps as the certificate asks for, then descent on the retain set."""
        if self.epsilon is None:
            steps, certificate = self.noisy_epochs * steps_per_epoch(task.retain_size, task.batch_size), None
        else:
            steps = noisy_steps(
                self.epsilon,
                self.certified_delta,
                clip_initial=self.clip_initial,
                clip=self.clip,
                sigma=self.sigma,
                sigma_initial=self.sigma_initial,
            )
            source = f"Koloskova et al. (2025), Theorem 4.2, {steps} noisy steps"
            certificate = {"epsilon": self.epsilon, "delta": self.certified_delta, "source": source}
        noisy = noisy_phase(
            task,
            steps=steps,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            clip_initial=self.clip_initial,
            clip=self.clip,
            sigma=self.sigma,
            sigma_initial=self.sigma_initial,
        )
        return Unlearner((noisy, self.descent.finetune(task, self.epochs)), certificate=certificate)
