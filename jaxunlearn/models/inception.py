"""InceptionV3 as the Fréchet Inception Distance (FID) takes it: the network of 2015 with 1,008 outputs, for looking only.

Its blocks depart from the usual InceptionV3: averages leave out the zeros around a map, and the last block pools by its
maximum. Weights are those of the package pytorch-fid, which a user of torch converts once::

    from safetensors.torch import save_file
    weights = torch.load("pt_inception-2015-12-05-6726825d.pth")
    save_file(weights, "inception.safetensors")

References:
    Szegedy et al., Rethinking the Inception architecture for computer vision, 2015, arXiv:1512.00567.
    Heusel et al., GANs trained by a two time-scale update rule converge to a local Nash equilibrium, 2017, arXiv:1706.08500.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn._validate import require
from jaxunlearn.models.pretrained import listed, read_tensors
from jaxunlearn.types import Params

SIDE, FEATURES, CLASSES = 299, 2048, 1008
_EPSILON = 1e-3  # of BatchNorm
_NORM = ("weight", "bias", "running_mean", "running_var")


class Outputs(NamedTuple):
    """What the network says.

    Attributes:
        features: [b, 2048] averages over the last map, which FID compares.
        logits: [b, 1008], whose softmax the Inception Score takes.
    """

    features: Float[Array, "b f"]
    logits: Float[Array, "b k"]


def _block_a(inputs: int, pooled: int) -> dict[str, tuple[int, int, int, int]]:
    return {
        "branch1x1": (inputs, 64, 1, 1),
        "branch5x5_1": (inputs, 48, 1, 1),
        "branch5x5_2": (48, 64, 5, 5),
        "branch3x3dbl_1": (inputs, 64, 1, 1),
        "branch3x3dbl_2": (64, 96, 3, 3),
        "branch3x3dbl_3": (96, 96, 3, 3),
        "branch_pool": (inputs, pooled, 1, 1),
    }


def _block_c(inner: int) -> dict[str, tuple[int, int, int, int]]:
    return {
        "branch1x1": (768, 192, 1, 1),
        "branch7x7_1": (768, inner, 1, 1),
        "branch7x7_2": (inner, inner, 1, 7),
        "branch7x7_3": (inner, 192, 7, 1),
        "branch7x7dbl_1": (768, inner, 1, 1),
        "branch7x7dbl_2": (inner, inner, 7, 1),
        "branch7x7dbl_3": (inner, inner, 1, 7),
        "branch7x7dbl_4": (inner, inner, 7, 1),
        "branch7x7dbl_5": (inner, 192, 1, 7),
        "branch_pool": (768, 192, 1, 1),
    }


def _block_e(inputs: int) -> dict[str, tuple[int, int, int, int]]:
    return {
        "branch1x1": (inputs, 320, 1, 1),
        "branch3x3_1": (inputs, 384, 1, 1),
        "branch3x3_2a": (384, 384, 1, 3),
        "branch3x3_2b": (384, 384, 3, 1),
        "branch3x3dbl_1": (inputs, 448, 1, 1),
        "branch3x3dbl_2": (448, 384, 3, 3),
        "branch3x3dbl_3a": (384, 384, 1, 3),
        "branch3x3dbl_3b": (384, 384, 3, 1),
        "branch_pool": (inputs, 192, 1, 1),
    }


_STEM = {
    "Conv2d_1a_3x3": (3, 32, 3, 3),
    "Conv2d_2a_3x3": (32, 32, 3, 3),
    "Conv2d_2b_3x3": (32, 64, 3, 3),
    "Conv2d_3b_1x1": (64, 80, 1, 1),
    "Conv2d_4a_3x3": (80, 192, 3, 3),
}
_BLOCKS = {
    "Mixed_5b": _block_a(192, 32),
    "Mixed_5c": _block_a(256, 64),
    "Mixed_5d": _block_a(288, 64),
    "Mixed_6a": {
        "branch3x3": (288, 384, 3, 3),
        "branch3x3dbl_1": (288, 64, 1, 1),
        "branch3x3dbl_2": (64, 96, 3, 3),
        "branch3x3dbl_3": (96, 96, 3, 3),
    },
    "Mixed_6b": _block_c(128),
    "Mixed_6c": _block_c(160),
    "Mixed_6d": _block_c(160),
    "Mixed_6e": _block_c(192),
    "Mixed_7a": {
        "branch3x3_1": (768, 192, 1, 1),
        "branch3x3_2": (192, 320, 3, 3),
        "branch7x7x3_1": (768, 192, 1, 1),
        "branch7x7x3_2": (192, 192, 1, 7),
        "branch7x7x3_3": (192, 192, 7, 1),
        "branch7x7x3_4": (192, 192, 3, 3),
    },
    "Mixed_7b": _block_e(1280),
    "Mixed_7c": _block_e(2048),
}
CONVOLUTIONS: dict[str, tuple[int, int, int, int]] = _STEM | {
    f"{block}.{branch}": sizes for block, branches in _BLOCKS.items() for branch, sizes in branches.items()
}
"""Each convolution's inputs, outputs, and kernel rows and columns."""


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torch's tensors."""
    found: dict[str, tuple[int, ...]] = {"fc.weight": (CLASSES, FEATURES), "fc.bias": (CLASSES,)}
    for name, (inputs, outputs, rows, columns) in CONVOLUTIONS.items():
        found[f"{name}.conv.weight"] = (outputs, inputs, rows, columns)
        found |= {f"{name}.bn.{part}": (outputs,) for part in _NORM}
    return found


