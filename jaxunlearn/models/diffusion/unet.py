"""The U-Net with cross-attention (Rombach et al., 2022, arXiv:2112.10752), as Stable Diffusion 1.x and 2.x have it."""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.models import layers
from jaxunlearn.models.diffusion.blocks import (
    AUTOENCODER_EPSILON,
    NORM_EPSILON,
    Conv,
    GroupNorm,
    LayerNorm,
    Linear,
    ResnetBlock,
    Upsample,
    attention,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UNetArchitecture:
    """What a U-Net is made of.

    Raises:
        InputError: A size is out of range, or sizes do not go together.
    """

    channels: int = 4
    """Of the latents."""
    size: int = 64
    """Pixels of the latents' side; divisible by 2 for every level but the last."""
    widths: tuple[int, ...] = (320, 640, 1280, 1280)
    """Channels of each level, from the finest."""
    attends: tuple[bool, ...] = (True, True, True, False)
    """Which levels have transformers."""
    attends_up: tuple[bool, ...] | None = None
    """The same of the way up, from the finest level; None: the same levels."""
    middle: bool = True
    """Whether there is a middle part, with a transformer."""
    layers: int = 2
    """Residual blocks of a level on the way down; one more on the way up."""
    heads: tuple[int, ...] = (8, 8, 8, 8)
    """Attention heads of each level; the middle has the last one's."""
    context: int = 768
    """Width of the text encoder's states."""
    groups: int = 32
    """Of group norms; divides all widths, and the sums of those of a level and what it is joined with."""
    linear: bool = False
    """Whether transformers go in and out by linear layers (2.x) rather than by convolutions of 1 x 1 (1.x)."""

    def __post_init__(self):
        _validate.not_empty("widths", self.widths)
        _validate.at_least(1, channels=self.channels, size=self.size, layers=self.layers, context=self.context)
        _validate.at_least(1, groups=self.groups, widths=min(self.widths), heads=min(self.heads, default=1))
        levels = len(self.widths)
        for name in ("attends", "attends_up", "heads"):
            values = getattr(self, name)
            _validate.require(
                values is None or len(values) == levels,
                f"Expected {name}={values} to have {levels} entries, as widths={self.widths} has.",
            )
        for width, heads in zip(self.widths, self.heads):
            _validate.require(
                width % self.groups == 0 and width % heads == 0,
                f"Expected groups={self.groups} and heads={heads} to divide width {width}.",
            )
        _validate.require(self.widths[0] % 2 == 0, f"Expected the first of widths={self.widths} to be even.")
        _validate.require(
            self.size % 2 ** (levels - 1) == 0, f"Expected size={self.size} to be divisible by {2 ** (levels - 1)}."
        )


def time_features(times: Float[Array, " b"], width: int) -> Float[Array, "b w"]:
    """Cosines, then sines, of a time at width / 2 frequencies from 1 down to nearly 1 / 10000."""
    half = width // 2
    frequencies = jnp.exp(-math.log(10000.0) * jnp.arange(half, dtype=jnp.float32) / half)
    angles = times.astype(jnp.float32)[:, None] * frequencies[None, :]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


class _TimeEmbedding(nn.Module):
    width: int

    @nn.compact
    def __call__(self, features):
        return Linear(self.width, name="linear_2")(nn.silu(Linear(self.width, name="linear_1")(features)))


class _Attention(nn.Module):
    """Attention over ``context``; ``shown``: its probabilities are sown for whoever asks."""

    heads: int
    shown: bool = False

    @nn.compact
    def __call__(self, x, context):
        width = x.shape[-1]
        query = Linear(width, bias=False, name="to_q")(x)
        key, value = (Linear(width, bias=False, name=name)(context) for name in ("to_k", "to_v"))
        out, weights = attention(query, key, value, self.heads)
        if self.shown:
            self.sow("intermediates", "probabilities", weights)
        return Linear(width, name="to_out.0")(out)


class _Gated(nn.Module):
    """GEGLU with the exact GELU, to 4 times the width."""

    @nn.compact
    def __call__(self, x):
        h, gate = jnp.split(Linear(8 * x.shape[-1], name="net.0.proj")(x), 2, axis=-1)
        return Linear(x.shape[-1], name="net.2")(h * jax.nn.gelu(gate, approximate=False))


class _TransformerBlock(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x, context):
        h = LayerNorm(NORM_EPSILON, name="norm1")(x)
        x = x + _Attention(self.heads, name="attn1")(h, h)
        x = x + _Attention(self.heads, shown=True, name="attn2")(LayerNorm(NORM_EPSILON, name="norm2")(x), context)
        return x + _Gated(name="ff")(LayerNorm(NORM_EPSILON, name="norm3")(x))


class _Transformer(nn.Module):
    heads: int
    groups: int
    linear: bool
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x, context):
        b, height, width, c = x.shape

        def layer(name):
            return Linear(c, name=name) if self.linear else Conv(c, self.form, size=1, name=name)

        h = layer("proj_in")(GroupNorm(self.groups, AUTOENCODER_EPSILON, name="norm")(x))
        h = h.reshape(b, height * width, c)
        h = _TransformerBlock(self.heads, name="transformer_blocks.0")(h, context.astype(x.dtype))
        return x + layer("proj_out")(h.reshape(x.shape))


