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
    """Uniform in +-1/sqrt(fan), PyTorch's initial weights of LSTM (fan: its units) and linear layers (fan: their inputs)."""
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
        logits = nn.Dense(self.vocabulary, kernel_init=init, bias_init=init)(
            h.reshape(-1, self.hidden)
        )  # one 2-D product
        return logits.reshape(*x.shape[::-1], -1).swapaxes(0, 1)


def lstm(
    *,
    vocabulary: int = 100,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    form: recurrent.LSTMForm = "hoisted",
) -> Model:
    """The character model of McMahan et al. (2017) as in the audit paper, appendix D.2: 825,220 parameters by default.

    Characters are embedded, go through stacked LSTM layers from zero states, and a dense layer gives each step's logits of
    the character to come. Every LSTM layer has two bias vectors, as PyTorch's: only their sum matters, but the count, and a
    gradient step, which moves the sum twice, are those of the paper. Initial weights are PyTorch's as well: standard normal
    embedding, all others uniform in +-1/sqrt(hidden).

    Args:
        vocabulary: Number of characters, >= 1.
        embedding: Size of a character's embedding, >= 1.
        hidden: Units of each LSTM layer, >= 1.
        layers: LSTM layers, >= 1.
        form: See ``models.recurrent``: "hoisted" to train, "plain" where forward-mode differentiation is needed.

    Returns:
        A model whose ``apply`` takes integer ids [b, t] in 0..vocabulary-1 and returns logits [b, t, vocabulary].

    Raises:
        InputError: A size is below 1.
    """
    _validate.at_least(1, vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
    return from_module(_CharacterModel(vocabulary, embedding, hidden, layers, form), (1,), jnp.int32)
