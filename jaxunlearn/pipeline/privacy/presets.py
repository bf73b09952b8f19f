"""Ready settings; ``jaxunlearn privacy NAME`` starts from one of them."""

import dataclasses

from jaxunlearn.pipeline.privacy.config import Decoder, Fitting, People, Privacy, Recovery
from jaxunlearn.presets import language_methods
from jaxunlearn.unlearn.base import AdamW
from jaxunlearn.unlearn.steering import RMU

_PEOPLE = Privacy(
    dataset="people",
    method=dataclasses.replace(
        language_methods(1e-4, epochs=8, steering=3e-4, strength=5.0),
        # At RMU's alpha of 100 and three quarters of the depth eight epochs take a fifth of the answers from this decoder.
        rmu=RMU(epochs=8, descent=AdamW(peak=1e-3), alpha=1.0, loss_block=2),
    ),
)

# PrivUn, appendix B: rates of 1e-5, 50 samples, a fifth known.
_PRETRAINED = Privacy(
    dataset="tofu",
    known=0.2,
    seeds=3,
    decoder=Decoder(pretraining=0),
    target=Fitting(epochs=5, repeats=1, batch_size=32, descent=AdamW(peak=1e-5, schedule="cosine")),
    recovery=Recovery(samples=50, draws=5, descent=AdamW(peak=1e-5)),
    new_tokens=96,
    method=language_methods(1e-5, epochs=10, steering=1e-5, strength=1.0),
)

PRESETS: dict[str, tuple[str, Privacy]] = {
    "people": ("300 invented people and a small Llama that is trained here: half an hour on two CPU cores", _PEOPLE),
    "people-quick": (
        "fewer people, one seed, three methods: two minutes",
        dataclasses.replace(
            _PEOPLE,
            methods=("retrain", "ga", "rau"),
            people=People(forgotten=40, retained=20, control=10, characters=40_000, chunks=60, held_out=40),
            decoder=Decoder(vocabulary=512, width=64, layers=3, heads=2, kv_heads=1, hidden=168, pretraining=2),
            target=Fitting(epochs=20, repeats=8, batch_size=24, descent=AdamW(peak=5e-3, schedule="cosine")),
            seeds=1,
            method=language_methods(1.5e-4, epochs=20, steering=1e-3, strength=5.0),
            curves=(),
            recovery=Recovery(samples=40, draws=2, epochs=(10,)),
        ),
    ),
    "tofu": (
        "TOFU's questions about births, for pretrained weights (--decoder.weights): one GPU",
        _PRETRAINED,
    ),
    "enron": (
        "e-mail addresses of a maildir (--maildir), for pretrained weights (--decoder.weights): one GPU",
        dataclasses.replace(_PRETRAINED, dataset="enron", new_tokens=64),
    ),
}
