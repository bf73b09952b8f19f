"""The autoencoder between images in [-1, 1] and latents, an eighth of their side (Rombach et al., 2022, arXiv:2112.10752)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.models import layers
from jaxunlearn.models.diffusion.blocks import (
    AUTOENCODER_EPSILON,
    Conv,
    GroupNorm,
    Linear,
    ResnetBlock,
    Upsample,
    attention,
)

_VARIANCES = -30.0, 20.0  # log-variances are kept within these, as in the public code


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoencoderArchitecture:
    """What an autoencoder is made of.

    Raises:
        InputError: A size is below 1, or ``groups`` does not divide a width.
    """

    channels: int = 3
    """Of the images."""
    latents: int = 4
    """Channels of the latents."""
    widths: tuple[int, ...] = (128, 256, 512, 512)
    """Channels of each level, from the finest; every level but the last halves the image."""
    layers: int = 2
    """Residual blocks of a level of the encoder; one more in the decoder."""
    groups: int = 32
    """Of group norms."""
    scale: float = 0.18215
    """What latents are multiplied by before they are noised, > 0."""

    def __post_init__(self):
        _validate.not_empty("widths", self.widths)
        sizes = {"channels": self.channels, "latents": self.latents, "layers": self.layers, "groups": self.groups}
        _validate.at_least(1, **sizes, widths=min(self.widths))
        _validate.positive(scale=self.scale)
        for width in self.widths:
            _validate.require(width % self.groups == 0, f"Expected groups={self.groups} to divide width {width}.")


class _Downsample(nn.Module):
    """Half the side; zeros are added on the right and below only."""

    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # outputs over the second, the fourth, ... pixel
        return Conv(x.shape[-1], self.form, stride=2, name="conv")(padded)[:, 1:, 1:]


class _Attention(nn.Module):
    groups: int

    @nn.compact
    def __call__(self, x):
        b, height, width, c = x.shape
        h = GroupNorm(self.groups, AUTOENCODER_EPSILON, name="group_norm")(x).reshape(b, height * width, c)
        query, key, value = (Linear(c, name=name)(h) for name in ("to_q", "to_k", "to_v"))
        out, _ = attention(query, key, value, 1)
        return x + Linear(c, name="to_out.0")(out).reshape(x.shape)


class _Middle(nn.Module):
    groups: int
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        x = ResnetBlock(width, self.groups, AUTOENCODER_EPSILON, self.form, name="resnets.0")(x)
        x = _Attention(self.groups, name="attentions.0")(x)
        return ResnetBlock(width, self.groups, AUTOENCODER_EPSILON, self.form, name="resnets.1")(x)


class _Level(nn.Module):
    width: int
    groups: int
    count: int
    form: layers.ConvForm
    resize: str

    @nn.compact
    def __call__(self, x):
        for number in range(self.count):
            block = ResnetBlock(self.width, self.groups, AUTOENCODER_EPSILON, self.form, name=f"resnets.{number}")
            x = block(x)
        if self.resize == "down":
            x = _Downsample(self.form, name="downsamplers.0")(x)
        if self.resize == "up":
            x = Upsample(self.form, name="upsamplers.0")(x)
        return x


class _Encoder(nn.Module):
    a: AutoencoderArchitecture
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        a, last = self.a, len(self.a.widths) - 1
        x = Conv(a.widths[0], self.form, name="conv_in")(x)
        for level, width in enumerate(a.widths):
            resize = "down" if level < last else ""
            x = _Level(width, a.groups, a.layers, self.form, resize, name=f"down_blocks.{level}")(x)
        x = _Middle(a.groups, self.form, name="mid_block")(x)
        x = nn.silu(GroupNorm(a.groups, AUTOENCODER_EPSILON, name="conv_norm_out")(x))
        return Conv(2 * a.latents, self.form, name="conv_out")(x)


class _Decoder(nn.Module):
    a: AutoencoderArchitecture
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        a, last = self.a, len(self.a.widths) - 1
        x = Conv(a.widths[-1], self.form, name="conv_in")(x)
        x = _Middle(a.groups, self.form, name="mid_block")(x)
        for number, width in enumerate(a.widths[::-1]):
            resize = "up" if number < last else ""
            x = _Level(width, a.groups, a.layers + 1, self.form, resize, name=f"up_blocks.{number}")(x)
        x = nn.silu(GroupNorm(a.groups, AUTOENCODER_EPSILON, name="conv_norm_out")(x))
        return Conv(a.channels, self.form, name="conv_out")(x)


class Autoencoder(nn.Module):
    """Both halves; latents are in the autoencoder's own scale here."""

    a: AutoencoderArchitecture
    form: layers.ConvForm = "canonical"

    def setup(self):
        """Makes both halves."""
        self._encoder = _Encoder(self.a, self.form, name="encoder")
        self._quant = Conv(2 * self.a.latents, self.form, size=1, name="quant_conv")
        self._decoder = _Decoder(self.a, self.form, name="decoder")
        self._post_quant = Conv(self.a.latents, self.form, size=1, name="post_quant_conv")

    def encode(self, images: Float[Array, "b h w c"]) -> tuple[Array, Array]:
        """Mean and log-variance of the latents."""
        mean, variance = jnp.split(self._quant(self._encoder(images)), 2, axis=-1)
        return mean, jnp.clip(variance, *_VARIANCES)

    def decode(self, latents: Float[Array, "b h w c"]) -> Any:
        """The image."""
        return self._decoder(self._post_quant(latents))

    def __call__(self, images: Float[Array, "b h w c"]) -> Any:
        """Encodes and decodes, to make all parameters."""
        return self.decode(self.encode(images)[0])
