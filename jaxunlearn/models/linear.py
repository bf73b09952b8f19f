"""Linear classifier and multilayer perceptron."""

from collections.abc import Sequence

import flax.linen as nn

from jaxunlearn.models.base import from_module
from jaxunlearn.types import Model


class _MLP(nn.Module):
    widths: Sequence[int]
    classes: int

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        for width in self.widths:
            x = nn.relu(nn.Dense(width, kernel_init=nn.initializers.he_normal())(x))
        return nn.Dense(self.classes)(x)


def linear(input_shape: tuple[int, ...], classes: int) -> Model:
    """Softmax regression on the flattened input."""
    return mlp(input_shape, classes, widths=())


def mlp(input_shape: tuple[int, ...], classes: int, *, widths: Sequence[int] = (128, 128)) -> Model:
    """Multilayer perceptron with ReLU on the flattened input; (128, 128) on digits has 26,122 parameters."""
    return from_module(_MLP(tuple(widths), classes), input_shape)
