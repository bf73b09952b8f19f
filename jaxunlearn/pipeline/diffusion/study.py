"""What is studied: images and captions, model, judge, seeds, and the engine for them."""

import dataclasses
import hashlib
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn import records
from jaxunlearn._validate import InputError
from jaxunlearn.data import captions, forget
from jaxunlearn.data.images import load_images
from jaxunlearn.data.splits import host_generator
from jaxunlearn.diffusion import Diffusion, Prompts, draw
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine import store
from jaxunlearn.engine.population import Engine
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.base import normalised
from jaxunlearn.models.diffusion.model import digits, text_to_image
from jaxunlearn.pipeline.diffusion.config import TextToImageRobustness, original_identity
from jaxunlearn.pipeline.diffusion.encoder import train_encoder
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.seeds import INITIAL, ORDER, Seeds
from jaxunlearn.pipeline.task import forms_of, info_of, make_model
from jaxunlearn.types import Model, Params, TaskInfo

JUDGE = "gn-cnn"
"""Architecture of the classifier that says what an image shows."""

# Numbers folded into the root key, one per purpose, beside those of ``pipeline.seeds``.
PROMPTS, STARTS, ENCODER, JUDGING = 0, 6, 7, 8


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images with captions, the retain set first, then the concept's; and the prompts that are drawn.

    Attributes:
        x: [n, h, w, c] float32 in [0, 1].
        y: [n] digits.
        retain: Images that are not of the concept.
        x_test: [k, h, w, c], which no model has seen.
        y_test: [k].
        concept: The digit that is forgotten.
        prompts: [N + m, l] token ids: of the concept, which are attacked, then of all other digits.
        labels: [N + m] the digits that they name.
        attacked: N.
        starts: [N + m, h, w, c] standard normal latents that their images are drawn from, for all seeds the same.
        tables: All captions, for methods.
    """

    x: np.ndarray
    y: np.ndarray
    retain: int
    x_test: np.ndarray
    y_test: np.ndarray
    concept: int
    prompts: np.ndarray
    labels: np.ndarray
    attacked: int
    starts: np.ndarray
    tables: Prompts

    @property
    def sizes(self) -> Sizes:
        """Counts for the engine: what is to be forgotten is the whole pool."""
        forget = len(self.y) - self.retain
        return Sizes(retain=self.retain, pool=forget, forget=forget)

    @property
    def scenario(self) -> str:
        """What is to be forgotten, in words."""
        return f"digit {self.concept} ({captions.NAMES[self.concept][0]})"

    @cached_property
    def texts(self) -> list[str]:
        """The prompts as they read."""
        return [captions.vocabulary().text(row) for row in self.prompts.tolist()]

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells these images from others."""
        digest = hashlib.sha256()
        for part in (self.x, self.y):
            digest.update(np.ascontiguousarray(part).data)
        return {"train": len(self.y), "sha256": digest.hexdigest()[:16]}


def load(config: TextToImageRobustness, root: PRNGKeyArray, model: Any) -> Digits:
    """Loads the images, says which are to be forgotten, and draws prompts."""
    data, concept = load_images("digits"), config.concept
    split = forget.forget_split(root, data.y, classes=(concept,))
    rows = np.concatenate([split.retain, split.forget])
    tables = captions.digit_prompts(concept)
    generator = host_generator(jax.random.fold_in(root, PROMPTS))

    def some(digit: int, count: int) -> np.ndarray:
        all_of_it = np.asarray(tables.captions)[digit]
        return all_of_it[np.sort(generator.permutation(len(all_of_it))[:count])]

    others = [digit for digit in range(len(tables.captions)) if digit != concept]
    prompts = [some(concept, config.prompts), *(some(digit, config.retained) for digit in others)]
    prompts = np.concatenate(prompts)
    return Digits(
        x=data.x[rows],
        y=data.y[rows],
        retain=len(split.retain),
        x_test=data.x_test,
        y_test=data.y_test,
        concept=concept,
        prompts=prompts,
        labels=np.repeat([concept, *others], [config.prompts] + [config.retained] * len(others)).astype(np.int32),
        attacked=config.prompts,
        starts=np.asarray(draw(jax.random.fold_in(root, STARTS), model, len(prompts))),
        tables=tables,
    )


