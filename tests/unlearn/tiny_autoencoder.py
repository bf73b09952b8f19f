"""A masked autoencoder of some sixty weights, and a task of a few images for it."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn import patches
from jaxunlearn.engine.train import Sizes
from jaxunlearn.patches import Autoencoder
from jaxunlearn.types import Model, TaskInfo
from jaxunlearn.unlearn import inpainting

SIDE, PATCH, WIDTH, N = 4, 2, 3, 4
SIZES = Sizes(retain=14, pool=8, forget=4)
TABLE = jnp.asarray(np.random.default_rng(5).normal(size=(N, WIDTH)), jnp.float32)


def init(key):
    keys = jax.random.split(key, 3)
    return {
        "encoder": {"in": 0.5 * jax.random.normal(keys[0], (4, WIDTH)), "bias": jnp.full(WIDTH, 0.1)},
        "decoder": {
            "out": 0.5 * jax.random.normal(keys[1], (WIDTH, 4)),
            "place": 0.3 * jax.random.normal(keys[2], (WIDTH, WIDTH)),
            "bias": jnp.full(4, 0.4),
        },
    }


def encode(params, x, order, visible):
    """Each token knows its patch, its place and the mean of all that are seen."""
    p, seen = params["encoder"], order[:, :visible]
    tokens = jnp.take_along_axis(patches.patchify(x, PATCH), seen[..., None], axis=1)
    tokens = jnp.tanh(tokens @ p["in"] + p["bias"][None, None] + TABLE[seen])
    mean = tokens.mean(axis=1, keepdims=True)
    return jnp.concatenate([mean, tokens + mean], axis=1)


def decode(params, latents, order):
    p = params["decoder"]
    tokens = jnp.tanh(latents.mean(axis=1, keepdims=True) + (TABLE @ p["place"])[None])
    return tokens @ p["out"] + p["bias"][None, None]


MODEL = Autoencoder(SIDE, 1, PATCH, init, encode, decode)
CENTRE = patches.Mask(np.array([3, 0, 2, 1]), 2)
TRAINING = inpainting.Pretraining(steps=6, batch_size=8, hidden=0.5)
LOSS = inpainting.masked_loss(MODEL, CENTRE)


def fill(params, x):
    return MODEL.reconstruct(params, x, CENTRE.of(x.shape[0]), CENTRE.visible)


TASK = TaskInfo(
    Model(init, fill),
    LOSS,
    SIZES.retain,
    SIZES.forget,
    8,
    lambda source: TRAINING.phase(MODEL, source, SIZES.of(source)),
    autoencoder=MODEL,
)
rng = np.random.default_rng(0)
X = rng.uniform(size=(SIZES.retain + SIZES.pool, SIDE, SIDE, 1)).astype(np.float32)
Y = rng.integers(0, 3, len(X)).astype(np.int32)
