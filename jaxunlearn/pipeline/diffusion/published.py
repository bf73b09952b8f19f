"""``jaxunlearn robustness sd1``: attack prompts of unlearned copies of a published text-to-image model."""

import dataclasses
import hashlib
import importlib
import sys
import time
import zlib
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from jaxunlearn import _validate, records
from jaxunlearn._options import UNSAID, PathOption
from jaxunlearn._paths import AnyPath, as_path, remove_tree
from jaxunlearn._validate import InputError, require
from jaxunlearn.attack import prompts as attacking
from jaxunlearn.attack.prompts import Options
from jaxunlearn.config import method_directory_name
from jaxunlearn.data import concepts
from jaxunlearn.data.clip_tokens import ClipTokenizer
from jaxunlearn.diffusion import TextToImage, ddim, guided, lms, sample
from jaxunlearn.engine import store
from jaxunlearn.models.diffusion.model import Architecture, text_to_image
from jaxunlearn.models.diffusion.weights import load_text_to_image
from jaxunlearn.pipeline import measured
from jaxunlearn.pipeline.diffusion.config import TASK, Hard
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.seeds import ATTACK, Arrays
from jaxunlearn.records import as_json
from jaxunlearn.robustness import CLEAN, FILE, Metric, RobustnessRecord

Judge = Callable[[np.ndarray], Any]
"""``(images [n, h, w, 3] in [0, 1]) -> labels or scores [n]``, on the host."""


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


class Programs:
    """The compiled programs; one set for all models."""

    def __init__(self, published: Published):
        self.published, config, model = published, published.config, published.model
        make = {"lms": lms, "ddim": ddim}[config.sampler]
        sampler = make(model.schedule, config.sampling_steps)

        def judged(images):
            shape = jax.ShapeDtypeStruct(images.shape[:1], jnp.int32)
            return jax.pure_callback(published.judge, shape, images, vmap_method="sequential")

        def read(tokens):
            return jax.pure_callback(
                published.tokenizer.again,
                jax.ShapeDtypeStruct(tokens.shape, jnp.int32),
                tokens,
                vmap_method="sequential",
            )

        def draw(params, tokens, starts, guidance):
            context, empty = model.embed_text(params, tokens), model.without_words(params, len(tokens))
            images = model.decode(params, sample(guided(model, params, context, empty, guidance), sampler, starts))
            return images, judged(images)

        def attack(options, key, params, tokens, goals, starts, guidance, ids, original):
            return attacking.attack(
                key,
                model,
                params,
                judged,
                tokens,
                model.encode(params, goals),
                starts,
                jnp.full(len(tokens), published.label),
                sampler=sampler,
                guidance=guidance,
                options=options,
                original=original,
                ids=ids,
                read=read,
            )._asdict()

        self._draw = jax.jit(draw)
        self._attacks = {name: jax.jit(partial(attack, options)) for name, options in config.attacks.items()}

    def draw(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Images [N, h, w, c] of all prompts as they are, and what the judge says of them."""
        p = self.published
        found = [self._draw(params, p.tokens[b], p.starts[b], p.guidance[b]) for b in p.blocks()]
        images, said = (np.concatenate([np.asarray(part) for part in side]) for side in zip(*found))
        return images[: len(p.rows)], said[: len(p.rows)]

    def attack(self, params: Any, goals: np.ndarray, block: np.ndarray, condition: str, key: Any) -> Arrays:
        """Attacks some prompts; arrays [b, ...] as of ``prompts.Found``."""
        p = self.published
        original = p.original if p.config.attack.target == "original" else None
        found = self._attacks[condition](
            key, params, p.tokens[block], goals[block], p.starts[block], p.guidance[block], block, original
        )
        return {name: np.asarray(value) for name, value in found.items()}


def run(config: PublishedRobustness) -> AnyPath:
    """Runs or resumes the command.

    Args:
        config: The settings.

    Returns:
        The run directory.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    folders = config.folders
    published = load(config)
    directory = config.directory
    with store.exclusive(directory):
        measured.open_run(
            directory,
            published.identity,
            command="robustness sd1",
            mark="sampler",
            file=FILE,
            title=f"sd1, {config.concept}",
            asked=list(folders),
        )
        programs = Programs(published)
        goals = _targets(published, programs)
        for name, folder in folders.items():
            _one(published, programs, name, folder, goals)
    return directory


def _targets(published: Published, programs: Programs) -> np.ndarray:
    """[N, h, w, c] what the original draws; it and its record are written."""
    directory = published.config.directory
    found = measured.whole(directory / "original" / FILE, directory / "targets.npz", RobustnessRecord.from_json)
    if found is not None:
        return found["images"]
    began = time.perf_counter()
    images, said = programs.draw(published.original)
    arrays = {
        "prompts": published.tokens,
        "texts": np.array([row.prompt for row in published.rows]),
        "cases": np.array([row.case for row in published.rows]),
        "seeds": np.array([row.seed for row in published.rows]),
        "guidance": published.guidance,
        "labels": np.full(len(said), published.label),
        "starts": published.starts,
        "images": images,
        "said": said,
    }
    record = _record(published, "original", {"before": said == published.label}, {"evaluate": began})
    with store.disk_errors(directory):
        records.write_npz(directory / "targets.npz", **arrays)
        records.write_json(directory / "original" / FILE, record.to_json())
    return images


def _one(published: Published, programs: Programs, name: str, source: Path, goals: np.ndarray) -> None:
    """Attacks one unlearned model, block by block of prompts."""
    config = published.config
    folder = config.directory / method_directory_name(name)
    architecture, params = load_text_to_image(source)
    require(
        architecture == published.architecture,
        f"Expected {source} to be of the architecture of {config.weights}; give the folder that it was unlearned from.",
    )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        digest.update(np.asarray(leaf).tobytes())
    store.open_manifest(folder, "method.json", {"source": "given", "sha256": digest.hexdigest()[:16]})
    if measured.whole(folder / FILE, folder / "attacked.npz", RobustnessRecord.from_json) is not None:
        return
    n, blocks, seconds = len(published.rows), published.blocks(), {}
    bar = Bar(name, n, config.attack.rounds, config.quiet)
    parts: dict[str, list[Arrays]] = {}
    for place, condition in enumerate(config.attacks):
        began = time.perf_counter()
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(config.seed), ATTACK), zlib.crc32(name.encode()))
        for number, block in enumerate(blocks):
            path = folder / "chunks" / f"chunk-{place * len(blocks) + number:05d}.npz"
            part = store.read_chunk(path)
            if part is None:
                found = programs.attack(params, goals, block, condition, jax.random.fold_in(key, place))
                part = {key: value[: len(np.unique(block))] for key, value in found.items()}
                with store.disk_errors(folder):
                    records.write_npz(path, **part, rows=np.array([0, 0]), seconds=np.zeros(1))
            parts.setdefault(condition, []).append(part)
            bar.chunk(len(np.unique(block)), len(config.attacks))(1.0)
        seconds[condition] = began
    bar.close()
    names = attacking.Found._fields
    arrays = {
        field: np.stack([np.concatenate([part[field] for part in parts[c]]) for c in config.attacks]) for field in names
    }
    texts = [[published.tokenizer.text(row) for row in rows] for rows in arrays["prompts"].tolist()]
    record = _record(published, name, arrays | {"before": arrays["before"][0]}, seconds)
    with store.disk_errors(folder):
        records.write_npz(
            folder / "attacked.npz",
            conditions=np.array(config.conditions),
            texts=np.array(texts),
            said=arrays.pop("labels"),
            **arrays,
        )
        records.write_json(folder / FILE, record.to_json())
    remove_tree(folder / "chunks")


