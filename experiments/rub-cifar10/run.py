"""RUB's Tables 1 and 5 on CIFAR-10: airplanes forgotten by a narrow ResNet-18, or by the ResNet-50 of the paper."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Training
from jaxunlearn.unlearn.base import SGD

PAPER = common.paper_robustness("cifar10")
SMALL = common.small_robustness(
    PAPER,
    model="resnet18-gn",
    width=16,
    training=Training(epochs=20, batch_size=64, descent=SGD(peak=0.05, schedule="cosine", momentum=0.9)),
    method_epochs=2,
)

if __name__ == "__main__":
    common.robustness_main(__file__, {"CIFAR-10, narrow ResNet-18": SMALL}, {"CIFAR-10, ResNet-50": PAPER})
