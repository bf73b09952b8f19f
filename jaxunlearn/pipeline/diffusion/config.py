"""The settings of ``jaxunlearn robustness digits-diffusion``."""

import dataclasses
from typing import Annotated, Any, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn.attack.prompts import Options
from jaxunlearn.config import RUB_PROMPTED, DiffusionMethods, Training
from jaxunlearn.records import as_json
from jaxunlearn.robustness import CLEAN
from jaxunlearn.unlearn.concept import Denoising

TASK = "text-to-image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """How the text encoder is trained before all else: to tell which digit a caption is of. From then on it is frozen."""

    steps: int = 300
    """Steps, >= 1."""
    batch_size: int = 128
    """Captions a step, >= 1."""
    rate: float = 2e-3
    """Adam's step size, > 0."""

    def __post_init__(self):
        _validate.at_least(1, steps=self.steps, batch_size=self.batch_size)
        _validate.positive(rate=self.rate)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hard:
    """How the baseline of hard prompts searches; its tokens, place and rounds are the attack's."""

    inner_steps: int = 10
    """Gradient steps of a round, >= 1."""
    rate: float = 0.1
    """Adam's step size, > 0."""
    decay: float = 0.1
    """Decoupled decay, times the rate; >= 0."""

    def __post_init__(self):
        _validate.at_least(1, inner_steps=self.inner_steps)
        _validate.positive(rate=self.rate)
        _validate.non_negative(decay=self.decay)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextToImageRobustness:
    """Unlearn a concept of a text-to-image model with several methods and seeds, and attack prompts to draw it again."""

    dataset: tyro.conf.Suppress[Literal["digits-diffusion"]] = "digits-diffusion"
    """Small digits with captions, embedded."""
    methods: tuple[str, ...] = RUB_PROMPTED
    """Methods to attack: built-in names, or your own as package.module:name (a function of TaskInfo to an Unlearner)."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory; the same command resumes it. Default: runs/robustness-DATASET."""
    concept: int = 0
    """The digit that is to be forgotten."""
    seeds: int = 2
    """Seeds of training and unlearning: initial weights, order, noise; >= 1. All share a text encoder and a judge."""
    encoder: Encoder = Encoder()
    training: Denoising = Denoising()
    judge: Training = Training(epochs=40)
    """How the classifier is trained that says what an image shows."""
    sampling_steps: int = 25
    """Steps of DDIM from noise to image, >= 1."""
    guidance: float = 2.5
    """Of classifier-free guidance; 1 is none."""
    prompts: int = 24
    """Prompts of the concept that are attacked, N, drawn from its 60 captions."""
    retained: int = 12
    """Prompts of every other digit that are drawn, to see what the unlearning has left."""
    attack: Options = Options()
    hard: Hard = Hard()
    at_once: Annotated[int | None, UNSAID] = None
    """Prompts that one call of the compiled attack takes, which bounds its memory. Default: all."""
    seed: int = 0
    """Seed of everything random."""
    method: DiffusionMethods = DiffusionMethods()
    quiet: bool = False
    """No progress."""

    def __post_init__(self):
        _validate.not_empty("methods", self.methods)
        _validate.require(
            len(set(self.methods)) == len(self.methods),
            f"Expected methods without repetition, got {' '.join(self.methods)}.",
        )
        _validate.require(0 <= self.concept <= 9, f"Expected concept={self.concept} in 0..9.")
        _validate.at_least(1, seeds=self.seeds, sampling_steps=self.sampling_steps, prompts=self.prompts)
        _validate.at_least(2, retained=self.retained)
        _validate.at_least(0, seed=self.seed)
        _validate.require(self.seed < 1 << 32, f"Expected seed={self.seed} < 2 ** 32.")
        for name in ("prompts", "retained"):
            value = getattr(self, name)
            _validate.require(value <= 60, f"Expected {name}={value} <= 60, the captions of a digit.")
        _validate.require(
            self.attack.algorithm == "gradient",
            f"Expected attack.algorithm='gradient', got {self.attack.algorithm!r}; the others are attacked with anyway.",
        )
        if self.at_once is not None:
            _validate.at_least(1, at_once=self.at_once)

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / f"robustness-{self.dataset}"

    @property
    def attacks(self) -> dict[str, Options]:
        """What prompts are attacked with, by the name of the condition."""
        again = dataclasses.replace
        return {
            f"random {self.attack.place}": again(self.attack, algorithm="random"),
            "hard prompt": again(self.attack, algorithm="hard", **dataclasses.asdict(self.hard)),
            "gradient": self.attack,
        }

    @property
    def conditions(self) -> list[str]:
        """Names of what is done to prompts: nothing first."""
        return [CLEAN, *self.attacks]


_SHARED = ("dataset", "seed", "encoder", "judge")
_TRAINING = (*_SHARED, "concept", "seeds", "training")
_MEASURED = ("sampling_steps", "guidance", "prompts", "retained", "attack", "hard")


def _said(config: TextToImageRobustness, names: tuple[str, ...], data: dict[str, Any]) -> dict[str, Any]:
    return {name: as_json(getattr(config, name)) for name in names} | {"data": data}


def shared_identity(config: TextToImageRobustness, data: dict[str, Any]) -> dict[str, Any]:
    """What text encoder and judge depend on; ``data`` tells the images apart."""
    return _said(config, _SHARED, data)


def original_identity(config: TextToImageRobustness, data: dict[str, Any]) -> dict[str, Any]:
    """What the original models depend on."""
    return _said(config, _TRAINING, data)


def identity(config: TextToImageRobustness, data: dict[str, Any]) -> dict[str, Any]:
    """What all results of a run directory depend on; a method's own hyperparameters come on top."""
    return _said(config, (*_TRAINING, *_MEASURED), data)