def from_torch(tensors: Mapping[str, np.ndarray], *, source: str = "tensors") -> Params:
    """Arrays by torch's names as parameters: BatchNorm, which is linear here, goes into the convolution before it.

    Args:
        tensors: The state dictionary of pytorch-fid's network as NumPy arrays; ``num_batches_tracked`` is passed over.
        source: What messages call them.

    Raises:
        InputError: Tensors are missing, left over or have another shape.
    """
    named = {name: value for name, value in tensors.items() if not name.endswith("num_batches_tracked")}
    expected = shapes()
    missing, unexpected = sorted(expected.keys() - named.keys()), sorted(named.keys() - expected.keys())
    require(
        not missing and not unexpected,
        f"Expected {source} to hold the InceptionV3 of pytorch-fid"
        + (f", missing are {listed(missing)}" if missing else "")
        + (f", unexpected are {listed(unexpected)}" if unexpected else "")
        + "; convert pt_inception-2015-12-05-6726825d.pth, torchvision's own weights are of another network.",
    )
    wrong = [
        f"{name} {named[name].shape} for {shape}" for name, shape in expected.items() if named[name].shape != shape
    ]
    require(
        not wrong,
        f"Expected {source} to hold tensors of pytorch-fid's InceptionV3, got {listed(wrong)}; convert its file.",
    )
    params: dict[str, Any] = {
        "fc": {"kernel": jnp.asarray(named["fc.weight"].T, jnp.float32), "bias": jnp.asarray(named["fc.bias"])}
    }
    for name in CONVOLUTIONS:
        weight, bias, mean, variance = (np.asarray(named[f"{name}.bn.{part}"], np.float64) for part in _NORM)
        factor = weight / np.sqrt(variance + _EPSILON)
        kernel = named[f"{name}.conv.weight"].transpose(2, 3, 1, 0) * factor
        params[name] = {
            "kernel": jnp.asarray(kernel, jnp.float32),
            "bias": jnp.asarray(bias - mean * factor, jnp.float32),
        }
    return params


def load_inception(path: str | Path) -> Params:
    """Parameters from a safetensors file, see the module's docstring.

    Raises:
        InputError: There is no such file, or it holds something else.
    """
    return from_torch(read_tensors(path), source=str(path))


def _pool(x: Array, kind: str, stride: int = 1) -> Array:
    """3 x 3 pooling; at stride 1 of maps as large as before, at stride 2 without anything around them."""
    padding = "SAME" if stride == 1 else "VALID"
    window, strides = (1, 3, 3, 1), (1, stride, stride, 1)
    if kind == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
    total = lax.reduce_window(x, 0.0, lax.add, window, strides, padding)
    counts = lax.reduce_window(jnp.ones((1, *x.shape[1:3], 1)), 0.0, lax.add, window, strides, padding)
    return total / counts