class _Level(nn.Module):
    """Residual blocks of one level, each followed by a transformer where there are any."""

    a: UNetArchitecture
    level: int
    count: int
    form: layers.ConvForm
    skips: bool = False
    resize: str = ""

    @nn.compact
    def __call__(self, x, embedding, context, kept):
        a, width = self.a, self.a.widths[self.level]
        attends = (a.attends if not self.skips or a.attends_up is None else a.attends_up)[self.level]
        for number in range(self.count):
            if self.skips:
                x = jnp.concatenate([x, kept.pop()], axis=-1)
            x = ResnetBlock(width, a.groups, NORM_EPSILON, self.form, name=f"resnets.{number}")(x, embedding)
            if attends:
                transformer = _Transformer(
                    a.heads[self.level], a.groups, a.linear, self.form, name=f"attentions.{number}"
                )
                x = transformer(x, context)
            if not self.skips:
                kept.append(x)
        if self.resize == "down":
            x = _Downsample(self.form, name="downsamplers.0")(x)
            kept.append(x)
        if self.resize == "up":
            x = Upsample(self.form, name="upsamplers.0")(x)
        return x


class _Downsample(nn.Module):
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        return Conv(x.shape[-1], self.form, stride=2, name="conv")(x)


class _Middle(nn.Module):
    a: UNetArchitecture
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x, embedding, context):
        a, width = self.a, self.a.widths[-1]
        x = ResnetBlock(width, a.groups, NORM_EPSILON, self.form, name="resnets.0")(x, embedding)
        x = _Transformer(a.heads[-1], a.groups, a.linear, self.form, name="attentions.0")(x, context)
        return ResnetBlock(width, a.groups, NORM_EPSILON, self.form, name="resnets.1")(x, embedding)


class UNet(nn.Module):
    """The noise in latents [b, h, w, c] at times [b], given the states of a prompt [b, n, w].

    With the collection ``intermediates`` mutable it also gives the probabilities of its cross-attentions.
    """

    a: UNetArchitecture
    form: layers.ConvForm = "canonical"

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"], times: Float[Array, " b"], context: Float[Array, "b n w"]) -> Any:
        """Gives [b, h, w, c]."""
        a, last = self.a, len(self.a.widths) - 1
        features = time_features(times, a.widths[0]).astype(x.dtype)
        embedding = _TimeEmbedding(4 * a.widths[0], name="time_embedding")(features)
        x = Conv(a.widths[0], self.form, name="conv_in")(x)
        kept = [x]
        for level in range(last + 1):
            resize = "down" if level < last else ""
            down = _Level(a, level, a.layers, self.form, resize=resize, name=f"down_blocks.{level}")
            x = down(x, embedding, context, kept)
        if a.middle:
            x = _Middle(a, self.form, name="mid_block")(x, embedding, context)
        for number, level in enumerate(range(last, -1, -1)):
            resize = "up" if level > 0 else ""
            up = _Level(a, level, a.layers + 1, self.form, skips=True, resize=resize, name=f"up_blocks.{number}")
            x = up(x, embedding, context, kept)
        x = nn.silu(GroupNorm(a.groups, NORM_EPSILON, name="conv_norm_out")(x))
        return Conv(a.channels, self.form, name="conv_out")(x)
