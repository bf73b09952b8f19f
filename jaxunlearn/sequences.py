"""What all code for language models shares: what a model is, which tokens are scored, and how losses are summed.

An example of a language task is a row of ``variants`` [A, T] of one sequence: the true one first, then the same prompt with
another answer, which methods that train on substitutes take. ``x`` holds token ids, padded on the right; ``y`` holds the same
ids where a token is scored and ``IGNORED`` elsewhere. Labels are aligned with their tokens: the logits at t - 1 predict y[t].
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

IGNORED = -100
"""Label of a token that is not scored, as elsewhere in the field; any negative one is read so."""

VARIANTS = ("answer", "refusal", "mapped", "random")
"""Answers of a row, in order: the true one; a sentence that declines; the answer to another question of the same kind in the
known forget set; the answer to a question outside it, or invented text. A task without substitutes has the first alone."""

Reduction = Literal["token_mean", "sequence_mean", "sequence_sum"]
"""token_mean: all scored tokens of a batch count alike. sequence_mean: mean over sequences of each one's mean.
sequence_sum: mean over sequences of each one's sum."""


class LanguageModel(NamedTuple):
    """A decoder as pure functions; padding on the right needs no mask, since attention is causal.

    Attributes:
        layers: Number of blocks, L.
        width: Size of the residual stream, d.
        vocabulary: Number of tokens, V.
        init: ``(key) -> params``.
        hidden: ``(params, tokens [b, T], first, last) -> [last - first + 1, b, T, d]`` the residual stream after
            ``first`` .. ``last`` blocks (static, 0 <= first <= last <= L; 0 is the embedding). Blocks after ``last`` are not
            computed. State L is before the final norm.
        head: ``(params, h [b, ..., d]) -> logits [b, ..., V]``: the final norm and the output layer.
        block_of: ``(params) -> tree`` of params' shape whose leaves say which block a parameter belongs to: an integer, or
            an integer array that broadcasts against it (blocks stacked along the first axis); embedding 0, block l is l
            (1-based), final norm and output layer L + 1.
        generate: ``(params, prompts [b, P], lengths [b], *, new_tokens, stop=()) -> [b, new_tokens]``: greedy continuations
            of prompts padded on the left, of ``lengths`` tokens each; from the first of the ids ``stop`` on, that id.
            None where a decoder has none.
    """

    layers: int
    width: int
    vocabulary: int
    init: Callable[[PRNGKeyArray], Any]
    hidden: Callable[[Any, Int[Array, "b t"], int, int], Float[Array, "l b t d"]]
    head: Callable[[Any, Float[Array, "b ... d"]], Float[Array, "b ... v"]]
    block_of: Callable[[Any], Any]
    generate: Callable[..., Int[Array, "b n"]] | None = None

    def logits(self, params: Any, tokens: Int[Array, "b t"]) -> Float[Array, "b t v"]:
        """Unnormalised log-probabilities of the token after each one."""
        return self.head(params, self.hidden(params, tokens, self.layers, self.layers)[0])


def scored(labels: Int[Array, "b t"]) -> Bool[Array, "b t-1"]:
    """Which of the predictions at positions 0 .. T - 2 count."""
    return labels[:, 1:] >= 0


def token_nll(logits: Float[Array, "b t v"], labels: Int[Array, "b t"]) -> Float[Array, "b t-1"]:
    """-log p of each label given all tokens before it, in nats, >= 0; 0 where a token is not scored.

    Args:
        logits: Of the token after each position; the last position's are not used.
        labels: Aligned with the tokens; negative where not scored.
    """
    logits = logits[:, :-1].astype(jnp.float32)
    own = jnp.take_along_axis(logits, jnp.maximum(labels[:, 1:], 0)[..., None], axis=-1)[..., 0]
    return jnp.where(scored(labels), jax.nn.logsumexp(logits, axis=-1) - own, 0.0)


def sequence_nll(logits: Float[Array, "b t v"], labels: Int[Array, "b t"]) -> Float[Array, " b"]:
    """S: the sum over a sequence's scored tokens of -log p, in nats."""
    return token_nll(logits, labels).sum(axis=1)


def reduce(
    values: Float[Array, "b t-1"],
    labels: Int[Array, "b t"],
    weight: Float[Array, " b"],
    reduction: Reduction = "token_mean",
) -> Float[Array, ""]:
    """One number of a batch's values at predictions.

    Args:
        values: One for each prediction; those not scored are left out.
        labels: Say what is scored.
        weight: 1 for an example, 0 for padding at the end of an epoch.
        reduction: How they are summed; see ``Reduction``.
    """
    counts = scored(labels) * weight[:, None]
    sums = jnp.sum(jnp.where(counts > 0, values, 0.0), axis=1)
    if reduction == "token_mean":
        return jnp.sum(sums) / jnp.maximum(jnp.sum(counts), 1.0)
    if reduction == "sequence_mean":
        sums = sums / jnp.maximum(jnp.sum(counts, axis=1), 1.0)
    return jnp.sum(sums) / jnp.maximum(jnp.sum(weight), 1.0)
