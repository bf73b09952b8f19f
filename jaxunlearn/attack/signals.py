"""From parameters and examples to the scores that attacks use; higher = more likely still in the model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


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


def batched(fn: Callable[..., Any], *arrays: Array, batch_size: int = 512) -> Any:
    """``fn`` over the leading axis of ``arrays`` in large batches, so that temporaries do not grow with n."""
    if arrays[0].shape[0] <= batch_size:
        return fn(*arrays)

    def one(rows):
        return jax.tree.map(lambda out: out[0], fn(*(row[None] for row in rows)))

    return lax.map(one, arrays, batch_size=batch_size)
