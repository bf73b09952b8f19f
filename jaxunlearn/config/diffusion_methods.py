"""The registry of methods for text-to-image models: the fields of ``DiffusionMethods``."""

import dataclasses

from jaxunlearn.unlearn.erasing import ESD, SPM, AdvUnlearn
from jaxunlearn.unlearn.finetune import Retrain
from jaxunlearn.unlearn.relearning import EraseDiff, ForgetMeNot, SalUnDiffusion, ScissorHands
from jaxunlearn.unlearn.text_to_image import settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffusionMethods:
    """Hyperparameters of the built-in methods for text-to-image models; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    esd_x: ESD = ESD()
    """Erased stable diffusion, cross-attentions."""
    esd_u: ESD = ESD(subset="noxattn")
    """The same, all of the U-Net but those."""
    salun: SalUnDiffusion = SalUnDiffusion()
    """Saliency unlearning: the concept drawn to another one, on the weights that matter to it."""
    erasediff: EraseDiff = EraseDiff()
    """Training on the rest, beside the concept drawn to another one."""
    fmn: ForgetMeNot = ForgetMeNot()
    """Forget-Me-Not: less attention to the concept's words."""
    scissorhands: ScissorHands = ScissorHands()
    """The most sensitive weights start anew, then training on the rest."""
    spm: SPM = SPM()
    """Semi-permeable membrane: rank-1 adapters."""
    advunlearn: AdvUnlearn = AdvUnlearn()
    """Adversarial training of the text encoder."""


RUB_PROMPTED = ("retrain", "esd-x", "esd-u", "salun", "erasediff", "fmn", "scissorhands", "spm", "advunlearn")
"""Retraining, and RUB's seven, of which ESD is two."""


def diffusion_methods(name: str) -> DiffusionMethods:
    """All methods with the settings of a name; see ``unlearn.text_to_image.SETTINGS``.

    Raises:
        InputError: No such settings.
    """
    fields = {method.replace("-", "_"): value for method, value in settings(name).items()}
    return DiffusionMethods(**fields)  # pyrefly: ignore
