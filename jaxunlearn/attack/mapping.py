"""The unlearning mapping attack: inputs near x on which the unlearned model answers as the original one did on x.

Algorithm 1 of the robust unlearning benchmark (RUB, appendix A.1): sign gradient descent on D(f_u(x'), f(x)) over a box
around x, every example by itself. f(x) is computed once, by the caller; the label plays no part.

Examples go through a fixed number of slots in one loop. A slot whose example is done takes the next one that waits: the
batch stays full although examples end at different steps, nothing waits for the slowest, and shapes never change. What a
slot does with a gradient is in ``descent``, what ends it early in ``cycles``, what the attack brings down in ``distances``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn._validate import require
from jaxunlearn.attack.cycles import Watch, look, watch_from
from jaxunlearn.attack.descent import Best, Rule, Step, adaptive, choose, sign_descent, with_momentum
from jaxunlearn.attack.distances import DISTANCES, Distance, cross_entropy, distance_of, kl, mse, reverse_kl

__all__ = [
    "DISTANCES",
    "STEP_SIZE",
    "Algorithm",
    "Attacked",
    "Constraint",
    "Distance",
    "Iterate",
    "Options",
    "Start",
    "attack",
    "cross_entropy",
    "distance_of",
    "kl",
    "mse",
    "reverse_kl",
]

Algorithm = Literal["pgd", "momentum", "apgd"]
Start = Literal["random", "zero"]
Iterate = Literal["last", "best"]

STEP_SIZE = 1 / 255
"""RUB's."""


