"""What unlearning methods of language models share: what is trained, the retain loss, and the phase that descends.

A step takes a batch of the known forget set and, beside it, one of the retain set; an epoch goes once through the known
forget set, and as far through a fresh order of the retain set. Both batches go through the model together. What the model
said before it was changed is either computed once, where it is little (``Phase.reference``), or by a frozen copy in the
same step; of that copy only what moves is kept twice.

S is a sequence's negative log-likelihood, in nats: methods that lower a likelihood raise S.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.sequences import VARIANTS, LanguageModel, Reduction, reduce, token_nll
from jaxunlearn.types import Batch, ForgetRetain, Params, Phase, State, TaskInfo
from jaxunlearn.unlearn.base import AdamW, steps_per_epoch
from jaxunlearn.unlearn.parts import Trained

Retain = Literal["none", "gdr", "klr"]
Compat = Literal["none", "open-unlearning", "tofu", "muse"]

_ALL_POSITIONS = (
    "KLR as in {}'s code: summed over all positions, prompt and padding included, and divided by their number, so that its "
    "weight depends on the padding."
)
_COMPAT_NOTES = {
    "open-unlearning": _ALL_POSITIONS.format("open-unlearning"),
    "tofu": _ALL_POSITIONS.format("TOFU"),
    "muse": "KLR as in MUSE's code: raw logits in place of log-probabilities, so that it is no divergence; its gradient is "
    "not 0 where the model is unchanged.",
}


def token_kl(reference: Float[Array, "b t v"], logits: Float[Array, "b t v"]) -> Float[Array, "b t"]:
    """KL(reference || model) of the next token at each position, in nats, >= 0."""
    reference, logits = (jax.nn.log_softmax(a.astype(jnp.float32), axis=-1) for a in (reference, logits))
    return jnp.sum(jnp.exp(reference) * (reference - logits), axis=-1)


def retain_kl(
    reference: Float[Array, "b t v"],
    logits: Float[Array, "b t v"],
    batch: Batch,
    *,
    reduction: Reduction = "token_mean",
    compat: Compat = "none",
) -> Float[Array, ""]:
    """KLR: how far the model's next-token distributions are from the reference's.

    Args:
        reference: Logits of the model before unlearning.
        logits: Logits of the model now.
        batch: ``y`` [b, t] says which tokens are scored.
        reduction: How the divergences at scored predictions are summed.
        compat: none: so. open-unlearning, tofu: over all positions, divided by their number. muse: the sum over positions and
            tokens of exp(r) (r - z) with raw logits r and z, divided by the sequences; minimising it raises all logits.
    """
    if compat == "none":
        return reduce(token_kl(reference, logits)[:, :-1], batch.y, batch.weight, reduction)
    sequences = jnp.maximum(jnp.sum(batch.weight), 1.0)
    if compat == "muse":
        values = jnp.sum(jnp.exp(reference) * (reference - logits), axis=(1, 2))
        return jnp.sum(batch.weight * values) / sequences
    values = jnp.sum(token_kl(reference, logits), axis=1)
    return jnp.sum(batch.weight * values) / (sequences * logits.shape[1])


def nll(logits: Float[Array, "b t v"], batch: Batch, reduction: Reduction = "token_mean") -> Float[Array, ""]:
    """-log p of a batch's scored tokens in nats, see ``sequences.reduce``."""
    return reduce(token_nll(logits, batch.y), batch.y, batch.weight, reduction)


def answer_loss(model: LanguageModel) -> Callable[[Params, Batch], Float[Array, ""]]:
    """``(params, batch of all variants) -> scalar``: mean -log p of a scored token of the true answers, in nats."""

    def loss(params: Params, batch: Batch) -> Float[Array, ""]:
        own = variant(batch, "answer")
        return nll(model.logits(params, own.x), own)

    return loss


def sequence_mean(values: Float[Array, " b"], weight: Float[Array, " b"]) -> Float[Array, ""]:
    """Mean over the real sequences of a batch."""
    return jnp.sum(weight * values) / jnp.maximum(jnp.sum(weight), 1.0)


