"""Algorithms of the mapping attack: what follows from a gradient, for many searches at once, each by itself."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxunlearn.attack.distances import mean_over_rest


class Best(NamedTuple):
    """The iterate with the least distance so far, of each slot."""

    at: Array
    value: Float[Array, " b"]
    gradient: Array


class Step(NamedTuple):
    """What a rule may use.

    Attributes:
        at: [b, ...] the iterate.
        value: [b] its distance.
        gradient: [b, ...] of the distance.
        best: The best iterate, this one included; None where it is not asked for.
        age: [b] gradients computed before this one.
        project: Into the allowed inputs.
    """

    at: Array
    value: Float[Array, " b"]
    gradient: Array
    best: Any
    age: Int[Array, " b"]
    project: Callable[[Array], Array]


def for_each(flags: Array, like: Array) -> Array:
    """[b] as [b, 1, ...]."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


def choose(flags: Bool[Array, " b"], new: Any, old: Any) -> Any:
    """``new`` in the slots that are flagged, ``old`` in the others."""
    return jax.tree.map(lambda a, b: jnp.where(for_each(flags, b), a, b), new, old)


class Rule(NamedTuple):
    """An algorithm: ``start(iterate) -> memory`` and ``move(memory, step) -> (iterate, memory)``."""

    start: Callable[[Array], Any]
    move: Callable[[Any, Step], tuple[Array, Any]]


def sign_descent(step_size) -> Rule:
    """Equation (7): the iterate alone decides what follows."""

    def move(_, step):
        return step.project(step.at - step_size * jnp.sign(step.gradient)), ()

    return Rule(lambda at: (), move)


def with_momentum(step_size) -> Rule:
    """MI-FGSM (Dong et al., 2018), algorithm 1, decay 1."""

    def move(velocity, step):
        size = mean_over_rest(jnp.abs(step.gradient))
        scale = jnp.where(size > 0, 1 / jnp.where(size > 0, size, 1), 0)
        velocity = velocity + step.gradient * for_each(scale, step.gradient)
        return step.project(step.at - step_size * jnp.sign(velocity)), velocity

    return Rule(jnp.zeros_like, move)


class _Adaptive(NamedTuple):
    """Memory of Auto-PGD.

    Attributes:
        previous: The iterate before this one.
        value: Its distance.
        step_size: Now.
        improved: Steps since the last checkpoint that brought the distance down.
        checked: Least distance at the last checkpoint.
        halved: Whether the step size was halved there.
    """

    previous: Array
    value: Float[Array, " b"]
    step_size: Float[Array, " b"]
    improved: Int[Array, " b"]
    checked: Float[Array, " b"]
    halved: Bool[Array, " b"]


_IMPROVED, _INERTIA = 0.75, 0.75


def checkpoints(steps: int) -> np.ndarray:
    """[steps + 1] steps since the checkpoint before, at checkpoints; 0 elsewhere.

    The first interval is 22% of all steps; each is 3 percentage points shorter than the one before, down to 6%.
    """
    interval, shortest, shorter = (max(1, int(share * steps)) for share in (0.22, 0.06, 0.03))
    found, at = np.zeros(steps + 1, np.int32), interval
    while at <= steps:
        found[at] = interval
        interval = max(interval - shorter, shortest)
        at += interval
    return found


def adaptive(first_step, steps: int) -> Rule:
    """Auto-PGD (Croce and Hein, 2020, algorithm 1), turned to minimise; checkpoints as in its authors' code."""
    intervals = checkpoints(steps)

    def start(at):
        slots = at.shape[0]
        none, size = jnp.full(slots, jnp.inf, jnp.float32), jnp.full(slots, first_step, at.dtype)
        return _Adaptive(at, none, size, jnp.zeros(slots, jnp.int32), none, jnp.ones(slots, bool))

    def move(memory, step):
        improved = memory.improved + ((step.value < memory.value) & (step.age > 0))
        interval = jnp.asarray(intervals)[step.age]
        stuck = ~memory.halved & (step.best.value >= memory.checked)
        halve = (interval > 0) & ((improved <= _IMPROVED * interval) | stuck)
        size = jnp.where(halve, memory.step_size / 2, memory.step_size)
        at = choose(halve, step.best.at, step.at)
        slope = jnp.sign(choose(halve, step.best.gradient, step.gradient))
        towards = step.project(at - for_each(size, at) * slope)
        share = for_each(jnp.where(step.age > 0, _INERTIA, 1.0).astype(at.dtype), at)
        new = step.project(at + share * (towards - at) + (1 - share) * (at - memory.previous))
        checked = interval > 0
        return new, _Adaptive(
            step.at,
            step.value,
            size,
            jnp.where(checked, 0, improved),
            jnp.where(checked, step.best.value, memory.checked),
            jnp.where(checked, halve, memory.halved),
        )

    return Rule(start, move)
