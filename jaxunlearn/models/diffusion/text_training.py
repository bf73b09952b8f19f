"""A text encoder of one's own, trained before the U-Net and without images: its states must tell captions' classes apart."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.diffusion import TextToImage


class TrainedText(NamedTuple):
    """What training leads to.

    Attributes:
        params: The whole model's, with another text encoder.
        accuracy: Share of all captions whose class the head, which is not kept, gets right.
    """

    params: dict[str, Any]
    accuracy: Float[Array, ""]


def at_end(states: Float[Array, "b n w"], tokens: Int[Array, "b n"], end: int) -> Float[Array, "b w"]:
    """The state at each prompt's end, the only one that has seen all of it."""
    places = jnp.argmax(tokens == end, axis=1)
    return jnp.take_along_axis(states, places[:, None, None], axis=1)[:, 0]


def train_text(
    key: PRNGKeyArray,
    model: TextToImage,
    params: dict[str, Any],
    captions: np.ndarray,
    *,
    steps: int = 400,
    batch_size: int = 64,
    rate: float = 2e-3,
) -> TrainedText:
    """Trains a text encoder with a linear head on the class of captions; pure, to be compiled by the caller.

    Args:
        key: Of the head's start and of the batches.
        model: The model.
        params: Its parameters; all but the text encoder's come back as they are.
        captions: [classes, p, n] prompts of each class.
        steps: Steps of Adam, >= 1.
        batch_size: Captions a step, drawn with replacement, >= 1.
        rate: Its step size, > 0, falling to 0 as a cosine.

    Raises:
        InputError: A setting is out of range.
    """
    _validate.at_least(1, steps=steps, batch_size=batch_size)
    _validate.positive(rate=rate)
    classes, per_class, length = captions.shape
    table = jnp.asarray(captions).reshape(-1, length)
    labels = jnp.repeat(jnp.arange(classes), per_class)
    width = jax.eval_shape(model.embed_text, params, table[:1]).shape[-1]
    key_head, key_batches = jax.random.split(key)
    start = params["text_encoder"], jax.random.normal(key_head, (width, classes)) / np.sqrt(width)
    adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

    def logits(trained, tokens):
        text, head = trained
        return at_end(model.embed_text(params | {"text_encoder": text}, tokens), tokens, model.end) @ head

    def step(carry, key):
        trained, state = carry
        rows = jax.random.randint(key, (batch_size,), 0, table.shape[0])

        def loss(trained):
            found = logits(trained, table[rows])
            return optax.softmax_cross_entropy_with_integer_labels(found, labels[rows]).mean()

        updates, state = adam.update(jax.grad(loss)(trained), state)
        return (optax.apply_updates(trained, updates), state), None

    (trained, _), _ = lax.scan(step, (start, adam.init(start)), jax.random.split(key_batches, steps))
    accuracy = jnp.mean(jnp.argmax(logits(trained, table), axis=1) == labels)
    return TrainedText(params | {"text_encoder": trained[0]}, accuracy)