def decoder(task: TaskInfo) -> LanguageModel:
    """The task's language model.

    Raises:
        InputError: It has none.
    """
    if task.language is None:
        raise _validate.InputError(
            "Expected a task with a language model, got one of another kind; take another method."
        )
    return task.language


def variant(batch: Batch, name: str) -> Batch:
    """One variant of a batch's rows: x and y [b, T].

    Raises:
        InputError: The task has no such variant.
    """
    index = VARIANTS.index(name)
    count = batch.x.shape[1] if batch.x.ndim == 3 else 0
    _validate.require(
        index < count,
        f"Expected a task whose rows have the variant {name!r} ({index + 1} of {', '.join(VARIANTS)}), got {count} "
        f"variant{'' if count == 1 else 's'}; prepare the data with substitute answers or take a method that needs none.",
    )
    return batch._replace(x=batch.x[:, index], y=batch.y[:, index])


def variant_of(x: Int[Array, "b a t"], y: Int[Array, "b a t"], name: str) -> Batch:
    """One variant of whole rows, see ``variant``; for a phase's ``reference``."""
    return variant(Batch(x, y, jnp.ones(x.shape[0])), name)


def logits_together(model: LanguageModel, params: Params, batches: Sequence[Batch]) -> list[Float[Array, "b t v"]]:
    """The logits of several batches from one pass."""
    if not batches:
        return []
    logits = model.logits(params, jnp.concatenate([batch.x for batch in batches]))
    return jnp.split(logits, np.cumsum([batch.x.shape[0] for batch in batches])[:-1])


class Given(NamedTuple):
    """What the loss of one step may look at besides the parameters.

    Attributes:
        forget: Rows of the known forget set, all variants.
        retain: Rows of the retain set; None where there is no companion.
        frozen: The parameters that the phase started from; None where they are not kept.
        constant: What the phase drew or kept at its start.
    """

    forget: Batch
    retain: Batch | None
    frozen: Params | None
    constant: Any


class LanguageState(NamedTuple):
    """State of a phase; ``frozen`` is the moving part at the start, or None."""

    rest: list[Any]
    part: dict[str, Any]
    optimizer: optax.OptState
    frozen: dict[str, Any] | None
    constant: Any


class Seen(NamedTuple):
    """A batch of one variant, and what the model and the frozen model say of it (None where that did not run)."""

    batch: Batch
    logits: Float[Array, "b t v"]
    frozen: Any


