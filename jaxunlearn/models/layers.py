"""Layers that stay fast when hundreds of models train side by side.

A convolution has four forms with equal values and equal gradients; which one is fast depends on where it runs:

* ``winograd``: a quarter of the multiplications, in blocks of images that stay in a CPU core's cache. Takes 3 x 3 kernels
  at stride 1 over maps of whole tiles; anything else goes the canonical way. For one model at a time on CPU.
* ``canonical``: one ordinary convolution whose weight and input gradients are again ordinary NHWC convolutions of
  transposed operands. XLA's own gradient convolutions lose their fast path inside a loop body on CPU (10 to 30 times
  slower), these do not. For one model at a time elsewhere.
* ``patches``: nine shifted slices, one matrix product. ``vmap`` over weights turns it into a batched matrix product,
  where a convolution would become a grouped convolution, slow everywhere. Takes forward-mode differentiation.
* ``plain``: ``lax.conv_general_dilated`` as it is; takes forward-mode differentiation.

A 1 x 1 kernel is a matrix product in all forms but the last. At stride 2, ``winograd`` and ``canonical`` are patches whose
input gradient is written out too: one matrix product for each parity of row and column.
"""

import functools
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxunlearn.models import blocks, winograd

ConvForm = Literal["winograd", "canonical", "patches", "plain"]
CONV_FORMS: tuple[str, ...] = get_args(ConvForm)
_NUMBERS = ("NHWC", "HWIO", "NHWC")
FEW_CHANNELS = 4
"""With so few input channels (a first layer) one narrow matrix product beats a convolution, which would run half empty."""


def _convolve(x, kernel, padding, stride=1):
    return lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=_NUMBERS)


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


