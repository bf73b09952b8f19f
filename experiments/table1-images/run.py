"""Table 1(b) of the audit paper: heuristics on images, candidates drawn uniformly or from classes of their own."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import AUDITED, Training
from jaxunlearn.presets import PRESETS
from jaxunlearn.unlearn.ascent import IDA
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.hessian import Hessian

SPLITS = ("uniform", "adversarial")
DIGITS, CIFAR10, CIFAR100 = (PRESETS[name][1] for name in ("digits", "cifar10", "cifar100"))

SMALL = {f"digits, MLP, {split}": dataclasses.replace(DIGITS, split=split) for split in SPLITS}
SMALL |= {
    f"CIFAR-10, linear, {split}": dataclasses.replace(
        CIFAR10,
        model="linear",
        split=split,
        training=Training(epochs=20, batch_size=128),
        method=dataclasses.replace(
            DIGITS.method,
            ida=IDA(interleaved_epochs=2, epochs=8),
            hessian=Hessian(
                samples=2, depth=400, scale=2000.0, batch_size=64
            ),  # inputs are 15 times longer than digits
        ),
    )
    for split in SPLITS
}

PAPER = {
    f"CIFAR-100, TinyNet, {split}{note}": dataclasses.replace(
        CIFAR100, split=split, methods=methods, training=dataclasses.replace(CIFAR100.training, descent=descent)
    )
    for split in SPLITS
    for note, methods, descent in (
        ("", tuple(name for name in AUDITED if name not in ("hessian", "rewind")), CIFAR100.training.descent),
        (", cosine", ("hessian",), SGD(peak=0.1, schedule="cosine")),
    )
}

if __name__ == "__main__":
    common.main(__file__, SMALL, PAPER)
