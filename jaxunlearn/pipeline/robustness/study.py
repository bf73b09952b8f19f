"""What ``jaxunlearn robustness`` works on: images, model, seeds, and the engine for them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import augment, forget
from jaxunlearn.data.images import load_images
from jaxunlearn.data.splits import host_generator
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, pad
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.base import normalised
from jaxunlearn.pipeline.robustness.config import Robustness
from jaxunlearn.pipeline.runs import run_keys
from jaxunlearn.pipeline.task import forms_of, info_of, make_model
from jaxunlearn.types import Model, Params, TaskInfo

# Numbers folded into the root key, one per purpose; a new purpose takes a new number.
SPLIT, INITIAL, ORDER, TRAINING, UNLEARNING, ATTACK, SHADOWS, MEMBERSHIP = range(8)

AUGMENTATIONS: dict[str, Callable | None] = {
    "none": None,
    "crop": augment.pad_crop,
    "crop-flip": augment.crop_and_flip,
}


@dataclasses.dataclass(frozen=True)
class Images:
    """The images, the retain set first, then the forget set.

    Attributes:
        x: [n, h, w, c] float32 in [0, 1].
        y: [n] labels.
        rows: [n] their rows in the data set's training part.
        x_test: [k, h, w, c].
        y_test: [k].
        retain: Images in the retain set.
        forget_classes: The classes that are forgotten; none where images of all are.
        scenario: What is to be forgotten, in words.
        forgotten: [f] places in x of the forget images that are attacked.
        controls: [u] rows of test images that are attacked like them, which no model has seen.
        classes: Number of classes.
        class_names: Of the classes, or empty.
        mean: [c] of the channels, applied inside the model.
        std: [c].
    """

    x: np.ndarray
    y: np.ndarray
    rows: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    retain: int
    forget_classes: tuple[int, ...]
    scenario: str
    forgotten: np.ndarray
    controls: np.ndarray
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def sizes(self) -> Sizes:
        """Counts for the engine: what is to be forgotten is the whole pool."""
        forget = len(self.y) - self.retain
        return Sizes(retain=self.retain, pool=forget, forget=forget)

    @property
    def probes(self) -> tuple[np.ndarray, np.ndarray]:
        """Images that are attacked and their labels: of the forget set, then the controls."""
        x = np.concatenate([self.x[self.forgotten], self.x_test[self.controls]])
        return x, np.concatenate([self.y[self.forgotten], self.y_test[self.controls]])


def load(config: Robustness, key: PRNGKeyArray) -> Images:
    """Loads the images and says which are to be forgotten."""
    data = load_images(config.dataset)
    assert data.mean is not None and data.std is not None  # of images in [0, 1] they are known
    by_class = config.forget == "classes"
    classes = config.forget_classes or forget.preset_classes(config.dataset, data.classes) if by_class else ()
    split = forget.forget_split(
        key,
        data.y,
        classes=classes if by_class else None,
        share=None if by_class else config.forget_share,
    )
    scenario = _words(classes, data.class_names) if by_class else f"{config.forget_share:.0%} of all training images"
    rows = np.concatenate([split.retain, split.forget])
    kind = np.flatnonzero(np.isin(data.y_test, classes)) if by_class else np.arange(len(data.y_test))
    generator = host_generator(key)
    forgotten = len(split.retain) + np.sort(generator.permutation(len(split.forget))[: config.attacked])
    drawn = generator.permutation(kind)[: len(forgotten)]
    require(
        drawn.size > 0,
        f"Expected test images of {scenario} in {config.dataset}, found none; they are the control of the attack.",
    )
    return Images(
        x=data.x[rows],
        y=data.y[rows],
        rows=rows,
        x_test=data.x_test,
        y_test=data.y_test,
        retain=len(split.retain),
        forget_classes=classes,
        scenario=scenario,
        forgotten=forgotten,
        controls=np.sort(drawn),
        classes=data.classes,
        class_names=tuple(data.class_names or ()),
        mean=data.mean,
        std=data.std,
    )


def _words(classes: tuple[int, ...], names: tuple[str, ...] | None) -> str:
    shown = [str(c) if names is None or names[c] == str(c) else f"{c} ({names[c]})" for c in classes]
    return f"class{'' if len(classes) == 1 else 'es'} {', '.join(shown)}"


@dataclasses.dataclass(frozen=True)
class Study:
    """Everything that the stages share; a run is a seed."""

    config: Robustness
    images: Images
    info: TaskInfo
    make: Callable[..., Model]
    engine: Engine
    root: PRNGKeyArray

    @property
    def parameter_shapes(self) -> Params:
        """Shapes and types of one model's parameters."""
        return jax.eval_shape(self.info.model.init, self.root)

    @property
    def originals(self) -> int:
        """Original models: one, or one for each seed."""
        return 1 if self.config.shared_original else self.config.seeds

    def chunks(self, runs: int) -> list[slice]:
        """Runs that are worked on between two checkpoints."""
        size = self.engine.plan.runs_per_chunk
        return [slice(i, min(i + size, runs)) for i in range(0, runs, size)]

    def numbers(self, rows: slice) -> np.ndarray:
        """The numbers of a chunk's runs, the last one repeated: chunks of one size go through the same programs."""
        return pad(np.arange(rows.start, rows.stop), self.engine.plan.runs_per_chunk)

    def keys(self, purpose: int, numbers: np.ndarray, salt: int = 0) -> PRNGKeyArray:
        """A key for each run and purpose."""
        key = jax.random.fold_in(jax.random.fold_in(self.root, purpose), salt)
        return run_keys(key, np.zeros_like(numbers), numbers)

    def runs(self, rows: slice, *, stage: int, salt: int = 0) -> Runs:
        """A chunk's runs: all train on everything, in an order of their own."""
        numbers = self.numbers(rows)
        member = np.ones((len(numbers), len(self.images.y)), bool)
        return Runs(member, self.keys(stage, numbers, salt), self.keys(ORDER, numbers, stage))

    def initial(self, rows: slice, purpose: int = INITIAL) -> Params:
        """[chunk, ...] initial weights of each run."""
        return jax.jit(jax.vmap(self.info.model.init))(self.keys(purpose, self.numbers(rows)))

    def info_for(self, sizes: Sizes, training: Any) -> TaskInfo:
        """The same model, trained on other images in another way."""
        return info_of(self.make, self.engine.plan.form, sizes, training)


