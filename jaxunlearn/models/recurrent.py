"""A long short-term memory layer (Hochreiter and Schmidhuber, 1997) that trains fast inside a loop.

Both forms take the input's share of the gates out of the time loop, as one matrix product over all steps. They have equal
values and equal gradients and differ in the backward pass:

* ``hoisted``: the gradient of the recurrent weights is one matrix product over all steps too, where the transposed loop
  would form one product a step and add them up. One array [t, b, 4h] serves in turn for the projected inputs, the gates and
  their gradient: each loop writes a step where it has just read it, so that the step is still in cache and no array is
  filled with zeros first. Besides it, hidden and cell states are kept. For training. Reverse mode, and forward mode over a
  gradient (Hessian-vector products), but not forward mode alone: ``custom_vjp`` refuses that.
* ``plain``: ``lax.scan`` as it is; any derivative.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LSTMForm = Literal["hoisted", "plain"]
LSTM_FORMS: tuple[str, ...] = get_args(LSTMForm)


def _rows(x):
    """[t, b, k] as [t * b, k]: XLA takes its fast matrix product for sure only with a single contracted axis."""
    return x.reshape(-1, x.shape[-1])


def _at(array, t):
    return lax.dynamic_index_in_dim(array, t, keepdims=False)


def _put(array, value, t):
    return lax.dynamic_update_index_in_dim(array, value, t, axis=0)


def _activate(preactivation):
    """All four gates as one expression, by sigmoid(a) = tanh(a / 2) / 2 + 1 / 2: it vectorises, four parts do not."""
    scale, offset = (
        jnp.repeat(jnp.asarray(v, preactivation.dtype), preactivation.shape[-1] // 4)[None, :]
        for v in ((0.5, 0.5, 1.0, 0.5), (0.5, 0.5, 0.0, 0.5))
    )
    return jnp.tanh(preactivation * scale) * scale + offset


def _cell(preactivation, cell):
    """One step: the gates [b, 4h] and the new cell and hidden states [b, h]."""
    gates = _activate(preactivation)
    inward, forget, candidate, outward = jnp.split(gates, 4, axis=-1)
    cell = forget * cell + inward * candidate
    return gates, cell, outward * jnp.tanh(cell)


def _plain(projected, kernel, bias):
    def step(carry, projection):
        hidden, cell = carry
        _, cell, hidden = _cell(projection + hidden @ kernel + bias[None, :], cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros_like(projected[0, :, : kernel.shape[0]])  # like: under shard_map it must vary where the inputs do
    return lax.scan(step, (zeros, zeros), projected)[1]


def _run(projected, kernel, bias):
    """[t, b, 4h] gates, written over the projected inputs, and [t + 1, b, h] hidden and cell states from the zeros on."""
    steps, batch, _ = projected.shape
    states = jnp.zeros_like(projected, shape=(steps + 1, batch, kernel.shape[0]))

    def step(t, carry):
        hidden, cell, gates, hiddens, cells = carry
        gate, cell, hidden = _cell(_at(gates, t) + hidden @ kernel + bias[None, :], cell)
        return hidden, cell, _put(gates, gate, t), _put(hiddens, hidden, t + 1), _put(cells, cell, t + 1)

    return lax.fori_loop(0, steps, step, (states[0], states[0], projected, states, states))[2:]


@jax.custom_vjp
def _hoisted(projected, kernel, bias):
    return _run(projected, kernel, bias)[1][1:]


def _hoisted_forward(projected, kernel, bias):
    gates, hiddens, cells = _run(projected, kernel, bias)
    return hiddens[1:], (kernel, gates, hiddens, cells)


def _hoisted_backward(residuals, d_hiddens):
    kernel, gates, hiddens, cells = residuals
    steps, transposed = d_hiddens.shape[0], kernel.T

    def step(n, carry):
        t = steps - 1 - n
        d_hidden, d_cell, gate, buffer = carry
        inward, forget, candidate, outward = jnp.split(gate, 4, axis=-1)
        squashed = jnp.tanh(_at(cells, t + 1))
        d_hidden = d_hidden + _at(d_hiddens, t)
        d_cell = d_cell + d_hidden * outward * (1 - squashed * squashed)
        d_preactivation = jnp.concatenate(
            [
                d_cell * candidate * inward * (1 - inward),
                d_cell * _at(cells, t) * forget * (1 - forget),
                d_cell * inward * (1 - candidate * candidate),
                d_hidden * squashed * outward * (1 - outward),
            ],
            axis=-1,
        )
        buffer = _put(buffer, d_preactivation, t)
        # The next gate is read from what has just been written: if both were read from and written to the same old buffer,
        # XLA could not tell which comes first and would copy the whole of it at every step.
        return d_preactivation @ transposed, d_cell * forget, _at(buffer, jnp.maximum(t - 1, 0)), buffer

    zeros = jnp.zeros_like(d_hiddens[0])
    d_projected = lax.fori_loop(0, steps, step, (zeros, zeros, gates[-1], gates))[3]
    rows = _rows(d_projected)
    return d_projected, _rows(hiddens[:-1]).T @ rows, rows.sum(axis=0)


_hoisted.defvjp(_hoisted_forward, _hoisted_backward)


def lstm_layer(
    x: Float[Array, "t b i"],
    input_kernel: Float[Array, "i 4h"],
    hidden_kernel: Float[Array, "h 4h"],
    bias: Float[Array, " 4h"],
    *,
    form: LSTMForm = "hoisted",
) -> Float[Array, "t b h"]:
    """Hidden states of every step, from zero initial states.

    Args:
        x: Inputs, time first.
        input_kernel: Weights of the input; columns in PyTorch's order of gates: input, forget, candidate, output.
        hidden_kernel: Weights of the previous hidden state, same columns.
        bias: Added to the gates' preactivations.
        form: See the module's docstring; both agree to float rounding.

    Returns:
        The hidden state after each step.
    """
    projected = (_rows(x) @ input_kernel).reshape(*x.shape[:2], -1)
    return (_hoisted if form == "hoisted" else _plain)(projected, hidden_kernel, bias)
