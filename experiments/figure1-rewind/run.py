"""Figure 1(c): rewind-to-delete at several certified epsilons.

Softmax regression, so that smoothness and gradient bound are known and the certificate holds: with inputs of norm at most X
(a constant 1 appended for the bias) the Hessian of the cross-entropy is at most X^2 / 2, a gradient at most sqrt(2) X.
"""

import dataclasses
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common
import numpy as np

from jaxunlearn.config import Audit, Methods, Training
from jaxunlearn.data import digits
from jaxunlearn.presets import PRESETS
from jaxunlearn.records import BoundRecord
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.rewind import Rewind

EPSILONS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
SPLITS = ("uniform", "adversarial")
CONSTANT = Training(epochs=40, batch_size=None, descent=SGD(peak=0.01, schedule="constant", weight_decay=0.0))
DIGITS, CIFAR100 = PRESETS["digits"][1], PRESETS["cifar100"][1]


def constants() -> dict[str, float]:
    """L and G of softmax regression on every digit there is, so that they do not depend on S."""
    x = digits.load().x.reshape(1500, -1)
    squared = float(np.max(np.sum(x.astype(np.float64) ** 2, axis=1))) + 1.0
    return {"smoothness": squared / 2, "gradient_bound": math.sqrt(2 * squared)}


def audit(base: Audit, split: str, *, epsilon: float, runs: tuple[int, int], **known: float) -> Audit:
    """One preset: T = 40, K = 5, m = 6, joint predictor."""
    return dataclasses.replace(
        base,
        methods=("rewind",),
        split=split,
        predictor="joint",
        candidate_batch_size=base.pool_size // 6,
        calibration_runs=runs[0],
        evaluation_runs=runs[1],
        r=None,
        delta=1e-3,
        training=CONSTANT,
        population=Path("figure1-rewind") / f"population-{base.dataset}-{split}",
        method=Methods(rewind=Rewind(epochs=5, epsilon=epsilon, **known)),
    )


SMALL = {
    f"digits, linear, {split}, ε = {epsilon:g}": audit(
        dataclasses.replace(DIGITS, model="linear", pool_size=396),
        split,
        epsilon=epsilon,
        runs=(20, 100),
        **constants(),
    )
    for split in SPLITS
    for epsilon in EPSILONS
}
PAPER = {
    f"CIFAR-100, TinyNet, {split}, ε = {epsilon:g}": audit(CIFAR100, split, epsilon=epsilon, runs=(50, 100))
    for split in SPLITS
    for epsilon in EPSILONS
}


def collect(label: str, record: BoundRecord) -> list[common.Row]:
    """The row, with the certificate's own words."""
    source = None if record.certificate is None else record.certificate["source"]
    return [common.row(label, record) | {"source": source}]


if __name__ == "__main__":
    common.main(__file__, SMALL, PAPER, collect=collect)
