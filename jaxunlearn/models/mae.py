"""Masked autoencoders of images (MAE): a vision transformer that sees some patches, and a small one that fills in the others.

Positions are fixed sines and cosines, so that the decoder takes its tokens in the mask's order, visible ones first, and only
its predictions are put back into the grid's: no learnt feature is gathered.

References:
    He et al., Masked autoencoders are scalable vision learners, CVPR 2022, arXiv:2111.06377.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.patches import Autoencoder, inverse, patchify
from jaxunlearn.types import Params

_DEVIATION = 0.02  # of initial tokens
_DRAWN = (
    nn.initializers.zeros
)  # a place for what ``_initial`` draws, all at once: each draw takes half a second to compile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a masked autoencoder is made of.

    Raises:
        InputError: A size is below 1, or one does not divide another that it has to.
    """

    side: int = 224
    """Pixels along an image's side."""
    patch: int = 16
    """Pixels along a patch's side; divides ``side``."""
    channels: int = 3
    """Of images."""
    width: int = 768
    """Size of the encoder's tokens, divisible by 4."""
    depth: int = 12
    """Blocks of the encoder."""
    heads: int = 12
    """Of the encoder's attention; divides ``width``."""
    mlp: int = 3072
    """Units between the two matrices of a feed-forward part."""
    decoder_width: int = 512
    """Size of the decoder's tokens, divisible by 4."""
    decoder_depth: int = 8
    """Blocks of the decoder."""
    decoder_heads: int = 16
    """Divides ``decoder_width``."""
    decoder_mlp: int = 2048
    """As ``mlp``."""
    epsilon: float = 1e-12
    """Added to variances by LayerNorm."""
    normalised: bool = False
    """Whether the decoder predicts pixels less their patch's mean and over its deviation (norm_pix_loss)."""

    def __post_init__(self):
        sizes = [field.name for field in dataclasses.fields(self) if field.type in (int, "int")]
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})
        _validate.positive(epsilon=self.epsilon)
        for part, whole in (("patch", "side"), ("heads", "width"), ("decoder_heads", "decoder_width")):
            divisor, value = getattr(self, part), getattr(self, whole)
            _validate.require(value % divisor == 0, f"Expected {part}={divisor} to divide {whole}={value}.")
        for name in ("width", "decoder_width"):
            value = getattr(self, name)
            _validate.require(
                value % 4 == 0,
                f"Expected {name}={value} to be divisible by 4, because positions are sines and cosines of rows and columns.",
            )

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.side // self.patch


_BASE = Architecture()
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "vit-mae-base": _BASE,
        "vit-mae-large": dataclasses.replace(_BASE, width=1024, depth=24, heads=16, mlp=4096),
        "vit-mae-huge": dataclasses.replace(_BASE, patch=14, width=1280, depth=32, heads=16, mlp=5120),
        "digits": Architecture(
            side=8,
            patch=2,
            channels=1,
            width=64,
            depth=4,
            heads=4,
            mlp=256,
            decoder_width=64,
            decoder_depth=2,
            decoder_heads=4,
            decoder_mlp=256,
            epsilon=1e-6,
        ),
    }
)
"""Published sizes, and one of 305,028 parameters for digits of 8 x 8 pixels."""


def positions(width: int, grid: int) -> np.ndarray:
    """[1 + grid^2, width] float32: zeros for the class token, then of each patch sine and cosine of its column and its row.

    The published code turned rows and columns around; so do all weights trained with it.
    """
    frequencies = 1.0 / 10000.0 ** (np.arange(width // 4) / (width // 4))
    row, column = np.divmod(np.arange(grid * grid), grid)
    angles = [np.outer(place, frequencies) for place in (column, row)]
    table = np.concatenate([turn(angle) for angle in angles for turn in (np.sin, np.cos)], axis=1)
    return np.concatenate([np.zeros((1, width)), table]).astype(np.float32)


class _Linear(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", _DRAWN, (x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        rows = x.reshape(-1, x.shape[-1]) @ kernel + bias[None, :]  # a single contracted axis, in the gradient too
        return rows.reshape(*x.shape[:-1], self.features)


class _Norm(nn.Module):
    epsilon: float

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        deviation = lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        return centred * deviation * scale[None, None, :] + bias[None, None, :]


class _Attention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x):
        b, t, d = x.shape
        size = d // self.heads
        query, key, value = jnp.moveaxis(_Linear(3 * d, name="qkv")(x).reshape(b, t, 3, self.heads, size), 2, 0)
        scores = jnp.einsum("bthd,bshd->bhts", query / math.sqrt(size), key)
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores, axis=-1), value)
        return _Linear(d, name="out")(mixed.reshape(b, t, d))


class _Block(nn.Module):
    heads: int
    mlp: int
    epsilon: float

    @nn.compact
    def __call__(self, x):
        x = x + _Attention(self.heads, name="attention")(_Norm(self.epsilon, name="norm_1")(x))
        hidden = _Linear(self.mlp, name="up")(_Norm(self.epsilon, name="norm_2")(x))
        return x + _Linear(x.shape[-1], name="down")(jax.nn.gelu(hidden, approximate=False))


