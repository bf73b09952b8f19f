"""Layers for small maps stored [h, w, c, b]: batch last.

With few channels and small maps an array stored channels last has short rows, and slices, windows and sums over it are slow
on CPU. Batch last, whatever is done to pixels goes over rows of c * b contiguous numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxunlearn.models import winograd

# The transforms of a map that is one tile, zeros around it left out: both coordinates at once, points and pixels flat.
_INNER = winograd.INPUTS[:, 1:-1]
_INPUTS = np.kron(_INNER, _INNER)
_KERNEL = np.kron(winograd.KERNEL, winograd.KERNEL)
_OUTPUTS = np.kron(winograd.OUTPUTS, winograd.OUTPUTS)


def _linear(matrix: np.ndarray, x: Float[Array, "p ..."]) -> Float[Array, "q ..."]:
    """``matrix`` applied to the leading axis."""
    return jnp.matmul(matrix, x.reshape(x.shape[0], -1)).reshape(-1, *x.shape[1:])


@jax.custom_vjp
def _one_tile(x, kernel):
    return _one_tile_forward(x, kernel)[0]


def _one_tile_forward(x, kernel):
    inputs, outputs = kernel.shape[2:]
    points = _linear(_INPUTS, x.reshape(-1, inputs, x.shape[-1]))
    weights = _linear(_KERNEL, kernel.swapaxes(2, 3).reshape(-1, outputs, inputs))
    y = _linear(_OUTPUTS, winograd.products(weights, points, (2, 1)))
    return y.reshape(*x.shape[:2], *y.shape[1:]), (points, kernel)


def _one_tile_backward(residuals, dy):
    points, kernel = residuals
    dproducts = _linear(_OUTPUTS.T, dy.reshape(-1, *dy.shape[2:]))
    dkernel = _linear(_KERNEL.T, winograd.products(points, dproducts, (2, 2))).reshape(kernel.shape)
    # The weights with their axes the other way round: cheaper made again than turned.
    weights = _linear(_KERNEL, kernel.reshape(-1, *kernel.shape[2:]))
    dx = _linear(_INPUTS.T, winograd.products(weights, dproducts, (2, 1)))
    return dx.reshape(*dy.shape[:2], *dx.shape[1:]), dkernel


_one_tile.defvjp(_one_tile_forward, _one_tile_backward)


def _patches(x: Float[Array, "h w c b"], height: int, width: int) -> Float[Array, "h*w height*width*c b"]:
    rows, columns, _, batch = x.shape
    padded = jnp.pad(x, ((height // 2, height // 2), (width // 2, width // 2), (0, 0), (0, 0)))
    slices = [padded[i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    return jnp.concatenate(slices, axis=2).reshape(rows * columns, -1, batch)


def _at_every_pixel(weights: Float[Array, "o k"], patches: Float[Array, "p k b"]) -> Float[Array, "p o b"]:
    return winograd.products(jnp.broadcast_to(weights, (patches.shape[0], *weights.shape)), patches, (2, 1))


@jax.custom_vjp
def _by_patches(x, kernel):
    return _by_patches_forward(x, kernel)[0]


def _by_patches_forward(x, kernel):
    patches = _patches(x, *kernel.shape[:2])
    y = _at_every_pixel(kernel.reshape(-1, kernel.shape[-1]).T, patches)
    return y.reshape(*x.shape[:2], *y.shape[1:]), (patches, kernel)


def _by_patches_backward(residuals, dy):
    patches, kernel = residuals
    height, width, inputs, _ = kernel.shape
    dkernel = jnp.sum(winograd.products(patches, dy.reshape(-1, *dy.shape[2:]), (2, 2)), axis=0).reshape(kernel.shape)
    turned = kernel[::-1, ::-1].transpose(2, 0, 1, 3).reshape(inputs, -1)
    dx = _at_every_pixel(turned, _patches(dy, height, width))
    return dx.reshape(*dy.shape[:2], *dx.shape[1:]), dkernel


_by_patches.defvjp(_by_patches_forward, _by_patches_backward)


def convolve(x: Float[Array, "h w i b"], kernel: Float[Array, "kh kw i o"]) -> Float[Array, "h w o b"]:
    """Stride-1, zero-padded ("same") convolution with an odd kernel.

    A map of 4 x 4 under a 3 x 3 kernel is one of Winograd's tiles; any other goes by patches.
    """
    whole = x.shape[:2] == (winograd.TILE, winograd.TILE) and kernel.shape[:2] == (3, 3)
    return _one_tile(x, kernel) if whole else _by_patches(x, kernel)


def _windows(x: Float[Array, "h w c b"]) -> Float[Array, "h/2 2 w/2 2 c b"]:
    return x.reshape(x.shape[0] // 2, 2, x.shape[1] // 2, 2, *x.shape[2:])


@jax.custom_vjp
def max_pool(x: Float[Array, "h w c b"]) -> Float[Array, "h/2 w/2 c b"]:
    """2 x 2 maximum, stride 2; its gradient is shared equally by equal maxima."""
    return jnp.max(_windows(x), axis=(1, 3))


def _max_pool_forward(x):
    y = max_pool(x)
    return y, (x, y)


def _max_pool_backward(residuals, dy):
    x, y = residuals
    is_max = _windows(x) == y[:, None, :, None]
    equal = sum(is_max[:, i, :, j].astype(x.dtype) for i in range(2) for j in range(2))
    return (jnp.where(is_max, (dy / equal)[:, None, :, None], 0).reshape(x.shape),)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)
