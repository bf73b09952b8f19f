"""A decoder of a few hundred weights, its blocks stacked, and a task of a few rows for it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxunlearn.engine.train import Sizes
from jaxunlearn.models.linear import linear
from jaxunlearn.sequences import IGNORED, LanguageModel
from jaxunlearn.types import TaskInfo

LAYERS, WIDTH, VOCABULARY, T = 4, 6, 7, 5
SIZES = Sizes(retain=10, pool=8, forget=4)
N = SIZES.retain + SIZES.pool


def init(key):
    keys = jax.random.split(key, 4)
    return {
        "embedding": jax.random.normal(keys[0], (VOCABULARY, WIDTH)),
        "blocks": {
            "up": {
                "weight": 0.5 * jax.random.normal(keys[1], (LAYERS, WIDTH, WIDTH)),
                "bias": jnp.zeros((LAYERS, WIDTH)),
            },
            "down": {"weight": 0.5 * jax.random.normal(keys[2], (LAYERS, WIDTH, WIDTH))},
        },
        "output": jax.random.normal(keys[3], (WIDTH, VOCABULARY)),
    }


def hidden(params, tokens, first, last):
    """Each block adds a tanh layer of the mean of all states so far: causal."""
    counts = jnp.arange(1, tokens.shape[1] + 1, dtype=jnp.float32)[None, :, None]

    def block(h, p):
        past = jnp.cumsum(h, axis=1) / counts
        h = h + jnp.tanh(past @ p["up"]["weight"] + p["up"]["bias"][None, None]) @ p["down"]["weight"]
        return h, h

    start = params["embedding"][tokens]
    _, states = lax.scan(block, start, jax.tree.map(lambda a: a[:last], params["blocks"]))
    return jnp.concatenate([start[None], states])[first:]


def block_of(params):
    def numbers(leaf):
        return np.arange(1, LAYERS + 1).reshape(-1, *(1,) * (leaf.ndim - 1))

    return {"embedding": 0, "blocks": jax.tree.map(numbers, params["blocks"]), "output": LAYERS + 1}


DECODER = LanguageModel(LAYERS, WIDTH, VOCABULARY, init, hidden, lambda params, h: h @ params["output"], block_of)
TASK = TaskInfo(linear((1,), 2), None, SIZES.retain, SIZES.forget, 4, None, language=DECODER)
TRAINED, BASE = (jax.jit(init)(jax.random.key(seed)) for seed in (1, 2))


def rows(seed, n=N, variants=4):
    """Tokens and labels [n, A, T]: a prompt of two tokens, an answer of one to three, padding."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, VOCABULARY, (n, variants, T)).astype(np.int32)
    x[:, :, :2] = x[:, :1, :2]
    length = rng.integers(1, T - 1, (n, variants, 1))
    scored = (np.arange(T) >= 2) & (np.arange(T) < 2 + length)
    return x, np.where(scored, x, IGNORED).astype(np.int32)