def _pad(x, height, width, axes):
    """Zeros around a map, as many as a centred kernel reaches out."""
    reach = dict(zip(axes, (height // 2, width // 2)))
    return jnp.pad(x, [(reach.get(axis, 0),) * 2 for axis in range(x.ndim)])


def _shifted(x, height, width, stride):
    """[b, h, w, height * width * i]: the inputs under every kernel position, slices side by side."""
    rows, columns = x.shape[1:3]
    padded = _pad(x, height, width, axes=(1, 2))
    slices = [padded[:, i : i + rows : stride, j : j + columns : stride] for i in range(height) for j in range(width)]
    return slices[0] if len(slices) == 1 else jnp.concatenate(slices, axis=-1)


def _patches(x, kernel, stride=1):
    height, width, channels, out = kernel.shape
    patches = _shifted(x, height, width, stride)
    rows = patches.reshape(-1, height * width * channels)  # 2-D: else the gradient contracts three axes
    return (rows @ kernel.reshape(-1, out)).reshape(*patches.shape[:3], out)


# Which taps of a kernel of three, and which outputs, reach the even and the odd inputs at stride 2: (tap, output's offset).
_REACH = (((1, 0),), ((2, 0), (0, 1)))


def _input_gradient_of_halving(dy, kernel):
    """The adjoint of a 3 x 3 convolution at stride 2 over an even map, without the zeros of a dilated one."""
    batch, height, width, outputs = dy.shape
    inputs = kernel.shape[2]
    padded = jnp.pad(dy, ((0, 0), (0, 1), (0, 1), (0, 0)))

    def at(rows, columns):
        taps = [(i, j, p, q) for i, p in rows for j, q in columns]
        outs = jnp.concatenate([padded[:, p : p + height, q : q + width] for *_, p, q in taps], axis=-1)
        weights = jnp.concatenate([kernel[i, j] for i, j, *_ in taps], axis=1)
        return (outs.reshape(-1, len(taps) * outputs) @ weights.T).reshape(batch, height, width, inputs)

    by_row = [jnp.stack([at(rows, columns) for columns in _REACH], axis=3) for rows in _REACH]
    return jnp.stack(by_row, axis=2).reshape(batch, 2 * height, 2 * width, inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _halving(x, kernel, size: int):
    """3 x 3 convolution at stride 2 over an even map, ``size`` images at a time."""
    return blocks.map_images(lambda x: _patches(x, kernel, 2), x, size=size)


def _halving_forward(x, kernel, size):
    return _halving(x, kernel, size), (x, kernel)


def _halving_backward(size, residuals, dy):
    x, kernel = residuals

    def block(x, dy):
        patches = _shifted(x, 3, 3, 2)
        return patches.reshape(-1, patches.shape[-1]).T @ dy.reshape(-1, dy.shape[-1])

    dx = blocks.map_images(lambda dy: _input_gradient_of_halving(dy, kernel), dy, size=size)
    return dx, blocks.sum_images(block, x, dy, size).reshape(kernel.shape)


_halving.defvjp(_halving_forward, _halving_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _unfolded(x, kernel, bias, size: int):
    """``_patches`` plus a bias for few input channels, ``size`` images at a time."""
    return blocks.map_images(lambda x: _patches(x, kernel) + bias[None, None, None, :], x, size=size)


def _unfolded_forward(x, kernel, bias, size):
    return _unfolded(x, kernel, bias, size), (x, kernel)


def _unfolded_backward(size, residuals, dy):
    x, kernel = residuals
    (height, width, _, out), (rows, columns) = kernel.shape, x.shape[1:3]

    def block(x, dy):
        # Patches again, but pixels last, or the product would first have to turn all of dy (10 times slower).
        padded = _pad(x.transpose(0, 3, 1, 2), height, width, axes=(2, 3))
        slices = [padded[:, :, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
        patches = jnp.concatenate(slices, axis=1).reshape(x.shape[0], -1, rows * columns)
        return jnp.sum(patches @ dy.reshape(x.shape[0], rows * columns, out), axis=0)

    # dL/dx adds shifted slices of few channels; a network's first layer never asks for it.
    dx = jax.vjp(lambda x: _patches(x, kernel), x)[1](dy)[0]
    return dx, blocks.sum_images(block, x, dy, size).reshape(kernel.shape), jnp.sum(dy, axis=(0, 1, 2))


_unfolded.defvjp(_unfolded_forward, _unfolded_backward)


def convolve(
    x: Float[Array, "b h w i"],
    kernel: Float[Array, "kh kw i o"],
    bias: Float[Array, " o"] | None = None,
    *,
    stride: int = 1,
    form: ConvForm = "canonical",
) -> Float[Array, "b h/stride w/stride o"]:
    """Convolution with an odd kernel, and half its size of zeros on every side.

    Args:
        x: Inputs, channels last.
        kernel: Weights; both spatial sizes odd.
        bias: Added to the outputs; None adds nothing.
        stride: 1, at which outputs have the inputs' spatial size, or 2: half of it, rounded up.
        form: See the module's docstring; all forms agree to float rounding, of which ``winograd`` has about 1e-5 of the
            largest output.

    Returns:
        Outputs.
    """
    size = blocks.images_of(x) if form == "winograd" else x.shape[0]
    bias = jnp.zeros(kernel.shape[-1], x.dtype) if bias is None else bias
    if form != "plain" and stride == 1 and kernel.shape[:2] != (1, 1):
        if form != "patches" and kernel.shape[2] <= FEW_CHANNELS:
            return _unfolded(x, kernel, bias, size)
        if form == "winograd" and winograd.applies(x.shape, kernel.shape):
            return winograd.convolve(x, kernel, bias)
    return _without_bias(x, kernel, stride, form, size) + bias[None, None, None, :]


def convolve_relu(
    x: Float[Array, "b h w i"],
    kernel: Float[Array, "kh kw i o"],
    bias: Float[Array, " o"],
    around: Float[Array, "b h/stride w/stride o"] | None = None,
    *,
    stride: int = 1,
    form: ConvForm = "canonical",
) -> Float[Array, "b h/stride w/stride o"]:
    """``relu(convolve(...) + around)``, what goes around a residual block's path or None; see ``convolve``."""
    if form == "winograd" and stride == 1 and kernel.shape[2] > FEW_CHANNELS:
        if winograd.applies(x.shape, kernel.shape):
            return winograd.convolve_relu(x, kernel, bias, around)
    y = convolve(x, kernel, bias, stride=stride, form=form)
    return jax.nn.relu(y if around is None else y + around)


def _without_bias(x, kernel, stride, form, size):
    height, width = kernel.shape[:2]
    if form == "plain":
        return _convolve(x, kernel, ((height // 2,) * 2, (width // 2,) * 2), stride)
    if form == "patches" or (height, width) == (1, 1):
        return _patches(x, kernel, stride)
    if stride == 2 and (height, width) == (3, 3):
        even = jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))  # more of the zeros around it
        return _halving(even, kernel, size)
    return _canonical(x, kernel) if stride == 1 else _patches(x, kernel, stride)


def _group_statistics(x, groups, epsilon):
    """([b, c], [b, c]): each channel's group mean and inverse standard deviation.

    Spatial means per channel come first and are then averaged within a group: the same value as one reduction over
    (h, w, channels of the group), with half the temporaries in the backward pass.
    """
    x, dtype = x.astype(jnp.float32), x.dtype  # few bits would lose the difference of the two means below

    def group_mean(values):
        return _over_groups(jnp.mean(values, axis=(1, 2)), groups)

    mean = group_mean(x)
    variance = jnp.maximum(group_mean(jnp.square(x)) - jnp.square(mean), 0.0)
    return mean.astype(dtype), lax.rsqrt(variance + epsilon).astype(dtype)


def _over_groups(values: Float[Array, "b c"], groups: int) -> Float[Array, "b c"]:
    """The mean of each channel's group, at every channel."""
    size = values.shape[1] // groups
    return jnp.repeat(jnp.mean(values.reshape(-1, groups, size), axis=-1), size, axis=-1)


def _everywhere(values: Float[Array, "b c"]) -> Float[Array, "b 1 1 c"]:
    return values[:, None, None, :]


def group_norm(
    x: Float[Array, "b h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    *,
    groups: int,
    epsilon: float = 1e-6,
) -> Float[Array, "b h w c"]:
    """Group normalisation (Wu and He, 2018)."""
    mean, deviation = _group_statistics(x, groups, epsilon)
    factor = deviation * scale[None]
    return x * _everywhere(factor) + _everywhere(bias[None] - mean * factor)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def group_norm_relu(x, scale, bias, groups: int, epsilon: float = 1e-6):
    """``relu(group_norm(...))`` that keeps its input and nothing of its size for the backward pass.

    Takes no forward-mode differentiation.
    """
    return jax.nn.relu(group_norm(x, scale, bias, groups=groups, epsilon=epsilon))


def _group_norm_relu_forward(x, scale, bias, groups, epsilon):
    mean, deviation = _group_statistics(x, groups, epsilon)
    factor = deviation * scale[None]
    y = jax.nn.relu(x * _everywhere(factor) + _everywhere(bias[None] - mean * factor))
    return y, (x, scale, bias, mean, deviation)


def _group_norm_relu_backward(groups, epsilon, residuals, dy):
    x, scale, bias, mean, deviation = residuals
    factor = deviation * scale[None]
    d = jnp.where(x * _everywhere(factor) + _everywhere(bias[None] - mean * factor) > 0, dy, 0)
    # With z the normalised input: sums of d and of d * z over each map give all gradients.
    total = jnp.sum(d, axis=(1, 2))
    along = deviation * (jnp.sum(d * x, axis=(1, 2)) - mean * total)
    pixels = x.shape[1] * x.shape[2]
    offset = _over_groups(scale[None] * total, groups) / pixels
    slope = _over_groups(scale[None] * along, groups) / pixels * deviation
    dx = d * _everywhere(factor) - _everywhere(deviation * slope) * x + _everywhere(deviation * (mean * slope - offset))
    return dx, jnp.sum(along, axis=0), jnp.sum(total, axis=0)


group_norm_relu.defvjp(_group_norm_relu_forward, _group_norm_relu_backward)


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
    is_max = x.reshape(windows) == y[:, :, None, :, None, :]
    chosen = jnp.sum(jnp.where(is_max, dx.reshape(windows), 0), axis=(2, 4))
    # Four terms, not a reduction, which would be given arrays of x's size to read and to write.
    equal = sum(is_max[:, :, i, :, j].astype(x.dtype) for i in range(2) for j in range(2))
    return y, chosen / equal
