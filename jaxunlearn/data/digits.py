"""The embedded default: 1,797 real handwritten digits, 8 x 8, from scikit-learn (UCI, Alpaydin and Kaynak, 1998)."""

from typing import Any

import numpy as np

from jaxunlearn.data.splits import Dataset

TEST_SIZE = 297
NAMES = tuple("0123456789")
STATS = (0.3051,), (0.3750,)
"""Mean and standard deviation of the training images."""


def load() -> Dataset:
    """All 1,797 digits in [0, 1]: the last 297 (other writers) for testing, 1,500 for training. Needs no download."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    x = (bunch.images / 16.0).astype(np.float32)[..., None]
    y = bunch.target.astype(np.int32)
    train = x.shape[0] - TEST_SIZE
    mean, std = STATS
    return Dataset(
        name="digits",
        x=x[:train],
        y=y[:train],
        x_test=x[train:],
        y_test=y[train:],
        classes=10,
        class_names=NAMES,
        mean=mean,
        std=std,
    )
