"""Small convolutional classifiers."""

import flax.linen as nn
import jax

from jaxunlearn.models import batch_last, layers
from jaxunlearn.models.base import from_module
from jaxunlearn.types import Model


def _convolution_parameters(module, inputs, outputs):
    kernel = module.param("kernel", nn.initializers.he_normal(), (3, 3, inputs, outputs))
    return kernel, module.param("bias", nn.initializers.zeros, (outputs,))


class _Convolution(nn.Module):
    """3 x 3 convolution with a bias, in the form asked for."""

    features: int
    form: layers.ConvForm
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        kernel, bias = _convolution_parameters(self, x.shape[-1], self.features)
        return layers.convolve(x, kernel, bias, stride=self.stride, form=self.form)


class _PooledConvolution(nn.Module):
    """3 x 3 convolution, 2 x 2 maximum, bias and ReLU on maps stored batch last.

    Bias and ReLU are monotone, so that they may follow the maximum, which leaves them a quarter of the work.
    """

    features: int

    @nn.compact
    def __call__(self, x):
        kernel, bias = _convolution_parameters(self, x.shape[2], self.features)
        return jax.nn.relu(batch_last.max_pool(batch_last.convolve(x, kernel)) + bias[None, None, :, None])


class _GroupNorm(nn.Module):
    """Group normalisation and ReLU."""

    groups: int
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        if self.form == "winograd":
            return layers.group_norm_relu(x, scale, bias, self.groups)
        return jax.nn.relu(layers.group_norm(x, scale, bias, groups=self.groups))


class _DigitsCNN(nn.Module):
    classes: int
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        if self.form == "winograd":
            x = x.transpose(1, 2, 3, 0)
            for layer, features in enumerate((16, 32)):
                x = _PooledConvolution(features, name=f"_Convolution_{layer}")(x)  # named as in the other forms
            x = x.reshape(-1, x.shape[-1]).T
        else:
            for features in (16, 32):
                x = layers.max_pool(jax.nn.relu(_Convolution(features, self.form)(x)))
            x = x.reshape(x.shape[0], -1)
        return nn.Dense(self.classes)(x)


class _GroupNormCNN(nn.Module):
    classes: int
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        for features, stride in ((32, 1), (32, 2), (64, 1)):
            x = _GroupNorm(8, self.form)(_Convolution(features, self.form, stride)(x))
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


class _TinyNet(nn.Module):
    classes: int
    form: layers.ConvForm

    @nn.compact
    def __call__(self, x):
        for features in (64, 128):
            for _ in range(2):
                x = _GroupNorm(8, self.form)(_Convolution(features, self.form)(x))
            x = layers.max_pool(x)
        return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x.mean(axis=(1, 2)))


def digits_cnn(input_shape: tuple[int, ...], classes: int, *, form: layers.ConvForm = "canonical") -> Model:
    """Two 3 x 3 convolutions (16 and 32 channels), each with ReLU and 2 x 2 pooling, and a dense layer.

    6,090 parameters on 8 x 8 digits.
    """
    return from_module(_DigitsCNN(classes, form), input_shape)


def group_norm_cnn(input_shape: tuple[int, ...], classes: int, *, form: layers.ConvForm = "canonical") -> Model:
    """Three 3 x 3 convolutions (32, 32, 64 channels; stride 2 at the second), GroupNorm with 8 groups and ReLU after each,
    global average pooling and a dense layer.

    28,970 parameters on 8 x 8 digits; large enough to keep traces of what it was made to forget.
    """
    return from_module(_GroupNormCNN(classes, form), input_shape)


def tinynet(input_shape: tuple[int, ...], classes: int, *, form: layers.ConvForm = "canonical") -> Model:
    """TinyNetCIFAR100 (audit paper, appendix D.1): 273,828 parameters at 32 x 32 x 3 and 100 classes.

    Two blocks of two 3 x 3 convolutions (64, then 128 channels), GroupNorm with 8 groups and ReLU after each, 2 x 2
    max-pooling after each block, global average pooling and a dense layer. Initial weights: Kaiming normal by fan-in, the
    dense layer included, and GroupNorm epsilon 1e-6, as in the authors' code.
    """
    return from_module(_TinyNet(classes, form), input_shape)