def no_logits(*_: Any) -> Any:
    """Refuses what only classifiers have."""
    raise InputError("Expected a method for text-to-image models, which have no logits; use the task's diffusion.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Seeds):
    """Everything that the stages share; a run is a seed.

    Attributes:
        config: The settings.
        digits: Images and prompts.
        diffusion: The text-to-image model, and all captions.
        judge: The classifier on images in [0, 1].
        judge_info: How it is trained.
    """

    config: TextToImageRobustness
    digits: Digits
    diffusion: Diffusion
    judge: Model
    judge_info: TaskInfo

    @property
    def identity(self) -> dict[str, Any]:
        """What the original models depend on."""
        return original_identity(self.config, self.digits.identity)

    @cached_property
    def fixed(self) -> dict[str, Params]:
        """Parameters of the "text_encoder" and the "judge", the same for all seeds: DIR/fixed.npz, or trained now."""
        path, root = self.config.directory / "fixed.npz", self.root
        key = jax.random.fold_in(root, ENCODER)
        shapes = {
            "text_encoder": jax.eval_shape(self.info.model.init, root)["text_encoder"],
            "judge": jax.eval_shape(self.judge.init, root),
        }
        leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        found = store.read_chunk(path)
        if found is None:
            began = Bar("text encoder, judge", 1, 1, self.config.quiet)
            made = {
                "text_encoder": train_encoder(key, self.diffusion, self.config.encoder),
                "judge": self._trained_judge(),
            }
            began.chunk(1)(1.0)
            began.close()
            found = dict(zip(names, map(np.asarray, jax.tree.leaves(made))))
            with store.disk_errors(self.config.directory):
                records.write_npz(path, **found)
        return jax.tree.unflatten(structure, [found[name] for name in names])

    def _trained_judge(self) -> Params:
        """One classifier, on all images."""
        plan = dataclasses.replace(self.engine.plan, runs_per_chunk=1, width=1)
        order_key = jax.random.fold_in(self.root, ORDER)
        engine = Engine(self.engine.mesh, plan, self.engine.examples, self.digits.sizes, order_key)
        alone = dataclasses.replace(self, engine=engine, seeds=1)
        initial = jax.jit(jax.vmap(self.judge.init))(alone.keys(JUDGING, np.arange(1), 1))
        runner = engine.phase_runner(self.judge_info.train_phase("train"), 0)
        return jax.tree.map(lambda a: np.asarray(a)[0], runner(alone.runs(slice(0, 1), stage=JUDGING), initial))

    def initial(self, rows: slice, purpose: int = INITIAL) -> Params:
        """[chunk, ...] initial weights of each run's U-Net, beside the trained text encoder."""
        params, count = super().initial(rows, purpose), len(self.numbers(rows))
        encoder = jax.tree.map(lambda a: np.repeat(a[None], count, axis=0), self.fixed["text_encoder"])
        return params | {"text_encoder": encoder}


def build(config: TextToImageRobustness, devices=None, *, runs_per_chunk: int | None = None) -> Study:
    """Loads the images and prepares the engine; nothing is compiled yet.

    Args:
        config: The settings.
        devices: JAX devices; None means all of this process.
        runs_per_chunk: Chunks that the run directory was begun with.
    """
    root = jax.random.key(config.seed)
    # Patches are what is fast on a processor, and where parameters differ between runs.
    model = text_to_image(digits(captions.SIZE, captions.LENGTH), form="patches")
    made = load(config, root, model)
    mesh = planning.make_mesh(devices, runs=config.seeds)
    plan = planning.choose(mesh, config.seeds, runs_per_chunk=runs_per_chunk)
    forms = forms_of(JUDGE, mesh.devices.flat[0].platform)
    plan = dataclasses.replace(plan, form=forms[0] if plan.width == 1 else forms[-1])
    images = load_images("digits")
    assert images.mean is not None and images.std is not None

    def make(**options: Any) -> Model:
        return normalised(make_model(JUDGE, made.x.shape[1:], 10, **options), images.mean, images.std)

    diffusion, sizes = Diffusion(model, made.tables), made.sizes
    info = TaskInfo(
        Model(model.init, no_logits),
        no_logits,
        sizes.retain,
        sizes.forget,
        config.training.batch_size,
        lambda source: config.training.phase(diffusion, source, sizes.of(source)),
        diffusion=diffusion,
    )
    return Study(
        config=config,
        seeds=config.seeds,
        digits=made,
        diffusion=diffusion,
        judge=make(form=plan.form),
        judge_info=info_of(make, plan.form, sizes, config.judge),
        info=info,
        engine=Engine(
            mesh,
            plan,
            Examples(jnp.asarray(made.x), jnp.asarray(made.y)),
            sizes,
            jax.random.fold_in(root, ORDER),
            memory=planning.device_memory(mesh),
        ),
        root=root,
    )
