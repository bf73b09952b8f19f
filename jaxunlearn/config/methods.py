"""The registry of methods: the fields of ``Methods``."""

import dataclasses

from jaxunlearn.unlearn.ascent import IDA, Ascent
from jaxunlearn.unlearn.clipping import Clipping
from jaxunlearn.unlearn.finetune import Finetune, Retrain
from jaxunlearn.unlearn.hessian import Hessian
from jaxunlearn.unlearn.influence import Influence
from jaxunlearn.unlearn.relabel import RandomLabel, SalUn
from jaxunlearn.unlearn.rewind import Rewind
from jaxunlearn.unlearn.sparsity import L1Sparse


@dataclasses.dataclass(frozen=True, kw_only=True)
class Methods:
    """Hyperparameters of the built-in methods; on the command line ``--method.NAME.OPTION``."""

    retrain: Retrain = Retrain()
    """Retraining on the retain set: the exact reference."""
    finetune: Finetune = Finetune()
    """Fine-tuning on the retain set."""
    ascent: Ascent = Ascent()
    """Gradient ascent on the forget set, then fine-tuning."""
    ida: IDA = IDA()
    """Interleaved descent-ascent, then fine-tuning."""
    clipping: Clipping = Clipping()
    """Model clipping with its certificate."""
    clipping_uncertified: Clipping = Clipping(epsilon=None, clip=5.0, sigma=1e-4)
    """Model clipping with too little noise to prove anything."""
    rewind: Rewind = Rewind()
    """Rewind-to-delete."""
    hessian: Hessian = Hessian()
    """A Newton-style step by LiSSA, then noise."""
    rl: RandomLabel = RandomLabel()
    """Random labels for the forget set."""
    salun: SalUn = SalUn()
    """Saliency unlearning: random labels, on the weights that matter to the forget set."""
    l1_sparse: L1Sparse = L1Sparse()
    """Fine-tuning on the retain set with an l1 penalty."""
    influence: Influence = Influence()
    """Influence unlearning, IU: a step along an inverse Fisher product."""


METHOD_NAMES: tuple[str, ...] = tuple(f.name.replace("_", "-") for f in dataclasses.fields(Methods))
AUDITED = ("retrain", "finetune", "ascent", "ida", "clipping", "clipping-uncertified", "rewind", "hessian")
"""What an audit takes unless it is told: the methods of the audit paper."""
