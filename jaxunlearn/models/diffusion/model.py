"""A whole text-to-image model as pure functions, at Stable Diffusion 1.x's size and at that of small digits."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.diffusion import Schedule, TextToImage
from jaxunlearn.models import layers
from jaxunlearn.models.diffusion.text import TextArchitecture, TextEncoder, token_table
from jaxunlearn.models.diffusion.unet import UNet, UNetArchitecture
from jaxunlearn.models.diffusion.vae import Autoencoder, AutoencoderArchitecture

Compute = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a text-to-image model is made of.

    Raises:
        InputError: The parts do not go together.
    """

    text: TextArchitecture = TextArchitecture()
    unet: UNetArchitecture = UNetArchitecture()
    vae: AutoencoderArchitecture | None = AutoencoderArchitecture()
    """None: pixels in [-1, 1] are the latents."""
    schedule: Schedule = Schedule()

    def __post_init__(self):
        _validate.require(
            self.unet.context == self.text.width,
            f"Expected the U-Net's context={self.unet.context} to be the text encoder's width={self.text.width}.",
        )
        _validate.require(
            self.vae is None or self.vae.latents == self.unet.channels,
            f"Expected the autoencoder's latents to be the U-Net's channels={self.unet.channels}.",
        )


def digits(vocabulary: int, length: int) -> Architecture:
    """The small model: digits of 8 x 8 pixels, two levels, cross-attention at both on the way down, no middle part.

    Args:
        vocabulary: Tokens, of which 0 fills up, 1 starts and 2 ends.
        length: Tokens of a prompt with start and end.
    """
    text = TextArchitecture(
        vocabulary=vocabulary, width=64, layers=2, heads=4, hidden=128, length=length, start=1, end=2, pad=0
    )
    unet = UNetArchitecture(
        channels=1,
        size=8,
        widths=(32, 48),
        attends=(True, True),
        attends_up=(False, False),
        middle=False,
        layers=1,
        heads=(4, 4),
        context=64,
        groups=8,
    )
    return Architecture(text=text, unet=unet, vae=None)


PRESETS: Mapping[str, Architecture] = MappingProxyType({"sd1": Architecture()})
"""Architectures by name: Stable Diffusion 1.1 to 1.5, at 512 x 512 pixels."""


@functools.lru_cache(maxsize=16)
def shapes(architecture: Architecture) -> dict[str, Any]:
    """The parameters' tree, with shapes for arrays; nothing is computed."""
    a, key = architecture, jax.random.key(0)
    states = jnp.zeros((1, a.text.length, a.text.width))
    latents = jnp.zeros((1, a.unet.size, a.unet.size, a.unet.channels))
    inputs: dict[str, tuple[Any, ...]] = {
        "text_encoder": (TextEncoder(a.text), states),
        "unet": (UNet(a.unet), latents, jnp.zeros(1), states),
    }
    if a.vae is not None:
        side = 2 ** (len(a.vae.widths) - 1)
        inputs["vae"] = (Autoencoder(a.vae), jnp.zeros((1, side, side, a.vae.channels)))
    return {part: jax.eval_shape(module.init, key, *given)["params"] for part, (module, *given) in inputs.items()}


def initial(architecture: Architecture, key: PRNGKeyArray) -> dict[str, Any]:
    """Initial weights as torch's: uniform within 1 / sqrt(inputs), also biases; norms 1 and 0; tables normal."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes(architecture))
    found = {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}
    inputs = {name: math.prod(shape[:-1]) for name, shape in found.items() if len(shape) > 1}

    # One draw for all: each costs seconds to compile.
    ends = np.cumsum([math.prod(shape) for shape in found.values()])
    draws = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1, maxval=1), ends[:-1])
    values = []
    for (name, shape), draw in zip(found.items(), draws):
        fan_in = inputs.get(name.removesuffix("bias").removesuffix("weight") + "weight")
        if "embedding.weight" in name:
            values.append(0.02 * math.sqrt(2) * jax.scipy.special.erfinv(draw.reshape(shape)))
        elif fan_in is None:
            values.append(jnp.full(shape, float(name.endswith("weight"))))
        else:
            values.append(draw.reshape(shape) / math.sqrt(fan_in))
    return jax.tree.unflatten(structure, values)


def text_to_image(
    architecture: Architecture, *, form: layers.ConvForm = "canonical", dtype: Compute = "float32", remat: bool = False
) -> TextToImage:
    """The model of an architecture.

    Args:
        architecture: What it is made of.
        form: Of the convolutions, see ``models.layers``: "patches" on a CPU and under ``vmap`` over parameters.
        dtype: What the parts compute in; parameters, and what goes in and out, are float32.
        remat: Whether the U-Net's backward pass computes it again instead of keeping what is inside.

    Raises:
        InputError: An unknown ``form`` or ``dtype``.
    """
    _validate.one_of("form", form, layers.CONV_FORMS)
    _validate.one_of("dtype", dtype, get_args(Compute))
    a, compute = architecture, jnp.dtype(dtype)
    text, unet = TextEncoder(a.text), UNet(a.unet, form)
    vae = None if a.vae is None else Autoencoder(a.vae, form)
    shape = (a.unet.size, a.unet.size, a.unet.channels)

    def run(module, params, *inputs, **options) -> Any:
        if compute != jnp.float32:
            params, *inputs = jax.tree.map(
                lambda leaf: leaf.astype(compute) if leaf.dtype == jnp.float32 and leaf.ndim > 1 else leaf,
                (params, *inputs),
            )
        out = module.apply({"params": params}, *inputs, **options)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), out)

    def predict(params, x, times, context):
        return run(unet, params["unet"], x, times.astype(jnp.float32), context)

    def attend(params, x, times, context):
        noise, sown = run(unet, params["unet"], x, times.astype(jnp.float32), context, mutable=["intermediates"])
        return noise, probabilities(sown["intermediates"])

    def encode(params, images):
        scaled = 2 * images - 1
        if vae is None or a.vae is None:
            return scaled
        return a.vae.scale * run(vae, params["vae"], scaled, method=Autoencoder.encode)[0]

    def decode(params, latents):
        if vae is not None and a.vae is not None:
            latents = run(vae, params["vae"], latents / a.vae.scale, method=Autoencoder.decode)
        return jnp.clip((latents + 1) / 2, 0, 1)

    return TextToImage(
        init=functools.partial(initial, a),
        table=lambda params: token_table(params["text_encoder"]),
        encode_text=lambda params, embeddings: run(text, params["text_encoder"], embeddings),
        predict=jax.checkpoint(predict) if remat else predict,
        attend=attend,
        encode=encode,
        decode=decode,
        schedule=a.schedule,
        latent_shape=shape,
        length=a.text.length,
        vocabulary=a.text.vocabulary,
        start=a.text.start,
        end=a.text.end,
        pad=a.text.pad,
    )


def probabilities(sown: Any) -> tuple[Any, ...]:
    """What the cross-attentions sowed, in the order of the network: down, middle, up."""
    order = {"down_blocks": 0, "mid_block": 1, "up_blocks": 2}
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(sown):
        # Names such as down_blocks.0 and attentions.1 hold the numbers.
        first, *numbers = jax.tree_util.keystr(path, simple=True, separator=".").split(".")
        found[order[first], *(int(n) for n in numbers if n.isdigit())] = leaf
    return tuple(found[place] for place in sorted(found))
