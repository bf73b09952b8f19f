"""A long short-term memory layer (Hochreiter and Schmidhuber, 1997) that trains fast inside a loop.

Both forms take the input's share of the gates out of the time loop, as one matrix product over all steps. They have equal
values and equal gradients and differ in the backward pass:

* ``hoisted``: the gradient of the recurrent weights is one matrix product over all steps too, where the transposed loop
  would form one product a step and add them up, and nothing but gates and cell states is kept. For training. Reverse mode,
  and forward mode over a gradient (Hessian-vector products), but not forward mode alone: ``custom_vjp`` refuses that.
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


def _activate(preactivation):
    """All four gates as one expression, by sigmoid(a) = tanh(a / 2) / 2 + 1 / 2: it vectorises, four parts do not."""
    scale, offset = (
        jnp.repeat(jnp.asarray(v, preactivation.dtype), preactivation.shape[-1] // 4)[None, :]
        for v in ((0.5, 0.5, 1.0, 0.5), (0.5, 0.5, 0.0, 0.5))
    )
    return jnp.tanh(preactivation * scale) * scale + offset


def _scan_steps(projected, kernel):
    """[t, b, h] hidden states, [t, b, 4h] gates and [t, b, h] cell states."""

    def step(carry, projection):
        hidden, cell = carry
        gates = _activate(projection + hidden @ kernel)
        inward, forget, candidate, outward = jnp.split(gates, 4, axis=-1)
        cell = forget * cell + inward * candidate
        hidden = outward * jnp.tanh(cell)
        return (hidden, cell), (hidden, gates, cell)

    zeros = jnp.zeros_like(projected[0, :, : kernel.shape[0]])  # like: under shard_map it must vary where the inputs do
    return lax.scan(step, (zeros, zeros), projected)[1]


def _plain(projected, kernel):
    return _scan_steps(projected, kernel)[0]


_hoisted = jax.custom_vjp(_plain)


def _hoisted_forward(projected, kernel):
    hidden, gates, cells = _scan_steps(projected, kernel)
    return hidden, (kernel, hidden, gates, cells)


def _hoisted_backward(residuals, d_hidden):
    kernel, hidden, gates, cells = residuals
    transposed = kernel.T
    before = jnp.concatenate([jnp.zeros_like(cells[:1]), cells[:-1]])

    def step(carry, inputs):
        d_state, d_cell = carry
        d_output, gate, squashed, cell_before = inputs
        inward, forget, candidate, outward = jnp.split(gate, 4, axis=-1)
        d_state = d_state + d_output
        d_cell = d_cell + d_state * outward * (1 - squashed * squashed)
        d_preactivation = jnp.concatenate(
            [
                d_cell * candidate * inward * (1 - inward),
                d_cell * cell_before * forget * (1 - forget),
                d_cell * inward * (1 - candidate * candidate),
                d_state * squashed * outward * (1 - outward),
            ],
            axis=-1,
        )
        return (d_preactivation @ transposed, d_cell * forget), d_preactivation

    zeros = jnp.zeros_like(d_hidden[0])
    inputs = (d_hidden, gates, jnp.tanh(cells), before)
    d_projected = lax.scan(step, (zeros, zeros), inputs, reverse=True)[1]
    return d_projected, _rows(hidden[:-1]).T @ _rows(d_projected[1:])


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
    projected = (_rows(x) @ input_kernel + bias[None, :]).reshape(*x.shape[:2], -1)
    return (_hoisted if form == "hoisted" else _plain)(projected, hidden_kernel)
