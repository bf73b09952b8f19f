"""What ``jaxunlearn robustness digits-inpainting`` works on: images, mask, autoencoder, seeds, and the engine for them."""

import dataclasses
import hashlib
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn._validate import require
from jaxunlearn.data import forget
from jaxunlearn.data.images import load_images
from jaxunlearn.data.splits import Dataset, host_generator
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models import mae
from jaxunlearn.patches import Autoencoder, Mask, centre, patchify, unpatchify
from jaxunlearn.pipeline.inpainting.config import Inpainting, original_identity
from jaxunlearn.pipeline.judge import Judge
from jaxunlearn.pipeline.seeds import ORDER, Seeds
from jaxunlearn.types import Model, Params, TaskInfo
from jaxunlearn.unlearn.inpainting import masked_loss

PROBES = 8  # folded into the root key
FORGOTTEN, UNSEEN, RETAINED = GROUPS = ("forgotten", "unseen", "retained")


@dataclasses.dataclass(frozen=True)
class Images:
    """The images, the retain set first, then the forget set; and the probes, which are looked at and attacked.

    Attributes:
        data: As loaded.
        rows: [n] rows of the data's training part, in the order of training.
        retain: Images in the retain set.
        scenario: What is to be forgotten, in words.
        probes: [p, h, w, c] of the forget set, then unseen ones of its classes, then of the retain set.
        labels: [p] their labels.
        groups: [p] which of ``GROUPS`` they are of.
        places: [p] their rows in the data's training part, of unseen ones in its test part.
    """

    data: Dataset
    rows: np.ndarray
    retain: int
    scenario: str
    probes: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    places: np.ndarray

    @property
    def sizes(self) -> Sizes:
        """Counts for the engine: what is to be forgotten is the whole pool."""
        size = len(self.rows) - self.retain
        return Sizes(retain=self.retain, pool=size, forget=size)

    @property
    def ids(self) -> np.ndarray:
        """[p] numbers that name the probes whatever else is attacked: rows, those of test images after all others."""
        return (self.places + len(self.rows) * (self.groups == UNSEEN)).astype(np.int32)

    def part(self, group: str) -> np.ndarray:
        """Places of a group among the probes."""
        return np.flatnonzero(self.groups == group)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells these data from others."""
        digest = hashlib.sha256()
        for part in (self.data.x, self.data.y, self.data.x_test, self.data.y_test):
            digest.update(np.ascontiguousarray(part).data)
        return {"train": len(self.data.y), "test": len(self.data.y_test), "sha256": digest.hexdigest()[:16]}


def load(config: Inpainting, root: PRNGKeyArray) -> Images:
    """Loads the images, and draws those that are looked at and attacked.

    Raises:
        InputError: A class to be forgotten does not exist, or has no test image.
    """
    data = load_images(config.dataset)
    split = forget.forget_split(root, data.y, classes=config.forget_classes)
    kind = np.flatnonzero(np.isin(data.y_test, config.forget_classes))
    shown = ", ".join(map(str, config.forget_classes))
    scenario = f"class{'' if len(config.forget_classes) == 1 else 'es'} {shown}"
    require(
        kind.size > 1,
        f"Expected test images of {scenario} in {config.dataset}, found {kind.size}; they are the control of the attack.",
    )
    generator = host_generator(jax.random.fold_in(root, PROBES))
    most = len(split.forget) if config.attacked is None else config.attacked
    drawn = {
        group: np.sort(generator.permutation(rows)[:most])
        for group, rows in zip(GROUPS, (split.forget, kind, split.retain))
    }
    parts = [(data.x_test, data.y_test) if group == UNSEEN else (data.x, data.y) for group in GROUPS]
    return Images(
        data=data,
        rows=np.concatenate([split.retain, split.forget]),
        retain=len(split.retain),
        scenario=scenario,
        probes=np.concatenate([x[drawn[group]] for group, (x, _) in zip(GROUPS, parts)]),
        labels=np.concatenate([y[drawn[group]] for group, (_, y) in zip(GROUPS, parts)]),
        groups=np.repeat(GROUPS, [len(drawn[group]) for group in GROUPS]),
        places=np.concatenate([drawn[group] for group in GROUPS]),
    )


@dataclasses.dataclass(frozen=True)
class Masked:
    """An autoencoder under a fixed mask: visible patches in, what it fills in for the hidden ones out.

    Attributes:
        model: The autoencoder.
        mask: The mask.
    """

    model: Autoencoder
    mask: Mask

    def visible(self, x: Any) -> Any:
        """[b, V, q] the patches that are seen, of images [b, n, n, c]; in the mask's order."""
        return patchify(x, self.model.patch)[:, self.mask.order[: self.mask.visible]]

    def hidden(self, x: Any) -> Any:
        """[b, H, q] the patches that are not."""
        return patchify(x, self.model.patch)[:, self.mask.order[self.mask.visible :]]

    def image(self, visible: Any, hidden: Any) -> Any:
        """[b, n, n, c] of visible patches [b, V, q] and hidden ones [b, H, q], each in the mask's order."""
        join: Any = np.concatenate if isinstance(visible, np.ndarray) else jnp.concatenate  # on the host no compiling
        return unpatchify(join([visible, hidden], axis=1)[:, np.argsort(self.mask.order)], self.model.patch)

    def fill(self, params: Params, visible: Any) -> Any:
        """[b, H, q] the hidden patches as predicted, not clipped."""
        b, _, q = visible.shape
        x = self.image(visible, jnp.zeros((b, self.mask.order.size - self.mask.visible, q), visible.dtype))
        predicted = self.model.predict(params, x, self.mask.of(b), self.mask.visible)
        return predicted[:, self.mask.order[self.mask.visible :]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study(Seeds):
    """Everything that the stages share; a run is a seed.

    Attributes:
        config: The settings.
        images: The images.
        masked: The autoencoder under the mask that evaluation and attack have.
        judge: Of what is filled in.
    """

    config: Inpainting
    images: Images
    masked: Masked
    judge: Judge

    @property
    def identity(self) -> dict[str, Any]:
        """What the original models depend on."""
        return original_identity(self.config, self.images.identity)


def build(config: Inpainting, devices=None, *, runs_per_chunk: int | None = None) -> Study:
    """Loads the images and prepares the engine; nothing is compiled yet.

    Args:
        config: The settings.
        devices: JAX devices; None means all of this process.
        runs_per_chunk: Chunks that the run directory was begun with.

    Raises:
        InputError: The images do not fit the autoencoder, or the mask hides nothing or all.
    """
    root = jax.random.key(config.seed)
    images = load(config, root)
    expected, found = (config.model.side, config.model.side, config.model.channels), images.data.x.shape[1:]
    require(
        expected == found,
        f"Expected model.side={config.model.side} and model.channels={config.model.channels} of the images of "
        f"{config.dataset}, {found[0]} and {found[2]}.",
    )
    mesh = planning.make_mesh(devices, runs=config.seeds)
    plan = planning.choose(mesh, config.seeds, runs_per_chunk=runs_per_chunk)
    examples = Examples(jnp.asarray(images.data.x[images.rows]), jnp.asarray(images.data.y[images.rows]))
    model = mae.autoencoder(config.model)
    mask = centre(model.grid, config.hidden_side)
    return Study(
        config=config,
        seeds=config.seeds,
        images=images,
        info=_info(config, images.sizes, model, mask),
        engine=Engine(mesh, plan, examples, images.sizes, jax.random.fold_in(root, ORDER)),
        root=root,
        masked=Masked(model, mask),
        judge=Judge(config, config.judge, images.data, images.identity, root, mesh),
    )


def _info(config: Inpainting, sizes: Sizes, model: Autoencoder, mask: Mask) -> TaskInfo:
    def reconstruct(params, x):
        return model.reconstruct(params, x, mask.of(x.shape[0]), mask.visible)

    return TaskInfo(
        Model(model.init, reconstruct),
        masked_loss(model, mask),
        sizes.retain,
        sizes.forget,
        config.training.batch_size,
        lambda source: config.training.phase(model, source, sizes.of(source)),
        autoencoder=model,
    )
