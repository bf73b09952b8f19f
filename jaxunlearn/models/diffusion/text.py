"""The text encoder: CLIP's causal transformer (Radford et al., 2021, arXiv:2103.00020), pre-norm blocks and a last norm.

It is called with embeddings of tokens, so that attacks can hand in mixtures of tokens.
"""

import dataclasses
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.models.diffusion.blocks import SHAPE_ONLY, LayerNorm, Linear, attention

Activation = Literal["quick_gelu", "gelu"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextArchitecture:
    """What a text encoder is made of.

    Raises:
        InputError: A size is below 1, ``heads`` does not divide ``width``, or a special token is not in the vocabulary.
    """

    vocabulary: int = 49408
    """Tokens, V."""
    width: int = 768
    """Size of the residual stream."""
    layers: int = 12
    """Blocks."""
    heads: int = 12
    """Of every attention."""
    hidden: int = 3072
    """Units of a block's feed-forward part."""
    length: int = 77
    """Tokens of a prompt, start and end included, >= 3."""
    activation: Activation = "quick_gelu"
    """quick_gelu: x sigmoid(1.702 x), of the first CLIP models. gelu: the exact one."""
    epsilon: float = 1e-5
    """Added to variances."""
    start: int = 49406
    """Token before every prompt."""
    end: int = 49407
    """Token after every prompt."""
    pad: int = 49407
    """Token that fills up."""

    def __post_init__(self):
        sizes = ("vocabulary", "width", "layers", "heads", "hidden")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})
        _validate.at_least(3, length=self.length)
        _validate.one_of("activation", self.activation, get_args(Activation))
        _validate.positive(epsilon=self.epsilon)
        _validate.require(self.width % self.heads == 0, f"Expected heads={self.heads} to divide width={self.width}.")
        for name in ("start", "end", "pad"):
            token = getattr(self, name)
            _validate.require(
                0 <= token < self.vocabulary, f"Expected {name}={token} to be a token, 0..{self.vocabulary - 1}."
            )


class _SelfAttention(nn.Module):
    heads: int

    @nn.compact
    def __call__(self, x):
        width, n = x.shape[-1], x.shape[1]
        query, key, value = (Linear(width, name=f"{part}_proj")(x) for part in "qkv")
        out, _ = attention(query, key, value, self.heads, jnp.tril(jnp.ones((n, n), bool)))
        return Linear(width, name="out_proj")(out)


class _FeedForward(nn.Module):
    hidden: int
    activation: Activation

    @nn.compact
    def __call__(self, x):
        h = Linear(self.hidden, name="fc1")(x)
        h = h * jax.nn.sigmoid(1.702 * h) if self.activation == "quick_gelu" else jax.nn.gelu(h, approximate=False)
        return Linear(x.shape[-1], name="fc2")(h)


class _Layer(nn.Module):
    a: TextArchitecture

    @nn.compact
    def __call__(self, x):
        norm = LayerNorm(self.a.epsilon, name="layer_norm1")
        x = x + _SelfAttention(self.a.heads, name="self_attn")(norm(x))
        norm = LayerNorm(self.a.epsilon, name="layer_norm2")
        return x + _FeedForward(self.a.hidden, self.a.activation, name="mlp")(norm(x))


class _Encoder(nn.Module):
    a: TextArchitecture

    @nn.compact
    def __call__(self, x):
        for number in range(self.a.layers):
            x = _Layer(self.a, name=f"layers.{number}")(x)
        return x


class _Table(nn.Module):
    rows: int
    width: int

    @nn.compact
    def __call__(self):
        return self.param("weight", SHAPE_ONLY, (self.rows, self.width))


class _Embeddings(nn.Module):
    a: TextArchitecture

    @nn.compact
    def __call__(self, embeddings):
        _Table(self.a.vocabulary, self.a.width, name="token_embedding")()  # looked up by the caller
        positions = _Table(self.a.length, self.a.width, name="position_embedding")()
        return embeddings + positions[None, : embeddings.shape[1]].astype(embeddings.dtype)


class TextEncoder(nn.Module):
    """Embeddings of tokens [b, n, d], without positions, to states [b, n, d] after the last norm."""

    a: TextArchitecture

    @nn.compact
    def __call__(self, embeddings: Float[Array, "b n d"]) -> Any:
        """Gives the states."""
        n = embeddings.shape[1]
        _validate.require(n <= self.a.length, f"Expected prompts of at most {self.a.length} tokens, got {n}; cut them.")
        x = _Embeddings(self.a, name="embeddings")(embeddings)
        x = _Encoder(self.a, name="encoder")(x)
        return LayerNorm(self.a.epsilon, name="final_layer_norm")(x)


def token_table(params: Any) -> Float[Array, "v d"]:
    """The embeddings of all tokens."""
    return params["embeddings"]["token_embedding"]["weight"]
