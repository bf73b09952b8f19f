"""The registry of methods for masked autoencoders: the fields of ``AutoencoderMethods``."""

import dataclasses

from jaxunlearn.unlearn.finetune import Retrain
from jaxunlearn.unlearn.inpainting import I2I, SalUnInpainting


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoencoderMethods:
    """Hyperparameters of the built-in methods for masked autoencoders; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    i2i: I2I = I2I()
    """Latents of forgotten images moved to those of noise."""
    salun: SalUnInpainting = SalUnInpainting()
    """Saliency unlearning: noise filled into forgotten images, on the weights that matter to them."""


AUTOENCODER_METHOD_NAMES: tuple[str, ...] = tuple(
    f.name.replace("_", "-") for f in dataclasses.fields(AutoencoderMethods)
)