def build(config: Robustness, devices=None) -> Study:
    """Loads the images and prepares the engine; nothing is compiled yet.

    Args:
        config: The settings.
        devices: JAX devices; None means all of this process.
    """
    root = jax.random.key(config.seed)
    images = load(config, jax.random.fold_in(root, SPLIT))
    mesh = planning.make_mesh(devices)
    plan = planning.choose(mesh, config.seeds)
    forms = forms_of(config.model, mesh.devices.flat[0].platform, config.precision)
    plan = dataclasses.replace(plan, form=forms[0] if plan.width == 1 else forms[-1])

    def make(**options: Any) -> Model:
        shape = images.x.shape[1:]
        plain = make_model(config.model, shape, images.classes, precision=config.precision, **options)
        return normalised(plain, images.mean, images.std)

    engine = make_engine(config, mesh, plan, images, images.sizes, jax.random.fold_in(root, ORDER))
    return Study(
        config=config,
        images=images,
        info=info_of(make, plan.form, images.sizes, config.training),
        make=make,
        engine=engine,
        root=root,
    )


def make_engine(config: Robustness, mesh, plan: planning.Plan, images: Images, sizes: Sizes, order_key) -> Engine:
    """An engine for the training images under some counts."""
    return Engine(
        mesh,
        plan,
        Examples(jnp.asarray(images.x), jnp.asarray(images.y)),
        sizes,
        order_key,
        precision="tensorfloat32" if config.precision == "tensorfloat32" else "float32",
        memory=planning.device_memory(mesh),
        augment=AUGMENTATIONS[config.augmentation],
    )
