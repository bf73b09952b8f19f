"""Ready settings; ``jaxunlearn privacy NAME`` starts from one of them."""

import dataclasses

from jaxunlearn.config import LanguageMethods
from jaxunlearn.pipeline.privacy.config import Decoder, Fitting, People, Privacy, Recovery
from jaxunlearn.unlearn.arithmetic import WHP, TaskVector
from jaxunlearn.unlearn.base import AdamW
from jaxunlearn.unlearn.preference import DPO, GA, NPO
from jaxunlearn.unlearn.steering import RAU, RMU
from jaxunlearn.unlearn.substitution import Substitution


def _methods(rate: float, *, epochs: int, steering: float, strength: float) -> LanguageMethods:
    """All methods with one learning rate, but for those that move states."""
    plain = {"epochs": epochs, "descent": AdamW(peak=rate)}
    held = {"retain": "gdr", **plain}
    near = {"retain": "klr", **plain}
    return LanguageMethods(
        ga=GA(**plain),
        ga_gdr=GA(**held),
        ga_klr=GA(**near),
        npo=NPO(**plain),
        npo_gdr=NPO(**held),
        npo_klr=NPO(**near),
        dpo=DPO(**plain),
        dpo_gdr=DPO(**held),
        dpo_klr=DPO(**near),
        task_vector=TaskVector(strength=strength, **plain),
        rmu=RMU(epochs=epochs, descent=AdamW(peak=steering)),
        rl=Substitution(substitute="random", **plain),
        rl_gdr=Substitution(substitute="random", **held),
        rm=Substitution(substitute="mapped", **plain),
        rm_gdr=Substitution(substitute="mapped", **held),
        idk=Substitution(substitute="refusal", **plain),
        idk_gdr=Substitution(substitute="refusal", **held),
        whp=WHP(**plain),
        whp_gdr=WHP(**held),
        rau=RAU(epochs=epochs, descent=AdamW(peak=steering)),
    )


_PEOPLE = Privacy(dataset="people", method=_methods(1e-4, epochs=8, steering=3e-4, strength=5.0))

PRESETS: dict[str, tuple[str, Privacy]] = {
    "people": ("400 invented people and a small Llama that is trained here: half an hour on two CPU cores", _PEOPLE),
    "people-quick": (
        "fewer people, one seed, three methods: two minutes",
        dataclasses.replace(
            _PEOPLE,
            methods=("retrain", "ga", "rau"),
            people=People(forgotten=40, retained=20, control=10, characters=40_000, chunks=200, held_out=40),
            decoder=Decoder(vocabulary=512, width=64, layers=3, heads=2, kv_heads=1, hidden=168, pretraining=2),
            target=Fitting(epochs=12, repeats=6, descent=AdamW(peak=5e-3, schedule="cosine")),
            seeds=1,
            curves=(),
            recovery=Recovery(samples=40, draws=2, epochs=(10,)),
        ),
    ),
    "tofu": (
        "TOFU's questions about births, for pretrained weights (--decoder.weights): one GPU",
        dataclasses.replace(
            _PEOPLE,
            dataset="tofu",
            known=0.2,
            decoder=Decoder(pretraining=0),
        ),
    ),
}
