"""Random labels for what is to be forgotten (RL; Golatkar et al., 2020), and the same on salient weights (SalUn; Fan et al.,
2024, arXiv:2310.12508).

Where the papers and their public code differ, the code's rule is the default: it made the published numbers.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.types import Batch, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import (
    SGD,
    TrainState,
    descend,
    gradient_of,
    steps_per_epoch,
    trainable,
    training_loss_of,
)


def relabelled(key, batch: Batch, classes: int, *, keep_true: bool = True) -> Batch:
    """The batch with uniform labels in place of those of its forget examples.

    Args:
        key: Draws the labels.
        batch: Says which examples are to be forgotten.
        classes: C, labels are 0..C-1.
        keep_true: Whether the true label is drawn as often as any other, with probability 1 / C; else never.
    """
    if keep_true:
        labels = jax.random.randint(key, batch.y.shape, 0, classes, batch.y.dtype)
    else:
        labels = (batch.y + jax.random.randint(key, batch.y.shape, 1, classes, batch.y.dtype)) % classes
    assert batch.is_forget is not None
    forget = batch.is_forget.reshape(-1, *(1,) * (batch.y.ndim - 1))
    scored = batch.y >= 0  # of an answer; what is not scored stays so
    return batch._replace(y=jnp.where(forget & scored, labels, batch.y))


def largest(magnitudes: Params, count: int) -> Params:
    """Marks the ``count`` largest entries of all arrays together, of equal ones those that come first: exactly so many.

    Args:
        magnitudes: A pytree of arrays, entries >= 0.
        count: How many, >= 1 and <= all.

    Returns:
        A pytree of boolean arrays.
    """
    leaves, structure = jax.tree.flatten(magnitudes)
    # Floats >= 0 are in the order of their bits: 31 counts find those of the least one that is kept, faster than a sort.
    values = lax.bitcast_convert_type(jnp.concatenate([leaf.ravel() for leaf in leaves]).astype(jnp.float32), jnp.int32)

    def with_next_bit(i, least):
        larger = least | (1 << (30 - i))
        return jnp.where(jnp.sum(values >= larger) >= count, larger, least)

    least = lax.fori_loop(0, 31, with_next_bit, jnp.int32(0))
    above, ties = values > least, values == least
    marked = above | ties & (jnp.cumsum(ties) <= count - jnp.sum(above))
    parts, start = [], 0
    for leaf in leaves:
        parts.append(marked[start : start + leaf.size].reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(structure, parts)


def masked(optimizer: optax.GradientTransformation, mask: Params, *, hard: bool) -> optax.GradientTransformation:
    """An optimiser that sees no gradient where ``mask`` is False; ``hard``: and makes no update there, decay included."""

    def kept(tree):
        return jax.tree.map(lambda keep, leaf: jnp.where(keep, leaf, 0), mask, tree)

    def update(updates, state, params=None):
        updates, state = optimizer.update(kept(updates), state, params)
        return kept(updates) if hard else updates, state

    return optax.GradientTransformation(optimizer.init, update)


class Salient(NamedTuple):
    """What the first phase of SalUn hands on: the trained parameters, and which trainable entries may move."""

    params: Params
    mask: Params


class _Relabelling(NamedTuple):
    train: TrainState
    mask: Params | None


def saliency_phase(
    task: TaskInfo, density: float, loss: Callable[[Params, PRNGKeyArray, Batch], Any] | None = None
) -> Phase:
    """One pass over D_f(S) in evaluation mode; hands on the mask of the int(density * P) entries of largest |G|.

    G is the sum over batches of the gradient of their mean loss, as in the public code.

    Args:
        task: What is unlearned.
        density: Share of the entries, in (0, 1].
        loss: ``(params, key, batch) -> scalar``, its key new for each batch; None: the task's.
    """

    def of(params: Params, key: PRNGKeyArray, batch: Batch) -> Any:
        return task.loss(params, batch) if loss is None else loss(params, key, batch)

    def init(key, params):
        return params, jax.tree.map(jnp.zeros_like, trainable(params))

    def update(key, state, batch, step):
        params, total = state
        gradient, _ = gradient_of(of, params, key, batch.forget)
        return params, jax.tree.map(jnp.add, total, gradient)

    def finalize(key, state):
        params, total = state
        size = sum(leaf.size for leaf in jax.tree.leaves(total))
        count = int(density * size)
        _validate.require(
            count >= 1, f"Expected density={density!r} to keep one of {size} parameters, use {1 / size:.2g}."
        )
        return Salient(params, largest(jax.tree.map(jnp.abs, total), count))

    return Phase("forget", 1, min(task.batch_size, task.forget_size), init, update, finalize)


def _joint_loss(task: TaskInfo, alpha: float) -> Callable:
    loss = training_loss_of(task)

    def joint(params, key, batch):
        forget = relabelled(key, batch.forget, _classes(task, params, batch.forget), keep_true=False)
        forget_loss, params = loss(params, forget)
        retain_loss, params = loss(params, batch.retain)
        return forget_loss + alpha * retain_loss, params

    return joint


def _mixed_loss(task: TaskInfo) -> Callable:
    loss = training_loss_of(task)

    def mixed(params, key, batch):
        return loss(params, relabelled(key, batch.retain, _classes(task, params, batch.retain)))

    return mixed


def _classes(task: TaskInfo, params: Params, batch: Batch) -> int:
    return jax.eval_shape(task.model.apply, params, batch.x).shape[-1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomLabel:
    """Training on, with random labels for the forget set (RL); a heuristic without a guarantee."""

    schedule: Literal["sequential", "shuffled", "joint"] = "sequential"
    """sequential: every epoch first the forget set, then the retain set. shuffled: both together. In both the labels are new
    in every epoch and uniform over all classes, the true one included. joint: equation (6) of the SalUn paper, a forget batch
    labelled with other classes beside every retain batch."""
    alpha: float = 1.0
    """Weight of the retain loss beside the forget loss in schedule joint, > 0; the others do not use it."""
    epochs: int = 10
    """Epochs over both sets, of schedule joint over the retain set, >= 1."""
    descent: SGD = SGD(schedule="constant", peak=0.013, momentum=0.9)

    def __post_init__(self):
        _validate.one_of("schedule", self.schedule, ("sequential", "shuffled", "joint"))
        _validate.positive(alpha=self.alpha)
        _validate.at_least(1, epochs=self.epochs)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase of descent on the relabelled examples."""
        return Unlearner((self.relabelling(task),))

    def relabelling(self, task: TaskInfo, *, hard: bool = True) -> Phase:
        """The descent; from ``Salient`` parameters it moves the marked entries only, see ``masked``."""
        retain, forget = task.retain_size, task.forget_size
        size = {"sequential": max(retain, forget), "shuffled": retain + forget, "joint": retain}[self.schedule]
        batch_size = min(task.batch_size, size)
        if self.schedule == "sequential":
            steps = steps_per_epoch(forget, batch_size) + steps_per_epoch(retain, batch_size)
        else:
            steps = steps_per_epoch(size, batch_size)
        optimizer = self.descent.optimizer(self.epochs * steps)
        loss = _joint_loss(task, self.alpha) if self.schedule == "joint" else _mixed_loss(task)

        def init(key, start):
            params, mask = start if isinstance(start, Salient) else (start, None)
            return _Relabelling(TrainState(params, optimizer.init(trainable(params))), mask)

        def update(key, state, batch, step):
            moves = optimizer if state.mask is None else masked(optimizer, state.mask, hard=hard)
            return state._replace(train=descend(loss, moves, state.train, key, batch))

        return Phase(
            {"sequential": "forget-then-retain", "shuffled": "train", "joint": "retain"}[self.schedule],
            self.epochs,
            batch_size,
            init,
            update,
            lambda key, state: state.train.params,
            companion="forget" if self.schedule == "joint" else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SalUn(RandomLabel):
    """Saliency unlearning: random labels, but only the weights move whose forget gradient is large; nothing is proven."""

    density: float = 0.5
    """Share of the trainable parameters that may move, in (0, 1]."""
    mask_mode: Literal["hard", "gradient"] = "hard"
    """hard: the others stay as they are. gradient: they have no gradient, but weight decay moves them, as in the public code
    before February 2026, with which the published numbers were made."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(density=self.density)
        _validate.require(self.density <= 1, f"Expected density={self.density!r} <= 1.")
        _validate.one_of("mask_mode", self.mask_mode, ("hard", "gradient"))

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass over the forget set for the mask, then the descent."""
        return Unlearner((saliency_phase(task, self.density), self.relabelling(task, hard=self.mask_mode == "hard")))
