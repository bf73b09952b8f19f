"""RUB's Tables 1 and 5 on CIFAR-10: airplanes forgotten by TinyNet on 10,000 images, or by ResNet-50 on all of them."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Methods, Training
from jaxunlearn.pipeline.robustness.config import Shadows
from jaxunlearn.pipeline.robustness.presets import PRESETS
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.sparsity import L1Sparse

PAPER = PRESETS["cifar10"][1]


def constant(rate: float) -> SGD:
    """Ten epochs in the paper's manner, five here: a fifth of the images makes a fifth of the steps."""
    return SGD(peak=rate, schedule="constant", momentum=0.9)


SMALL = dataclasses.replace(
    PAPER,
    model="tinynet",
    seeds=2,
    attacked=100,
    second_attack="none",
    augmentation="none",
    shadows=Shadows(models=0),
    curves=(),
    training=Training(epochs=16, batch_size=128, descent=SGD(peak=0.1, schedule="cosine", momentum=0.9)),
    method=Methods(
        finetune=Finetune(epochs=5, descent=constant(0.01)),
        rl=RandomLabel(epochs=5, descent=constant(0.01)),
        influence=Influence(alpha=20.0),
        l1_sparse=L1Sparse(epochs=5, descent=constant(0.01), alpha=3e-4),
        salun=SalUn(epochs=5, descent=constant(0.01)),
    ),
)

if __name__ == "__main__":
    common.robustness_main(__file__, {"CIFAR-10, TinyNet": SMALL}, {"CIFAR-10, ResNet-50": PAPER})
