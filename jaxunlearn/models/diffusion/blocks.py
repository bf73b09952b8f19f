"""Layers that the U-Net, the autoencoder and the text encoder are made of, with torch's names."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn.models import layers

NORM_EPSILON = 1e-5
"""Of layer norms."""
AUTOENCODER_EPSILON = 1e-6
"""Of group norms in the autoencoder and before the U-Net's transformers, where the U-Net's other ones have 1e-5."""


SHAPE_ONLY = nn.initializers.zeros
"""Modules say what shapes their parameters have; ``model.initial`` draws all of them at once, which compiles far faster."""


class Linear(nn.Module):
    """x W + b over the last axis."""

    features: int
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... i"]) -> Any:
        """Gives [..., features]."""
        inputs = x.shape[-1]
        weight = self.param("weight", SHAPE_ONLY, (inputs, self.features))
        y = x.reshape(-1, inputs) @ weight.astype(x.dtype)  # 2-D: XLA's fast product for sure
        if self.bias:
            y = y + self.param("bias", SHAPE_ONLY, (self.features,)).astype(x.dtype)[None, :]
        return y.reshape(*x.shape[:-1], self.features)


class Conv(nn.Module):
    """A convolution with an odd kernel, padded by half its size."""

    features: int
    form: layers.ConvForm
    size: int = 3
    stride: int = 1

    @nn.compact
    def __call__(self, x: Float[Array, "b h w i"]) -> Any:
        """Gives [b, h / stride, w / stride, features]."""
        weight = self.param("weight", SHAPE_ONLY, (self.size, self.size, x.shape[-1], self.features))
        bias = self.param("bias", SHAPE_ONLY, (self.features,))
        return layers.convolve(x, weight.astype(x.dtype), bias.astype(x.dtype), stride=self.stride, form=self.form)


class GroupNorm(nn.Module):
    """Group normalisation."""

    groups: int
    epsilon: float

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Any:
        """Gives an array of x's shape."""
        weight = self.param("weight", SHAPE_ONLY, x.shape[-1:]).astype(x.dtype)
        bias = self.param("bias", SHAPE_ONLY, x.shape[-1:]).astype(x.dtype)
        return layers.group_norm(x, weight, bias, groups=self.groups, epsilon=self.epsilon)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis, in float32."""

    epsilon: float = NORM_EPSILON

    @nn.compact
    def __call__(self, x: Float[Array, "b n c"]) -> Any:
        """Gives an array of x's shape."""
        weight = self.param("weight", SHAPE_ONLY, x.shape[-1:])
        bias = self.param("bias", SHAPE_ONLY, x.shape[-1:])
        h = x.astype(jnp.float32)
        h = h - h.mean(axis=-1, keepdims=True)
        h = h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + self.epsilon)
        return (h * weight[None, None, :] + bias[None, None, :]).astype(x.dtype)


def attention(query: Array, key: Array, value: Array, heads: int, seen: Any = None) -> tuple[Array, Array]:
    """Attention of [b, n, c] queries over [b, m, c] keys and values.

    Args:
        query: Rows that look.
        key: Rows that are looked at.
        value: What they hold.
        heads: Divides c.
        seen: [n, m] bool, which rows are looked at; None: all.

    Returns:
        [b, n, c] outputs, and [b, heads, n, m] probabilities in float32.
    """
    b, n, width = query.shape

    def apart(x):
        return x.reshape(b, -1, heads, width // heads).swapaxes(1, 2)

    query, key, value = apart(query), apart(key), apart(value)
    scores = jnp.einsum("bhnd,bhmd->bhnm", query, key, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(width // heads)
    if seen is not None:
        scores = jnp.where(seen[None, None], scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bhnm,bhmd->bhnd", weights.astype(value.dtype), value)
    return out.swapaxes(1, 2).reshape(b, n, width), weights


class ResnetBlock(nn.Module):
    """Two convolutions with group norms before them; ``embedding`` of the time is added between, if there is one."""

    features: int
    groups: int
    epsilon: float
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x: Float[Array, "b h w i"], embedding: Any = None) -> Any:
        """Gives [b, h, w, features]."""
        h = Conv(self.features, self.form, name="conv1")(nn.silu(GroupNorm(self.groups, self.epsilon, name="norm1")(x)))
        if embedding is not None:
            shift = Linear(self.features, name="time_emb_proj")(nn.silu(embedding))
            h = h + shift[:, None, None, :]
        h = Conv(self.features, self.form, name="conv2")(nn.silu(GroupNorm(self.groups, self.epsilon, name="norm2")(h)))
        if x.shape[-1] != self.features:
            x = Conv(self.features, self.form, size=1, name="conv_shortcut")(x)
        return x + h


class Upsample(nn.Module):
    """Every pixel four times, then a convolution."""

    form: layers.ConvForm

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Any:
        """Gives [b, 2 h, 2 w, c]."""
        b, h, w, c = x.shape
        x = jnp.broadcast_to(x[:, :, None, :, None], (b, h, 2, w, 2, c)).reshape(b, 2 * h, 2 * w, c)
        return Conv(c, self.form, name="conv")(x)
