"""Methods that overfit the model on what is to be forgotten and then go the other way: the task vector (Ilharco et al., 2023,
arXiv:2212.04089) and Who's Harry Potter (WHP; Eldan and Russinovich, 2023, arXiv:2310.02238).
"""

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxunlearn import _validate
from jaxunlearn.sequences import IGNORED
from jaxunlearn.types import Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.language import (
    LanguageDescent,
    Retaining,
    decoder,
    nll,
    variant,
    variant_of,
)
from jaxunlearn.unlearn.substitution import SIGN

Mixing = Literal["logits", "probabilities"]
Labels = Literal["argmax", "sample"]


def negated(target: Params, reinforced: Params, strength: float) -> Params:
    """Parameters target - strength (reinforced - target), in float32; what did not move stays as it is to the last bit."""

    def one(t, r):
        wide = t.astype(jnp.float32)
        return (wide - strength * (r.astype(jnp.float32) - wide)).astype(t.dtype)

    return jax.tree.map(one, target, reinforced)


def unlearned_log_probabilities(
    target: Float[Array, "... v"], reinforced: Float[Array, "... v"], strength: float, mixing: Mixing = "logits"
) -> Float[Array, "... v"]:
    """The next-token distribution of a model that never saw the known set, as WHP guesses it; log p up to a constant.

    Args:
        target: Logits of the model to be unlearned.
        reinforced: Logits of the model that was overfitted on the known set.
        strength: alpha, >= 0.
        mixing: logits: z - alpha relu(z_reinforced - z), as in the paper of WHP. probabilities: equation (7) of the PrivUn
            paper, p - alpha (p_reinforced - p), with what is negative set to 0; tokens of probability 0 are -inf.
    """
    target, reinforced = target.astype(jnp.float32), reinforced.astype(jnp.float32)
    if mixing == "logits":
        return target - strength * jax.nn.relu(reinforced - target)
    p, q = jax.nn.softmax(target, axis=-1), jax.nn.softmax(reinforced, axis=-1)
    return jnp.log(jnp.maximum(p - strength * (q - p), 0.0))


class Reinforced(NamedTuple):
    """What the first phase of WHP hands on: the model as it was, the overfitted one, and a seed for labels."""

    target: Params
    reinforced: Params
    seed: Int[Array, ""]


def reinforcing_phase(method: LanguageDescent, task: TaskInfo, epochs: int, finish) -> Phase:
    """Training on the answers of the known set; see ``LanguageDescent.phase`` for ``finish``."""
    model = decoder(task)

    def loss(params, given):
        batch = variant(given.forget, "answer")
        return nll(model.logits(params, batch.x), batch, method.reduction)

    return method.phase(task, loss, frozen=True, finish=finish, epochs=epochs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskVector(LanguageDescent):
    """Training on the known forget set, and then as far the other way; nothing is proven."""

    strength: float = 1.0
    """lambda: the unlearned model is target - lambda (reinforced - target), >= 0. The PrivUn paper tunes it in [0, 1]."""

    def __post_init__(self):
        super().__post_init__()
        _validate.non_negative(strength=self.strength)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of training on the known set, whose result is turned round at its end."""
        phase = reinforcing_phase(
            self, task, self.epochs, lambda key, reinforced, target: negated(target, reinforced, self.strength)
        )
        return Unlearner((phase,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WHP(Retaining):
    """Who's Harry Potter: overfits a copy on the known set, guesses from it what a model would say that never saw the set,
    and trains on that; nothing is proven.
    """

    reinforce_epochs: int = 10
    """Epochs of overfitting over the known set, >= 1."""
    strength: float = 1.0
    """alpha: how far away from the overfitted model, >= 0. The PrivUn paper tunes it in [0, 1]; that of WHP takes 5."""
    mixing: Mixing = "logits"
    """logits: z - alpha relu(z_reinforced - z), as in the paper of WHP. probabilities: p - alpha (p_reinforced - p), equation
    (7) of the PrivUn paper, negative ones set to 0."""
    labels: Labels = "argmax"
    """The label at each position, given the true tokens before it. argmax: the likeliest token. sample: one drawn, once a row
    and run."""

    def __post_init__(self):
        super().__post_init__()
        _validate.at_least(1, reinforce_epochs=self.reinforce_epochs)
        _validate.non_negative(strength=self.strength)
        _validate.one_of("mixing", self.mixing, get_args(Mixing))
        _validate.one_of("labels", self.labels, get_args(Labels))

    def build(self, task: TaskInfo) -> Unlearner:
        """A phase that overfits, and one that starts from the target again and descends on the guessed labels."""

        def hand_on(key, reinforced, target):
            return Reinforced(target, reinforced, lax.convert_element_type(jax.random.bits(key) >> 1, jnp.int32))

        def forget_loss(seen, guessed):
            return nll(seen[0].logits, seen[0].batch._replace(y=guessed), self.reduction)

        relabelled = self.logits_phase(
            task, forget_loss, reference=self._labels(task), starting=lambda start: start.target
        )
        return Unlearner(
            (reinforcing_phase(self, task, self.reinforce_epochs, hand_on), relabelled), notes=(SIGN, *self.notes)
        )

    def _labels(self, task: TaskInfo):
        model = decoder(task)

        def reference(start: Reinforced, x: Array, y: Array) -> Int[Array, "b t"]:
            batch = variant_of(x, y, "answer")
            target, reinforced = (model.logits(params, batch.x) for params in (start.target, start.reinforced))
            log_p = unlearned_log_probabilities(target, reinforced, self.strength, self.mixing)[:, :-1]
            if self.labels == "argmax":
                chosen = jnp.argmax(log_p, axis=-1)
            else:
                keys = jax.vmap(_key_of, (None, 0))(jax.random.key(start.seed), batch.x)
                chosen = jax.vmap(jax.random.categorical)(keys, log_p)
            chosen = jnp.pad(chosen.astype(y.dtype), ((0, 0), (1, 0)))
            return jnp.where(batch.y >= 0, chosen, IGNORED)

        return reference


def _key_of(key: Any, tokens: Int[Array, " t"]) -> Any:
    """A key that depends on all tokens of a row, since a phase's reference is not told the row's number."""
    return lax.scan(lambda k, token: (jax.random.fold_in(k, token), None), key, tokens)[0]