class Constraint(NamedTuple):
    """Where attacked inputs may lie.

    Attributes:
        epsilon: Largest change of a pixel, >= 0 (L-infinity); None: any, so that x does not matter beyond its shape.
        low: Least value of a pixel.
        high: Greatest value of a pixel.
    """

    epsilon: float | None
    low: float = 0.0
    high: float = 1.0

    def bounds(self, x: Float[Array, "b ..."]) -> tuple[Array, Array]:
        """The lowest and the highest allowed inputs: first epsilon around x, then the range, which must hold x.

        Both are rounded towards x, by a unit in the last place where need be, so that a change is at most epsilon (as a
        float of x's type) exactly and not only up to rounding.
        """
        low, high = jnp.asarray(self.low, x.dtype), jnp.asarray(self.high, x.dtype)
        if self.epsilon is None:
            return jnp.full_like(x, low), jnp.full_like(x, high)
        radius = jnp.asarray(self.epsilon, x.dtype)
        lowest = jnp.minimum(x, jnp.nextafter(x - radius, jnp.full_like(x, jnp.inf)))
        highest = jnp.maximum(x, jnp.nextafter(x + radius, jnp.full_like(x, -jnp.inf)))
        return jnp.maximum(lowest, low), jnp.minimum(highest, high)

    def radius(self) -> Any:
        """Epsilon, or half of the range where there is none."""
        return (self.high - self.low) / 2 if self.epsilon is None else self.epsilon

    def check(self, x: np.ndarray) -> None:
        """Raises InputError unless all of x is in the range; for the host, since a traced x has no values."""
        x = np.asarray(x)
        require(
            x.size == 0 or (self.low <= x.min() and x.max() <= self.high),
            f"Expected all of x in [low, high] = [{self.low}, {self.high}], got values from {x.min():g} to {x.max():g}; "
            "let the model normalise its inputs, or give the range of its inputs as low and high.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How the attack searches."""

    algorithm: Algorithm = "pgd"
    """pgd: steps along the gradient's sign (RUB). momentum: along the sign of gradients added up, each divided by its mean
    absolute value (MI-FGSM). apgd: step sizes halved and restarts from the best (Auto-PGD); wants iterate best."""
    steps: int = 100
    """Steps of each start, >= 1."""
    step_size: float | None = None
    """Change of a pixel by one step, > 0, in units of the inputs. None: 1/255, unless relative_step says; apgd finds its
    own."""
    relative_step: float | None = None
    """Change of a pixel by one step as a share of epsilon, > 0, in place of step_size."""
    start: Start = "random"
    """random: uniform within epsilon of x, without an epsilon uniform in the range. zero: x itself."""
    restarts: int = 1
    """Random starts, >= 1; the one with the least distance counts, example by example."""
    iterate: Iterate = "last"
    """last: where the last step led (RUB). best: the one with the least distance, the start included."""
    batch_size: int = 128
    """Examples attacked at once, >= 1."""
    early_exit: bool = True
    """Of pgd: end an example whose iterates repeat, at the iterate that all steps would have led to. Changes no result."""

    def __post_init__(self):
        _validate.one_of("algorithm", self.algorithm, get_args(Algorithm))
        _validate.one_of("start", self.start, get_args(Start))
        _validate.one_of("iterate", self.iterate, get_args(Iterate))
        _validate.at_least(1, steps=self.steps, restarts=self.restarts, batch_size=self.batch_size)
        for name in ("step_size", "relative_step"):
            if getattr(self, name) is not None:
                _validate.positive(**{name: getattr(self, name)})
        require(
            self.step_size is None or self.relative_step is None,
            f"Expected step_size={self.step_size} or relative_step={self.relative_step}, not both; set the other to None.",
        )
        require(
            self.start == "random" or self.restarts == 1,
            f"Expected restarts={self.restarts} to be 1 with start='zero', or all would be the same; use start='random'.",
        )
        require(
            self.algorithm != "apgd" or self.iterate == "best",
            f"Expected iterate={self.iterate!r} to be 'best' with algorithm='apgd', whose steps start from there.",
        )

    @property
    def fixed_step(self) -> float:
        """``step_size``, as given or by default."""
        return STEP_SIZE if self.step_size is None else self.step_size


class Attacked(NamedTuple):
    """What the attack found.

    Attributes:
        inputs: [n, ...] attacked inputs.
        outputs: [n, ...] the unlearned model's at ``inputs``.
        distance: [n] between ``outputs`` and the target; lower = nearer to what was to be forgotten.
        iterations: [n] gradients computed, over all restarts; fewer than asked for where iterates repeated.
    """

    inputs: Float[Array, "n ..."]
    outputs: Any
    distance: Float[Array, " n"]
    iterations: Int[Array, " n"]


class _Slots(NamedTuple):
    """The searches under way.

    Attributes:
        search: [b] number of the search, from its count on an empty slot.
        age: [b] gradients computed.
        end: [b] gradients after which it is done.
        at: [b, ...] the iterate.
        memory: Of the algorithm.
        best: The best iterate so far; None where it is not asked for.
        watch: For cycles; None where they are not looked for.
    """

    search: Int[Array, " b"]
    age: Int[Array, " b"]
    end: Int[Array, " b"]
    at: Array
    memory: Any
    best: Best | None
    watch: Watch | None


def _check(x: Array, target: Any, constraint: Constraint, options: Options, ids: Array | None) -> None:
    require(
        x.ndim >= 1 and x.shape[0] > 0 and jnp.issubdtype(x.dtype, jnp.floating),
        f"Expected x [n, ...] to hold at least one example in floating point, got {x.dtype}{list(x.shape)}.",
    )
    for leaf in jax.tree.leaves(target):
        _validate.shape("target", leaf, (x.shape[0], *leaf.shape[1:]), "one row for each example of x")
    if ids is not None:
        _validate.shape("ids", ids, (x.shape[0],), "one number for each example of x")
    require(
        options.relative_step is None or constraint.epsilon is not None,
        f"Expected an epsilon for relative_step={options.relative_step}, a share of it; give step_size instead.",
    )
    if constraint.epsilon is not None and not isinstance(constraint.epsilon, jax.Array):
        _validate.non_negative(epsilon=constraint.epsilon)
    if not isinstance(constraint.low, jax.Array) and not isinstance(constraint.high, jax.Array):
        require(
            constraint.low < constraint.high,
            f"Expected low={constraint.low} < high={constraint.high}; they are the range of the inputs.",
        )
        if not isinstance(x, jax.core.Tracer):
            constraint.check(np.asarray(x))


def _check_distance(apply, target: Any, x: Array, distance: Distance, named: str | None) -> None:
    """Looks at shapes alone; nothing is computed."""
    outputs = jax.eval_shape(apply, x)
    shapes = [[leaf.shape for leaf in jax.tree.leaves(tree)] for tree in (outputs, target)]
    require(
        named is None or shapes[0] == shapes[1],
        f"Expected target of the shape of apply's outputs for distance={named!r}, {shapes[0]}, got {shapes[1]}; give the "
        "original model's outputs on x.",
    )
    found = jax.eval_shape(distance, outputs, target)
    shape = getattr(found, "shape", None)
    require(
        shape == (x.shape[0],), f"Expected distance to give one number for each example, [{x.shape[0]}], got {shape}."
    )


def _starts(key, ids, x, constraint: Constraint, options: Options) -> Float[Array, "r n ..."]:
    """The first iterate of every search; an example's depends on its id and on the number of the start alone."""
    lowest, highest = constraint.bounds(x)
    if options.start == "zero":
        return jnp.clip(x, lowest, highest)[None]

    def one(number, example, x):
        own = jax.random.fold_in(jax.random.fold_in(key, example), number)
        if constraint.epsilon is None:
            return jax.random.uniform(own, x.shape, x.dtype, constraint.low, constraint.high)
        return x + jax.random.uniform(own, x.shape, x.dtype, -1, 1) * jnp.asarray(constraint.epsilon, x.dtype)

    starts = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))(jnp.arange(options.restarts), ids, x)
    return jnp.clip(starts, lowest[None], highest[None])


