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


UNLEARNING = SGD(peak=0.01, schedule="constant", momentum=0.9)

SMALL = dataclasses.replace(
    PAPER,
    model="tinynet",
    seeds=2,
    shared_original=False,
    attacked=30,
    second_attack="none",
    augmentation="none",
    shadows=Shadows(models=0),
    curves=(),
    training=Training(epochs=12, batch_size=64, descent=SGD(peak=0.05, schedule="cosine", momentum=0.9)),
    method=Methods(
        finetune=Finetune(epochs=2, descent=UNLEARNING),
        rl=RandomLabel(epochs=2, descent=UNLEARNING),
        influence=Influence(alpha=20.0),
        l1_sparse=L1Sparse(epochs=2, descent=UNLEARNING, alpha=1e-4),
        salun=SalUn(epochs=2, descent=UNLEARNING),
    ),
)

if __name__ == "__main__":
    common.robustness_main(__file__, {"CIFAR-10, TinyNet": SMALL}, {"CIFAR-10, ResNet-50": PAPER})
