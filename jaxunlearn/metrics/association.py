"""How examples hang together in a model: association by gradients and by representations.

By gradients, AS(x) = <grad L(x), g> with the mean gradient g of a set of examples ("Unveiling Ripple Effects and Shallow
Forgetting in Privacy Unlearning", arXiv:2604.22076, sections 3.2 and 4.2): averaged over the known forget set, the mean of an
example's pairwise scores with it; over the whole forget set, what core-sets are chosen by (``unlearn.coreset``). One
Jacobian-vector product of the vector of losses along g gives it for a whole chunk of examples, without a gradient of a single
one. By representations, the mean cosine between mean hidden states.

All functions take ``losses(params, examples) -> [b]``, of any model; ``examples`` is any pytree of arrays [n, ...]. They are
pure: ``jax.jit(partial(association, losses))``. ``chunk`` examples are worked on at once, and temporaries grow with it alone.
Whether a loss is a sum or a mean over tokens changes the order of scores: compare only scores of one kind.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn._validate import InputError, require, shape
from jaxunlearn.sequences import LanguageModel, scored, sequence_nll

Losses = Callable[[Any, Any], Float[Array, " b"]]
"""``(params, examples) -> [b]`` in nats, each of one example alone."""


def token_losses(model: LanguageModel, *, per_token: bool = False) -> Losses:
    """-log p of each sequence's scored tokens, for examples (tokens [b, T], labels [b, T]).

    Args:
        model: The decoder.
        per_token: Their mean in place of their sum. The forgetting score is a sum.

    Returns:
        The losses; 0 for a sequence without a scored token.
    """

    def losses(params: Any, examples: tuple[Array, Array]) -> Float[Array, " b"]:
        tokens, labels = examples
        sums = sequence_nll(model.logits(params, tokens), labels)
        return sums / jnp.maximum(scored(labels).sum(axis=1), 1) if per_token else sums

    return losses


def _size(examples: Any) -> int:
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(examples)}
    require(len(sizes) == 1 and min(sizes) > 0, f"Expected examples of one length > 0, got {sorted(sizes)}.")
    return sizes.pop()


def _rows(size: int, chunk: int) -> tuple[Int[Array, "k chunk"], Any]:
    """Rows of each chunk and whether they are real: the last chunk is filled up with the first example."""
    require(chunk >= 1, f"Expected chunk={chunk!r} >= 1.")
    chunk = min(chunk, size)
    rows = jnp.arange(chunk * -(-size // chunk)).reshape(-1, chunk)
    return jnp.where(rows < size, rows, 0), rows < size


def _take(examples: Any, rows: Array) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], examples)


def mapped(fn: Callable[[Any], Any], examples: Any, chunk: int) -> Any:
    """``fn`` of a pytree [b, ...] -> arrays [b, ...] over all examples, a chunk at a time.

    Raises:
        InputError: There are no examples, their numbers differ, or ``chunk`` < 1.
    """
    size = _size(examples)
    outputs = lax.map(lambda rows: fn(_take(examples, rows)), _rows(size, chunk)[0])
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:size], outputs)


def _wide(leaf: Array) -> Array:
    """At least float32."""
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _dot(a: Any, b: Any, axes: int = 0) -> Array:
    """Inner product of two trees, over all but the first ``axes`` axes of ``a``."""
    products = jax.tree.map(lambda x, y: jnp.sum(_wide(x) * _wide(y), axis=tuple(range(axes, x.ndim))), a, b)
    return sum(jax.tree.leaves(products), start=jnp.float32(0))


def _unit(direction: Any) -> tuple[Array, Any]:
    """Length and direction of a tree, by way of its largest entry: squares of small ones would be 0."""
    direction = jax.tree.map(lambda leaf: _wide(jnp.asarray(leaf)), direction)
    peak = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(direction)]))
    direction = jax.tree.map(lambda leaf: leaf / jnp.where(peak > 0, peak, 1), direction)
    length = jnp.sqrt(_dot(direction, direction))
    return peak * length, jax.tree.map(lambda leaf: leaf / jnp.maximum(length, 1), direction)


def mean_gradient(losses: Losses, params: Any, examples: Any, *, chunk: int = 64) -> Any:
    """The mean over all examples of the gradient of their losses, summed up in float32 or wider.

    Args:
        losses: Of each example.
        params: Where to take it.
        examples: Pytree of [n, ...].
        chunk: Examples at once.

    Returns:
        A tree like ``params``, never narrower than float32.

    Raises:
        InputError: There are no examples.
    """
    size = _size(examples)

    def step(total, part):
        rows, real = part
        gradient = jax.grad(lambda p: jnp.sum(losses(p, _take(examples, rows)) * real))(params)
        return jax.tree.map(lambda sum_, g: sum_ + g.astype(sum_.dtype), total, gradient), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros_like(_wide(jnp.asarray(leaf))), params)
    total, _ = lax.scan(step, zeros, _rows(size, chunk))
    return jax.tree.map(lambda leaf: leaf / size, total)


def association(losses: Losses, params: Any, examples: Any, direction: Any, *, chunk: int = 64) -> Float[Array, " n"]:
    """AS of every example: the inner product of its gradient with ``direction``, by forward-mode differentiation.

    The tangent has the parameters' precision and length 1, so that no entry of a long or short direction is lost; the result
    is scaled back. Costs about two and a half forward passes.

    Args:
        losses: Of each example; must take forward-mode differentiation.
        params: Where to take the gradients.
        examples: Pytree of [n, ...].
        direction: A tree like ``params``, such as ``mean_gradient``.
        chunk: Examples at once.

    Returns:
        [n] in squared nats per squared parameter; higher: a step against ``direction`` lowers the example's loss more.

    Raises:
        InputError: There are no examples, or ``losses`` holds a derivative rule that forward mode refuses.
    """
    length, unit = _unit(direction)
    tangent = jax.tree.map(lambda u, p: u.astype(jnp.asarray(p).dtype), unit, params)

    def along(part):
        return jax.jvp(lambda p: losses(p, part), (params,), (tangent,))[1]

    try:
        return _wide(mapped(along, examples, chunk)) * length
    except TypeError as error:
        if "custom_vjp" not in str(error):
            raise
        raise InputError(
            "Expected losses that forward-mode differentiation takes, but a custom_vjp (fused attention, a hand-written "
            "gradient) is inside; use the plain form of that layer, or association_by_gradients."
        ) from error


def _gradients(losses: Losses, params: Any, examples: Any) -> Any:
    """The gradient of every example, with a leading axis [b]."""

    def one(example):
        return jax.grad(lambda p: losses(p, jax.tree.map(lambda leaf: leaf[None], example))[0])(params)

    return jax.vmap(one)(examples)


def association_by_gradients(
    losses: Losses, params: Any, examples: Any, direction: Any, *, chunk: int = 16
) -> Float[Array, " n"]:
    """As ``association``, from the gradient of every example: chunk x parameters in memory, but reverse mode alone."""
    directions = jax.tree.map(lambda leaf: leaf[None], direction)
    return mapped(lambda part: _dot(_gradients(losses, params, part), directions, 1), examples, chunk)


def squared_norms(losses: Losses, params: Any, examples: Any, *, chunk: int = 16) -> Float[Array, " n"]:
    """The squared length of every example's gradient, with chunk x parameters in memory."""

    def norms(part):
        gradients = _gradients(losses, params, part)
        return _dot(gradients, gradients, 1)

    return mapped(norms, examples, chunk)


