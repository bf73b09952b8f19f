"""The registry of methods for language models: the fields of ``LanguageMethods``."""

import dataclasses
from typing import Any

from jaxunlearn.unlearn.arithmetic import WHP, TaskVector
from jaxunlearn.unlearn.bounded import CEU, UNDIAL, SimNPO, WeightedAscent
from jaxunlearn.unlearn.finetune import Retrain
from jaxunlearn.unlearn.preference import DPO, GA, NPO
from jaxunlearn.unlearn.steering import RAU, RMU
from jaxunlearn.unlearn.substitution import Substitution


def _gdr(method: Any) -> Any:
    return dataclasses.replace(method, retain="gdr")


def _klr(method: Any) -> Any:
    return dataclasses.replace(method, retain="klr")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageMethods:
    """Hyperparameters of the built-in methods for language models; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    ga: GA = GA()
    """Gradient ascent on the known answers."""
    ga_gdr: GA = _gdr(GA())
    """The same, with descent on the retain set."""
    ga_klr: GA = _klr(GA())
    """The same, held near the target model on the retain set by a KL divergence."""
    npo: NPO = NPO()
    """Negative preference optimisation."""
    npo_gdr: NPO = _gdr(NPO())
    npo_klr: NPO = _klr(NPO())
    dpo: DPO = DPO()
    """Preference for a refusal over the answer."""
    dpo_gdr: DPO = _gdr(DPO())
    dpo_klr: DPO = _klr(DPO())
    task_vector: TaskVector = TaskVector()
    """What fine-tuning on the known answers adds to the weights, taken off."""
    rmu: RMU = RMU()
    """Hidden states of known answers steered to a random direction."""
    rl: Substitution = Substitution(substitute="random")
    """Random answers in place of the known ones."""
    rl_gdr: Substitution = _gdr(Substitution(substitute="random"))
    rm: Substitution = Substitution(substitute="mapped")
    """The known answers mixed up among the known questions."""
    rm_gdr: Substitution = _gdr(Substitution(substitute="mapped"))
    idk: Substitution = Substitution(substitute="refusal")
    """Sentences that decline in place of the known answers."""
    idk_gdr: Substitution = _gdr(Substitution(substitute="refusal"))
    whp: WHP = WHP()
    """Who's Harry Potter: labels from which a model that knows the answers even better is taken off."""
    whp_gdr: WHP = _gdr(WHP())
    rau: RAU = RAU()
    """Hidden states of known answers anchored to the base model's, at several depths."""
    sim_npo: SimNPO = SimNPO()
    """NPO without a reference, by mean log-likelihoods."""
    wga: WeightedAscent = WeightedAscent()
    """Gradient ascent weighted by confidence."""
    undial: UNDIAL = UNDIAL()
    """Self-distillation from logits lowered at the answer."""
    ce_u: CEU = CEU()
    """Cross-entropy to the distribution without the answer."""


PRIVUN_METHODS = (
    "retrain",
    "ga",
    "ga-gdr",
    "ga-klr",
    "npo",
    "npo-gdr",
    "npo-klr",
    "dpo",
    "dpo-gdr",
    "dpo-klr",
    "task-vector",
    "rmu",
    "rl",
    "rl-gdr",
    "rm",
    "rm-gdr",
    "whp",
    "whp-gdr",
    "idk",
    "idk-gdr",
    "rau",
)
"""Retraining, PrivUn's nineteen, and its own."""
LANGUAGE_METHOD_NAMES: tuple[str, ...] = tuple(f.name.replace("_", "-") for f in dataclasses.fields(LanguageMethods))
