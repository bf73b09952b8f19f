"""``jaxunlearn robustness sd1``: attack prompts of unlearned copies of a published text-to-image model."""

import hashlib
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath, remove_tree
from jaxunlearn._validate import require
from jaxunlearn.attack import prompts as attacking
from jaxunlearn.config import method_directory_name
from jaxunlearn.data import concepts
from jaxunlearn.diffusion import ddim, guided, lms, sample
from jaxunlearn.engine import store
from jaxunlearn.models.diffusion.weights import load_text_to_image
from jaxunlearn.pipeline import measured
from jaxunlearn.pipeline.diffusion.config import TASK
from jaxunlearn.pipeline.diffusion.published_config import PublishedRobustness
from jaxunlearn.pipeline.diffusion.published_study import Published, load
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.seeds import ATTACK, Arrays
from jaxunlearn.records import as_json
from jaxunlearn.robustness import FILE, Metric, RobustnessRecord


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
