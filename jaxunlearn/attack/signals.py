"""From parameters and examples to the scores that attacks use; higher = more likely still in the model."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

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


def batched_logits(
    apply: Callable[[Params, Array], Array], params: Params, x: Float[Array, "n ..."], batch_size: int = 512
) -> Float[Array, "n classes"]:
    """``apply`` over ``x`` in large batches, so that temporaries do not grow with n."""
    n = x.shape[0]
    if n <= batch_size:
        return apply(params, x)
    return lax.map(lambda one: apply(params, one[None])[0], x, batch_size=batch_size)
