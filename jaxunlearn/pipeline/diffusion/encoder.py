"""The small twin's text encoder, trained alone: what CLIP's training is to Stable Diffusion."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn.diffusion import Diffusion, TextToImage
from jaxunlearn.pipeline.diffusion.config import Encoder
from jaxunlearn.types import Params


def readout(
    model: TextToImage, params: Params, head: Float[Array, "w c"], tokens: Int[Array, "b n"]
) -> Float[Array, "b c"]:
    """Logits of the classes that captions name, from the state at each caption's end."""
    states = model.embed_text(params, tokens)
    ends = jnp.argmax(tokens == model.end, axis=1)
    return jnp.take_along_axis(states, ends[:, None, None], axis=1)[:, 0] @ head


def train_encoder(key: PRNGKeyArray, diffusion: Diffusion, options: Encoder) -> Params:
    """A text encoder that tells which class a caption is of. Words that no caption holds stay as they were drawn.

    Trained together with the U-Net, which at first has no use for words, it does not learn to tell them apart.

    Returns:
        The parameters of the text encoder, on the host.
    """
    model, captions = diffusion.model, jnp.asarray(diffusion.prompts.captions)
    classes = captions.shape[0]
    key_initial, key_head, key_steps = jax.random.split(key, 3)
    adam = optax.adam(options.rate)

    @jax.jit
    def train(key_initial, key_head, key_steps):
        encoder = model.init(key_initial)["text_encoder"]
        width = jax.eval_shape(model.embed_text, {"text_encoder": encoder}, captions[0]).shape[-1]
        moving = encoder, jax.random.normal(key_head, (width, classes)) / jnp.sqrt(width)

        def loss(moving, tokens, labels):
            encoder, head = moving
            logits = readout(model, {"text_encoder": encoder}, head, tokens)
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

        def step(number, state):
            moving, optimizer = state
            key_class, key_caption = jax.random.split(jax.random.fold_in(key_steps, number))
            labels = jax.random.randint(key_class, (options.batch_size,), 0, classes)
            tokens = diffusion.prompts.of_classes(key_caption, labels)
            updates, optimizer = adam.update(jax.grad(loss)(moving, tokens, labels), optimizer, moving)
            return optax.apply_updates(moving, updates), optimizer

        return lax.fori_loop(0, options.steps, step, (moving, adam.init(moving)))[0][0]

    return jax.tree.map(np.asarray, train(key_initial, key_head, key_steps))
