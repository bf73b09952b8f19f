"""Character-level language model: embedding, stacked LSTM, softmax layer."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxunlearn import _validate
from jaxunlearn.models import recurrent
from jaxunlearn.models.base import from_module
from jaxunlearn.types import Model


def _uniform(fan: int):
    """Uniform in +-1/sqrt(fan), PyTorch's initial weights of LSTM (fan: hidden units) and linear layers (fan: inputs)."""
    bound = 1 / math.sqrt(fan)

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class _LSTM(nn.Module):
    hidden: int
    form: recurrent.LSTMForm

    @nn.compact
    def __call__(self, x):
        init, gates = _uniform(self.hidden), 4 * self.hidden
        input_kernel = self.param("input_kernel", init, (x.shape[-1], gates))
        hidden_kernel = self.param("hidden_kernel", init, (self.hidden, gates))
        bias = self.param("input_bias", init, (gates,)) + self.param("hidden_bias", init, (gates,))
        return recurrent.lstm_layer(x, input_kernel, hidden_kernel, bias, form=self.form)


class _CharacterModel(nn.Module):
    vocabulary: int
    embedding: int
    hidden: int
    layers: int
    form: recurrent.LSTMForm

    @nn.compact
    def __call__(self, x):
        table = self.param("embedding", nn.initializers.normal(1.0), (self.vocabulary, self.embedding))
        h = table[x.T]  # time first from here on
        for _ in range(self.layers):
            h = _LSTM(self.hidden, self.form)(h)
        init = _uniform(self.hidden)
        logits = nn.Dense(self.vocabulary, kernel_init=init, bias_init=init)(h.reshape(-1, self.hidden))
        return logits.reshape(*x.shape[::-1], -1).swapaxes(0, 1)


def lstm(
    *,
    vocabulary: int = 100,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    form: recurrent.LSTMForm = "hoisted",
) -> Model:
    """x"""
    return from_module(_CharacterModel(vocabulary, embedding, hidden, layers, form), (1,), jnp.int32)