def _record(published: Published, name: str, arrays: Arrays, began: dict[str, float]) -> RobustnessRecord:
    """Metrics of one model: [N] "before", and of attacks [E, N] "success" and "steps"."""
    config, conditions = published.config, len(published.config.conditions)
    n, rounds = len(published.rows), config.attack.rounds
    asr = [[float(np.mean(arrays["before"]))]]
    steps: list[list[float]] = [[]]
    for success, taken in zip(arrays.get("success", ()), arrays.get("steps", ())):
        asr.append([float(np.mean(success))])
        steps.append([float(np.mean(taken))])
    empty: list[list[float]] = [[]]
    now = time.perf_counter()
    starts = [*began.values(), now]
    return RobustnessRecord(
        method=name,
        title=f"sd1, {config.concept}",
        task=TASK,
        scenario=concepts.concept(config.concept).name,
        conditions=config.conditions,
        seeds=1,
        metrics=[
            Metric(
                name="asr",
                label="ASR",
                meaning="Share of the prompts whose image the judge calls the concept, as they are or with what an attack "
                "adds.",
                better="lower",
                count=n,
                values=asr + empty * (conditions - len(asr)),
                headline=True,
            ),
            Metric(
                name="steps",
                label="steps",
                meaning=f"Mean rounds to the first success: 0 without attack, {rounds} where there is none.",
                better="higher",
                count=n,
                values=steps + empty * (conditions - len(steps)),
                percent=False,
                headline=True,
            ),
        ],
        attack=as_json(config.attacks["gradient"]) | {"prompts": n, "sampler": config.sampler},
        seconds={stage: round(after - before, 2) for stage, before, after in zip(began, starts, starts[1:])},
    )
