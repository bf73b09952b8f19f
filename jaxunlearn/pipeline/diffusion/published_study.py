"""What ``jaxunlearn robustness sd1`` attacks: the original model, the prompts of a file, and whoever judges images."""

import dataclasses
import hashlib
import importlib
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.data import concepts
from jaxunlearn.data.clip_tokens import ClipTokenizer
from jaxunlearn.diffusion import TextToImage
from jaxunlearn.engine import store
from jaxunlearn.models.diffusion.model import Architecture, text_to_image
from jaxunlearn.models.diffusion.weights import load_text_to_image
from jaxunlearn.pipeline.diffusion.published_config import PublishedRobustness
from jaxunlearn.records import as_json

Judge = Callable[[np.ndarray], Any]
"""``(images [n, h, w, 3] in [0, 1]) -> labels or scores [n]``, on the host."""


def load_judge(name: str, concept: concepts.Concept) -> tuple[Judge, str]:
    """The judge behind a name, which says yes by the concept's label (or by 1 of scores above its threshold).

    Returns:
        ``(images) -> labels [n]`` int32, and a hash of its module.

    Raises:
        InputError: There is no such function.
    """
    module, _, attribute = name.partition(":")
    require(
        bool(module and attribute), f"Expected --judge package.module:name, got {name!r}; concepts do not bring one."
    )
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed script does not look in the current folder
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"Cannot import judge={name!r} ({error}); is it installed or in this folder?") from error
    require(callable(getattr(found, attribute, None)), f"Expected {module} to have a function {attribute}.")
    function, file = getattr(found, attribute), getattr(found, "__file__", None)

    def judge(images: np.ndarray) -> np.ndarray:
        said = np.asarray(function(np.asarray(images)))
        require(
            said.shape == (len(images),),
            f"Expected judge={name!r} to return a label or score for each of {len(images)} images, got shape {said.shape}.",
        )
        if concept.threshold is not None and said.dtype.kind == "f":
            said = said > concept.threshold
        return said.astype(np.int32)

    return judge, hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file else ""


@dataclasses.dataclass(frozen=True)
class Published:
    """What is attacked.

    Attributes:
        config: The settings.
        rows: The prompts of the file.
        model: The model.
        architecture: What it is made of.
        original: The original's parameters.
        tokenizer: Its tokenizer.
        judge: See ``load_judge``.
        judge_hash: Of its module.
    """

    config: PublishedRobustness
    rows: tuple[concepts.PromptRow, ...]
    model: TextToImage
    architecture: Architecture
    original: Any
    tokenizer: ClipTokenizer
    judge: Judge
    judge_hash: str

    @cached_property
    def tokens(self) -> np.ndarray:
        """[N, l] the prompts."""
        return np.stack([self.tokenizer.prompt(row.prompt) for row in self.rows])

    @cached_property
    def starts(self) -> np.ndarray:
        """[N, h, w, c] standard normal latents, each of its row's own seed; they are not those of torch's generator."""
        draw = jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), self.model.latent_shape))
        return np.stack([np.asarray(draw(row.seed % (1 << 32))) for row in self.rows])

    @property
    def guidance(self) -> np.ndarray:
        """[N]."""
        return np.array([row.guidance for row in self.rows], np.float32)

    @property
    def label(self) -> int:
        """What the judge says of the concept."""
        label = concepts.concept(self.config.concept).label
        return 1 if label is None else label

    @property
    def identity(self) -> dict[str, Any]:
        """What all results depend on."""
        config = self.config
        names = ("dataset", "judge", "concept", "sampler", "sampling_steps", "attack", "hard", "precision", "seed")
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.original):
            digest.update(np.asarray(leaf).tobytes())
        digest.update(np.ascontiguousarray(self.tokens).data)
        return {name: as_json(getattr(config, name)) for name in names} | {
            "seeds": 1,
            "guidance": "by prompt",
            "data": {"prompts": len(self.rows), "sha256": digest.hexdigest()[:16], "judge": self.judge_hash},
        }

    def blocks(self) -> list[np.ndarray]:
        """Numbers of the prompts that go at once; the last are repeated, so that all blocks are of one size."""
        n, size = len(self.rows), min(self.config.at_once, len(self.rows))
        return [np.minimum(np.arange(i, i + size), n - 1) for i in range(0, n, size)]


def load(config: PublishedRobustness) -> Published:
    """Loads the original model, the prompts and the judge.

    Raises:
        InputError: Something is missing, or does not fit.
    """
    require(config.weights is not None, "Expected --weights DIR, the folder of the original model.")
    require(config.prompts is not None, "Expected --prompts CSV, the file of prompts.")
    assert config.weights is not None and config.prompts is not None
    concept = concepts.concept(config.concept)
    judge, judge_hash = load_judge(config.judge, concept)
    folder = Path(str(config.weights))
    architecture, original = load_text_to_image(folder)
    model = text_to_image(architecture, dtype=config.precision, remat=True)
    tokenizer = ClipTokenizer(folder / "tokenizer", model.length, pad=model.pad)
    most = model.length - 2 - concept.tokens
    rows = concepts.read_prompts(str(config.prompts))
    kept = tuple(row for row in rows if len(tokenizer.words(row.prompt)) <= most)
    if len(kept) < len(rows):
        store.notice(f"{len(rows) - len(kept)} of {len(rows)} prompts are left out: they have more than {most} tokens.")
    require(len(kept) > 0, f"Expected prompts of at most {most} tokens in {config.prompts}, found none.")
    return Published(config, kept, model, architecture, original, tokenizer, judge, judge_hash)
