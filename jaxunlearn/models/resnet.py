"""Residual networks (He et al., 2016) for small images, with BatchNorm or GroupNorm, as pure functions.

Layers, names and initial weights are those of torchvision and of the public unlearning code (Fan et al., 2024): a first
convolution of 3 x 3 at stride 1 and no pooling after it, whatever the size of the images; strides of bottleneck blocks on
their 3 x 3 convolution; convolutions Kaiming normal by fan-out, norms 1 and 0, the dense layer uniform in +-1/sqrt(inputs).
Parameters are a flat dictionary by torch's names; kernels are stored [kh, kw, i, o] and the dense layer [i, o].

The two modes of BatchNorm are two functions. In evaluation mode its running statistics are constants, so that it is folded
into the convolution before it. In training mode a channel is normalised by mean and variance of the batch's examples, and
the running statistics move a tenth of the way towards that mean and, as in torch, the *unbiased* variance.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.models import layers
from jaxunlearn.models.base import normalised
from jaxunlearn.types import Model, Variables

Norm = Literal["batch", "group"]
EPSILON = 1e-5
"""Added to variances, torch's default for both norms."""
MOMENTUM = 0.1
"""The weight of a batch in BatchNorm's running statistics."""
MOST_GROUPS = 32
"""Groups of GroupNorm (Wu and He, 2018), but at least two channels in each."""


class Unit(NamedTuple):
    """A convolution without a bias and the norm after it, by the names of their weights."""

    convolution: str
    norm: str
    size: int
    inputs: int
    outputs: int
    stride: int = 1


class Block(NamedTuple):
    """A residual block: units in a row, and the one on the shortcut where shapes differ."""

    path: tuple[Unit, ...]
    shortcut: Unit | None


def _blocks(stages: Sequence[int], width: int, *, bottleneck: bool) -> list[Block]:
    blocks, inputs = [], width
    for stage, count in enumerate(stages):
        channels = width * 2**stage
        outputs = 4 * channels if bottleneck else channels
        for number in range(count):
            stride = 2 if stage and not number else 1
            shapes = [(3, inputs, channels, stride), (3, channels, outputs, 1)]
            if bottleneck:
                shapes = [(1, inputs, channels, 1), (3, channels, channels, stride), (1, channels, outputs, 1)]
            name = f"layer{stage + 1}.{number}"
            path = tuple(Unit(f"{name}.conv{n}", f"{name}.bn{n}", *shape) for n, shape in enumerate(shapes, start=1))
            shortcut = Unit(f"{name}.downsample.0", f"{name}.downsample.1", 1, inputs, outputs, stride)
            blocks.append(Block(path, shortcut if stride != 1 or inputs != outputs else None))
            inputs = outputs
    return blocks


