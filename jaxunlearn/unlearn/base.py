"""What unlearning methods share: the loss, schedules and phases of gradient steps.

A method is an ``Unlearner``: a tuple of phases, each an ``init / update / finalize`` triple of pure functions over batches of
the retain set, of the run's own forget set, or of both. The engine runs the phases; a method never sees runs or devices.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.types import Batch, ForgetRetain, Model, Params, Phase, TaskInfo, Variables


class TrainState(NamedTuple):
    """Parameters and optimiser state of a gradient phase."""

    params: Params
    optimizer: optax.OptState


def cross_entropy(model: Model) -> Callable[[Params, Batch], Float[Array, ""]]:
    """Mean cross-entropy in nats over the real examples of a batch: sum(w l) / sum(w); of a sequence, l is its mean."""

    def loss(params: Params, batch: Batch) -> Float[Array, ""]:
        return mean_cross_entropy(model.apply(params, batch.x), batch)

    return loss


def mean_cross_entropy(logits: Float[Array, "b *t classes"], batch: Batch) -> Float[Array, ""]:
    """sum(w l) / sum(w) in nats over a batch's labels; of a sequence, l is its mean."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.y)
    losses = losses.reshape(losses.shape[0], -1).mean(axis=1)
    return jnp.sum(batch.weight * losses) / jnp.sum(batch.weight)


def training_loss(model: Model) -> Callable[[Params, Batch], tuple[Float[Array, ""], Params]]:
    """``cross_entropy`` in training mode, and the parameters with the statistics that the batch moved."""

    def loss(params: Params, batch: Batch) -> tuple[Float[Array, ""], Params]:
        if model.train is None:
            return mean_cross_entropy(model.apply(params, batch.x), batch), params
        logits, moved = model.train(params, batch.x, batch.weight)
        return mean_cross_entropy(logits, batch), moved

    return loss


def training_loss_of(task: TaskInfo) -> Callable[[Params, Batch], tuple[Float[Array, ""], Params]]:
    """A task's loss in training mode, with the parameters as they are where its modes do not differ."""
    return task.training_loss or (lambda params, batch: (task.loss(params, batch), params))


def trainable(params: Params) -> Params:
    """The part that is trained: all, but for BatchNorm's statistics."""
    return params.params if isinstance(params, Variables) else params


def with_trainable(params: Params, part: Params) -> Params:
    """``params`` with another trainable part."""
    return params._replace(params=part) if isinstance(params, Variables) else part


def gradient_of(loss: Callable[..., Any], params: Params, *arguments: Any) -> tuple[Params, Params]:
    """The gradient of a loss by the trainable part, and the parameters with the statistics that the loss moved.

    Args:
        loss: ``(params, *arguments) -> scalar``, or a pair of that and the parameters with moved statistics.
        params: Where to take it.
        arguments: Handed on to the loss.
    """

    def of_part(part):
        found = loss(with_trainable(params, part), *arguments)
        value, moved = found if isinstance(found, tuple) else (found, params)
        return value, moved.statistics if isinstance(moved, Variables) else None

    gradient, statistics = jax.grad(of_part, has_aux=True)(trainable(params))
    return gradient, params if statistics is None else params._replace(statistics=statistics)


def norm(tree) -> Float[Array, ""]:
    """The Euclidean norm of all leaves together."""
    return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)))


def add_noise(key, params: Params, sigma) -> Params:
    """Adds N(0, sigma^2) to every parameter."""
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noisy = [p + sigma * jax.random.normal(k, p.shape, p.dtype) for k, p in zip(keys, leaves)]
    return jax.tree.unflatten(structure, noisy)


