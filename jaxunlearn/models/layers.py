"""Layers that stay fast when hundreds of models train side by side.

A convolution has three forms with equal values and equal gradients; which one is fast depends on where it runs:

* ``canonical``: one ordinary convolution whose weight and input gradients are again ordinary NHWC convolutions of
  transposed operands. XLA's own gradient convolutions lose their fast path inside a loop body on CPU (10 to 30 times
  slower), these do not. For one model at a time.
* ``patches``: nine shifted slices, one matrix product. ``vmap`` over weights turns it into a batched matrix product,
  where a convolution would become a grouped convolution, slow everywhere.
* ``plain``: ``lax.conv_general_dilated`` as it is. The only form that forward-mode differentiation takes.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxunlearn.models import winograd

ConvForm = Literal["winograd", "canonical", "patches", "plain"]
CONV_FORMS: tuple[str, ...] = get_args(ConvForm)
_NUMBERS = ("NHWC", "HWIO", "NHWC")
FEW_CHANNELS = 4
"""With so few input channels (a first layer) one narrow matrix product beats a convolution, which would run half empty."""


def _convolve(x, kernel, padding):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=_NUMBERS)


@jax.custom_vjp
def _canonical(x, kernel):
    return _convolve(x, kernel, "SAME")


def _canonical_forward(x, kernel):
    return _canonical(x, kernel), (x, kernel)


def _canonical_backward(residuals, dy):
    x, kernel = residuals
    height, width = kernel.shape[:2]
    # dL/dx: the same convolution with the kernel turned by 180 degrees and its channels swapped.
    dx = _convolve(dy, kernel[::-1, ::-1].swapaxes(2, 3), "SAME")
    # dL/dW: channels play the batch, the batch plays the input channels, and dy is the kernel.
    pad = ((height // 2, height // 2), (width // 2, width // 2))
    dkernel = _convolve(x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3), pad).transpose(1, 2, 0, 3)
    return dx, dkernel


_canonical.defvjp(_canonical_forward, _canonical_backward)


def _shifted(x, height, width):
    """[b, h, w, height * width * i]: the inputs under every kernel position, slices side by side."""
    rows, columns = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2), (0, 0)))
    slices = [padded[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    return jnp.concatenate(slices, axis=-1)


def _patches(x, kernel):
    height, width, _, out = kernel.shape
    return _shifted(x, height, width) @ kernel.reshape(-1, out)


def convolve(
    x: Float[Array, "b h w i"], kernel: Float[Array, "kh kw i o"], *, form: ConvForm = "canonical"
) -> Float[Array, "b h w o"]:
    """Stride-1, zero-padded ("same") convolution with an odd kernel.

    Args:
        x: Inputs, channels last.
        kernel: Weights; both spatial sizes odd.
        form: See the module's docstring; all forms agree to float rounding.

    Returns:
        Outputs of the inputs' spatial size.
    """
    few = kernel.shape[2] <= FEW_CHANNELS
    if form == "patches" or (few and form != "plain"):
        return _patches(x, kernel)
    if form == "winograd" and winograd.applies(*x.shape[1:3], kernel.shape):
        return winograd.convolve(x, kernel)
    return _convolve(x, kernel, "SAME") if form == "plain" else _canonical(x, kernel)


def group_norm(
    x: Float[Array, "b h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    *,
    groups: int,
    epsilon: float = 1e-6,
) -> Float[Array, "b h w c"]:
    """Group normalisation (Wu and He, 2018).

    Spatial means per channel come first and are then averaged within a group: the same value as one reduction over
    (h, w, channels of the group), with half the temporaries in the backward pass.
    """
    channels = x.shape[-1]

    def group_mean(values):  # [b, h, w, c] -> [b, 1, 1, c]
        by_channel = jnp.mean(values, axis=(1, 2)).reshape(-1, groups, channels // groups)
        return jnp.repeat(jnp.mean(by_channel, axis=-1), channels // groups, axis=-1)[:, None, None, :]

    mean = group_mean(x)
    variance = jnp.maximum(group_mean(jnp.square(x)) - jnp.square(mean), 0.0)
    factor = lax.rsqrt(variance + epsilon) * scale[None, None, None, :]
    return x * factor + (bias[None, None, None, :] - mean * factor)


@jax.custom_jvp
def max_pool(x: Float[Array, "b h w c"]) -> Float[Array, "b h/2 w/2 c"]:
    """2 x 2 maximum, stride 2; its gradient is shared equally by equal maxima.

    The derivative is written out: elementwise comparisons, where XLA would scatter or recompute the reduction.
    """
    b, h, w, c = x.shape
    return jnp.max(x.reshape(b, h // 2, 2, w // 2, 2, c), axis=(2, 4))


@max_pool.defjvp
def _max_pool_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    b, h, w, c = x.shape
    y = max_pool(x)
    windows = (b, h // 2, 2, w // 2, 2, c)
    is_max = (x.reshape(windows) == y[:, :, None, :, None, :]).astype(x.dtype)
    share = is_max / jnp.sum(is_max, axis=(2, 4), keepdims=True)
    return y, jnp.sum(share * dx.reshape(windows), axis=(2, 4))
