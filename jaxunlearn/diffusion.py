"""What all code for text-to-image models shares: what a model is, how noise is added, and how images are drawn.

Times are numbers of noise levels, 0 (least) to T - 1. A model predicts the noise e in
x_t = sqrt(abar_t) x + sqrt(1 - abar_t) e.

A sampler is a table: each of its steps predicts the noise once, at ``scale * x``, and goes to
``keep * x + sum_j weights[j] e_j`` with the last few predictions e_j, newest first. DDIM and linear multistep are both of
this form, so that one loop serves them, under ``lax.scan`` and ``vmap`` alike.

References:
    Ho et al., Denoising diffusion probabilistic models, 2020, arXiv:2006.11239.
    Song et al., Denoising diffusion implicit models, 2021, arXiv:2010.02502 (DDIM; deterministic here).
    Karras et al., Elucidating the design space of diffusion-based generative models, 2022, arXiv:2206.00364 (sigmas).
    Ho and Salimans, Classifier-free diffusion guidance, 2022, arXiv:2207.12598.
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

Spacing = Literal["leading", "linspace", "trailing"]
Betas = Literal["scaled_linear", "linear"]
LMS_ORDER = 4
"""Predictions that a linear multistep looks at, as public samplers have it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How much noise there is at each time, and at which times a sampler stops.

    Raises:
        InputError: A value is out of range.
    """

    times: int = 1000
    """Noise levels, T >= 2."""
    beta_start: float = 0.00085
    """Variance added at time 0, in (0, 1)."""
    beta_end: float = 0.012
    """Variance added at time T - 1, in (0, 1)."""
    betas: Betas = "scaled_linear"
    """Between the two: their square roots grow linearly, or they do."""
    spacing: Spacing = "leading"
    """Times of DDIM's n steps. leading: multiples of T // n, plus the offset. linspace: from 0 to T - 1. trailing: T - 1 and
    down by T / n."""
    offset: int = 1
    """Added to the times of spacing leading, >= 0."""
    to_one: bool = False
    """Whether DDIM's last step leads to no noise at all; else to that of time 0."""

    def __post_init__(self):
        _validate.at_least(2, times=self.times)
        _validate.open_unit(beta_start=self.beta_start, beta_end=self.beta_end)
        _validate.one_of("betas", self.betas, get_args(Betas))
        _validate.one_of("spacing", self.spacing, get_args(Spacing))
        _validate.at_least(0, offset=self.offset)

    def kept(self) -> np.ndarray:
        """[T] float64 abar_t, the share of an image's variance that is left at each time."""
        power = 0.5 if self.betas == "scaled_linear" else 1.0
        betas = np.linspace(self.beta_start**power, self.beta_end**power, self.times) ** (1 / power)
        return np.cumprod(1 - betas)

    def stops(self, steps: int, spacing: Spacing | None = None) -> np.ndarray:
        """[steps] times of a sampler, falling; whole numbers but for LMS's linspace, which ``lms`` asks for itself.

        Raises:
            InputError: More steps than times, or a time past the last.
        """
        _validate.require(1 <= steps <= self.times, f"Expected 1 <= {steps=} <= {self.times}, the schedule's times.")
        spacing = spacing or self.spacing
        if spacing == "leading":
            found = np.arange(steps)[::-1] * (self.times // steps) + self.offset
        elif spacing == "linspace":
            found = np.linspace(0, self.times - 1, steps)[::-1].round()
        else:
            found = np.round(np.arange(self.times, 0, -self.times / steps))[:steps] - 1
        _validate.require(
            found[0] < self.times,
            f"Expected offset={self.offset} to leave {steps} steps below {self.times}; use fewer.",
        )
        return found.astype(np.float64)


class Sampler(NamedTuple):
    """A table of steps; see the module's docstring.

    Attributes:
        times: [s] at which the noise is predicted, falling.
        scale: [s] of the model's input.
        keep: [s] of x.
        weights: [s, order] of the predictions, newest first.
        initial: Deviation of the noise that sampling starts from.
    """

    times: np.ndarray
    scale: np.ndarray
    keep: np.ndarray
    weights: np.ndarray
    initial: float

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.times.shape[0]


def _sampler(times, scale, keep, weights, initial) -> Sampler:
    times, scale, keep, weights = (np.asarray(a, np.float32) for a in (times, scale, keep, weights))
    return Sampler(times, scale, keep, weights, float(initial))


def ddim(schedule: Schedule, steps: int) -> Sampler:
    """DDIM without noise of its own (eta 0), equation (12) of Song et al.

    Raises:
        InputError: See ``Schedule.stops``.
    """
    times, kept = schedule.stops(steps), schedule.kept()
    now = kept[times.astype(int)]
    before = times.astype(int) - schedule.times // steps
    last = 1.0 if schedule.to_one else kept[0]
    then = np.where(before >= 0, kept[np.maximum(before, 0)], last)
    keep = np.sqrt(then / now)
    weights = np.sqrt(1 - then) - keep * np.sqrt(1 - now)
    return _sampler(times, np.ones(steps), keep, weights[:, None], 1.0)


def _lagrange(points: np.ndarray, start: float, end: float) -> np.ndarray:
    """[len(points)] integrals from start to end of the polynomials that are 1 at one of the points and 0 at the others."""
    found = []
    for i, own in enumerate(points):
        others = np.delete(points, i)
        antiderivative = np.polyint(np.atleast_1d(np.poly(others)) / np.prod(own - others))
        found.append(np.polyval(antiderivative, end) - np.polyval(antiderivative, start))
    return np.array(found)


def lms(schedule: Schedule, steps: int, *, order: int = LMS_ORDER, spacing: Spacing = "linspace") -> Sampler:
    """Linear multistep on dx / dsigma = e in x / sqrt(abar), sigma = sqrt((1 - abar) / abar): Adams-Bashforth, uneven steps.

    With spacing linspace, the public sampler's default, times lie between whole numbers.

    Raises:
        InputError: See ``Schedule.stops``; ``order`` below 1.
    """
    _validate.at_least(1, order=order)
    times = schedule.stops(steps, spacing)
    if spacing == "linspace":
        times = np.linspace(0, schedule.times - 1, steps)[::-1]
    kept = schedule.kept()
    levels = np.interp(times, np.arange(schedule.times), np.sqrt((1 - kept) / kept))
    sigma = np.append(levels, 0.0)
    weights = np.zeros((steps, order))
    for i in range(steps):
        used = min(i + 1, order)
        weights[i, :used] = _lagrange(sigma[i - used + 1 : i + 1][::-1], sigma[i], sigma[i + 1])
    largest = sigma.max()
    initial = largest if spacing in ("linspace", "trailing") else np.sqrt(largest**2 + 1)
    return _sampler(times, 1 / np.sqrt(levels**2 + 1), np.ones(steps), weights, initial)


Predict = Callable[[Float[Array, "b h w c"], Float[Array, " b"]], Float[Array, "b h w c"]]
"""``(x_t, times) -> predicted noise``."""


def _each(values: Float[Array, " b"], like: Array) -> Array:
    return values.reshape(-1, *(1,) * (like.ndim - 1)).astype(like.dtype)


def add_noise(
    schedule: Schedule, x: Float[Array, "b ..."], noise: Float[Array, "b ..."], times: Int[Array, " b"]
) -> Float[Array, "b ..."]:
    """x_t of each example at a time of its own."""
    kept = schedule.kept()
    signal, share = (jnp.asarray(np.sqrt(a), jnp.float32)[times] for a in (kept, 1 - kept))
    return _each(signal, x) * x + _each(share, x) * noise


def sample(
    predict: Predict, sampler: Sampler, start: Float[Array, "b h w c"], steps: Int[Array, ""] | int | None = None
) -> Float[Array, "b h w c"]:
    """What sampling leads to from standard normal noise.

    Args:
        predict: The noise at (x, times); with guidance, see ``guided``.
        sampler: From ``ddim`` or ``lms``.
        start: Standard normal; it is scaled here.
        steps: How many of the first steps are taken, 0 to all; may be traced, and then nothing can be
            differentiated. None: all.

    Returns:
        x after so many steps; after all of them, a latent image.
    """
    order = sampler.weights.shape[1]
    times, scale, keep, weights = (jnp.asarray(a) for a in sampler[:4])

    def step(i, carry):
        x, past = carry
        noise = predict(scale[i] * x, jnp.full(x.shape[0], times[i]))
        past = jnp.concatenate([noise[None], past[:-1]]) if order > 1 else noise[None]
        return keep[i] * x + jnp.tensordot(weights[i], past, axes=1), past

    x = sampler.initial * start
    past = jnp.zeros((order, *x.shape), x.dtype)
    return lax.fori_loop(0, sampler.steps if steps is None else steps, step, (x, past))[0]


class TextToImage(NamedTuple):
    """A text-to-image model as pure functions of ``params = {"text_encoder", "unet", "vae" (where there is one)}``.

    Each part is a nested dictionary whose keys, joined by dots, are torch's names; images are in [0, 1].

    Attributes:
        init: ``(key) -> params``.
        table: ``(params) -> [V, d]`` the embeddings of all tokens.
        encode_text: ``(params, embeddings [b, n, d]) -> context [b, n, w]``, positions not yet added.
        predict: ``(params, x [b, h, w, c], times [b], context) -> noise [b, h, w, c]``.
        attend: The same, ``-> (noise, probabilities)``: those of every cross-attention, [b, heads, pixels, n], from the
            first layer to the last.
        encode: ``(params, images [b, H, W, C]) -> latents [b, h, w, c]``, in the scale that is noised; without a draw.
        decode: ``(params, latents) -> images``.
        schedule: The noise.
        latent_shape: (h, w, c).
        length: Tokens of a prompt, n, with those of start and end.
        vocabulary: V.
        start: Token before every prompt.
        end: Token after every prompt.
        pad: Token that fills up.
    """

    init: Callable[[PRNGKeyArray], Any]
    table: Callable[[Any], Float[Array, "v d"]]
    encode_text: Callable[[Any, Float[Array, "b n d"]], Float[Array, "b n w"]]
    predict: Callable[..., Float[Array, "b h w c"]]
    attend: Callable[..., tuple[Array, tuple[Array, ...]]]
    encode: Callable[[Any, Float[Array, "b h w c"]], Array]
    decode: Callable[[Any, Float[Array, "b h w c"]], Array]
    schedule: Schedule
    latent_shape: tuple[int, int, int]
    length: int
    vocabulary: int
    start: int
    end: int
    pad: int

    def embed_text(self, params: Any, tokens: Int[Array, "b n"]) -> Float[Array, "b n w"]:
        """The context of prompts."""
        return self.encode_text(params, jnp.asarray(self.table(params))[tokens])

    def embed_soft(self, params: Any, mixture: Float[Array, "b n v"]) -> Float[Array, "b n w"]:
        """The context where every position is a mixture of tokens (rows of one-hot vectors for plain ones)."""
        return self.encode_text(params, mixture @ self.table(params))

    @property
    def nothing(self) -> Int[Array, " n"]:
        """The prompt that says nothing, as guidance has it."""
        return jnp.asarray([self.start, self.end, *(self.pad,) * (self.length - 2)], jnp.int32)

    def without_words(self, params: Any, count: int) -> Float[Array, "b n w"]:
        """``count`` times the context of ``nothing``."""
        context = self.embed_text(params, self.nothing[None])
        return jnp.broadcast_to(context, (count, *context.shape[1:]))


def guided(
    model: TextToImage, params: Any, context: Float[Array, "b n w"], empty: Float[Array, "b n w"], scale: Any
) -> Predict:
    """Classifier-free guidance: e(empty) + scale * (e(context) - e(empty)), from one pass over both halves.

    Args:
        model: The model.
        params: Its parameters.
        context: Of the prompts.
        empty: Of no words.
        scale: A number, or [b]. 1 is plain prediction, at twice its cost; see ``plain``.
    """
    both = jnp.concatenate([empty, context])

    def predict(x, times):
        noise = model.predict(params, jnp.concatenate([x, x]), jnp.concatenate([times, times]), both)
        without, with_words = jnp.split(noise, 2)
        factor = jnp.broadcast_to(jnp.asarray(scale, x.dtype), x.shape[:1])
        return without + _each(factor, x) * (with_words - without)

    return predict


def plain(model: TextToImage, params: Any, context: Float[Array, "b n w"]) -> Predict:
    """Prediction without guidance."""
    return lambda x, times: model.predict(params, x, times, context)


def draw(
    key: PRNGKeyArray, model: TextToImage, count: int, ids: Int[Array, " b"] | None = None
) -> Float[Array, "b h w c"]:
    """Standard normal latents; each depends on its id alone."""
    ids = jnp.arange(count) if ids is None else ids
    return jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), model.latent_shape))(ids)


