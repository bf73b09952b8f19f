"""Ready configurations, one for each data set and size; ``jaxunlearn audit NAME`` starts from one of them."""

import dataclasses
from typing import Any

from jaxunlearn.config import Audit, LanguageMethods, Methods, Text, Training
from jaxunlearn.unlearn.arithmetic import WHP, TaskVector
from jaxunlearn.unlearn.ascent import IDA, Ascent
from jaxunlearn.unlearn.base import SGD, AdamW
from jaxunlearn.unlearn.bounded import CEU, UNDIAL, SimNPO, WeightedAscent
from jaxunlearn.unlearn.clipping import Clipping
from jaxunlearn.unlearn.finetune import Finetune
from jaxunlearn.unlearn.hessian import Hessian
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.preference import DPO, GA, NPO
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.sparsity import L1Sparse
from jaxunlearn.unlearn.steering import RAU, RMU
from jaxunlearn.unlearn.substitution import Substitution

# At the paper's noise (sigma = .02) the certificate asks for 48,004 steps; at .05 five steps prove the same.
_SMALL_METHODS = Methods(
    clipping=Clipping(sigma=0.05, epochs=30, descent=SGD(peak=0.3)),
    clipping_uncertified=Clipping(epsilon=None, clip=5.0, sigma=1e-4, epochs=30, descent=SGD(peak=0.3)),
    hessian=Hessian(samples=2, depth=200, scale=50.0),
)
_DIGITS_DESCENT = SGD(schedule="constant", peak=0.01, momentum=0.9)
# At the paper's 1e-3 ascent and IDA do next to nothing on digits; at .02 IDA ruins a model of CIFAR-10. Influence at its 20
# takes the retain accuracy from 99 to 86%, l1-sparse at its rates does next to nothing.
_DIGITS_METHODS = dataclasses.replace(
    _SMALL_METHODS,
    ascent=Ascent(learning_rate=0.02),
    ida=IDA(learning_rate=0.02),
    rl=RandomLabel(descent=_DIGITS_DESCENT),
    salun=SalUn(descent=_DIGITS_DESCENT),
    l1_sparse=L1Sparse(alpha=2.5e-3, descent=_DIGITS_DESCENT),
    influence=Influence(alpha=3.0),
)

_TEXT_METHODS = ("retrain", "finetune", "ascent", "ida", "hessian")
_TEXT_DESCENT = SGD(schedule="constant", peak=0.1, weight_decay=0.0, clip_norm=1.0)


_SMALL_TEXT_DESCENT = SGD(peak=1.0, momentum=0.9, weight_decay=0.0, clip_norm=1.0)


def _text_methods(*, epochs: int, descent: SGD, hessian: Hessian) -> Methods:
    """The paper's hyperparameters for Shakespeare (section G), for ``epochs`` of unlearning in all."""
    return Methods(
        finetune=Finetune(epochs=epochs, descent=descent),
        ascent=Ascent(learning_rate=descent.peak / 2, epochs=epochs, descent=descent),
        ida=IDA(
            forget_weight=0.5,
            interleaved_epochs=epochs // 2,
            learning_rate=descent.peak / 2,
            epochs=epochs,
            descent=descent,
        ),
        hessian=hessian,
    )


def language_methods(rate: float, *, epochs: int, steering: float, strength: float) -> LanguageMethods:
    """All methods for language models with one learning rate, but for those that steer states.

    Args:
        rate: Of AdamW.
        epochs: Over the known forget set.
        steering: The rate of RMU and RAU.
        strength: Of the task vector.
    """
    plain: Any = {"epochs": epochs, "descent": AdamW(peak=rate)}
    held: Any = {"retain": "gdr", **plain}
    near: Any = {"retain": "klr", **plain}
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
        sim_npo=SimNPO(**plain),
        wga=WeightedAscent(**plain),
        undial=UNDIAL(**plain),
        ce_u=CEU(**plain),
    )


PRESETS: dict[str, tuple[str, Audit]] = {
    "digits": (
        "1,797 handwritten digits, embedded: about a minute on two CPU cores",
        Audit(dataset="digits", method=_DIGITS_METHODS),
    ),
    "mnist": ("MNIST idx files", Audit(dataset="mnist", pool_size=1000, method=_SMALL_METHODS)),
    "cifar10": (
        "CIFAR-10 with TinyNet",
        Audit(
            dataset="cifar10",
            model="tinynet",
            pool_size=1000,
            training=Training(epochs=100, batch_size=128),
            method=_SMALL_METHODS,
        ),
    ),
    "cifar100": (
        "CIFAR-100 as in the audit paper: one GPU",
        Audit(
            dataset="cifar100",
            model="tinynet",
            pool_size=4500,
            r=3000,
            training=Training(epochs=400, batch_size=128, descent=SGD(peak=0.06)),
            method=Methods(
                finetune=Finetune(epochs=50),
                ascent=Ascent(epochs=50),
                ida=IDA(epochs=50),
                clipping=Clipping(epochs=50),
                clipping_uncertified=Clipping(epsilon=None, clip=5.0, sigma=1e-4, noisy_epochs=10, epochs=40),
            ),
        ),
    ),
    "shakespeare": (
        "Shakespeare by role as in the audit paper: one GPU",
        Audit(
            dataset="shakespeare",
            model="lstm",
            methods=_TEXT_METHODS,
            r=100,
            # The paper does not say how far its windows slide; its hour a run and its accuracy fit one character.
            text=Text(stride=1),
            training=Training(epochs=15, batch_size=256, descent=_TEXT_DESCENT),
            method=_text_methods(
                epochs=8,
                descent=_TEXT_DESCENT,
                hessian=Hessian(samples=5, depth=700, scale=5000.0, batch_size=256),
            ),
        ),
    ),
    "shakespeare-small": (
        "a dozen roles and a small LSTM: minutes on two CPU cores",
        Audit(
            dataset="shakespeare",
            model="lstm",
            methods=_TEXT_METHODS,
            pool_size=100,
            text=Text(roles=12, forget_share=0.4, length=40, stride=40, hidden=32),
            training=Training(epochs=30, batch_size=32, descent=_SMALL_TEXT_DESCENT),
            method=_text_methods(
                epochs=6,
                descent=_SMALL_TEXT_DESCENT,
                hessian=Hessian(samples=2, depth=100, scale=100.0, batch_size=32),
            ),
        ),
    ),
    "people": (
        "facts about invented people, and a small Llama: minutes on two CPU cores",
        Audit(
            dataset="people",
            model="decoder",
            methods=("retrain", "finetune", "ga", "ga-gdr", "npo", "idk", "rmu", "rau"),
            pool_size=200,
            calibration_runs=40,
            training=Training(epochs=20, batch_size=16, descent=AdamW(peak=5e-3, schedule="cosine")),
            method=Methods(finetune=Finetune(epochs=4, descent=AdamW(peak=1e-3))),
            language_method=language_methods(5e-4, epochs=4, steering=1e-3, strength=2.0),
        ),
    ),
}