def _keep_nothing(key: PRNGKeyArray, start: Any) -> Any:
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageDescent:
    """Gradient steps over the known forget set of a language model."""

    epochs: int = 10
    """Epochs over the known forget set, >= 1."""
    batch_size: int = 32
    """Forget examples a step, >= 1; with a retain loss as many retain examples beside them."""
    descent: AdamW = AdamW()
    reduction: Reduction = "token_mean"
    """How losses of tokens are summed. token_mean: all scored tokens of a step count alike. sequence_mean: mean over
    sequences of each one's mean. sequence_sum: mean over sequences of each one's sum."""
    trained: Trained = Trained()

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs, batch_size=self.batch_size)
        _validate.one_of("reduction", self.reduction, get_args(Reduction))

    def phase(
        self,
        task: TaskInfo,
        loss: Callable[[Params, Given], Float[Array, ""]],
        *,
        companion: bool = False,
        frozen: bool = False,
        reference: Callable[[Any, Array, Array], Any] | None = None,
        starting: Callable[[Any], Params] = lambda start: start,
        constant: Callable[[PRNGKeyArray, Any], Any] = _keep_nothing,
        finish: Callable[[PRNGKeyArray, Params, Params | None], Any] = lambda key, params, frozen: params,
        epochs: int | None = None,
    ) -> Phase:
        """The phase that descends a loss.

        Args:
            task: What is unlearned.
            loss: ``(params, given) -> scalar``.
            companion: Whether retain rows are wanted.
            frozen: Whether the parameters of the start are.
            reference: See ``Phase``.
            starting: ``(what the phase starts from) -> params``.
            constant: ``(key, what the phase starts from) -> arrays`` that stay as they are.
            finish: ``(key, params, parameters of the start) -> what is handed on``.
            epochs: None means the method's.
        """
        split = self.trained.split(decoder(task))
        batch_size, epochs = min(self.batch_size, task.forget_size), self.epochs if epochs is None else epochs
        optimizer = self.descent.optimizer(epochs * steps_per_epoch(task.forget_size, batch_size))

        def init(key: PRNGKeyArray, start: Any) -> State:
            part_key, constant_key = jax.random.split(key)
            params = starting(start)
            part = split.part(part_key, params)
            before = part if frozen else None
            return LanguageState(split.rest(params), part, optimizer.init(part), before, constant(constant_key, start))

        def before(state: LanguageState) -> Params | None:
            return None if state.frozen is None else lax.stop_gradient(split.join(state.rest, state.frozen))

        def update(key: PRNGKeyArray, state: LanguageState, batch: ForgetRetain, step: Int[Array, ""]) -> State:
            given = Given(batch.forget, batch.retain, before(state), state.constant)
            gradient = jax.grad(lambda part: loss(split.join(state.rest, part), given))(state.part)
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.part)
            part: Any = optax.apply_updates(state.part, updates)
            return state._replace(part=part, optimizer=optimizer_state)

        def finalize(key: PRNGKeyArray, state: LanguageState) -> Any:
            return finish(key, split.join(state.rest, state.part), before(state))

        return Phase(
            "forget",
            epochs,
            batch_size,
            init,
            update,
            finalize,
            companion="retain" if companion else None,
            reference=reference,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retaining(LanguageDescent):
    """gamma times a loss on the known forget set plus alpha times one on the retain set."""

    retain: Retain = "none"
    """Loss on the retain set. none. gdr: -log p of its answers. klr: the divergence of the model's next-token distributions
    from those before unlearning, KL(before || now)."""
    gamma: float = 1.0
    """Weight of the forget loss, > 0."""
    alpha: float = 1.0
    """Weight of the retain loss, > 0."""
    compat: Compat = "none"
    """Whose public code to follow where it departs from the definitions, to compare with numbers made by it; the docs of the
    losses say where. none: the definitions."""

    def __post_init__(self):
        super().__post_init__()
        _validate.one_of("retain", self.retain, get_args(Retain))
        _validate.one_of("compat", self.compat, get_args(Compat))
        _validate.positive(gamma=self.gamma, alpha=self.alpha)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of the retain loss."""
        return (_COMPAT_NOTES[self.compat],) if self.retain == "klr" and self.compat != "none" else ()

    def retain_loss(self, seen: Seen) -> Float[Array, ""]:
        """GDR or KLR on retain rows."""
        if self.retain == "gdr":
            return nll(seen.logits, seen.batch, self.reduction)
        return retain_kl(seen.frozen, seen.logits, seen.batch, reduction=self.reduction, compat=self.compat)

    def logits_phase(
        self,
        task: TaskInfo,
        forget_loss: Callable[[Sequence[Seen], Any], Float[Array, ""]],
        *,
        variants: Sequence[str] = ("answer",),
        compare: bool = False,
        **phase: Any,
    ) -> Phase:
        """The phase of a method whose forget loss looks at logits.

        Args:
            task: What is unlearned.
            forget_loss: ``(one Seen for each variant, what the phase's reference said) -> scalar``.
            variants: Of the forget rows, that go through the model.
            compare: Whether the frozen model says something of them too.
            phase: See ``phase``.
        """
        model = decoder(task)
        retaining = self.retain != "none"

        def loss(params: Params, given: Given) -> Float[Array, ""]:
            forget = [variant(given.forget, name) for name in variants]
            retain = [variant(given.retain, "answer")] if given.retain is not None else []
            batches, asked = forget + retain, [compare] * len(forget) + [self.retain == "klr"] * len(retain)
            logits = logits_together(model, params, batches)
            said = iter(logits_together(model, given.frozen, [b for b, wanted in zip(batches, asked) if wanted]))
            frozen = [next(said) if wanted else None for wanted in asked]
            seen = [Seen(*parts) for parts in zip(batches, logits, frozen)]
            total = self.gamma * forget_loss(seen[: len(forget)], given.forget.reference)
            return total + self.alpha * self.retain_loss(seen[-1]) if retaining else total

        return self.phase(task, loss, companion=retaining, frozen=compare or self.retain == "klr", **phase)
