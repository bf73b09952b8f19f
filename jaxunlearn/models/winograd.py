"""Winograd's 3 x 3 convolution F(4 x 4, 3 x 3) (Lavin and Gray, 2016): a quarter of the multiplications.

A tile of 4 x 4 outputs depends on 6 x 6 inputs. Cook and Toom's evaluation at 0, 1, -1, 2, -2 and infinity turns the
convolution of a tile into 36 products, each a matrix product over channels; the transforms before and after are sums of
slices. Float32 rounding grows to about 1e-5 of the largest output, against 1e-7 for the direct sum.

Tiles go through in blocks so that a block's 36 products stay in a core's cache: without blocks memory is what limits.
The shapes below call the 36 points (j, i), column first, and T the number of tiles in a block.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxunlearn.models import blocks

TILE = 4
POINTS = 6
# Rows are the six points. The transforms of a tile's inputs (B^T), of the kernel (G), and back to its outputs (A^T).
INPUTS = np.array(
    [
        [4, 0, -5, 0, 1, 0],
        [0, -4, -4, 1, 1, 0],
        [0, 4, -4, -1, 1, 0],
        [0, -2, -1, 2, 1, 0],
        [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1],
    ],
    np.float32,
)
KERNEL = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float32) / 24
OUTPUTS = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
_KERNEL_2D = np.einsum("ik,jl->jikl", KERNEL, KERNEL).reshape(POINTS**2, 9)


def applies(x_shape: tuple[int, ...], kernel_shape: tuple[int, ...]) -> bool:
    """Whether whole tiles cover the map and the kernel is 3 x 3."""
    return kernel_shape[:2] == (3, 3) and x_shape[1] % TILE == 0 and x_shape[2] % TILE == 0


def _combine(matrix: np.ndarray, parts: Sequence[Array], axis: int = 0) -> Array:
    """sum_k matrix[:, k] * parts[k], the rows stacked along ``axis``; the zeros of the matrix cost nothing."""

    def row(weights):
        return sum(part if weight == 1 else float(weight) * part for weight, part in zip(weights, parts) if weight)

    return jnp.stack([row(weights) for weights in matrix], axis)


def _transform(matrix: np.ndarray, x: Float[Array, "b H W c"], height: int, width: int) -> Float[Array, "36 T c"]:
    """Applies ``matrix`` to the rows and to the columns of every tile of ``x``."""
    reach = range(matrix.shape[1])
    rows = _combine(matrix, [x[:, k : k + height - TILE + 1 : TILE] for k in reach])
    both = _combine(matrix, [rows[:, :, :, k : k + width - TILE + 1 : TILE] for k in reach])
    return both.reshape(POINTS**2, -1, x.shape[-1])


def _of_inputs(x: Float[Array, "b h w c"]) -> Float[Array, "36 T c"]:
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return _transform(INPUTS, padded, *x.shape[1:3])


def _to_outputs(points: Float[Array, "36 T o"], height: int, width: int) -> Float[Array, "b h w o"]:
    outputs = points.shape[-1]
    points = points.reshape(POINTS, POINTS, -1, height // TILE, width // TILE, outputs)
    by_row = _combine(OUTPUTS, list(points), axis=4).reshape(POINTS, -1, height // TILE, width, outputs)
    return _combine(OUTPUTS, list(by_row), axis=2).reshape(-1, height, width, outputs)


def _of_outputs(dy: Float[Array, "b h w o"]) -> Float[Array, "36 T o"]:
    """The adjoint of ``_to_outputs``."""
    return _transform(OUTPUTS.T, dy, *dy.shape[1:3])


def products(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    """A matrix product for each entry of the leading axis, contracting the given axis of each side."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((0,), (0,))))


def _convolve(x, kernel, bias=None, around=None, *, relu=False, mask=None):
    """The convolution of ``x``, with zeros where ``mask`` is False, plus what is given, and a ReLU if wanted."""
    height, width, inputs = x.shape[1:]
    weights = (_KERNEL_2D @ kernel.reshape(9, -1)).reshape(POINTS**2, inputs, -1)

    def block(x, around, mask):
        x = x if mask is None else jnp.where(mask, x, 0)
        y = _to_outputs(products(_of_inputs(x), weights, (2, 1)), height, width)
        y = y if bias is None else y + bias[None, None, None, :]
        y = y if around is None else y + around
        return jax.nn.relu(y) if relu else y

    return blocks.map_images(block, x, around, mask, size=blocks.images_of(x))


def _turned(kernel):
    """The kernel of the input gradient: by 180 degrees, channels swapped."""
    return kernel[::-1, ::-1].swapaxes(2, 3)


def _kernel_gradient(x, dy):
    def block(x, dy):
        return products(_of_inputs(x), _of_outputs(dy), (1, 1))

    by_point = blocks.sum_images(block, x, dy, blocks.images_of(x))
    return (_KERNEL_2D.T @ by_point.reshape(POINTS**2, -1)).reshape(3, 3, x.shape[-1], dy.shape[-1])


@jax.custom_vjp
def convolve(
    x: Float[Array, "b h w i"], kernel: Float[Array, "3 3 i o"], bias: Float[Array, " o"]
) -> Float[Array, "b h w o"]:
    """Stride-1, zero-padded 3 x 3 convolution plus a bias; height and width are multiples of 4.

    Nothing but its arguments is kept for the backward pass: transforming them again costs less than the memory.
    """
    return _convolve(x, kernel, bias)


def _forward(x, kernel, bias):
    return _convolve(x, kernel, bias), (x, kernel)


def _backward(residuals, dy):
    x, kernel = residuals
    return _convolve(dy, _turned(kernel)), _kernel_gradient(x, dy), jnp.sum(dy, axis=(0, 1, 2))


convolve.defvjp(_forward, _backward)


@jax.custom_vjp
def convolve_relu(
    x: Float[Array, "b h w i"],
    kernel: Float[Array, "3 3 i o"],
    bias: Float[Array, " o"],
    around: Float[Array, "b h w o"] | None,
) -> Float[Array, "b h w o"]:
    """``relu(convolve(x, kernel, bias) + around)``, all of it while a block is in cache; None adds nothing."""
    return _convolve(x, kernel, bias, around, relu=True)


def _relu_forward(x, kernel, bias, around):
    y = convolve_relu(x, kernel, bias, around)
    return y, (x, kernel, y > 0, None if around is None else ())


def _relu_backward(residuals, dy):
    x, kernel, mask, around = residuals
    d = jnp.where(mask, dy, 0)
    # What goes around needs d as an array of its own; without it, a gradient by the input alone does not.
    dx = _convolve(dy, _turned(kernel), mask=mask) if around is None else _convolve(d, _turned(kernel))
    return dx, _kernel_gradient(x, d), jnp.sum(d, axis=(0, 1, 2)), None if around is None else d


convolve_relu.defvjp(_relu_forward, _relu_backward)
