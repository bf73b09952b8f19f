"""Table 7: Hessian-based unlearning with more and more final noise; and which gradient the step takes."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import Audit, Methods
from jaxunlearn.presets import PRESETS
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.hessian import Hessian

DIGITS, CIFAR100 = PRESETS["digits"][1], PRESETS["cifar100"][1]
COSINE = dataclasses.replace(CIFAR100.training, descent=SGD(peak=0.1, schedule="cosine"))


def audits(base: Audit, hessian: Hessian) -> dict[str, Audit]:
    """Noise at the paper's gradient, and the three gradients at the paper's noise."""
    shared = Path("table7-hessian-noise") / f"population-{base.dataset}"
    chosen = [("forget", sigma) for sigma in (1e-3, 5e-3, 1e-2)] + [("retain", 1e-3), ("newton", 1e-3)]
    return {
        f"{base.dataset}, {gradient} gradient, σ = {sigma:g}": dataclasses.replace(
            base,
            methods=("hessian",),
            population=shared,
            method=Methods(hessian=dataclasses.replace(hessian, gradient=gradient, sigma=sigma)),
        )
        for gradient, sigma in chosen
    }


if __name__ == "__main__":
    small = audits(DIGITS, DIGITS.method.hessian)
    common.main(__file__, small, audits(dataclasses.replace(CIFAR100, training=COSINE), Hessian()))
