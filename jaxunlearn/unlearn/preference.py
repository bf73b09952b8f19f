"""Gradient ascent (GA), negative preference optimisation (NPO) and direct preference optimisation (DPO), each alone or with a
loss on the retain set.

References:
    Jang et al., Knowledge unlearning for mitigating privacy risks in language models, 2023 (GA).
    Zhang et al., Negative preference optimization, 2024, arXiv:2404.05868.
    Rafailov et al., Direct preference optimization, 2023, arXiv:2305.18290.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.sequences import LanguageModel, sequence_nll
from jaxunlearn.types import Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.language import Retaining, decoder, logits_together, nll, sequence_mean, variant_of

_LABEL_FREE = (
    "NPO as in MUSE's code: on the logits of all tokens of the vocabulary, without labels; at the start its gradient is the "
    "same for all of them, which a softmax does not see."
)
_TOFU_FACTOR = "DPO as in TOFU's code: without the factor 2 / beta."


def npo_loss(
    now: Float[Array, " b"], before: Float[Array, " b"], weight: Float[Array, " b"], beta: float
) -> Float[Array, ""]:
    """-(2 / beta) mean log sigmoid(beta (S - S_before)); 2 ln 2 / beta at the start, towards 0 as S rises.

    Args:
        now: S of each forget sequence, its negative log-likelihood in nats (a sum, not a mean, over its tokens).
        before: The same of the model before unlearning.
        weight: 1 for an example, 0 for padding.
        beta: Inverse temperature, > 0; as it goes to 0 the gradient becomes that of ascent.
    """
    return -2 / beta * sequence_mean(jax.nn.log_sigmoid(beta * (now - before)), weight)


def label_free_npo_loss(
    now: Float[Array, "b t v"], before: Float[Array, "b t v"], weight: Float[Array, " b"], beta: float
) -> Float[Array, ""]:
    """What MUSE's code has for NPO: -(2 / beta) mean log sigmoid(beta (z_before - z)) over raw logits z."""
    return -2 / beta * sequence_mean(jax.nn.log_sigmoid(beta * (before - now)).mean(axis=(1, 2)), weight)


def dpo_loss(
    now: Float[Array, "b 2"],
    before: Float[Array, "b 2"],
    weight: Float[Array, " b"],
    beta: float,
    *,
    factor: float | None = None,
) -> Float[Array, ""]:
    """-(2 / beta) mean log sigmoid(beta [(S_before - S)_preferred - (S_before - S)_forgotten]).

    Args:
        now: S of the preferred and of the forgotten answer, in this order.
        before: The same of the model before unlearning.
        weight: 1 for an example, 0 for padding.
        beta: Inverse temperature, > 0.
        factor: None means 2 / beta.
    """
    gain = before - now
    factor = 2 / beta if factor is None else factor
    return -factor * sequence_mean(jax.nn.log_sigmoid(beta * (gain[:, 0] - gain[:, 1])), weight)


def sequence_sums(model: LanguageModel, *names: str):
    """``(params, x [b, A, T], y) -> [b, len(names)]``: S of the named variants, for a phase's ``reference``."""

    def reference(params: Params, x: Array, y: Array) -> Float[Array, "b n"]:
        rows = [variant_of(x, y, name) for name in names]
        logits = logits_together(model, params, rows)
        return jnp.stack([sequence_nll(z, row.y) for z, row in zip(logits, rows)], axis=1)

    return reference


@dataclasses.dataclass(frozen=True, kw_only=True)
class GA(Retaining):
    """Gradient ascent: raises -log p of the known forget set's answers, without a bound; nothing is proven."""

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that descends the negated loss."""
        phase = self.logits_phase(task, lambda seen, _: -nll(seen[0].logits, seen[0].batch, self.reduction))
        return Unlearner((phase,), notes=self.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Preference(Retaining):
    """What NPO and DPO share."""

    beta: float = 0.1
    """Inverse temperature, > 0; smaller is closer to gradient ascent."""
    cached: bool = True
    """Whether what the model says before unlearning is computed once for all steps, one number a sequence. Otherwise a frozen
    copy runs in every step, with equal results."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(beta=self.beta)

    def sums_phase(self, task: TaskInfo, loss, names: tuple[str, ...]) -> Phase:
        """The phase of ``loss(now [b, n], before [b, n], weight)`` of S of the named variants."""

        def forget_loss(seen, reference):
            now = jnp.stack([sequence_nll(s.logits, s.batch.y) for s in seen], axis=1)
            if not self.cached:
                reference = jnp.stack([sequence_nll(s.frozen, s.batch.y) for s in seen], axis=1)
            return loss(now, reference, seen[0].batch.weight)

        reference = sequence_sums(decoder(task), *names) if self.cached else None
        return self.logits_phase(task, forget_loss, variants=names, compare=not self.cached, reference=reference)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NPO(_Preference):
    """Negative preference optimisation: ascent that fades as a sequence becomes less likely than it was; nothing is proven.

    compat muse takes MUSE's loss without labels as well, which needs the frozen copy.
    """

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that descends ``npo_loss``."""
        if self.compat == "muse":
            phase = self.logits_phase(
                task,
                lambda seen, _: label_free_npo_loss(seen[0].logits, seen[0].frozen, seen[0].batch.weight, self.beta),
                compare=True,
            )
            return Unlearner((phase,), notes=(_LABEL_FREE, *self.notes))
        phase = self.sums_phase(
            task, lambda now, before, weight: npo_loss(now[:, 0], before[:, 0], weight, self.beta), ("answer",)
        )
        return Unlearner((phase,), notes=self.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPO(_Preference):
    """Direct preference optimisation of a refusal over the true answer; nothing is proven.

    compat tofu drops the factor 2 / beta as well.
    """

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that descends ``dpo_loss``; the refusal of a row is fixed by the data."""
        tofu = self.compat == "tofu"
        phase = self.sums_phase(
            task,
            lambda now, before, weight: dpo_loss(now, before, weight, self.beta, factor=1.0 if tofu else None),
            ("refusal", "answer"),
        )
        return Unlearner((phase,), notes=((_TOFU_FACTOR,) if tofu else ()) + self.notes)
