"""From parameters and examples to the scores that attacks use; higher = more likely still in the model."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxunlearn._validate import require
from jaxunlearn.sequences import scored, sequence_nll
from jaxunlearn.types import Params


def logit_score(logits: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    """Phi = log p_y - log(1 - p_y), the logit of the label's probability (audit paper, section 5; LiRA).

    Computed as z_y - logsumexp of the other logits: exact at any confidence, where clipping the probability saturates at a
    logit gap of about 16 in float32.

    Args:
        logits: Unnormalised log-probabilities.
        labels: Integer labels.

    Returns:
        [n] in nats, unbounded; higher = more likely still in the model.
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    is_own = jnp.arange(logits.shape[-1])[None, :] == labels[:, None]
    return own - jax.nn.logsumexp(jnp.where(is_own, -jnp.inf, logits), axis=-1)


def sequence_score(logits: Float[Array, "n t classes"], labels: Int[Array, "n t"]) -> Float[Array, " n"]:
    """Mean log-likelihood of a sequence's labels, in nats a position (audit paper, appendix D.2, with the sign turned).

    The paper scores by cross-entropy, which is lower for what was seen; here higher = more likely still in the model.
    """
    own = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(own - jax.nn.logsumexp(logits, axis=-1), axis=-1)


def answer_score(logits: Float[Array, "n t vocabulary"], labels: Int[Array, "n t"]) -> Float[Array, " n"]:
    """Log-likelihood of an answer's tokens after its question, in nats and <= 0; higher = more likely still in the model.

    Args:
        logits: Of the token after each.
        labels: Aligned with the tokens, negative where not scored.
    """
    return -sequence_nll(logits, labels)


def answered(logits: Float[Array, "n t vocabulary"], labels: Int[Array, "n t"]) -> Float[Array, " n"]:
    """1 where every token of an answer is the most probable one, so that it would be given word by word, else 0."""
    right = (jnp.argmax(logits[:, :-1], axis=-1) == labels[:, 1:]) | ~scored(labels)
    return jnp.all(right, axis=1).astype(jnp.float32)


def loss_score(logits: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    """Minus the cross-entropy, log p_y, in nats and <= 0; it saturates at 0 where ``logit_score`` goes on."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)[:, 0]


def margin(logits: Float[Array, "n classes"], labels: Int[Array, " n"]) -> Float[Array, " n"]:
    """The label's logit minus the largest of the others: > 0 where the example is classified rightly."""
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    is_own = jnp.arange(logits.shape[-1])[None, :] == labels[:, None]
    return own - jnp.where(is_own, -jnp.inf, logits).max(axis=-1)


def augment(x: Float[Array, "n height width channels"], *, flip: bool) -> dict[str, Array]:
    """Copies of images under a fixed list of transformations: LiRA's queries (Carlini et al., 2022, section VI-B).

    Args:
        x: Images, channels last.
        flip: Add the mirror image; not for digits and letters, whose mirror images are no digits and letters.

    Returns:
        [n, height, width, channels] by name: moved by one pixel up, down, left, right (the edge is repeated) and, with
        ``flip``, mirrored.

    Raises:
        InputError: ``x`` does not hold images.
    """
    require(x.ndim == 4, f"Expected images of shape [n, height, width, channels] for augmented scores, got {x.shape}.")
    up = jnp.concatenate([x[:, 1:], x[:, -1:]], axis=1)
    down = jnp.concatenate([x[:, :1], x[:, :-1]], axis=1)
    left = jnp.concatenate([x[:, :, 1:], x[:, :, -1:]], axis=2)
    right = jnp.concatenate([x[:, :, :1], x[:, :, :-1]], axis=2)
    moved = {"up": up, "down": down, "left": left, "right": right}
    return moved | {"mirrored": x[:, :, ::-1]} if flip else moved


def batched(fn: Callable[..., Any], *arrays: Array, batch_size: int = 512) -> Any:
    """``fn`` over the leading axis of ``arrays`` in large batches, so that temporaries do not grow with n."""
    if arrays[0].shape[0] <= batch_size:
        return fn(*arrays)

    def one(rows):
        return jax.tree.map(lambda out: out[0], fn(*(row[None] for row in rows)))

    return lax.map(one, arrays, batch_size=batch_size)


def signal_scores(
    names: Sequence[str], logits: Float[Array, "n classes"], labels: Int[Array, " n"]
) -> dict[str, Float[Array, " n"]]:
    """The scores that need only logits, by name; "augmented" is left out (``augmented_scores``)."""
    plain = {"logit": logit_score, "loss": loss_score, "margin": margin}
    return {name: plain[name](logits, labels) for name in names if name in plain}


def augmented_scores(
    apply: Callable[[Params, Array], Array],
    params: Params,
    x: Float[Array, "n height width channels"],
    labels: Int[Array, " n"],
    *,
    flip: bool,
) -> dict[str, Float[Array, " n"]]:
    """One logit score for every copy (``augment``), called augmented_up and so on.

    Raises:
        InputError: ``x`` does not hold images.
    """

    def score(moved, labels):
        return logit_score(apply(params, moved), labels)

    return {f"augmented_{name}": batched(score, moved, labels) for name, moved in augment(x, flip=flip).items()}