def leave_one_out(scores: Float[Array, " n"], squares: Float[Array, " n"]) -> Float[Array, " n"]:
    """AS with the mean gradient of the others, where ``scores`` are with the mean over all n examples themselves.

    AS_i over all holds ||g_i||^2 / n of the example's own, by which those of large gradients choose themselves.

    Args:
        scores: [n] ``association`` along ``mean_gradient`` of the same n >= 2 examples.
        squares: [n] ``squared_norms``.

    Returns:
        [n] (n AS_i - ||g_i||^2) / (n - 1).

    Raises:
        InputError: There are fewer than two examples.
    """
    n = scores.shape[0]
    require(n >= 2, f"Expected at least 2 scores to leave one out, got {n}.")
    shape("squares", squares, (n,), "one for each score")
    return (n * scores - squares) / (n - 1)


def _draw(key: PRNGKeyArray, leaf: Array, rank: int) -> tuple[Array | None, Array | None]:
    """Left and right projection [k, size, dims] of a leaf seen as k matrices; None keeps an axis that is short anyway."""

    def normal(key, stack, size, dims):
        if size <= dims:
            return None
        return jax.random.normal(key, (stack, size, dims), jnp.float32) / math.sqrt(dims)

    left, right = jax.random.split(key)
    if leaf.ndim < 2:
        return None, normal(right, 1, leaf.size, rank * rank)
    stack = math.prod(leaf.shape[:-2])
    return normal(left, stack, leaf.shape[-2], rank), normal(right, stack, leaf.shape[-1], rank)


def _project(gradient: Array, sides: tuple[Array | None, Array | None]) -> Float[Array, "b dims"]:
    """[b, ...leaf] -> [b, dims]."""
    b = gradient.shape[0]
    matrices = _wide(gradient).reshape((b, 1, 1, -1) if gradient.ndim < 3 else (b, -1, *gradient.shape[-2:]))
    left, right = sides
    if left is not None:
        matrices = jnp.einsum("bkio,kir->bkro", matrices, left)
    if right is not None:
        matrices = jnp.einsum("bkro,kos->bkrs", matrices, right)
    return matrices.reshape(b, -1)


