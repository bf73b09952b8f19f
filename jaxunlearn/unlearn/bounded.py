"""Ascent that is bounded or picks its tokens, as in open-unlearning's code: SimNPO, WGA, SatImp, UNDIAL and CE-U.

References:
    Fan et al., Simplicity prevails, 2024, arXiv:2410.07163 (SimNPO).
    Wang et al., Rethinking LLM unlearning objectives, 2025, arXiv:2502.19301 (WGA).
    Yang et al., Exploring criteria of loss reweighting, 2025, arXiv:2505.11953 (SatImp).
    Dong et al., UNDIAL, 2024, arXiv:2402.10052.
    Yang, CE-U: cross entropy unlearning, 2025, arXiv:2503.01224.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxunlearn import _validate
from jaxunlearn.sequences import reduce, scored, token_nll
from jaxunlearn.types import TaskInfo, Unlearner
from jaxunlearn.unlearn.language import Retaining, sequence_mean


def simnpo_loss(
    now: Float[Array, " b"], tokens: Float[Array, " b"], weight: Float[Array, " b"], beta: float, delta: float
) -> Float[Array, ""]:
    """-(2 / beta) mean log sigmoid(beta (S / n - delta)): NPO without a reference, on each sequence's mean.

    Args:
        now: S of each forget sequence in nats.
        tokens: n, its scored tokens, >= 1.
        weight: 1 for an example, 0 for padding.
        beta: Inverse temperature, > 0.
        delta: Mean that the sigmoid is centred at, in nats a token.
    """
    return -2 / beta * sequence_mean(jax.nn.log_sigmoid(beta * (now / tokens - delta)), weight)


def token_weights(nll: Float[Array, "b t"], beta: float, saturation: float) -> Float[Array, "b t"]:
    """p^beta (1 - p)^saturation of each token's probability p, in [0, 1], without a gradient."""
    p = jnp.exp(-lax.stop_gradient(nll))
    return p**beta * jnp.maximum(1 - p, 0.0) ** saturation


def cross_entropy(target: Float[Array, "b t v"], logits: Float[Array, "b t v"]) -> Float[Array, "b t"]:
    """Cross-entropy in nats of next-token distributions to those of target logits, which may be -inf; no gradient there."""
    p = jax.nn.softmax(lax.stop_gradient(target).astype(jnp.float32), axis=-1)
    return -jnp.sum(p * jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), axis=-1)


def lowered(logits: Float[Array, "b t v"], labels: Int[Array, "b t"], by: float) -> Float[Array, "b t v"]:
    """Logits at t - 1 with that of the label at t lowered; ``by`` may be infinite. The last position stays as it is."""
    labels = jnp.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    own = jnp.arange(logits.shape[-1])[None, None, :] == labels[..., None]
    return jnp.where(own, logits - by, logits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimNPO(Retaining):
    """NPO without a reference model, on means over tokens; nothing is proven."""

    beta: float = 4.5
    """Inverse temperature, > 0."""
    delta: float = 0.0
    """Nats a token that the sigmoid is centred at, >= 0."""
    gamma: float = 0.125
    """Weight of the forget loss, > 0."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(beta=self.beta)
        _validate.non_negative(delta=self.delta)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that descends ``simnpo_loss``."""

        def forget_loss(seen, _):
            batch, logits = seen[0].batch, seen[0].logits
            tokens = jnp.maximum(scored(batch.y).sum(axis=1), 1)
            return simnpo_loss(token_nll(logits, batch.y).sum(axis=1), tokens, batch.weight, self.beta, self.delta)

        return Unlearner((self.logits_phase(task, forget_loss),), notes=self.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedAscent(Retaining):
    """Ascent that weighs each token by its probability: WGA, with a saturation SatImp; nothing is proven."""

    beta: float = 1.0
    """Exponent of a token's probability p, >= 0; 0 is plain ascent. SatImp takes 5."""
    saturation: float = 0.0
    """Exponent of 1 - p, >= 0. SatImp takes 1."""

    def __post_init__(self):
        super().__post_init__()
        _validate.non_negative(beta=self.beta, saturation=self.saturation)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that raises the weighted loss."""

        def forget_loss(seen, _):
            batch = seen[0].batch
            nll = token_nll(seen[0].logits, batch.y)
            weights = token_weights(nll, self.beta, self.saturation)
            return -reduce(weights * nll, batch.y, batch.weight, self.reduction)

        return Unlearner((self.logits_phase(task, forget_loss),), notes=self.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UNDIAL(Retaining):
    """Self-distillation to the model's own distribution with the true token's logit lowered; nothing is proven.

    Scored tokens only; the public code averages over prompt and padding too.
    """

    strength: float = 10.0
    """By how much the true token's logit is lowered, > 0."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(strength=self.strength)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of distillation; a frozen copy of the model runs in every step."""

        def forget_loss(seen, _):
            batch, logits, frozen = seen[0]
            values = cross_entropy(lowered(frozen, batch.y, self.strength), logits)[:, :-1]
            return reduce(values, batch.y, batch.weight, self.reduction)

        return Unlearner((self.logits_phase(task, forget_loss, compare=True),), notes=self.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CEU(Retaining):
    """CE-U: towards the model's own distribution without the true token; nothing is proven."""

    skipped: int = 1
    """First scored tokens of a sequence that are left out, >= 0."""

    def __post_init__(self):
        super().__post_init__()
        _validate.at_least(0, skipped=self.skipped)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of descent towards a target that moves along."""

        def forget_loss(seen, _):
            batch, logits = seen[0].batch, seen[0].logits
            number = jnp.cumsum(batch.y >= 0, axis=1)
            labels = jnp.where(number > self.skipped, batch.y, -1)
            values = cross_entropy(lowered(logits, labels, jnp.inf), logits)[:, :-1]
            return reduce(values, labels, batch.weight, self.reduction)

        return Unlearner((self.logits_phase(task, forget_loss),), notes=self.notes)