class Prompts(NamedTuple):
    """The prompts of a task, as token ids with start, end and padding.

    Attributes:
        captions: [classes, p, n] prompts of each class; where one has fewer than p they are repeated.
        concept: [m, n] prompts of what is to be forgotten, as methods name it.
        anchor: [a, n] prompts of what takes its place ("a photo of a person wearing clothes", another digit).
        neutral: [k, n] prompts that have nothing to do with it, which AdvUnlearn and SPM keep.
        mask: [m, n] bool, which positions of ``concept`` are the concept's own words.
    """

    captions: np.ndarray
    concept: np.ndarray
    anchor: np.ndarray
    neutral: np.ndarray
    mask: np.ndarray

    def of_classes(self, key: PRNGKeyArray, labels: Int[Array, " b"]) -> Int[Array, "b n"]:
        """A random prompt of each example's class."""
        chosen = jax.random.randint(key, labels.shape, 0, self.captions.shape[1])
        return jnp.asarray(self.captions)[labels, chosen]

    def some(self, key: PRNGKeyArray, which: np.ndarray, count: int) -> Int[Array, "b n"]:
        """``count`` random rows of a table of prompts."""
        return jnp.asarray(which)[jax.random.randint(key, (count,), 0, which.shape[0])]


class Diffusion(NamedTuple):
    """What a method knows of a text-to-image task: ``TaskInfo.diffusion``.

    Attributes:
        model: The model.
        prompts: What its examples and the concept are called.
    """

    model: TextToImage
    prompts: Prompts


def denoising_loss(
    model: TextToImage,
    params: Any,
    latents: Float[Array, "b h w c"],
    context: Float[Array, "b n w"],
    noise: Float[Array, "b h w c"],
    times: Int[Array, " b"],
) -> Float[Array, " b"]:
    """Mean squared error of the predicted noise, of each example (Ho et al., equation 14)."""
    predicted = model.predict(params, add_noise(model.schedule, latents, noise, times), times, context)
    return jnp.mean(jnp.square(predicted - noise), axis=(1, 2, 3))
