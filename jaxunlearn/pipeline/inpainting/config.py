"""Settings of ``jaxunlearn robustness digits-inpainting``."""

import dataclasses
import math
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn.attack.mapping import Options
from jaxunlearn.config import AutoencoderMethods
from jaxunlearn.models.mae import ARCHITECTURES, Architecture
from jaxunlearn.pipeline.judge import JudgeOptions
from jaxunlearn.records import as_json
from jaxunlearn.robustness import CLEAN, strength
from jaxunlearn.unlearn.inpainting import Pretraining

METHODS = ("retrain", "i2i", "salun")
"""The paper's two, and the exact reference."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inpainting:
    """Unlearn classes of a model that fills in hidden parts of images, and attack the visible part to bring them back."""

    dataset: tyro.conf.Suppress[Literal["digits"]]
    """Data set; digits is embedded."""
    methods: tuple[str, ...] = METHODS
    """Methods to attack: built-in names, or your own as package.module:name (a function of TaskInfo to an Unlearner)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory; the same command resumes it. Default: runs/robustness-DATASET-inpainting."""
    model: Architecture = ARCHITECTURES["digits"]
    """Sizes of the masked autoencoder."""
    forget_classes: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Classes to be forgotten."""
    hidden_side: int = 8
    """Side of the hidden square in the middle, in sixteenths of the image's; the public code has 4 and 8."""
    seeds: int = 2
    """Seeds of training and unlearning: initial weights, order, masks, noise; >= 1."""
    epsilons: tuple[float, ...] = (8.0, 32.0, math.inf)
    """Radii of the attack in 255ths of the image range, L-infinity; inf is unbounded."""
    attack: Options = Options()
    unbounded_step: float = 1 / 255
    """Change of a pixel by one step of an unbounded attack, in (0, 1]."""
    attacked: Annotated[int | None, UNSAID] = None
    """Images looked at and attacked, of the forget set, of unseen ones of its classes and of the retain set, at most so many
    of each, drawn at random. Default: the forget set, as many of the retain set, and all unseen ones."""
    saved_seeds: Annotated[int | None, UNSAID] = None
    """Seeds whose attacked images are kept on disk. Default: all."""
    judge: JudgeOptions = JudgeOptions()
    seed: int = 0
    """Seed of everything random."""
    training: Pretraining = Pretraining()
    method: AutoencoderMethods = AutoencoderMethods()
    quiet: bool = False
    """No progress."""

    def __post_init__(self):
        for name in ("methods", "forget_classes", "epsilons"):
            values = getattr(self, name)
            _validate.require(
                len(set(values)) == len(values),
                f"Expected {name} without repetition, got {' '.join(map(str, values))}.",
            )
        _validate.not_empty("methods", self.methods)
        _validate.not_empty("forget_classes", self.forget_classes)
        _validate.at_least(1, seeds=self.seeds, hidden_side=self.hidden_side)
        _validate.at_least(0, seed=self.seed)
        _validate.require(self.seed < 1 << 32, f"Expected seed={self.seed} < 2 ** 32.")
        for epsilon in self.epsilons:
            _validate.require(epsilon > 0, f"Expected epsilons > 0, got {epsilon!r}; without attack is always shown.")
        _validate.positive(unbounded_step=self.unbounded_step)
        _validate.require(
            self.unbounded_step <= 1, f"Expected unbounded_step={self.unbounded_step!r} <= 1, the range of a pixel."
        )
        if self.attacked is not None:
            _validate.at_least(2, attacked=self.attacked)
        if self.saved_seeds is not None:
            _validate.at_least(0, saved_seeds=self.saved_seeds)
        _validate.require(
            not self.model.normalised,
            "Expected model.normalised False: normalised predictions need what is hidden to make an image.",
        )

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / f"robustness-{self.dataset}-inpainting"

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
        if math.isinf(epsilon):
            return self.unbounded_step
        share = self.attack.relative_step
        return self.attack.fixed_step if share is None else share * epsilon


_TRAINING_FIELDS = ("dataset", "model", "forget_classes", "seeds", "seed", "training")
_FIELDS = ("hidden_side", "attacked", "attack", "unbounded_step", "saved_seeds", "judge")


def original_identity(config: Inpainting, data: dict[str, Any]) -> dict[str, Any]:
    """What the original models depend on; ``data`` tells the data apart."""
    return {name: as_json(getattr(config, name)) for name in _TRAINING_FIELDS} | {"data": data}


def identity(config: Inpainting, data: dict[str, Any]) -> dict[str, Any]:
    """What all results of a run directory depend on; a method's own hyperparameters come on top."""
    found = original_identity(config, data) | {name: as_json(getattr(config, name)) for name in _FIELDS}
    return found | {"radii": list(map(str, config.epsilons))}  # JSON has no infinity