def projected_gradients(
    key: PRNGKeyArray, losses: Losses, params: Any, examples: Any, *, rank: int = 32, chunk: int = 16
) -> Float[Array, "n dims"]:
    """Random projections of all gradients, whose inner products estimate all pairwise associations: ``a @ b.T``.

    Every matrix G among the parameters (leading axes stack such) becomes A'GB with A and B independent normal of variance
    1/rank, a vector is projected to rank^2 numbers, and axes that are not longer stay (a factored projection as in LoGra;
    Choe et al., 2024, arXiv:2405.13954). Two sets of examples must share the key.

    The estimate is unbiased. Its standard deviation is at most sqrt(4 / rank + 4 / rank^2) |G|^2 for the square of one
    matrix, reached by gradients of rank one (.36 |G|^2 at rank 32); errors of different matrices are independent and partly
    average out, and gradients summed over tokens have higher ranks. Means over many examples are far better than single
    entries; the mean with a whole set has an exact way, ``association``.

    Args:
        key: What is drawn.
        losses: Of each example.
        params: Where to take the gradients.
        examples: Pytree of [n, ...].
        rank: Length of a projected axis, >= 1.
        chunk: Examples at once; chunk x parameters in memory.

    Returns:
        [n, dims]; dims is at most rank^2 for every matrix and vector.

    Raises:
        InputError: ``rank`` < 1, or there are no examples.
    """
    require(rank >= 1, f"Expected rank={rank!r} >= 1.")
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
    sides = [_draw(k, leaf, rank) for k, leaf in zip(jax.random.split(key, len(leaves)), leaves)]

    def features(part):
        gradients = jax.tree.leaves(_gradients(losses, params, part))
        return jnp.concatenate([_project(g, side) for g, side in zip(gradients, sides)], axis=1)

    return mapped(features, examples, chunk)


def mean_states(
    model: LanguageModel,
    params: Any,
    tokens: Int[Array, "n t"],
    labels: Int[Array, "n t"],
    *,
    skip_first: bool = True,
    chunk: int = 32,
) -> Float[Array, "l+1 n d"]:
    """Mean hidden state over each sequence's scored tokens, at every depth.

    Args:
        model: The decoder.
        params: Its parameters.
        tokens: Token ids, padded on the right.
        labels: Negative where a token is not scored; aligned with the tokens, and so are the states: the state of a scored
            token is the one that has read it.
        skip_first: Leave the first position out even if scored: models tend to park outsized states there.
        chunk: Sequences at once.

    Returns:
        [L + 1, n, d] in float32 or wider: the embedding, then the residual stream after every block (the last before the
        final norm). 0 for a sequence without a scored token.
    """

    def means(part):
        tokens, labels = part
        counts = labels >= 0
        counts = counts.at[:, 0].set(False) if skip_first else counts
        states = _wide(model.hidden(params, tokens, 0, model.layers))
        sums = jnp.einsum("lbtd,bt->bld", states, counts.astype(states.dtype))
        return sums / jnp.maximum(counts.sum(axis=1), 1)[:, None, None]

    return jnp.swapaxes(mapped(means, (tokens, labels), chunk), 0, 1)


def representation_association(states: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Mean cosine between each state and all known ones, in one pass over both (section 3.2 of the paper). On the host.

    Args:
        states: [..., n, d] mean states, e.g. [layers, n, d].
        known: [..., m, d] of the known forget set.

    Returns:
        [..., n] in [-1, 1].

    Raises:
        InputError: There are no known states, widths differ, or a state is 0 or not finite.
    """
    units = []
    for name, values in (("states", states), ("known", known)):
        values = np.asarray(values, np.float64)
        require(
            values.ndim >= 2 and values.shape[-2] > 0, f"Expected {name} of shape (..., n > 0, d), got {values.shape}."
        )
        lengths = np.linalg.norm(values, axis=-1, keepdims=True)
        require(
            bool((np.isfinite(lengths) & (lengths > 0)).all()),
            f"Expected {name} finite and nowhere 0; leave out sequences without a scored token.",
        )
        units.append(values / lengths)
    require(
        units[0].shape[:-2] == units[1].shape[:-2] and units[0].shape[-1] == units[1].shape[-1],
        f"Expected states and known of the same layers and width, got {units[0].shape} and {units[1].shape}.",
    )
    return np.einsum("...nd,...d->...n", units[0], units[1].mean(axis=-2))
