"""Ready settings; ``jaxunlearn robustness NAME`` starts from one of them."""

import dataclasses
from typing import Any

from jaxunlearn.attack.prompts import Options
from jaxunlearn.config import Training, diffusion_methods
from jaxunlearn.pipeline.diffusion.config import Encoder, TextToImageRobustness
from jaxunlearn.pipeline.diffusion.published_config import PublishedRobustness
from jaxunlearn.records import as_json
from jaxunlearn.robustness import Band
from jaxunlearn.unlearn.base import SGD
from jaxunlearn.unlearn.concept import Denoising

_JUDGE = Training(epochs=40, batch_size=64, descent=SGD(peak=0.1, schedule="cosine", momentum=0.9))
_ATTACK = Options(rate=0.05, decay=0.0)
"""Among 187 words, unlike among 49,408, larger steps and no decay find more prompts sooner: .79 in place of .62 of ESD-x."""

_DIGITS = TextToImageRobustness(judge=_JUDGE, method=diffusion_methods("digits"), attack=_ATTACK)

PRESETS: dict[str, tuple[str, TextToImageRobustness | PublishedRobustness]] = {
    "digits-diffusion": (
        "a text-to-image model of handwritten digits, embedded; 0 is forgotten; for CPUs",
        _DIGITS,
    ),
    "digits-diffusion-quick": (
        "the same in small: one seed, two methods, few steps",
        dataclasses.replace(
            _DIGITS,
            methods=("retrain", "esd-x"),
            seeds=1,
            encoder=Encoder(steps=100),
            training=Denoising(steps=200, average=0.03),
            judge=dataclasses.replace(_JUDGE, epochs=10),
            sampling_steps=10,
            prompts=8,
            retained=2,
            attack=dataclasses.replace(_ATTACK, rounds=3, inner_steps=5),
            method=dataclasses.replace(
                _DIGITS.method, esd_x=dataclasses.replace(_DIGITS.method.esd_x, steps=30, sampling_steps=10)
            ),
        ),
    ),
    "sd1": (
        "Stable Diffusion 1.x and unlearned copies of it, given as folders: one GPU",
        PublishedRobustness(),
    ),
}

_BANDS: tuple[Band, ...] = ()
"""Where means over two seeds were in several sets of seeds."""


def expected(config: TextToImageRobustness, method: str) -> list[Band]:
    """Where a method's metrics are expected, if all that they depend on is as in the preset.

    More seeds, other methods beside it, and another seed leave the expectation as it is.
    """

    def terms(of: TextToImageRobustness) -> list[Any]:
        free = ("methods", "out", "seeds", "seed", "quiet", "method", "at_once")
        same = [as_json(getattr(of, field.name)) for field in dataclasses.fields(of) if field.name not in free]
        return [*same, as_json(getattr(of.method, method.replace("-", "_"), None))]

    return [band for band in _BANDS if band.method == method] if terms(config) == terms(_DIGITS) else []
