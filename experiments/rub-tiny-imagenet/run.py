"""RUB's Tables 1 and 5 on Tiny-ImageNet: three classes of a sample of twenty, or twenty of all, forgotten."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Training
from jaxunlearn.unlearn.base import SGD

PAPER = common.paper_robustness("tiny-imagenet")
SMALL = common.small_robustness(
    PAPER,
    model="gn-cnn",
    training=Training(epochs=15, batch_size=64, descent=SGD(peak=0.1, schedule="cosine", momentum=0.9)),
    method_epochs=5,
)

if __name__ == "__main__":
    common.robustness_main(__file__, {"Tiny-ImageNet sample": SMALL}, {"Tiny-ImageNet, ResNet-50": PAPER})
