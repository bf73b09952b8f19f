"""UnlearnDiffAtk: a few more tokens in a prompt with which an unlearned text-to-image model draws the concept again.

The attack of Zhang et al. (2024, arXiv:2310.11868), which RUB (section 4.3) takes for text-to-image models, on all prompts at
once. A round fixes one time t; its inner steps bring down the error of the noise that the unlearned model predicts in the
noised target image. After each round every prompt's best tokens are drawn and judged; a prompt that succeeded is done, and
what still happens in its row nobody sees.

The search is over K rows of probabilities over the vocabulary: a token is drawn from each, and the gradient with respect to
the drawn row is handed to the probabilities as it is, cut to [-1, 1]; after each step of Adam the rows are projected onto
the simplex. Two baselines go through the same rounds: random tokens, and embeddings rounded to the nearest token's (hard
prompts; Wen et al., 2023, arXiv:2302.03668).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn._validate import require
from jaxunlearn.diffusion import Sampler, TextToImage, add_noise, guided, plain, sample

Algorithm = Literal["gradient", "hard", "random"]
Place = Literal["prefix", "insert", "suffix"]
Target = Literal["noise", "original"]
Judge = Callable[[Float[Array, "b h w c"]], Int[Array, " b"]]
"""``(images in [0, 1]) -> labels``: what each shows; of each by itself."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8  # of Adam


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How the attack searches."""

    algorithm: Algorithm = "gradient"
    """gradient: UnlearnDiffAtk. hard: embeddings, rounded to the nearest token's by cosine. random: new tokens each round."""
    tokens: int = 3
    """Tokens added to a prompt, K >= 1; 5 for nudity."""
    place: Place = "prefix"
    """Before the prompt's words, in their middle, or after them."""
    rounds: int = 30
    """Rounds, >= 1, each at a time of its own, rising; 50 in the public code, 100 in RUB's tables."""
    inner_steps: int = 40
    """Gradient steps of a round, >= 1."""
    rate: float = 0.01
    """Adam's step size, > 0."""
    decay: float = 0.1
    """Of gradient: added to the gradient times the probabilities; of hard: decoupled, times the rate. >= 0."""
    target: Target = "noise"
    """noise: the noise that was added. original: what the original model predicts for the prompt as it was (P4D)."""

    def __post_init__(self):
        _validate.one_of("algorithm", self.algorithm, get_args(Algorithm))
        _validate.one_of("place", self.place, get_args(Place))
        _validate.one_of("target", self.target, get_args(Target))
        _validate.at_least(1, tokens=self.tokens, rounds=self.rounds, inner_steps=self.inner_steps)
        _validate.positive(rate=self.rate)
        _validate.non_negative(decay=self.decay)


class Found(NamedTuple):
    """What the attack found, prompt by prompt.

    Attributes:
        before: [n] bool, whether the prompt as it was succeeded (no attack).
        success: [n] bool, whether it or an attacked one did.
        steps: [n] rounds to the first success: 0 where ``before``, all of them where there was none.
        prompts: [n, length] the prompt that succeeded, or the last one tried.
        added: [n, K] the tokens of it that the attack added; the pad token where ``before``.
        images: [n, h, w, c] what it draws, in [0, 1].
        labels: [n] what the judge says of that.
    """

    before: Bool[Array, " n"]
    success: Bool[Array, " n"]
    steps: Int[Array, " n"]
    prompts: Int[Array, "n l"]
    added: Int[Array, "n k"]
    images: Float[Array, "n h w c"]
    labels: Int[Array, " n"]


class Rates(NamedTuple):
    """Counts of an attack, for intervals and tables.

    Attributes:
        before: Prompts that succeeded without an attack; divided by ``count``, the pre-attack success rate.
        after: Prompts that succeeded, those included; divided by ``count``, the post-attack success rate.
        count: Prompts, N.
        mean_steps: Mean rounds; see ``Found.steps``.
        median_steps: Their median.
    """

    before: int
    after: int
    count: int
    mean_steps: float
    median_steps: float


def rates(found: Found) -> Rates:
    """Counts over all prompts."""
    steps = np.asarray(found.steps)
    return Rates(
        int(np.sum(found.before)),
        int(np.sum(found.success)),
        steps.size,
        float(steps.mean()),
        float(np.median(steps)),
    )


# --- prompts and probabilities ----------------------------------------------------------------------------------------


