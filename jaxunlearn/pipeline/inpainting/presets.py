"""Ready settings; ``jaxunlearn robustness NAME`` starts from one of them."""

import dataclasses
import math
from typing import Any

from jaxunlearn.attack.mapping import Options
from jaxunlearn.config import AutoencoderMethods
from jaxunlearn.pipeline.inpainting.config import Inpainting
from jaxunlearn.records import as_json
from jaxunlearn.robustness import Band
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.inpainting import I2I, Pretraining, SalUnInpainting, VisionAdamW

_HIDDEN = 0.25
"""What is attacked, the square in the middle, is what training hides. Under random masks of three quarters, as published for
photographs, these few steps teach half of the digits."""

_DIGITS = Inpainting(
    dataset="digits",
    attack=Options(relative_step=1 / 8),
    attacked=128,
    training=Pretraining(hidden=_HIDDEN, place="centre"),
    method=AutoencoderMethods(
        i2i=I2I(descent=VisionAdamW(peak=1e-3), hidden=_HIDDEN, place="centre"),
        salun=SalUnInpainting(
            descent=SGD(peak=0.01, schedule="constant", momentum=0.9, weight_decay=0.0), hidden=_HIDDEN, place="centre"
        ),
    ),
)

_BANDS = tuple(
    Band(method=method, metric=metric, condition=condition, low=low, high=high)
    for method, attacked in (("i2i", 0.155), ("salun", 0.2))
    for metric, condition, low, high in (
        ("l1", "clean", 0.28, 1.0),
        ("l1", "unbounded", 0.0, attacked),
        ("judged_retain", "clean", 0.9, 1.0),
    )
)
"""What these settings are for: forgetting that shows, half of it undone by an unbounded attack, and the rest as it was."""

PRESETS: dict[str, tuple[str, Inpainting]] = {
    "digits-inpainting": (
        "digits with their middle hidden, filled in by a masked autoencoder; 0 to 4 are forgotten; for CPUs",
        _DIGITS,
    ),
    "digits-inpainting-quick": (
        "the same with few steps and one seed, to see that all works; its numbers mean little",
        dataclasses.replace(
            _DIGITS,
            seeds=1,
            epsilons=(32.0, math.inf),
            attack=Options(relative_step=1 / 8, steps=20),
            attacked=32,
            training=Pretraining(steps=200, hidden=_HIDDEN, place="centre"),
            method=AutoencoderMethods(
                i2i=I2I(steps=60, descent=VisionAdamW(peak=1e-3), hidden=_HIDDEN, place="centre"),
                salun=SalUnInpainting(steps=60, hidden=_HIDDEN, place="centre"),
            ),
        ),
    ),
}


def expected(config: Inpainting, method: str) -> list[Band]:
    """Where a method's metrics are expected, if all that they depend on is as in the preset that is known for it.

    More seeds, other methods beside it and another seed leave the expectation as it is.
    """

    def terms(of: Inpainting) -> list[Any]:
        free = ("methods", "out", "seeds", "saved_seeds", "seed", "quiet", "method")
        same = [as_json(getattr(of, field.name)) for field in dataclasses.fields(of) if field.name not in free]
        return [*same, as_json(getattr(of.method, method.replace("-", "_"), None))]

    return [band for band in _BANDS if band.method == method] if terms(config) == terms(_DIGITS) else []
