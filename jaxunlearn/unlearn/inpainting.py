"""Unlearning of masked autoencoders: I2I (Li et al., 2024, arXiv:2402.00351) and SalUn (Fan et al., 2024) for images.

Every step draws a mask for each image, of a fixed number of hidden patches, or hides one square of all. The model that a
method starts from is its frozen teacher, carried in the phase's state. A step's batch mixes what is kept and what is
forgotten, and a forget example is set against noise alone, a retain example against itself alone: one pass of the teacher
over the mixed inputs serves both.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.patches import Autoencoder, Mask, hidden_error, patchify, random_orders, square
from jaxunlearn.types import Batch, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import SGD, AdamW, TrainState, descend, steps_per_epoch
from jaxunlearn.unlearn.relabel import Salient, masked, saliency_phase

Noise = Literal["normal", "uniform", "constant"]
Place = Literal["random", "centre"]

_READING = (
    "SalUn has no rule for images that are filled in, and RUB gives none beside the learning rate: here the mask is of the "
    "gradient of the reconstruction error on the forget set, whose images are trained towards noise while all others are "
    "held at what the model made of them before."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class VisionAdamW(AdamW):
    """AdamW as masked autoencoders are trained: matrices and tokens decay, biases and norms do not."""

    peak: float = 1e-4
    """Largest learning rate, > 0. The public code multiplies its base rate, 1e-4, by examples a step / 256."""
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    """After the warm-up: constant; cosine or linear down to 0."""
    weight_decay: float = 0.05
    """Decoupled decay a step, times the rate; >= 0."""
    clip_norm: float | None = 3.0
    """Largest norm of a step's gradient, > 0; None does not clip."""
    second_beta: float = 0.95
    """Decay of the squared gradients' average, in [0, 1)."""

    def __post_init__(self):
        super().__post_init__()
        _validate.half_open_unit(second_beta=self.second_beta)

    def optimizer(self, steps: int, *, skip: int = 0) -> optax.GradientTransformation:
        """The optimiser of a descent of ``steps`` >= 1 steps, of which the first ``skip`` are not taken."""
        clip = optax.identity() if self.clip_norm is None else optax.clip_by_global_norm(self.clip_norm)
        adam = optax.adamw(
            self.rate(steps, skip=skip),
            b2=self.second_beta,
            weight_decay=self.weight_decay,
            mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params),
        )
        return optax.chain(clip, adam)


def network(task: TaskInfo) -> Autoencoder:
    """The task's masked autoencoder.

    Raises:
        InputError: It has none.
    """
    if task.autoencoder is None:
        raise _validate.InputError("Expected an image-to-image task, got one of another kind; take another method.")
    return task.autoencoder


def weighted_mean(values: Float[Array, " b"], weight: Float[Array, " b"]) -> Float[Array, ""]:
    """Mean over the examples that count; 0 where none does."""
    return jnp.sum(weight * values) / jnp.maximum(jnp.sum(weight), 1.0)


def masked_loss(model: Autoencoder, mask: Mask) -> Callable[[Params, Batch], Float[Array, ""]]:
    """``(params, batch) -> scalar``: mean squared error of what a fixed mask hides."""

    def loss(params: Params, batch: Batch) -> Float[Array, ""]:
        losses = model.losses(params, batch.x, mask.of(batch.x.shape[0]), mask.visible)
        return weighted_mean(losses, batch.weight)

    return loss


class Masks(NamedTuple):
    """How a step masks a batch.

    Attributes:
        visible: Patches of an image that are seen.
        orders: ``(key, b) -> orders [b, N]``: the patches of each image, visible ones first.
    """

    visible: int
    orders: Callable[[PRNGKeyArray, int], Int[Array, "b N"]]


def drawn_loss(model: Autoencoder, masks: Masks) -> Callable[[Params, PRNGKeyArray, Batch], Float[Array, ""]]:
    """``(params, key, batch) -> scalar``: mean squared error of what the step's masks hide."""

    def loss(params: Params, key: PRNGKeyArray, batch: Batch) -> Float[Array, ""]:
        order = masks.orders(key, batch.x.shape[0])
        return weighted_mean(model.losses(params, batch.x, order, masks.visible), batch.weight)

    return loss