def simplex(values: Float[Array, "... v"]) -> Float[Array, "... v"]:
    """The nearest point with entries >= 0 and sum 1, of each row (Duchi et al., 2008, by sorting)."""
    falling = jnp.flip(jnp.sort(values, axis=-1), axis=-1)
    counts = jnp.arange(1, values.shape[-1] + 1, dtype=values.dtype).reshape(*(1,) * (values.ndim - 1), -1)
    excess = (jnp.cumsum(falling, axis=-1) - 1) / counts
    used = jnp.sum(falling > excess, axis=-1, keepdims=True)
    return jnp.maximum(values - jnp.take_along_axis(excess, used - 1, axis=-1), 0)


@jax.custom_vjp
def straight_through(probabilities: Array, drawn: Array) -> Array:
    """``drawn`` one-hot rows; their gradient, cut to [-1, 1], is the probabilities'."""
    return drawn


straight_through.defvjp(
    lambda probabilities, drawn: (drawn, None),
    lambda _, gradient: (jnp.clip(gradient, -1, 1), jnp.zeros_like(gradient)),
)


def layout(prompts: Int[Array, "n l"], count: int, place: Place, end: int) -> Int[Array, "n l"]:
    """Where each position of the attacked prompts comes from.

    Args:
        prompts: Start, words, end, padding.
        count: Tokens that are added, K.
        place: Where.
        end: The token after the words; the first of its kind counts.

    Returns:
        A position of the prompt, or its length plus the number of an added token. As many positions are lost at the end.
    """
    length = prompts.shape[1]
    words = jnp.argmax(prompts == end, axis=1)[:, None] - 1
    offset = 1 + {"prefix": 0 * words, "insert": words // 2, "suffix": words}[place]
    at = jnp.arange(length)[None, :]
    added = (at >= offset) & (at < offset + count)
    return jnp.where(added, length + at - offset, jnp.where(at < offset, at, at - count))


def arranged(prompts: Array, added: Array, order: Int[Array, "n l"]) -> Array:
    """Tokens or embeddings in a ``layout``."""
    both = jnp.concatenate([prompts, added], axis=1)
    return jnp.take_along_axis(both, order.reshape(*order.shape, *(1,) * (both.ndim - 2)), axis=1)


# --- algorithms -------------------------------------------------------------------------------------------------------


class _Search(NamedTuple):
    """A search's variable and Adam's moments, each with a leading axis of prompts."""

    at: Array
    first: Array
    second: Array
    count: Int[Array, " n"]


def _searching(at: Array) -> _Search:
    return _Search(at, jnp.zeros_like(at), jnp.zeros_like(at), jnp.zeros(at.shape[0], jnp.int32))


def _adam(search: _Search, gradient: Array, rate: Any) -> tuple[Array, _Search]:
    """Adam's change, and the search with its moments moved."""
    first = _BETAS[0] * search.first + (1 - _BETAS[0]) * gradient
    second = _BETAS[1] * search.second + (1 - _BETAS[1]) * jnp.square(gradient)
    count = search.count + 1
    one, two = (1 - jnp.power(beta, count.astype(gradient.dtype))[:, None, None] for beta in _BETAS)
    change = -rate * (first / one) / (jnp.sqrt(second / two) + _EPSILON)
    return change, search._replace(first=first, second=second, count=count)


class _Rule(NamedTuple):
    """An algorithm.

    Attributes:
        start: ``(keys [n]) -> state``.
        round: ``(keys [n], state, times [n]) -> state``: all inner steps of a round.
        tokens: ``(state) -> [n, K]`` its best tokens.
    """

    start: Callable[[Any], Any]
    round: Callable[[Any, Any, Any], Any]
    tokens: Callable[[Any], Int[Array, "n k"]]


ErrorOf = Callable[[Any, Array, Array], Float[Array, ""]]
"""``(keys [n], times [n], embeddings of added tokens [n, K, d]) -> sum over prompts of their errors``."""


def _random(allowed: Array, options: Options) -> _Rule:
    """New tokens every round, uniformly from those allowed."""
    logits = jnp.where(allowed, 0.0, -jnp.inf)

    def draw(keys):
        return jax.vmap(lambda key: jax.random.categorical(key, logits, shape=(options.tokens,)))(keys)

    return _Rule(draw, lambda keys, state, times: draw(keys), lambda state: state)


def _steps(keys, count: int):
    """[count, n] keys of a round's inner steps; each prompt's are its own."""
    return jax.vmap(lambda number: jax.vmap(lambda key: jax.random.fold_in(key, number))(keys))(jnp.arange(count))


def _gradient(error: ErrorOf, table: Array, allowed: Array, options: Options) -> _Rule:
    """UnlearnDiffAtk."""
    shut = jnp.where(allowed, 0.0, -1e9)[None, None, :]  # so low that the projection makes it 0

    def start(keys):
        share = jnp.where(allowed, 1 / jnp.sum(allowed), 0.0)[None, None, :]
        return _searching(jnp.broadcast_to(share, (keys.shape[0], options.tokens, share.shape[-1])))

    def round_(keys, search, times):
        def step(search, keys):
            pairs = jax.vmap(jax.random.split)(keys)
            chances = jnp.log(search.at)
            drawn = jax.vmap(lambda key, row: jax.random.categorical(key, row))(pairs[:, 0], chances)
            drawn = jax.nn.one_hot(drawn, table.shape[0], dtype=table.dtype)

            def of(probabilities):
                return error(pairs[:, 1], times, straight_through(probabilities, drawn) @ table)

            gradient = jax.grad(of)(search.at) + options.decay * search.at
            change, moved = _adam(search, gradient, options.rate)
            return moved._replace(at=simplex(search.at + change + shut)), None

        return lax.scan(step, search, _steps(keys, options.inner_steps))[0]

    return _Rule(start, round_, lambda search: jnp.argmax(search.at, axis=-1))


def _hard(error: ErrorOf, table: Array, allowed: Array, options: Options) -> _Rule:
    """Embeddings that take the gradient at the nearest token's."""
    lengths = jnp.maximum(jnp.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    directions = table / lengths

    def nearest(at):
        cosines = at @ directions.T  # their own length decides nothing
        return jnp.argmax(jnp.where(allowed[None, None, :], cosines, -jnp.inf), axis=-1)

    def start(keys):
        return _searching(table[_random(allowed, options).start(keys)])

    def round_(keys, search, times):
        def step(search, keys):
            gradient = jax.grad(lambda added: error(keys, times, added))(table[nearest(search.at)])
            change, moved = _adam(search, gradient, options.rate)
            return moved._replace(at=(1 - options.rate * options.decay) * search.at + change), None

        return lax.scan(step, search, _steps(keys, options.inner_steps))[0]

    return _Rule(start, round_, lambda search: nearest(search.at))


# --- the attack -------------------------------------------------------------------------------------------------------


def round_time(number: Any, rounds: int, times: int) -> Any:
    """The time of a round, from 0: the middle of its share of all times, as 10, 30, ..., 990 of 50 rounds."""
    return ((2 * number + 1) * times) // (2 * rounds)


def _check(model: TextToImage, prompts: Any, goals: Any, starts: Any, labels: Any, options: Options, original: Any):
    n = prompts.shape[0]
    _validate.shape("prompts", prompts, (n, model.length), "token ids with start, end and padding")
    require(n > 0, "Expected prompts to hold at least one, got none.")
    for name, array in {"goals": goals, "starts": starts}.items():
        _validate.shape(name, array, (n, *model.latent_shape), "latents, one for each prompt")
    _validate.shape("labels", labels, (n,), "one for each prompt")
    require(
        options.target != "original" or original is not None,
        "Expected the original model's parameters for target='original'; give original.",
    )
    if not isinstance(prompts, jax.core.Tracer):
        ends = np.argmax(np.asarray(prompts) == model.end, axis=1)
        require(
            bool(np.all(np.take_along_axis(np.asarray(prompts), ends[:, None], axis=1) == model.end)),
            f"Expected every prompt to have its end, token {model.end}.",
        )
        longest = int(ends.max()) - 1
        require(
            longest + options.tokens <= model.length - 2,
            f"Expected prompts of at most {model.length - 2 - options.tokens} words, so that tokens={options.tokens} more "
            f"fit into {model.length}, got {longest}; leave out the long ones.",
        )


def attack(
    key: PRNGKeyArray,
    model: TextToImage,
    params: Any,
    judge: Judge,
    prompts: Int[Array, "n l"],
    goals: Float[Array, "n h w c"],
    starts: Float[Array, "n h w c"],
    labels: Int[Array, " n"],
    *,
    sampler: Sampler,
    guidance: Any = 7.5,
    options: Options = Options(),  # noqa: B008
    original: Any = None,
    allowed: Bool[Array, " v"] | None = None,
    ids: Int[Array, " n"] | None = None,
    read: Callable[[Int[Array, "n l"]], Int[Array, "n l"]] | None = None,
) -> Found:
    """Attacks all prompts at once. Pure: goes under jit and vmap; a compiled call holds as many U-Net rows as prompts.

    A prompt's result depends on no other prompt, as far as the model's rounding does not.

    Args:
        key: Of the attack's draws.
        model: The model.
        params: The unlearned model's parameters.
        judge: Says what an image shows.
        prompts: Token ids with start, end and padding.
        goals: Latents of the target images, as ``model.encode`` gives them.
        starts: Standard normal latents that each prompt's image is drawn from, those of its target image.
        labels: What the judge must say for success.
        sampler: Draws images.
        guidance: Of classifier-free guidance, a number or [n]; 1 is none, at half the cost if it is a plain number.
        options: How to search.
        original: The original model's parameters, for target "original".
        allowed: Which tokens may be added; None: all but start, end and padding.
        ids: Numbers of the prompts, folded into the key, so that parts of a set of prompts give what the whole gives; None:
            0 to n - 1.
        read: Turns attacked prompts into what a tokenizer makes of their text; None: as they are.

    Returns:
        For every prompt whether, when and by which tokens it succeeded, and the image.

    Raises:
        InputError: Shapes do not fit together, a prompt is too long, or an argument is missing.
    """
    _check(model, prompts, goals, starts, labels, options, original)
    prompts, goals, starts, labels = (jnp.asarray(a) for a in (prompts, goals, starts, labels))
    n = prompts.shape[0]
    ids = jnp.arange(n) if ids is None else jnp.asarray(ids)
    table = jnp.asarray(model.table(params))
    if allowed is None:
        allowed = jnp.ones(table.shape[0], bool).at[jnp.array([model.start, model.end, model.pad])].set(False)
    order = layout(prompts, options.tokens, options.place, model.end)
    embedded = table[prompts]
    own = jax.vmap(lambda number: jax.random.fold_in(key, number))(ids)

    def error(keys, times, added):
        noise = jax.vmap(lambda key: jax.random.normal(key, model.latent_shape))(keys)
        at = add_noise(model.schedule, goals, noise, times)
        predicted = model.predict(params, at, times, model.encode_text(params, arranged(embedded, added, order)))
        if options.target == "original":
            noise = model.predict(original, at, times, model.embed_text(original, prompts))
        return jnp.sum(jnp.mean(jnp.square(predicted - lax.stop_gradient(noise)), axis=(1, 2, 3)))

    rule = {
        "gradient": lambda: _gradient(error, table, allowed, options),
        "hard": lambda: _hard(error, table, allowed, options),
        "random": lambda: _random(allowed, options),
    }[options.algorithm]()

    def drawn(tokens):
        context = model.embed_text(params, tokens)
        if isinstance(guidance, int | float) and guidance == 1:
            predict = plain(model, params, context)
        else:
            predict = guided(model, params, context, model.without_words(params, n), guidance)
        images = model.decode(params, sample(predict, sampler, starts))
        return images, judge(images)

    def keys_of(number):
        return jax.vmap(lambda key: jax.random.fold_in(key, number))(own)

    def body(carry):
        number, state, found = carry
        times = jnp.full(n, round_time(number, options.rounds, model.schedule.times))
        state = rule.round(keys_of(number + 1), state, times)
        added = rule.tokens(state)
        tokens = arranged(prompts, added, order)
        tokens = tokens if read is None else read(tokens)
        images, said = drawn(tokens)
        open_, succeeded = ~found.success, said == labels

        def new(now, then):
            return jnp.where(open_.reshape(-1, *(1,) * (now.ndim - 1)), now, then)

        found = Found(
            found.before,
            found.success | succeeded,
            jnp.where(open_, number + 1, found.steps),
            new(tokens, found.prompts),
            new(added, found.added),
            new(images, found.images),
            new(said, found.labels),
        )
        return number + 1, state, found

    images, said = drawn(prompts)
    before = said == labels
    none = jnp.full((n, options.tokens), model.pad, prompts.dtype)
    found = Found(before, before, jnp.zeros(n, jnp.int32), prompts, none, images, said)

    def going_on(carry):
        number, _, found = carry
        return (number < options.rounds) & ~jnp.all(found.success)

    return lax.while_loop(going_on, body, (jnp.int32(0), rule.start(keys_of(0)), found))[2]
