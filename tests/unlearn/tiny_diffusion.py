"""A text-to-image model of a few dozen weights with torch's paths, and a task of a few images for it."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn.diffusion import Diffusion, Prompts, Schedule, TextToImage
from jaxunlearn.models.linear import linear
from jaxunlearn.types import TaskInfo

V, WIDTH, LENGTH = 9, 4, 5
START, END, PAD = 0, 1, 2
SHAPE = (2, 2, 1)
RETAIN, FORGET = 6, 4

_BLOCK = "unet.down_blocks.0.attentions.0.transformer_blocks.0"
SHAPES = {
    "text_encoder.embeddings.token_embedding.weight": (V, WIDTH),
    "text_encoder.encoder.layers.0.weight": (WIDTH, WIDTH),
    "text_encoder.final_layer_norm.weight": (WIDTH,),
    f"{_BLOCK}.attn1.to_q.weight": (WIDTH, 4),
    f"{_BLOCK}.attn2.to_k.weight": (WIDTH, WIDTH),
    f"{_BLOCK}.attn2.to_out.0.bias": (WIDTH,),
    "unet.conv_out.weight": (1, 1, 1, 1),
    "unet.time_embedding.linear_1.weight": (1, 4),
}


def init(key):
    """A nested dictionary; keys that end in a number stay one, as flax's names do."""
    params = {}
    for name, k in zip(SHAPES, jax.random.split(key, len(SHAPES))):
        *path, leaf = keys_of(name)
        place = params
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = 0.7 * jax.random.normal(k, SHAPES[name])
    return params


def keys_of(name):
    found = []
    for part in name.split("."):
        if part.isdigit():
            found[-1] += f".{part}"
        else:
            found.append(part)
    return found


def _weights(params):
    block = params["unet"]["down_blocks.0"]["attentions.0"]["transformer_blocks.0"]
    return block["attn1"]["to_q"]["weight"], block["attn2"]["to_k"]["weight"], block["attn2"]["to_out.0"]["bias"]


def encode_text(params, embeddings):
    text = params["text_encoder"]
    states = jnp.tanh(embeddings @ text["encoder"]["layers.0"]["weight"])
    return states * text["final_layer_norm"]["weight"][None, None, :]


def attend(params, x, times, context):
    query, key, bias = _weights(params)
    scores = jnp.einsum("bnw,wv->bnv", context, key)
    weights = jax.nn.softmax(scores.sum(axis=-1), axis=-1)
    seen = jnp.einsum("bn,bnv->bv", weights, jnp.tanh(scores)) + bias[None, :]
    time = jnp.cos(times.astype(jnp.float32) / 50)[:, None] * params["unet"]["time_embedding"]["linear_1"]["weight"]
    noise = (seen @ query + time).reshape(-1, *SHAPE) + params["unet"]["conv_out"]["weight"] * x
    shown = jnp.broadcast_to(weights[:, None, None, :], (x.shape[0], 1, 4, context.shape[1]))
    return noise, (shown, 0.5 * shown)


MODEL = TextToImage(
    init=init,
    table=lambda params: params["text_encoder"]["embeddings"]["token_embedding"]["weight"],
    encode_text=encode_text,
    predict=lambda *given: attend(*given)[0],
    attend=attend,
    encode=lambda params, images: 2 * images - 1,
    decode=lambda params, latents: (latents + 1) / 2,
    schedule=Schedule(times=100),
    latent_shape=SHAPE,
    length=LENGTH,
    vocabulary=V,
    start=START,
    end=END,
    pad=PAD,
)


def _prompt(*words):
    return [START, *words, END] + [PAD] * (LENGTH - 2 - len(words))


PROMPTS = Prompts(
    captions=np.array(
        [[_prompt(3), _prompt(4, 3)], [_prompt(5), _prompt(4, 5)], [_prompt(6), _prompt(4, 6)]], np.int32
    ),
    concept=np.array([_prompt(3), _prompt(4, 3)], np.int32),
    anchor=np.array([_prompt(5), _prompt(4, 5)], np.int32),
    neutral=np.array([_prompt(6), _prompt(7), _prompt(8)], np.int32),
    mask=np.array([[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]], bool),
)
TASK = TaskInfo(linear((1,), 2), None, RETAIN, FORGET, 4, None, diffusion=Diffusion(MODEL, PROMPTS))
PARAMS = jax.jit(init)(jax.random.key(1))


def flat(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}