def _token(module: nn.Module, name: str, width: int) -> Float[Array, "1 1 d"]:
    return module.param(name, _DRAWN, (1, 1, width))


class _Encoder(nn.Module):
    a: Architecture

    @nn.compact
    def __call__(self, x, order, visible):
        a, seen = self.a, order[:, :visible]
        table = jnp.asarray(positions(a.width, a.grid))
        patches = jnp.take_along_axis(patchify(x, a.patch), seen[..., None], axis=1)  # before they become wide
        tokens = _Linear(a.width, name="patch")(patches) + table[1:][seen]
        first = jnp.broadcast_to(_token(self, "class_token", a.width), (x.shape[0], 1, a.width))
        tokens = jnp.concatenate([first, tokens], axis=1)
        for number in range(a.depth):
            tokens = _Block(a.heads, a.mlp, a.epsilon, name=f"block_{number}")(tokens)
        return _Norm(a.epsilon, name="norm")(tokens)


class _Decoder(nn.Module):
    a: Architecture

    @nn.compact
    def __call__(self, latents, order):
        a = self.a
        b, n = order.shape
        width, table = a.decoder_width, jnp.asarray(positions(a.decoder_width, a.grid))
        tokens = _Linear(width, name="embed")(latents)
        hidden = jnp.broadcast_to(_token(self, "mask_token", width), (b, n + 1 - latents.shape[1], width))
        tokens = jnp.concatenate([tokens, hidden], axis=1)
        tokens = tokens + jnp.concatenate([jnp.zeros((b, 1, width)), table[1:][order]], axis=1)
        for number in range(a.decoder_depth):
            tokens = _Block(a.decoder_heads, a.decoder_mlp, a.epsilon, name=f"block_{number}")(tokens)
        tokens = _Norm(a.epsilon, name="norm")(tokens[:, 1:])
        predicted = _Linear(a.patch * a.patch * a.channels, name="predict")(tokens)
        return jnp.take_along_axis(predicted, inverse(order)[..., None], axis=1)


def _initial(undrawn: Callable[[PRNGKeyArray], Params], key: PRNGKeyArray) -> Params:
    """Initial weights as in the published code: matrices uniform (Xavier), tokens normal, norms 1, biases 0."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(undrawn, key))
    ends = np.cumsum([math.prod(leaf.shape) for _, leaf in leaves])
    draws = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0, maxval=1.0), ends[:-1])

    def one(name: str, shape: tuple[int, ...], draw: Float[Array, " k"]) -> Array:
        if name == "kernel":
            return draw.reshape(shape) * math.sqrt(6 / sum(shape))
        if name.endswith("token"):
            return _DEVIATION * math.sqrt(2) * jax.scipy.special.erfinv(draw).reshape(shape)
        return jnp.ones(shape) if name == "scale" else jnp.zeros(shape)

    found = [one(path[-1].key, leaf.shape, draw) for (path, leaf), draw in zip(leaves, draws)]
    return jax.tree.unflatten(structure, found)


def autoencoder(
    architecture: Architecture, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Autoencoder:
    """The masked autoencoder of an architecture, on images in [0, 1].

    Args:
        architecture: What it is made of.
        mean: Of each channel, taken off inside; published weights want their own (``mae_weights``). None: nothing is.
        std: Of each channel, > 0, that the rest is divided by inside; predictions come back as pixels.

    Returns:
        Pure functions.

    Raises:
        InputError: ``mean`` and ``std`` are not both given, one for each channel.
    """
    a = architecture
    encoder, decoder = _Encoder(a), _Decoder(a)
    count = len(mean or ())
    _validate.require(
        (mean is None) == (std is None) and count == len(std or ()) and count in (0, a.channels),
        f"Expected mean and std of {a.channels} channels or neither, got {mean!r} and {std!r}.",
    )
    for channel, value in enumerate(std or ()):
        _validate.positive(**{f"std[{channel}]": value})
    offset = jnp.asarray(mean if mean is not None else [0.0] * a.channels)
    factor = jnp.asarray(std if std is not None else [1.0] * a.channels)

    def undrawn(key: PRNGKeyArray) -> Params:
        x, order = jnp.zeros((1, a.side, a.side, a.channels)), jnp.arange(a.grid**2)[None]
        latents = jnp.zeros((1, 2, a.width))
        parts = {"encoder": encoder.init(key, x, order, 1), "decoder": decoder.init(key, latents, order)}
        return {name: part["params"] for name, part in parts.items()}

    def encode(params: Params, x: Float[Array, "b n n c"], order: Int[Array, "b N"], visible: int) -> Any:
        if mean is not None:
            x = (x - offset[None, None, None, :]) / factor[None, None, None, :]
        return encoder.apply({"params": params["encoder"]}, x, order, visible)

    def decode(params: Params, latents: Float[Array, "b t d"], order: Int[Array, "b N"]) -> Any:
        predicted: Any = decoder.apply({"params": params["decoder"]}, latents, order)
        if mean is None or a.normalised:
            return predicted
        repeats = a.patch * a.patch
        return predicted * jnp.tile(factor, repeats)[None, None, :] + jnp.tile(offset, repeats)[None, None, :]

    return Autoencoder(a.side, a.channels, a.patch, partial(_initial, undrawn), encode, decode, a.normalised)