def _rule(constraint: Constraint, options: Options, step_size: Any, dtype: Any) -> Rule:
    if options.algorithm == "apgd":
        return adaptive(jnp.asarray(2 * constraint.radius(), dtype), options.steps)
    share = options.relative_step
    if step_size is None:
        step_size = options.fixed_step if share is None else share * constraint.radius()
    return {"pgd": sign_descent, "momentum": with_momentum}[options.algorithm](jnp.asarray(step_size, dtype))


def attack(
    key: PRNGKeyArray,
    target: Any,
    apply: Callable[[Float[Array, "b ..."]], Any],
    x: Float[Array, "n ..."],
    *,
    distance: str | Distance = "kl",
    constraint: Constraint,
    options: Options = Options(),  # noqa: B008
    ids: Int[Array, " n"] | None = None,
    steps: Any = None,
    step_size: Any = None,
) -> Attacked:
    """The unlearning mapping attack on one unlearned model (RUB, algorithm 1). Pure: goes under jit, vmap, shard_map.

    An example's result depends on no other example, nor on its place among them, as far as ``apply``'s rounding does not.
    Under ``vmap`` over models all wait for the slowest; ``lax.map`` (an engine's width of 1) keeps every batch full.

    Args:
        key: Of the random starts.
        target: The original model's outputs on the clean x; a pytree of [n, ...].
        apply: ``(x [b, ...]) -> outputs``: the unlearned model, parameters frozen, in evaluation mode. It is always called
            with ``options.batch_size`` examples, or all if they are fewer.
        x: Clean inputs within the constraint's range.
        distance: A name out of ``DISTANCES``, or ``(outputs, target) -> [b]``.
        constraint: Where attacked inputs may lie; its numbers may be traced.
        options: How to search.
        ids: Numbers of the examples, folded into the key so that an example starts at the same place in whatever part of a
            data set it comes; None: 0 to n - 1.
        steps: In place of the option of this name; may be traced, so that one program serves any number. apgd, whose
            checkpoints depend on it, does not take it.
        step_size: In place of the options; may be traced. apgd does not use it.

    Returns:
        For every example the attacked input, what the model says to it, and the distance that is left.

    Raises:
        InputError: An argument is out of range, or shapes do not fit together.
    """
    _check(x, target, constraint, options, ids)
    if isinstance(steps, int):
        _validate.at_least(1, steps=steps)
    if isinstance(step_size, int | float):
        _validate.positive(step_size=step_size)
    require(
        steps is None or options.algorithm != "apgd",
        "Expected no steps beside options with algorithm='apgd', whose checkpoints depend on them; set options.steps.",
    )
    x, target = jax.tree.map(jnp.asarray, (x, target))
    named, distance, n = distance if isinstance(distance, str) else None, distance_of(distance), x.shape[0]
    _check_distance(apply, target, x, distance, named)
    starts = _starts(key, jnp.arange(n) if ids is None else ids, x, constraint, options)
    found, iterations = _search(
        target, apply, x, starts.reshape(-1, *x.shape[1:]), distance, constraint, options, steps, step_size
    )
    shape = (options.restarts, n)
    found = found.reshape(*shape, *x.shape[1:])
    # An untouched pixel is the clean one to the last bit, also a subnormal one, which arithmetic may have made 0.
    found = jnp.where(found == x[None], x[None], found)
    result = _results(target, apply, found.reshape(-1, *x.shape[1:]), distance, min(options.batch_size, n), n)
    outputs, left = jax.tree.map(lambda a: a.reshape(*shape, *a.shape[1:]), result)
    chosen = jnp.argmin(jnp.where(jnp.isnan(left), jnp.inf, left), axis=0)

    def of_chosen(a):
        return a[0] if options.restarts == 1 else a[chosen, jnp.arange(n)]

    total = jnp.sum(iterations.reshape(shape), axis=0)
    return Attacked(of_chosen(found), jax.tree.map(of_chosen, outputs), of_chosen(left), total)


