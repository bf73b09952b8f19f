"""Training on substitute answers: random labels (RL), a random mapping (RM) and "I don't know" (IDK; Maini et al., 2024,
arXiv:2401.06121), each alone or with a loss on the retain set.

All three lower -log p of the substitute y' given the question. What y' is was fixed when the data was made: a variant of
the row.
"""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp

from jaxunlearn import _validate
from jaxunlearn.types import Batch, TaskInfo, Unlearner
from jaxunlearn.unlearn.language import Retaining, decoder, nll, variant

Substitute = Literal["random", "mapped", "refusal"]

SIGN = (
    "Lowers -log p of the substitute answers. The PrivUn paper prints E[log p] as the loss, which would raise it; that is "
    "taken for a slip of sign."
)
_JOINT = "As in TOFU's code, forget and retain rows share one mean over tokens, so that the longer answers weigh more."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Substitution(Retaining):
    """Training on another answer to each question of the known forget set; nothing is proven.

    compat tofu takes one mean over the tokens of forget and retain rows together, as TOFU's code does with refusals.
    """

    substitute: Substitute = "refusal"
    """random: the answer to a question outside the known forget set, or invented text (RL). mapped: the answer to another
    question of it (RM). refusal: a sentence that declines (IDK)."""

    def __post_init__(self):
        super().__post_init__()
        _validate.one_of("substitute", self.substitute, get_args(Substitute))
        _validate.require(
            not self.joint or self.gamma == self.alpha and self.reduction == "token_mean",
            f"Expected gamma={self.gamma} = alpha={self.alpha} and reduction={self.reduction!r} = 'token_mean' with "
            "compat='tofu', which takes one mean over both sets.",
        )

    @property
    def joint(self) -> bool:
        """Whether both sets share one mean."""
        return self.compat == "tofu" and self.retain == "gdr"

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of descent on the substitutes."""
        if not self.joint:
            phase = self.logits_phase(
                task, lambda seen, _: nll(seen[0].logits, seen[0].batch, self.reduction), variants=(self.substitute,)
            )
            return Unlearner((phase,), notes=(SIGN, *self.notes))
        model = decoder(task)

        def loss(params, given):
            both = variant(given.forget, self.substitute), variant(given.retain, "answer")
            x, y, weight = (jnp.concatenate([getattr(part, name) for part in both]) for name in ("x", "y", "weight"))
            batch = Batch(x, y, weight)
            return self.gamma * nll(model.logits(params, batch.x), batch)

        return Unlearner((self.phase(task, loss, companion=True),), notes=(SIGN, _JOINT))
