"""The settings of ``jaxunlearn robustness``."""

import dataclasses
import math
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn.attack.mapping import Options
from jaxunlearn.config import Methods, Training
from jaxunlearn.records import as_json
from jaxunlearn.robustness import CLEAN, strength

METHODS = ("retrain", "finetune", "rl", "influence", "l1-sparse", "salun")
"""The paper's six."""

Architecture = Literal["mlp", "cnn", "gn-cnn", "tinynet", "resnet18", "resnet50", "resnet18-gn", "resnet50-gn"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadows:
    """Shadow models for membership inference (RUB, appendix C.1)."""

    models: int = 10
    """Shadow models, trained as one population; 0 leaves membership inference out."""
    share: float = 0.1
    """Share of the training images that each of them sees, in (0, 1)."""
    epochs: int = 10
    """Epochs of each."""
    kind: Literal["logistic", "mlp"] = "logistic"
    """The attack model of each class."""
    seeds: int = 5
    """Seeds of the attack models, each with a balanced draw of its own; >= 1."""

    def __post_init__(self):
        _validate.at_least(0, models=self.models)
        _validate.at_least(1, epochs=self.epochs, seeds=self.seeds)
        _validate.open_unit(share=self.share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Robustness:
    """Unlearn classes or images with several methods and seeds, and attack the inputs to bring them back."""

    dataset: tyro.conf.Suppress[Literal["digits", "cifar10", "cifar100", "tiny-imagenet"]]
    """Data set; digits is embedded, the others are read from the folder named by JAXUNLEARN_DATA."""
    methods: tuple[str, ...] = METHODS
    """Methods to attack: built-in names, or your own as package.module:name (a function of TaskInfo to an Unlearner)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory; the same command resumes it. Default: runs/robustness-DATASET."""
    model: Architecture = "gn-cnn"
    """Architecture; resnet18 and resnet50 have BatchNorm, those with -gn GroupNorm."""
    width: Annotated[int | None, UNSAID] = None
    """Of a residual network: channels of its first stage, even. Default: 64, as published; 16 suits a processor."""
    forget: Literal["classes", "images"] = "classes"
    """What is to be forgotten: all images of some classes, or some images of all classes."""
    forget_classes: Annotated[tuple[int, ...] | None, UNSAID] = None
    """Class-wise: the classes. Default: the paper's, as far as the files have them; of digits 0."""
    forget_share: float = 0.1
    """Of images: the share, in (0, 1)."""
    seeds: int = 3
    """Seeds of the unlearning: initial weights, order, noise; >= 1."""
    shared_original: bool = False
    """One original model for all seeds, as in the paper, or one for each seed."""
    original: Annotated[PathOption | None, UNSAID] = None
    """The original model for all seeds: a torch ResNet-18 or -50 of small images, as safetensors. Default: trained here."""
    epsilons: tuple[float, ...] = (8.0, 16.0)
    """Radii of the attack in 255ths of the image range, L-infinity; inf is unbounded."""
    distance: Literal["kl", "reverse-kl", "mse", "cross-entropy"] = "kl"
    """What the attack brings down, between the unlearned model's logits and the original's on the clean image."""
    attack: Options = Options()
    second_attack: Literal["apgd", "none"] = "apgd"
    """Another attack with as many steps, to show that the first is not weak."""
    shadows: Shadows = Shadows()
    curves: tuple[str, ...] = ("retrain", "salun")
    """Methods that are also attacked with other numbers of steps and other step sizes, at the largest radius."""
    attacked: Annotated[int | None, UNSAID] = None
    """Images of the forget set that are looked at and attacked, drawn at random, and at most as many controls. Default:
    all."""
    saved_seeds: Annotated[int | None, UNSAID] = None
    """Seeds whose attacked images are kept on disk. Default: all."""
    augmentation: Literal["none", "crop", "crop-flip"] = "none"
    """Of training images: none, padded and cropped again, and mirrored."""
    seed: int = 0
    """Seed of everything random."""
    training: Training = Training()
    method: Methods = Methods()
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    """As in audits; attacks compute in it too."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self):
        _validate.not_empty("methods", self.methods)
        _different("methods", self.methods)
        _validate.at_least(1, seeds=self.seeds)
        _validate.at_least(0, seed=self.seed)
        _validate.require(self.seed < 1 << 32, f"Expected seed={self.seed} < 2 ** 32.")
        _validate.open_unit(forget_share=self.forget_share)
        _validate.require(
            self.forget == "classes" or self.forget_classes is None,
            f"Expected no forget_classes={self.forget_classes} with forget='images', which are of all classes; leave it out.",
        )
        _validate.require(
            self.original is None or self.model in ("resnet18", "resnet50"),
            f"Expected model='resnet18' or 'resnet50' with original={self.original}, got {self.model!r}.",
        )
        if self.width is not None:
            residual = self.model.startswith("resnet") and self.original is None
            _validate.require(
                residual and self.width >= 2 and self.width % 2 == 0,
                f"Expected width={self.width} to be even, >= 2, and of a residual network that is trained here, got "
                f"model={self.model!r}, original={self.original}; leave it out.",
            )
        if self.forget_classes is not None:
            _validate.not_empty("forget_classes", self.forget_classes)
            _different("forget_classes", self.forget_classes)
        _different("epsilons", self.epsilons)
        for epsilon in self.epsilons:
            _validate.require(epsilon > 0, f"Expected epsilons > 0, got {epsilon!r}; without attack is always shown.")
        _validate.require(
            self.attack.relative_step is None or not any(map(math.isinf, self.epsilons)),
            f"Expected no attack.relative_step={self.attack.relative_step} with an epsilon of inf, of which it would be a "
            "share; set attack.relative_step None and an attack.step_size.",
        )
        unknown = [name for name in self.curves if name not in self.methods]
        if self.curves != Robustness.curves:
            _validate.require(
                not unknown,
                f"Expected curves of methods that are attacked, got {' '.join(unknown)}; add them to methods.",
            )
        if self.attacked is not None:
            _validate.at_least(1, attacked=self.attacked)
        if self.saved_seeds is not None:
            _validate.at_least(0, saved_seeds=self.saved_seeds)

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / f"robustness-{self.dataset}"

    @property
    def second(self) -> str:
        """The second attack's algorithm, "none" where it would be the first again."""
        return "none" if self.second_attack == self.attack.algorithm else self.second_attack

    @property
    def one_original(self) -> bool:
        """Whether all seeds start from one model."""
        return self.shared_original or self.original is not None

    @property
    def images_saved(self) -> int:
        """Seeds whose attacked images are kept."""
        return self.seeds if self.saved_seeds is None else min(self.saved_seeds, self.seeds)

    @property
    def conditions(self) -> list[str]:
        """Names of what is done to inputs: nothing first."""
        return [CLEAN, *map(strength, self.epsilons)]

    def step_size(self, epsilon: float) -> float:
        """The change of a pixel by one step at a radius, both in [0, 1]."""
        share = self.attack.relative_step
        return self.attack.fixed_step if share is None else share * epsilon

    @property
    def strongest(self) -> float:
        """The largest radius, in 255ths; infinite if unbounded."""
        return max(self.epsilons, default=math.inf)


def _different(name: str, values: tuple[Any, ...]) -> None:
    _validate.require(
        len(set(values)) == len(values), f"Expected {name} without repetition, got {' '.join(map(str, values))}."
    )


_TRAINING_FIELDS = (
    "dataset",
    "model",
    "forget",
    "seeds",
    "shared_original",
    "original",
    "augmentation",
    "seed",
    "training",
    "precision",
)


def original_identity(config: Robustness, data: dict[str, Any]) -> dict[str, Any]:
    """What the original models depend on; ``data`` tells the data apart."""
    found = {name: as_json(getattr(config, name)) for name in _TRAINING_FIELDS} | {"data": data}
    return found if config.width is None else found | {"width": config.width}


def identity(config: Robustness, data: dict[str, Any]) -> dict[str, Any]:
    """What all results of a run directory depend on; a method's own hyperparameters come on top."""
    names = ("attacked", "distance", "attack", "second_attack", "shadows", "curves", "saved_seeds")
    found = original_identity(config, data) | {name: as_json(getattr(config, name)) for name in names}
    return found | {"epsilons": list(map(str, config.epsilons))}  # JSON has no infinity
