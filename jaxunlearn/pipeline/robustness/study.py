"""What ``jaxunlearn robustness`` works on: images, model, seeds, and the engine for them."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import augment, forget
from jaxunlearn.data.images import load_images
from jaxunlearn.data.splits import host_generator
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models import pretrained
from jaxunlearn.models.base import normalised
from jaxunlearn.pipeline.robustness.config import Robustness, original_identity
from jaxunlearn.pipeline.seeds import ORDER, Seeds
from jaxunlearn.pipeline.task import forms_of, info_of, make_model
from jaxunlearn.types import Model, Params, TaskInfo

# Numbers folded into the root key, one per purpose; a new purpose takes a new number.
SPLIT, SHADOWS, MEMBERSHIP, PROBES = 0, 6, 7, 8  # beside those of ``pipeline.seeds``

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
    def probes(self) -> np.ndarray:
        """[f + u, h, w, c] images that are attacked: of the forget set, then the controls."""
        return np.concatenate([self.x[self.forgotten], self.x_test[self.controls]])

    @property
    def probe_labels(self) -> np.ndarray:
        """[f + u] their labels."""
        return np.concatenate([self.y[self.forgotten], self.y_test[self.controls]])

    @property
    def probe_ids(self) -> np.ndarray:
        """[f + u] numbers that name them whatever else is attacked: rows, those of test images after all others."""
        return np.concatenate([self.rows[self.forgotten], len(self.y) + self.controls]).astype(np.int32)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells these data, and what of them is to be forgotten, from others."""
        digest = hashlib.sha256()
        for part in (self.x, self.y, self.x_test, self.y_test):
            digest.update(np.ascontiguousarray(part).data)
        return {
            "train": len(self.y),
            "test": len(self.y_test),
            "forgotten": self.scenario,
            "sha256": digest.hexdigest()[:16],
        }


def load(config: Robustness, root: PRNGKeyArray) -> Images:
    """Loads the images and says which are to be forgotten."""
    data = load_images(config.dataset)
    assert data.mean is not None and data.std is not None  # of images in [0, 1] they are known
    by_class = config.forget == "classes"
    classes = config.forget_classes or forget.preset_classes(config.dataset, data.classes) if by_class else ()
    split = forget.forget_split(
        jax.random.fold_in(root, SPLIT),
        data.y,
        classes=classes if by_class else None,
        share=None if by_class else config.forget_share,
    )
    scenario = _words(classes, data.class_names) if by_class else f"{config.forget_share:.0%} of all training images"
    rows = np.concatenate([split.retain, split.forget])
    kind = np.flatnonzero(np.isin(data.y_test, classes)) if by_class else np.arange(len(data.y_test))
    generator = host_generator(jax.random.fold_in(root, PROBES))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Seeds):
    """Everything that the stages share; a run is a seed.

    Attributes:
        config: The settings.
        images: The images.
        statistics: Mean and deviation of each channel, as the model applies them.
        make: ``(form=..., forward_mode=...) -> Model`` on images in [0, 1].
    """

    config: Robustness
    images: Images
    statistics: tuple[Sequence[float], Sequence[float]]
    make: Callable[..., Model]

    @property
    def originals(self) -> "Study":
        """The study of the original models: itself, or that of a single seed where all share one."""
        if not self.config.one_original:
            return self
        plan = dataclasses.replace(self.engine.plan, runs_per_chunk=1, width=1)
        engine = make_engine(self.config, self.engine.mesh, plan, self.engine.examples, self.images.sizes, self.root)
        return dataclasses.replace(self, engine=engine, seeds=1)

    @cached_property
    def data(self) -> dict[str, Any]:
        """What results depend on beside the settings: the images, and the file of the original."""
        file = self.config.original
        weights = {} if file is None else {"weights": hashlib.sha256(file.read_bytes()).hexdigest()[:16]}
        return self.images.identity | weights

    @property
    def identity(self) -> dict[str, Any]:
        """What the original models depend on."""
        return original_identity(self.config, self.data)

    def given(self) -> Params | None:
        """The original out of the file that was named."""
        return None if self.config.original is None else pretrained_original(self.config, self.images).variables

    def info_for(self, sizes: Sizes, training: Any) -> TaskInfo:
        """The same model, trained on other images in another way."""
        return info_of(self.make, self.engine.plan.form, sizes, training)


def build(config: Robustness, devices=None, *, runs_per_chunk: int | None = None) -> Study:
    """Loads the images and prepares the engine; nothing is compiled yet.

    Args:
        config: The settings.
        devices: JAX devices; None means all of this process.
        runs_per_chunk: Chunks that the run directory was begun with.
    """
    root = jax.random.key(config.seed)
    images = load(config, root)
    large = config.model.startswith("resnet")  # one fills a device, and what a kill may cost counts
    mesh = planning.make_mesh(devices, runs=config.seeds if large else None)
    if large and runs_per_chunk is None:
        runs_per_chunk = min(config.seeds, mesh.shape[planning.AXIS])
    plan = planning.choose(mesh, config.seeds, width=1 if large else None, runs_per_chunk=runs_per_chunk)
    forms = forms_of(config.model, mesh.devices.flat[0].platform, config.precision)
    plan = dataclasses.replace(plan, form=forms[0] if plan.width == 1 else forms[-1])

    mean, std = _statistics(config, images)

    def make(**options: Any) -> Model:
        shape = images.x.shape[1:]
        plain = make_model(
            config.model, shape, images.classes, precision=config.precision, width=config.width, **options
        )
        return normalised(plain, mean, std)

    examples = Examples(jnp.asarray(images.x), jnp.asarray(images.y))
    engine = make_engine(config, mesh, plan, examples, images.sizes, jax.random.fold_in(root, ORDER))
    return Study(
        config=config,
        seeds=config.seeds,
        images=images,
        statistics=(mean, std),
        info=info_of(make, plan.form, images.sizes, config.training),
        make=make,
        engine=engine,
        root=root,
    )


def pretrained_original(config: Robustness, images: Images) -> pretrained.Pretrained:
    """The original model out of a file of torch's weights.

    Raises:
        InputError: It cannot be read, or is of another model.
    """
    assert config.original is not None
    plain = make_model(config.model, images.x.shape[1:], images.classes)
    return pretrained.load_resnet(str(config.original), plain)


def _statistics(config: Robustness, images: Images) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and deviation that the model applies: those that a pretrained one brings, else the data's."""
    if config.original is not None:
        found = pretrained_original(config, images)
        if found.mean is not None and found.std is not None:
            return found.mean, found.std
    return images.mean, images.std


def make_engine(
    config: Robustness, mesh: Mesh, plan: planning.Plan, examples: Examples, sizes: Sizes, order_key: PRNGKeyArray
) -> Engine:
    """An engine for the training images under some counts."""
    return Engine(
        mesh,
        plan,
        examples,
        sizes,
        order_key,
        precision="tensorfloat32" if config.precision == "tensorfloat32" else "float32",
        memory=planning.device_memory(mesh),
        augment=AUGMENTATIONS[config.augmentation],
    )