def inception(params: Params, x: Float[Array, "b h w c"], *, unbiased: bool = False) -> Outputs:
    """What the network says of images.

    Args:
        params: From ``load_inception``.
        x: [b, h, w, 3] in [0, 1], or [b, h, w, 1], which is taken for all three channels; resized to 299 x 299 bilinearly and
            without a filter before, as pytorch-fid does.
        unbiased: Whether the logits go without their bias, as in the first code of the Inception Score.

    Raises:
        InputError: There are other than one or three channels.
    """
    _validate.require(x.shape[-1] in (1, 3), f"Expected x with 1 or 3 channels, got {x.shape[-1]}; drop the others.")
    x = jnp.broadcast_to(x, (*x.shape[:-1], 3))
    x = 2.0 * jax.image.resize(x, (x.shape[0], SIDE, SIDE, 3), "bilinear", antialias=False) - 1.0

    def convolve(name: str, x: Array, stride: int = 1, padding: str = "SAME") -> Array:
        p = params[name]
        y = lax.conv_general_dilated(
            x, p["kernel"], (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(y + p["bias"][None, None, None, :])

    def chain(block: str, x: Array, *branches: str) -> Array:
        for branch in branches:
            x = convolve(f"{block}.{branch}", x)
        return x

    def pooled(block: str, x: Array, kind: str = "mean") -> Array:
        return chain(block, _pool(x, kind), "branch_pool")

    def a(block: str, x: Array) -> Array:
        parts = [
            chain(block, x, "branch1x1"),
            chain(block, x, "branch5x5_1", "branch5x5_2"),
            chain(block, x, "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"),
            pooled(block, x),
        ]
        return jnp.concatenate(parts, axis=-1)

    def c(block: str, x: Array) -> Array:
        parts = [
            chain(block, x, "branch1x1"),
            chain(block, x, *(f"branch7x7_{i}" for i in range(1, 4))),
            chain(block, x, *(f"branch7x7dbl_{i}" for i in range(1, 6))),
            pooled(block, x),
        ]
        return jnp.concatenate(parts, axis=-1)

    def e(block: str, x: Array, kind: str) -> Array:
        one = chain(block, x, "branch3x3_1")
        two = chain(block, x, "branch3x3dbl_1", "branch3x3dbl_2")
        parts = [
            chain(block, x, "branch1x1"),
            *(chain(block, one, f"branch3x3_2{side}") for side in "ab"),
            *(chain(block, two, f"branch3x3dbl_3{side}") for side in "ab"),
            pooled(block, x, kind),
        ]
        return jnp.concatenate(parts, axis=-1)

    x = convolve("Conv2d_1a_3x3", x, 2, "VALID")
    x = convolve("Conv2d_2a_3x3", x, padding="VALID")
    x = _pool(convolve("Conv2d_2b_3x3", x), "max", 2)
    x = convolve("Conv2d_4a_3x3", convolve("Conv2d_3b_1x1", x), padding="VALID")
    x = _pool(x, "max", 2)
    for block in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
        x = a(block, x)
    parts = [
        convolve("Mixed_6a.branch3x3", x, 2, "VALID"),
        convolve("Mixed_6a.branch3x3dbl_3", chain("Mixed_6a", x, "branch3x3dbl_1", "branch3x3dbl_2"), 2, "VALID"),
        _pool(x, "max", 2),
    ]
    x = jnp.concatenate(parts, axis=-1)
    for block in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
        x = c(block, x)
    parts = [
        convolve("Mixed_7a.branch3x3_2", chain("Mixed_7a", x, "branch3x3_1"), 2, "VALID"),
        convolve(
            "Mixed_7a.branch7x7x3_4", chain("Mixed_7a", x, *(f"branch7x7x3_{i}" for i in range(1, 4))), 2, "VALID"
        ),
        _pool(x, "max", 2),
    ]
    x = e("Mixed_7b", jnp.concatenate(parts, axis=-1), "mean")
    features = jnp.mean(e("Mixed_7c", x, "max"), axis=(1, 2))
    logits = features @ params["fc"]["kernel"]
    return Outputs(features, logits if unbiased else logits + params["fc"]["bias"][None, :])
