"""The settings of ``jaxunlearn robustness sd1``."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxunlearn import _validate
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import require
from jaxunlearn.attack.prompts import Options
from jaxunlearn.data import concepts
from jaxunlearn.pipeline.diffusion.config import Hard
from jaxunlearn.robustness import CLEAN


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRobustness:
    """Attack prompts of models that were made to forget a concept, given as folders of diffusers, to draw it again."""

    dataset: tyro.conf.Suppress[Literal["sd1"]] = "sd1"
    """Stable Diffusion 1.x."""
    weights: Annotated[PathOption | None, UNSAID] = None
    """Folder of the original model in the format of diffusers, with its tokenizer and safetensors. It must be given."""
    prompts: Annotated[PathOption | None, UNSAID] = None
    """CSV file of prompts: prompt, evaluation_seed, evaluation_guidance. It must be given."""
    judge: str = ""
    """Who judges images, as package.module:name: a function of images [n, h, w, 3] in [0, 1] to labels [n], or to scores [n]
    if the concept has a threshold. It must be given."""
    unlearned: tuple[str, ...] = ()
    """Unlearned models as NAME=DIR, whole folders like that of the original."""
    concept: str = "church"
    """An entry of the table of concepts; it says which label counts, and how many tokens an attack adds."""
    out: Annotated[PathOption | None, UNSAID] = None
    """Run directory; the same command resumes it. Default: runs/robustness-sd1-CONCEPT."""
    sampler: Literal["lms", "ddim"] = "lms"
    sampling_steps: int = 50
    """Steps from noise to image, >= 1."""
    attack: Options = Options(rounds=100)
    """Its number of tokens is the concept's."""
    hard: Hard = Hard()
    baselines: bool = True
    """Whether prompts are attacked with random tokens and hard prompts too."""
    at_once: int = 8
    """Prompts that one call of the compiled attack takes, which bounds its memory, >= 1."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the models compute in."""
    seed: int = 0
    """Seed of everything random."""
    quiet: bool = False
    """No progress."""

    def __post_init__(self):
        _validate.one_of("concept", self.concept, concepts.CONCEPTS)
        _validate.at_least(1, sampling_steps=self.sampling_steps, at_once=self.at_once)
        _validate.at_least(0, seed=self.seed)
        require(
            self.attack.algorithm == "gradient",
            f"Expected attack.algorithm='gradient', got {self.attack.algorithm!r}; --baselines attacks with the others.",
        )

    @property
    def directory(self) -> AnyPath:
        """The run directory."""
        return self.out if self.out is not None else as_path("runs") / f"robustness-sd1-{self.concept}"

    @property
    def folders(self) -> dict[str, Path]:
        """The unlearned models' folders by name."""
        found = {}
        for each in self.unlearned:
            name, _, folder = each.partition("=")
            require(bool(name and folder), f"Expected --unlearned NAME=DIR, got {each!r}.")
            require(name not in found and name != "original", f"Expected another name than {name!r} in --unlearned.")
            found[name] = Path(folder)
        return found

    @property
    def attacks(self) -> dict[str, Options]:
        """What prompts are attacked with, by the name of the condition."""
        again, gradient = dataclasses.replace, self.attack
        gradient = again(gradient, tokens=concepts.concept(self.concept).tokens)
        if not self.baselines:
            return {"gradient": gradient}
        return {
            f"random {gradient.place}": again(gradient, algorithm="random"),
            "hard prompt": again(gradient, algorithm="hard", **dataclasses.asdict(self.hard)),
            "gradient": gradient,
        }

    @property
    def conditions(self) -> list[str]:
        """Names of what is done to prompts: nothing first."""
        return [CLEAN, *self.attacks]