def noise_like(key: PRNGKeyArray, batch: Batch, kind: Noise) -> Float[Array, "b n n c"]:
    """What forgotten images are set against, in [0, 1].

    Args:
        key: Draws it.
        batch: Its real examples say mean and deviation, one number each over all pixels.
        kind: normal: of these, clamped to [0, 1]. uniform: in [0, 1]. constant: the mean everywhere.
    """
    x = batch.x
    if kind == "uniform":
        return jax.random.uniform(key, x.shape)
    weight = batch.weight.reshape(-1, *(1,) * (x.ndim - 1))
    count = jnp.sum(batch.weight) * (x.size // x.shape[0])
    mean = jnp.sum(weight * x) / count
    if kind == "constant":
        return jnp.full_like(x, mean)
    deviation = jnp.sqrt(jnp.sum(weight * jnp.square(x - mean)) / (count - 1))
    return jnp.clip(mean + deviation * jax.random.normal(key, x.shape), 0.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Masking:
    """Steps under masks."""

    steps: int = 600
    """Steps, >= 1; batches are of both sets, shuffled, for as many epochs as that takes."""
    batch_size: int = 128
    """Examples a step, >= 1."""
    hidden: float = 0.75
    """Share of the patches that a mask hides, in (0, 1), rounded to whole patches, or to a whole square's side."""
    place: Place = "random"
    """random: other patches of every image at every step, as published. centre: always the square in the middle, so that
    nothing is learned but what it hides."""

    def __post_init__(self):
        _validate.at_least(1, steps=self.steps, batch_size=self.batch_size)
        _validate.open_unit(hidden=self.hidden)
        _validate.one_of("place", self.place, get_args(Place))

    def masks(self, model: Autoencoder) -> Masks:
        """The masks of a step.

        Raises:
            InputError: The share hides no patch, or all.
        """
        if self.place == "centre":
            side = round(math.sqrt(self.hidden) * model.grid)
            _validate.require(
                0 < side < model.grid,
                f"Expected hidden={self.hidden} to be a square of {model.grid} x {model.grid} patches that hides some and "
                "leaves some; take a share nearer to a quarter.",
            )
            fixed = square(model.grid, side)
            return Masks(fixed.visible, lambda key, count: fixed.of(count))
        hidden = round(self.hidden * model.patches)
        _validate.require(
            0 < hidden < model.patches,
            f"Expected hidden={self.hidden} of {model.patches} patches to hide some and leave some; take a share nearer to "
            "a half.",
        )
        return Masks(model.patches - hidden, lambda key, count: random_orders(key, count, model.patches))

    def masking(self, source: str, size: int, init, update, finalize) -> Phase:
        """A phase of so many steps over ``source``, which has ``size`` examples."""
        batch_size = min(self.batch_size, size)
        epochs = -(-self.steps // steps_per_epoch(size, batch_size))
        return Phase(source, epochs, batch_size, init, update, finalize, max_steps=self.steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretraining(_Masking):
    """How a masked autoencoder is trained."""

    steps: int = 2000
    """Steps, >= 1."""
    descent: VisionAdamW = VisionAdamW(peak=1e-3, warmup=0.05)

    def phase(self, model: Autoencoder, source: str, size: int) -> Phase:
        """The base training over ``source`` ("train" or "retain"), which has ``size`` examples."""
        optimizer, loss = self.descent.optimizer(self.steps), drawn_loss(model, self.masks(model))

        def update(key, state, batch, step):
            return descend(loss, optimizer, state, key, batch.retain)

        return self.masking(
            source,
            size,
            lambda key, params: TrainState(params, optimizer.init(params)),
            update,
            lambda key, state: state.params,
        )


class _Taught(NamedTuple):
    """State of a phase with a frozen teacher.

    Attributes:
        train: What moves, and its optimiser.
        teacher: The parameters that the phase started from, as far as they are looked at.
        rest: What neither moves nor is looked at.
        mask: Which entries may move; None: all.
    """

    train: TrainState
    teacher: Params
    rest: Any = None
    mask: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class I2I(_Masking):
    """Moves the encoder's latents of forgotten images to those of noise, and holds the others'; nothing is proven."""

    retain_alpha: float = 1.0
    """Weight of the retain examples' term, >= 0."""
    forget_alpha: float = 0.2
    """Weight of the forget examples' term, >= 0; 0 by default in the public code, whose example has .2."""
    noise: Noise = "normal"
    """normal: of the batch's mean and deviation, clamped to [0, 1]. uniform: in [0, 1]. constant: the batch's mean."""
    descent: VisionAdamW = VisionAdamW()
    """The public code goes through six epochs of which five are the warm-up: VisionAdamW(warmup=5 / 6)."""

    def __post_init__(self):
        super().__post_init__()
        _validate.non_negative(retain_alpha=self.retain_alpha, forget_alpha=self.forget_alpha)
        _validate.require(
            self.retain_alpha + self.forget_alpha > 0, "Expected retain_alpha or forget_alpha > 0, got 0 for both."
        )
        _validate.one_of("noise", self.noise, get_args(Noise))

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase over both sets. The decoder stays as it is, to the last bit.

        Raises:
            InputError: The task has no masked autoencoder, or ``hidden`` does not fit its patches.
        """
        model = network(task)
        masks, optimizer = self.masks(model), self.descent.optimizer(self.steps)

        def loss(encoder: Params, teacher: Params, key: PRNGKeyArray, batch: Batch) -> Float[Array, ""]:
            order_key, noise_key = jax.random.split(key)
            order = masks.orders(order_key, batch.x.shape[0])
            shown = _swapped(batch, noise_like(noise_key, batch, self.noise))
            aims = model.encode({"encoder": teacher}, shown, order, masks.visible)
            latents = model.encode({"encoder": encoder}, batch.x, order, masks.visible)
            distance = jnp.mean(jnp.square(latents - jax.lax.stop_gradient(aims)), axis=(1, 2))
            factor = 2.0 * jnp.where(_forgotten(batch), self.forget_alpha, self.retain_alpha)  # 1 +- 1, as published
            return weighted_mean(factor * distance, batch.weight)

        def init(key, params):
            encoder = params["encoder"]
            return _Taught(TrainState(encoder, optimizer.init(encoder)), encoder, params["decoder"])

        def update(key, state, batch, step):
            return state._replace(train=descend(loss, optimizer, state.train, state.teacher, key, batch.retain))

        def finalize(key, state):
            return {"encoder": state.train.params, "decoder": state.rest}

        return Unlearner((self.masking("train", task.retain_size + task.forget_size, init, update, finalize),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SalUnInpainting(_Masking):
    """Trains forgotten images towards noise on the weights whose forget gradient is large; nothing is proven."""

    density: float = 0.5
    """Share of the parameters that may move, in (0, 1]; the others stay as they are."""
    noise: Noise = "normal"
    """normal: of the batch's mean and deviation, clamped to [0, 1]. uniform: in [0, 1]. constant: the batch's mean."""
    descent: SGD = SGD(peak=0.01, schedule="constant", momentum=0.9, weight_decay=0.0)

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(density=self.density)
        _validate.require(self.density <= 1, f"Expected density={self.density!r} <= 1.")
        _validate.one_of("noise", self.noise, get_args(Noise))

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass over the forget set for the mask, then the descent over both sets.

        Raises:
            InputError: The task has no masked autoencoder, or ``hidden`` does not fit its patches.
        """
        model = network(task)
        saliency = saliency_phase(task, self.density, drawn_loss(model, self.masks(model)))
        return Unlearner((saliency, self.descending(task, model)), notes=(_READING,))

    def descending(self, task: TaskInfo, model: Autoencoder) -> Phase:
        """The descent; from ``Salient`` parameters it moves the marked entries only."""
        masks, optimizer = self.masks(model), self.descent.optimizer(self.steps)

        def loss(params: Params, teacher: Params, key: PRNGKeyArray, batch: Batch) -> Float[Array, ""]:
            order_key, noise_key = jax.random.split(key)
            order, visible = masks.orders(order_key, batch.x.shape[0]), masks.visible
            forgotten = _forgotten(batch)
            noise = patchify(noise_like(noise_key, batch, self.noise), model.patch)
            before = jax.lax.stop_gradient(model.predict(teacher, batch.x, order, visible))
            aims = jnp.where(forgotten[:, None, None], noise, before)
            errors = hidden_error(model.predict(params, batch.x, order, visible), aims, order, visible)
            of_each = [weighted_mean(errors, batch.weight * chosen) for chosen in (~forgotten, forgotten)]
            return of_each[0] + of_each[1]

        def init(key, start):
            params, mask = start if isinstance(start, Salient) else (start, None)
            return _Taught(TrainState(params, optimizer.init(params)), params, mask=mask)

        def update(key, state, batch, step):
            moves = optimizer if state.mask is None else masked(optimizer, state.mask, hard=True)
            return state._replace(train=descend(loss, moves, state.train, state.teacher, key, batch.retain))

        return self.masking(
            "train", task.retain_size + task.forget_size, init, update, lambda key, state: state.train.params
        )


def _forgotten(batch: Batch) -> Array:
    assert batch.is_forget is not None
    return batch.is_forget


def _swapped(batch: Batch, noise: Float[Array, "b n n c"]) -> Float[Array, "b n n c"]:
    """The batch's images with noise in place of those to be forgotten."""
    return jnp.where(_forgotten(batch)[:, None, None, None], noise, batch.x)