def groups_of(channels: int) -> int:
    """Groups of GroupNorm over an even number of channels: a divisor of 32 and of half of them."""
    return math.gcd(MOST_GROUPS, channels // 2)


def _moments(y: Float[Array, "b h w c"], weight: Float[Array, " b"]):
    """Mean and biased variance of each channel over the examples of weight 1, and how many values they are of."""
    y, share = y.astype(jnp.float32), weight[:, None, None, None]
    count = jnp.sum(weight) * (y.shape[1] * y.shape[2])
    mean = jnp.sum(share * y, axis=(0, 1, 2)) / count
    return mean, jnp.sum(share * jnp.square(y - mean[None, None, None, :]), axis=(0, 1, 2)) / count, count


class _Network(NamedTuple):
    """Shapes and forms; its methods are what a Model is made of."""

    stem: Unit
    blocks: Sequence[Block]
    classes: int
    norm: Norm
    form: layers.ConvForm

    @property
    def units(self) -> list[Unit]:
        shortcuts = [block.shortcut for block in self.blocks if block.shortcut is not None]
        return [self.stem, *(unit for block in self.blocks for unit in block.path), *shortcuts]

    @property
    def features(self) -> int:
        return self.blocks[-1].path[-1].outputs

    def init(self, key: PRNGKeyArray) -> Any:
        key_weight, key_bias, *keys = jax.random.split(key, 2 + len(self.units))
        bound = 1 / math.sqrt(self.features)
        params = {
            "fc.weight": jax.random.uniform(key_weight, (self.features, self.classes), minval=-bound, maxval=bound),
            "fc.bias": jax.random.uniform(key_bias, (self.classes,), minval=-bound, maxval=bound),
        }
        statistics = {}
        for unit, unit_key in zip(self.units, keys):
            deviation = math.sqrt(2 / (unit.size**2 * unit.outputs))  # by fan-out
            shape = (unit.size, unit.size, unit.inputs, unit.outputs)
            params[f"{unit.convolution}.weight"] = deviation * jax.random.normal(unit_key, shape)
            params[f"{unit.norm}.weight"] = jnp.ones(unit.outputs)
            params[f"{unit.norm}.bias"] = jnp.zeros(unit.outputs)
            statistics[f"{unit.norm}.running_mean"] = jnp.zeros(unit.outputs)
            statistics[f"{unit.norm}.running_var"] = jnp.ones(unit.outputs)
        return Variables(params, statistics) if self.norm == "batch" else params

    def _run(self, params: dict[str, Array], run: Callable[..., Array], x: Array) -> Float[Array, "b classes"]:
        """The network, given how a unit runs: ``run(unit, x, shortcut or None, whether a ReLU follows)``."""
        x = run(self.stem, x, None, True)
        for path, shortcut in self.blocks:
            around = x if shortcut is None else run(shortcut, x, None, False)
            for unit in path[:-1]:
                x = run(unit, x, None, True)
            x = run(path[-1], x, around, True)
        return x.mean(axis=(1, 2)) @ params["fc.weight"] + params["fc.bias"][None, :]

    def _convolved(self, params, unit, x):
        return layers.convolve(x, params[f"{unit.convolution}.weight"], stride=unit.stride, form=self.form)

    def apply_batch(self, variables: Variables, x: Float[Array, "b h w c"]) -> Float[Array, "b classes"]:
        params, statistics = variables

        def run(unit, x, around, relu):
            factor = params[f"{unit.norm}.weight"] * lax.rsqrt(statistics[f"{unit.norm}.running_var"] + EPSILON)
            kernel = (params[f"{unit.convolution}.weight"] * factor[None, None, None, :]).astype(x.dtype)
            bias = (params[f"{unit.norm}.bias"] - statistics[f"{unit.norm}.running_mean"] * factor).astype(x.dtype)
            if relu:
                return layers.convolve_relu(x, kernel, bias, around, stride=unit.stride, form=self.form)
            return layers.convolve(x, kernel, bias, stride=unit.stride, form=self.form)

        return self._run(params, run, x)

    def train_batch(self, variables: Variables, x, weight: Float[Array, " b"]) -> tuple[Array, Variables]:
        params, statistics = variables
        moved = {}

        def run(unit, x, around, relu):
            y = self._convolved(params, unit, x)
            mean, variance, count = _moments(y, weight)
            unbiased = variance * count / jnp.maximum(count - 1, 1)
            for name, of_batch in (("running_mean", mean), ("running_var", unbiased)):
                before = statistics[f"{unit.norm}.{name}"]
                moved[f"{unit.norm}.{name}"] = before + MOMENTUM * (lax.stop_gradient(of_batch) - before)
            factor = params[f"{unit.norm}.weight"] * lax.rsqrt(variance + EPSILON)
            offset = params[f"{unit.norm}.bias"] - mean * factor
            y = y * factor.astype(y.dtype)[None, None, None, :] + offset.astype(y.dtype)[None, None, None, :]
            y = y if around is None else y + around
            return jax.nn.relu(y) if relu else y

        return self._run(params, run, x), Variables(params, moved)

    def apply_group(self, params: dict[str, Array], x: Float[Array, "b h w c"]) -> Float[Array, "b classes"]:
        def run(unit, x, around, relu):
            y = self._convolved(params, unit, x)
            scale, bias, groups = params[f"{unit.norm}.weight"], params[f"{unit.norm}.bias"], groups_of(unit.outputs)
            if relu and around is None and self.form == "winograd":
                return layers.group_norm_relu(y, scale, bias, groups, EPSILON)
            y = layers.group_norm(y, scale, bias, groups=groups, epsilon=EPSILON)
            y = y if around is None else y + around
            return jax.nn.relu(y) if relu else y

        return self._run(params, run, x)


def _resnet(input_shape, classes, *, bottleneck, stages, width, norm, form, mean, std) -> Model:
    _validate.one_of("norm", norm, get_args(Norm))
    _validate.at_least(1, classes=classes, **{f"stages[{n}]": count for n, count in enumerate(stages)})
    _validate.not_empty("stages", stages)
    _validate.require(width >= 2 and width % 2 == 0, f"Expected width={width!r} to be even and >= 2.")
    stem = Unit("conv1", "bn1", 3, input_shape[-1], width)
    network = _Network(stem, _blocks(stages, width, bottleneck=bottleneck), classes, norm, form)
    if norm == "batch":
        model = Model(network.init, network.apply_batch, network.train_batch)
    else:
        model = Model(network.init, network.apply_group)
    _validate.require(
        (mean is None) == (std is None), f"Expected mean and std both or neither, got {mean!r} and {std!r}."
    )
    return model if mean is None else normalised(model, mean, std)


def resnet18(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: Norm = "batch",
    form: layers.ConvForm = "canonical",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    width: int = 64,
    stages: Sequence[int] = (2, 2, 2, 2),
) -> Model:
    """ResNet-18 for small images: 11,173,962 parameters at 3 channels and 10 classes.

    Args:
        input_shape: [h, w, c] of one image.
        classes: Outputs, >= 1.
        norm: "batch" (BatchNorm; parameters are ``Variables``) or "group" (GroupNorm of ``groups_of`` groups, which has one
            mode).
        form: Of the convolutions, see ``models.layers``.
        mean: Of each channel, where the model is to take images in [0, 1] and normalise them; None takes them as they come.
        std: Likewise.
        width: Channels of the first stage, even; they double from stage to stage.
        stages: Residual blocks in each stage; each stage but the first halves the map.

    Returns:
        A model with a training mode if it has BatchNorm.

    Raises:
        InputError: An unknown norm, or a size out of range.
    """
    return _resnet(
        input_shape,
        classes,
        bottleneck=False,
        stages=stages,
        width=width,
        norm=norm,
        form=form,
        mean=mean,
        std=std,
    )


def resnet50(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    norm: Norm = "batch",
    form: layers.ConvForm = "canonical",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    width: int = 64,
    stages: Sequence[int] = (3, 4, 6, 3),
) -> Model:
    """ResNet-50 for small images, of bottleneck blocks: 23,520,842 parameters at 3 channels and 10 classes.

    Arguments, result and errors are those of ``resnet18``.
    """
    return _resnet(
        input_shape,
        classes,
        bottleneck=True,
        stages=stages,
        width=width,
        norm=norm,
        form=form,
        mean=mean,
        std=std,
    )
