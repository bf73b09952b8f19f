"""Influence unlearning (IU; Koh and Liang, 2017; Izzo et al., 2021): one step along an inverse Fisher product.

theta <- theta + alpha k with k = F^{-1} v, v = n_f / n (g_f - g_r) for the mean gradients of forget and retain set and
n = n_f + n_r, F = I + 1/N sum_i g_i g_i^T over the gradients of N single examples of the retain set. All of it in evaluation
mode and without augmentation; BatchNorm's statistics stay.

The public code (Jia et al., 2023, after WoodFisher; Singh and Alistarh, 2020) means to compute k example by example, but its
recursion only ever adds multiples of the first gradient to v: what it returns is no inverse Fisher product.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float

from jaxunlearn import _validate
from jaxunlearn.types import Batch, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import gradient_of, trainable, with_trainable

MAX_ITERATIONS, TOLERANCE = 100, 1e-4
"""Of conjugate gradients; the tolerance is the residual's norm over that of v. F has at most N + 1 different eigenvalues, few
of them far from 1."""
MAX_HALVINGS = 20


class Direction(NamedTuple):
    """What the phases hand on: the trained parameters and a direction in the trainable ones."""

    params: Params
    direction: Params


def _add(a: Params, scale, b: Params) -> Params:
    return jax.tree.map(lambda x, y: x + scale * y, a, b)


def contrast_phase(task: TaskInfo) -> Phase:
    """One pass over both sets; hands on v = n_f / n (g_f - g_r)."""
    n_f, n_r = task.forget_size, task.retain_size
    share = n_f / (n_f + n_r)

    def init(key, params):
        return Direction(params, jax.tree.map(jnp.zeros_like, trainable(params)))

    def update(key, state, batch, step):
        part = batch.retain  # of one of the sets only, padded at its end
        per_example = share * jnp.where(part.is_forget[0], 1 / n_f, -1 / n_r)
        gradient, _ = gradient_of(task.loss, state.params, part)
        return state._replace(direction=_add(state.direction, per_example * jnp.sum(part.weight), gradient))

    batch_size = min(task.batch_size, max(n_f, n_r))
    return Phase("forget-then-retain", 1, batch_size, init, update, lambda key, state: state, augment=False)


class PerExample:
    """The losses of single examples as a function of the trainable parameters, a chunk at a time.

    Args:
        loss: ``(params, batch) -> scalar``, a mean over examples that forward-mode differentiation takes.
        params: Where to take them.
        batch: N examples, all of weight 1.
        chunk: Examples at once.
    """

    def __init__(self, loss: Callable[[Params, Batch], jax.Array], params: Params, batch: Batch, chunk: int):
        self.size = batch.y.shape[0]
        chunk = min(chunk, self.size)
        rows = jnp.arange(chunk * -(-self.size // chunk)).reshape(-1, chunk)
        self._real = rows < self.size
        rows = jnp.where(self._real, rows, 0)
        self._examples = batch.x[rows], batch.y[rows]
        self._point = trainable(params)

        def losses(part, x, y):
            def one(x, y):
                return loss(with_trainable(params, part), Batch(x[None], y[None], jnp.ones(1)))

            return jax.vmap(one)(x, y)

        self._losses = losses

    def values(self, point: Params) -> Float[Array, " N"]:
        """The losses at ``point``."""
        return lax.map(lambda chunk: self._losses(point, *chunk), self._examples).ravel()[: self.size]

    def _products(self, vector, chunk):
        return jax.jvp(lambda part: self._losses(part, *chunk), (self._point,), (vector,))[1]

    def products(self, vector: Params) -> Float[Array, " N"]:
        """g_i^T vector, all examples by one forward pass with a tangent."""
        return lax.map(lambda chunk: self._products(vector, chunk), self._examples).ravel()[: self.size]

    def fisher(self, vector: Params) -> Params:
        """F vector, without a gradient of a single example in memory."""

        def step(total, chunk):
            *chunk, real = chunk
            pull = jax.vjp(lambda part: self._losses(part, *chunk), self._point)[1]
            (part,) = pull(self._products(vector, chunk) * real / self.size)
            return jax.tree.map(jnp.add, total, part), None

        return lax.scan(step, vector, (*self._examples, self._real))[0]

    def first_gradient(self) -> Params:
        """g_0."""
        x, y = (a[0, :1] for a in self._examples)
        return jax.grad(lambda part: self._losses(part, x, y)[0])(self._point)


def inverse_fisher_product(examples: PerExample, v: Params) -> Params:
    """F^{-1} v by conjugate gradients, with ``MAX_ITERATIONS`` and ``TOLERANCE``."""
    return cg(examples.fisher, v, tol=TOLERANCE, maxiter=MAX_ITERATIONS)[0]


def reference_product(examples: PerExample, v: Params, samples: int) -> Params:
    """What the public code's recursion makes of v, with N = ``samples``.

    From k = v, o = g_0 it goes on over i = 1, 2, ... with t = o^T g_i, k <- k - k^T g_i / (N + t) o, o <- o - t / (N + t) o.
    Then o = s g_0 and k = v + c g_0 throughout, so that the inner products with g_0 and v say it all.
    """
    first = examples.first_gradient()
    of_first, of_v = examples.products(first), examples.products(v)

    def step(state, dots):
        s, c = state
        first_dot, v_dot = dots
        t = s * first_dot
        return (s - t / (samples + t) * s, c - (v_dot + c * first_dot) / (samples + t) * s), None

    (_, c), _ = lax.scan(step, (jnp.float32(1), jnp.float32(0)), (of_first[1:], of_v[1:]))
    return _add(v, c, first)


def _moved(state: Direction, alpha) -> Params:
    return with_trainable(state.params, _add(trainable(state.params), alpha, state.direction))


def _phase_of_one_step(task: TaskInfo, size: int, update: Callable[[Any, PerExample], Any]) -> Phase:
    """One update by ``size`` examples of the retain set, or by all that there are."""
    loss = task.curvature_loss or task.loss

    def step_update(key, state, batch, step):
        return update(state, PerExample(loss, state.params, batch.retain, task.batch_size))

    size = min(size, task.retain_size)
    return Phase(
        "retain",
        1,
        size,
        lambda key, start: start,
        step_update,
        lambda key, state: state,
        max_steps=1,
        augment=False,
    )


def _solve_phase(task: TaskInfo, samples: int, solver: str) -> Phase:
    """From v to k."""

    def update(state, examples):
        v = state.direction
        if solver == "fisher":
            return state._replace(direction=inverse_fisher_product(examples, v))
        return state._replace(direction=reference_product(examples, v, samples))

    # The public code stops after example N + 1, counted from 0.
    return _phase_of_one_step(task, samples + (2 if solver == "reference" else 0), update)


def _search_phase(task: TaskInfo, samples: int, alpha: float, max_loss: float) -> Phase:
    """From k to the parameters, moved by the largest alpha / 2^h that keeps the mean loss of new examples within bounds."""

    def update(state, examples):
        def too_far(halvings):
            mean = jnp.mean(examples.values(trainable(_moved(state, jnp.ldexp(alpha, -halvings)))))
            return ~(mean <= max_loss) & (halvings < MAX_HALVINGS)  # NaN is too far as well

        halvings = lax.while_loop(too_far, lambda halvings: halvings + 1, jnp.int32(0))
        return state._replace(direction=jax.tree.map(lambda k: jnp.ldexp(k, -halvings), state.direction))

    phase = _phase_of_one_step(task, samples, update)
    return phase._replace(finalize=lambda key, state: _moved(state, alpha))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Influence:
    """Influence unlearning, IU in the papers: one step along an inverse Fisher product; nothing is proven for a network.

    With ``max_loss`` every run has an alpha of its own, ``alpha`` / 2^h: the same run without ``max_loss`` moves 2^h times as
    far, from which h can be read.
    """

    alpha: float = 20.0
    """Length of the step, > 0; too large ruins the model."""
    samples: int = 1000
    """N: examples of the retain set in the Fisher matrix, >= 1; all of them if there are fewer."""
    solver: Literal["fisher", "reference"] = "fisher"
    """fisher: the inverse Fisher product. reference: the public code's recursion, which is none; it made the published
    numbers."""
    max_loss: float | None = None
    """Halve alpha, 20 times at most, until the mean loss of N newly drawn examples of the retain set is at most this, in
    nats, > 0. None takes alpha as it is."""

    def __post_init__(self):
        _validate.positive(alpha=self.alpha)
        _validate.at_least(1, samples=self.samples)
        _validate.one_of("solver", self.solver, ("fisher", "reference"))
        if self.max_loss is not None:
            _validate.positive(max_loss=self.max_loss)

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass for v, one step for k, and with ``max_loss`` one to choose alpha."""
        solve = _solve_phase(task, self.samples, self.solver)
        notes = ()
        if self.solver == "reference":
            notes += ("The direction is that of the public code's recursion, which is not an inverse Fisher product.",)
        if self.max_loss is None:
            move = solve._replace(finalize=lambda key, state: _moved(state, self.alpha))
            return Unlearner((contrast_phase(task), move), notes=notes)
        notes += (
            f"Every run's alpha is {self.alpha:g}, halved until the loss of {min(self.samples, task.retain_size)} retain "
            f"examples is at most {self.max_loss:g}, {MAX_HALVINGS} times at most.",
        )
        search = _search_phase(task, self.samples, self.alpha, self.max_loss)
        return Unlearner((contrast_phase(task), solve, search), notes=notes)
