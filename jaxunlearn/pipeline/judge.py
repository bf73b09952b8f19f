"""A judge of generated images: a classifier of the real ones, trained as part of a study and kept with it.

Its penultimate layer gives the features of the Fréchet distance, its probabilities the Inception Score.
"""

import dataclasses
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.attack.signals import batched
from jaxunlearn.config import Training
from jaxunlearn.data.splits import Dataset
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.models.base import normalised
from jaxunlearn.models.linear import linear
from jaxunlearn.pipeline.seeds import ORDER, Arrays, Originals, Seeds
from jaxunlearn.pipeline.task import forms_of, info_of, make_model
from jaxunlearn.records import as_json
from jaxunlearn.types import Model
from jaxunlearn.unlearn.base import SGD

FOLDER = "judge"
PURPOSE = 11
"""Folded into a study's root key."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """The classifier that judges images, trained on all real training images."""

    model: Literal["mlp", "cnn", "gn-cnn"] = "gn-cnn"
    """What is below its features."""
    features: int = 64
    """Size of its penultimate layer, which the Fréchet distance compares; >= 1."""
    splits: int = 1
    """Parts of the images over which the Inception Score is averaged, >= 1; ten, as is usual, want thousands of images."""
    training: Training = Training(
        epochs=40, batch_size=64, descent=SGD(peak=0.1, schedule="cosine", momentum=0.9, weight_decay=5e-4)
    )

    def __post_init__(self):
        _validate.at_least(1, features=self.features, splits=self.splits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _JudgeStudy(Seeds):
    """A single model on all training images.

    Attributes:
        terms: What it depends on.
    """

    terms: dict[str, Any]

    @property
    def identity(self) -> dict[str, Any]:
        """What it depends on."""
        return self.terms


def _parts(options: JudgeOptions, data: Dataset, **layers: Any) -> tuple[Model, Model]:
    """What makes features, before their ReLU, of images in [0, 1]; and what makes logits of features."""
    assert data.mean is not None and data.std is not None  # of images in [0, 1] they are known
    below = make_model(options.model, data.x.shape[1:], options.features, **layers)
    return normalised(below, data.mean, data.std), linear((options.features,), data.classes)


def _composed(below: Model, head: Model) -> Model:
    def init(key):
        keys = jax.random.split(key)
        return {"below": below.init(keys[0]), "head": head.init(keys[1])}

    def apply(params, x) -> Any:
        return head.apply(params["head"], jax.nn.relu(below.apply(params["below"], x)))

    return Model(init, apply)


class Judge:
    """The judge of a study, trained once and kept in DIR/judge.

    Args:
        config: The study's settings; they have ``directory`` and ``quiet``.
        options: The judge's.
        data: Images in [0, 1], their statistics and labels.
        identity: What tells the data apart.
        root: The study's root key.
        mesh: The study's devices, of which it takes one.

    Attributes:
        accuracy: On the test images, once ``prepare`` has run.
    """

    def __init__(
        self,
        config: Any,
        options: JudgeOptions,
        data: Dataset,
        identity: dict[str, Any],
        root: PRNGKeyArray,
        mesh: Mesh,
    ):
        self.data, self.accuracy = data, float("nan")
        one = planning.make_mesh([mesh.devices.flat[0]])
        form = forms_of(options.model, mesh.devices.flat[0].platform)[0]

        def make(**layers: Any) -> Model:
            return _composed(*_parts(options, data, **layers))

        sizes = Sizes(retain=len(data.y), pool=0, forget=0)
        key = jax.random.fold_in(root, PURPOSE)
        plan = dataclasses.replace(planning.choose(one, 1), form=form)
        examples = Examples(jnp.asarray(data.x), jnp.asarray(data.y))
        study = _JudgeStudy(
            config=config,
            seeds=1,
            info=info_of(make, form, sizes, options.training),
            engine=Engine(one, plan, examples, sizes, jax.random.fold_in(key, ORDER)),
            root=key,
            terms={"judge": as_json(options), "seed": config.seed, "data": identity},
        )
        self.models = Originals(study, folder=FOLDER, label=FOLDER)
        below, head = _parts(options, data, form=form)

        def look(params, x):
            features = jax.nn.relu(below.apply(params["below"], x))
            return {"features": features, "logits": head.apply(params["head"], features)}

        self._look = jax.jit(lambda params, x: batched(partial(look, params), x))

    def prepare(self) -> None:
        """Trains it, or finds it on disk, and looks at the test images."""
        self.models.train()
        loaded = self.models.load(0, slice(0, 1))
        self._see = partial(self._look, jax.tree.map(lambda a: jnp.asarray(a[0]), loaded))
        hits = self(self.data.x_test)["logits"].argmax(-1) == self.data.y_test
        self.accuracy = float(hits.mean())

    def __call__(self, images: np.ndarray) -> Arrays:
        """What it says of images.

        Args:
            images: [..., h, w, c] in [0, 1].

        Returns:
            "logits" [..., classes] and "features" [..., f].
        """
        lead, shape = images.shape[:-3], images.shape[-3:]
        found = self._see(images.reshape(-1, *shape))
        return {name: np.asarray(value).reshape(*lead, -1) for name, value in found.items()}

    @property
    def note(self) -> str:
        """How good it is, for the reader."""
        n = len(self.data.y_test)
        return (
            f"The judge, trained on all real training images, is right on {self.accuracy:.1%} of {n} real test images."
        )