def steps_per_epoch(size: int, batch_size: int) -> int:
    """Steps in an epoch of ``size`` examples; the last batch may be short."""
    return -(-size // batch_size)


def one_cycle(peak: float, steps: int) -> optax.Schedule:
    """The linear one-cycle schedule of the audit paper's code, with optax's defaults; ``steps`` >= 1."""
    # Its warm-up and final segments must hold at least one step each, or interpolation divides by zero.
    return optax.linear_onecycle_schedule(steps, peak) if steps >= 10 else optax.constant_schedule(peak)


def sgd(
    learning_rate: optax.ScalarOrSchedule,
    *,
    weight_decay: float = 0.0,
    momentum: float | None = None,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """SGD on the loss plus weight_decay / 2 * |params|^2; ``clip_norm`` bounds the loss's gradient before decay is added."""
    clip = optax.identity() if clip_norm is None else optax.clip_by_global_norm(clip_norm)
    return optax.chain(clip, optax.add_decayed_weights(weight_decay), optax.sgd(learning_rate, momentum=momentum))


def descend(loss: Callable[..., Any], optimizer: optax.GradientTransformation, state: TrainState, *arguments: Any):
    """One step of an optimiser on ``loss(params, *arguments)``, see ``gradient_of``."""
    gradient, moved = gradient_of(loss, state.params, *arguments)
    part = trainable(state.params)
    updates, optimizer_state = optimizer.update(gradient, state.optimizer, part)
    return TrainState(with_trainable(moved, optax.apply_updates(part, updates)), optimizer_state)


def from_loss(
    loss: Callable[[Params, ForgetRetain], Any],
    optimizer: optax.GradientTransformation,
    *,
    source: str,
    epochs: int,
    batch_size: int,
    companion: str | None = None,
) -> Phase:
    """A phase of plain gradient steps on a loss.

    Args:
        loss: ``(params, batch) -> scalar`` to descend, or a pair of that and the parameters with moved statistics.
        optimizer: An optax transformation; its state starts afresh with the phase.
        source: "train", "retain" or "forget": what an epoch covers.
        epochs: Whole epochs, >= 0.
        batch_size: Examples a step.
        companion: A second source that cycles along, or None.

    Returns:
        The phase.
    """

    def init(key, params):
        return TrainState(params, optimizer.init(trainable(params)))

    def update(key, state, batch, step):
        return descend(loss, optimizer, state, batch)

    return Phase(source, epochs, batch_size, init, update, lambda key, state: state.params, companion)


class Descent(abc.ABC):
    """Settings of an optimiser and its schedule."""

    @abc.abstractmethod
    def optimizer(self, steps: int, *, skip: int = 0) -> optax.GradientTransformation:
        """The optimiser of a descent of ``steps`` >= 1 steps, of which the first ``skip`` are not taken."""

    def phase(self, loss, *, source: str, size: int, epochs: int, batch_size: int, skip_epochs: int = 0) -> Phase:
        """Descent on the mean loss over ``source`` ("train" or "retain"), which has ``size`` examples.

        With ``skip_epochs`` the schedule is that of the last ``epochs`` out of ``skip_epochs + epochs``.
        """
        batch_size = min(batch_size, size)
        per_epoch = steps_per_epoch(size, batch_size)
        return from_loss(
            lambda params, batch: loss(params, batch.retain),
            self.optimizer(max(1, (skip_epochs + epochs) * per_epoch), skip=skip_epochs * per_epoch),
            source=source,
            epochs=epochs,
            batch_size=batch_size,
        )

    def finetune(self, task: TaskInfo, epochs: int, skip_epochs: int = 0) -> Phase:
        """The descent on the retain set that ends most methods."""
        return self.phase(
            task.training_loss or task.loss,
            source="retain",
            size=task.retain_size,
            epochs=epochs,
            batch_size=task.batch_size,
            skip_epochs=skip_epochs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Descent):
    """SGD with a learning-rate schedule."""

    peak: float = 0.1
    """Largest learning rate, > 0."""
    schedule: Literal["one_cycle", "constant", "cosine", "steps"] = "one_cycle"
    """one_cycle: linear up and down. constant. cosine: from the peak down to final_rate. steps: a tenth after a half, a
    hundredth after three quarters."""
    final_rate: float = 1e-4
    """Where the cosine ends, >= 0 and < peak."""
    weight_decay: float = 5e-4
    """Factor of |params|^2 / 2 in the loss, >= 0."""
    momentum: float = 0.0
    """Momentum, in [0, 1)."""
    clip_norm: float | None = None
    """Largest norm of a step's gradient, > 0; None does not clip."""

    def __post_init__(self):
        _validate.positive(peak=self.peak)
        _validate.one_of("schedule", self.schedule, ("one_cycle", "constant", "cosine", "steps"))
        _validate.non_negative(weight_decay=self.weight_decay, final_rate=self.final_rate)
        _validate.half_open_unit(momentum=self.momentum)
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)
        if self.schedule == "cosine":
            _validate.require(self.final_rate < self.peak, f"Expected final_rate={self.final_rate} < peak={self.peak}.")

    def optimizer(self, steps: int, *, skip: int = 0) -> optax.GradientTransformation:
        """The optimiser of a descent of ``steps`` >= 1 steps, of which the first ``skip`` are not taken."""
        schedule = {
            "one_cycle": lambda: one_cycle(self.peak, steps),
            "constant": lambda: optax.constant_schedule(self.peak),
            "cosine": lambda: optax.cosine_decay_schedule(self.peak, steps, self.final_rate / self.peak),
            "steps": lambda: optax.piecewise_constant_schedule(self.peak, {steps // 2: 0.1, 3 * steps // 4: 0.1}),
        }[self.schedule]()
        return sgd(
            lambda count: schedule(count + skip),
            weight_decay=self.weight_decay,
            momentum=self.momentum or None,
            clip_norm=self.clip_norm,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Descent):
    """AdamW with a learning-rate schedule, as language models are trained."""

    peak: float = 1e-5
    """Largest learning rate, > 0."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """After the warm-up: constant; cosine or linear down to 0."""
    warmup: float = 0.0
    """Share of the steps in which the rate rises from 0, in [0, 1)."""
    weight_decay: float = 0.0
    """Decoupled decay a step, times the rate; >= 0."""
    clip_norm: float | None = 1.0
    """Largest norm of a step's gradient, > 0; None does not clip."""

    def __post_init__(self):
        _validate.positive(peak=self.peak)
        _validate.one_of("schedule", self.schedule, ("constant", "cosine", "linear"))
        _validate.half_open_unit(warmup=self.warmup)
        _validate.non_negative(weight_decay=self.weight_decay)
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)

    def rate(self, steps: int, *, skip: int = 0) -> optax.Schedule:
        """The learning rate over ``steps`` >= 1 steps, of which the first ``skip`` are not taken."""
        rising = round(self.warmup * steps)
        falling = max(1, steps - rising)
        after = {
            "constant": lambda: optax.constant_schedule(self.peak),
            "cosine": lambda: optax.cosine_decay_schedule(self.peak, falling),
            "linear": lambda: optax.linear_schedule(self.peak, 0.0, falling),
        }[self.schedule]()
        schedule = optax.join_schedules([optax.linear_schedule(0.0, self.peak, max(1, rising)), after], [rising])
        return lambda count: schedule(count + skip)

    def optimizer(self, steps: int, *, skip: int = 0) -> optax.GradientTransformation:
        """The optimiser of a descent of ``steps`` >= 1 steps, of which the first ``skip`` are not taken."""
        clip = optax.identity() if self.clip_norm is None else optax.clip_by_global_norm(self.clip_norm)
        return optax.chain(clip, optax.adamw(self.rate(steps, skip=skip), weight_decay=self.weight_decay))