def _search(target, apply, x, starts, distance: Distance, constraint: Constraint, options: Options, steps, step_size):
    """All searches: [s, ...] where they end, and [s] gradients computed. Search i is of example i modulo n."""
    n, searches = x.shape[0], starts.shape[0]
    steps = options.steps if steps is None else steps
    rule, slots = _rule(constraint, options, step_size, x.dtype), min(options.batch_size, searches)
    keep_best = options.iterate == "best"
    watched = options.early_exit and options.algorithm == "pgd"
    evaluations = steps + keep_best  # the last iterate must be looked at before it can be the best

    def gradient_at(at, goals):
        def total(at):
            values = distance(apply(at), goals).astype(jnp.float32)
            return jnp.sum(values), values

        return jax.grad(total, has_aux=True)(at)

    def fresh(search, at):
        zero, unknown = jnp.zeros_like(search), jnp.full(search.shape, jnp.inf, jnp.float32)
        best = Best(at, unknown, jnp.zeros_like(at)) if keep_best else None
        watch = watch_from(at) if watched else None
        return _Slots(search, zero, zero + evaluations, at, rule.start(at), best, watch)

    def advance(slots: _Slots) -> _Slots:
        rows = slots.search % n  # an empty slot computes some example's step, which nobody will see
        anchors, goals = jax.tree.map(lambda a: a[rows], (x, target))
        lowest, highest = constraint.bounds(anchors)
        gradient, values = gradient_at(slots.at, goals)
        best = slots.best
        if best is not None:
            best = choose(values < best.value, Best(slots.at, values, gradient), best)
        step = Step(slots.at, values, gradient, best, slots.age, lambda at: jnp.clip(at, lowest, highest))
        at, memory = rule.move(slots.memory, step)
        age, end, watch = slots.age + 1, slots.end, slots.watch
        if watch is not None:
            watch, period = look(watch, at)
            left = 0 if keep_best else (steps - age) % jnp.maximum(period, 1)
            end = jnp.where(period > 0, jnp.minimum(end, age + left), end)
        return _Slots(slots.search, age, end, at, memory, best, watch)

    def body(carry):
        slots, waiting, found, iterations = carry
        slots = advance(slots)
        done = slots.age >= slots.end
        ends = slots.at if slots.best is None else slots.best.at

        def refill(slots, found, iterations):
            to = jnp.where(done, slots.search, searches)  # past the end: dropped
            found = found.at[to].set(ends, mode="drop")
            iterations = iterations.at[to].set(slots.age, mode="drop")
            search = jnp.where(done, waiting + jnp.cumsum(done) - 1, slots.search)
            return choose(done, fresh(search, found[jnp.minimum(search, searches - 1)]), slots), found, iterations

        kept = lax.cond(jnp.any(done), refill, lambda *same: same, slots, found, iterations)
        return kept[0], waiting + jnp.sum(done, dtype=jnp.int32), *kept[1:]

    first = fresh(jnp.arange(slots, dtype=jnp.int32), starts[:slots])
    carry = first, jnp.int32(slots), starts, jnp.zeros(searches, jnp.int32)
    _, _, found, iterations = lax.while_loop(lambda carry: jnp.any(carry[0].search < searches), body, carry)
    return found, iterations


def _results(target, apply, found, distance: Distance, size: int, n: int):
    """([s, ...] outputs, [s] distances) at ``found``, ``size`` at once; rows past the end are the last one again."""
    searches = found.shape[0]

    def some(first):
        rows = jnp.minimum(first + jnp.arange(size), searches - 1)
        outputs = apply(found[rows])
        return outputs, distance(outputs, jax.tree.map(lambda a: a[rows % n], target))

    parts = lax.map(some, jnp.arange(0, searches, size))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:searches], parts)
