"""Methods that teach a text-to-image model something else for images of the concept: SalUn, EraseDiff, Forget-Me-Not and
ScissorHands.

References:
    Fan et al., SalUn, 2024, arXiv:2310.12508.
    Wu et al., EraseDiff, 2024, arXiv:2401.05779.
    Zhang et al., Forget-Me-Not, 2023, arXiv:2303.17591.
    Wu and Harandi, Scissorhands, 2024, arXiv:2401.06187.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxunlearn import _validate
from jaxunlearn.diffusion import TextToImage, guided
from jaxunlearn.types import Batch, Params, Phase, TaskInfo, Unlearner
from jaxunlearn.unlearn.base import norm, steps_per_epoch
from jaxunlearn.unlearn.concept import (
    ConceptDescent,
    Noised,
    Subset,
    denoising,
    diffusion_of,
    mean_of,
    no_hook,
    noised,
    squared,
    towards_anchor,
)
from jaxunlearn.unlearn.parts import Split
from jaxunlearn.unlearn.relabel import largest, masked

# --- SalUn ------------------------------------------------------------------------------------------------------------


class Marked(NamedTuple):
    """What a first phase hands on: the model, and which entries of its moving part may move, by path."""

    params: Params
    mask: Any


def guided_loss(model: TextToImage, params: Params, at: Noised, context: Any, batch: Batch, scale: float) -> Any:
    """MSE of the noise against (1 + s) e(c) - s e(""), as SalUn's mask has it: guidance of strength 1 + s."""
    empty = model.without_words(params, at.x.shape[0])
    return mean_of(squared(guided(model, params, context, empty, 1 + scale)(at.x, at.times), at.noise), batch)


def saliency(task: TaskInfo, split: Split, batch_size: int, density: float, scale: float) -> Phase:
    """One pass over the forget set; marks the int(density * P) entries of the moving part of largest summed gradient."""
    model, prompts = diffusion_of(task)

    def init(key, params):
        return params, jax.tree.map(jnp.zeros_like, split.part(key, params))

    def update(key, state, batch, step):
        params, total = state
        rest, part = split.rest(params), split.part(key, params)
        key_image, key_caption = jax.random.split(key)

        def loss(part):
            moved = split.join(rest, part)
            at = noised(key_image, model, moved, batch.forget.x)
            context = model.embed_text(moved, prompts.of_classes(key_caption, batch.forget.y))
            return guided_loss(model, moved, at, context, batch.forget, scale)

        return params, jax.tree.map(jnp.add, total, jax.grad(loss)(part))

    def finalize(key, state):
        params, total = state
        size = sum(leaf.size for leaf in jax.tree.leaves(total))
        _validate.require(
            int(density * size) >= 1, f"Expected {density=} to keep one of {size} parameters, use {1 / size:.2g}."
        )
        return Marked(params, largest(jax.tree.map(jnp.abs, total), int(density * size)))

    return Phase("forget", 1, min(batch_size, task.forget_size), init, update, finalize)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SalUnDiffusion(ConceptDescent):
    """SalUn: on salient weights, the concept is drawn to what the model now says of another one, beside ordinary training on
    the rest; nothing is proven.
    """

    steps: int = 1000
    batch_size: int = 8
    alpha: float = 0.5
    """Weight of the training loss on retain images, >= 0; .5 for objects, .1 for nudity."""
    density: float = 0.5
    """Share of the moving parameters that may move, in (0, 1]."""
    mask_guidance: float = 7.5
    """s of the mask's loss, in which the noise is (1 + s) e(c) - s e("")."""
    mask_mode: Literal["hard", "gradient"] = "hard"
    """hard: the others stay as they are. gradient: they have no gradient, as in the public code; equal without decay."""

    def __post_init__(self):
        super().__post_init__()
        _validate.non_negative(alpha=self.alpha, mask_guidance=self.mask_guidance)
        _validate.positive(density=self.density)
        _validate.require(self.density <= 1, f"Expected density={self.density!r} <= 1.")
        _validate.one_of("mask_mode", self.mask_mode, ("hard", "gradient"))

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass for the mask, then the descent."""
        diffusion, split, adam = diffusion_of(task), self.split(task), self.optimizer()

        def loss(params, given):
            key_forget, key_retain = jax.random.split(given.key)
            forget = towards_anchor(key_forget, diffusion, params, given.batch.forget)
            return forget + self.alpha * denoising(key_retain, diffusion, params, given.batch.retain)

        descent = self.phase(
            task,
            loss,
            split=split,
            starting=lambda start: start.params,
            constant=lambda key, start: start.mask,
            optimizer=lambda mask: masked(adam, mask, hard=self.mask_mode == "hard"),
        )
        return Unlearner((saliency(task, split, self.batch_size, self.density, self.mask_guidance), descent))


# --- EraseDiff --------------------------------------------------------------------------------------------------------


def adaptive_weight(retain: Params, forget: Params, eta: float) -> jax.Array:
    """max(0, eta - cosine of the two gradients)."""
    product = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(retain), jax.tree.leaves(forget)))
    return jnp.maximum(0.0, eta - product / jnp.maximum(norm(retain) * norm(forget), 1e-12))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EraseDiff(ConceptDescent):
    """EraseDiff: training on the rest plus lambda times how far the concept is from what stands in its place.

    The paper's bilevel term subtracts the mean loss of K inner epochs. It is a constant and has no gradient, so that these
    epochs change nothing but Adam's moments, which the public code does not put back. Nothing is proven.
    """

    steps: int = 1000
    batch_size: int = 16
    weight: float = 0.1
    """lambda, >= 0; .1 is the code's default, its scripts have 1."""
    adaptive: float | None = None
    """eta, in place of lambda: max(0, eta - cosine of the gradients) at every step, as in the code for nudity."""
    inner: Literal["none", "moments"] = "none"
    """none: no inner steps. moments: each step is preceded by ``inner_steps`` of Adam on the concept's loss, of which only
    Adam's moments are kept, as in the public code (there by epochs)."""
    inner_steps: int = 1
    """K, >= 1."""

    def __post_init__(self):
        super().__post_init__()
        _validate.non_negative(weight=self.weight)
        _validate.at_least(1, inner_steps=self.inner_steps)
        _validate.one_of("inner", self.inner, ("none", "moments"))
        if self.adaptive is not None:
            _validate.positive(adaptive=self.adaptive)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase."""
        diffusion, split, adam = diffusion_of(task), self.split(task), self.optimizer()

        def parts(params, given):
            key_forget, key_retain = jax.random.split(given.key)
            return (
                lambda moved: denoising(key_retain, diffusion, moved, given.batch.retain),
                lambda moved: towards_anchor(key_forget, diffusion, moved, given.batch.forget),
            )

        def loss(params, given):
            retain, forget = parts(params, given)
            weight = self.weight
            if self.adaptive is not None:
                at = lax.stop_gradient(params)
                gradients = self._gradient(split, retain, at), self._gradient(split, forget, at)
                weight = lax.stop_gradient(adaptive_weight(gradients[0], gradients[1], self.adaptive))
            return retain(params) + weight * forget(params)

        def inner(key, state, given):
            part, optimizer = state.part, state.optimizer
            for k in jax.random.split(key, self.inner_steps):
                forget = parts(None, given._replace(key=k))[1]
                gradient = jax.grad(lambda part, forget=forget: forget(split.join(state.rest, part)))(part)
                updates, optimizer = adam.update(gradient, optimizer, part)
                part = optax.apply_updates(part, updates)
            return state._replace(optimizer=optimizer)

        before = inner if self.inner == "moments" else no_hook
        return Unlearner((self.phase(task, loss, split=split, before=before),))

    @staticmethod
    def _gradient(split: Split, loss, params: Params) -> Params:
        rest, part = split.rest(params), split.part(jax.random.key(0), params)
        return jax.grad(lambda part: loss(split.join(rest, part)))(part)


# --- Forget-Me-Not ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetMeNot(ConceptDescent):
    """Forget-Me-Not, second stage: brings down how much the images look at the concept's words; nothing is proven.

    The first stage learns embeddings that stand for the concept, from which the words' own are taken here.
    """

    steps: int = 35
    rate: float = 2e-6
    subset: Subset = "full"
    weight_decay: float = 0.01
    clip_norm: float | None = 1.0
    pooled: bool = False
    """Whether the end of the prompt and its padding count as the concept's words too."""

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase over images of the concept alone."""
        model, prompts = diffusion_of(task)
        concept, words = jnp.asarray(prompts.concept), jnp.asarray(prompts.mask)
        if self.pooled:
            words = words | (concept == model.end) | (concept == model.pad)

        def loss(params, given):
            forget = given.batch.forget
            key_image, key_prompt = jax.random.split(given.key)
            rows = jax.random.randint(key_prompt, forget.y.shape, 0, concept.shape[0])
            at = noised(key_image, model, params, forget.x)
            _, seen = model.attend(params, at.x, at.times, model.embed_text(params, concept[rows]))
            return attention_norm(seen, words[rows] & (forget.weight > 0)[:, None])

        return Unlearner((self.phase(task, loss, companion=False),))


def attention_norm(probabilities: Any, words: Any) -> jax.Array:
    """The Frobenius norm of all layers' probabilities [b, heads, pixels, n] at the marked words [b, n] together."""
    total = sum(jnp.sum(jnp.where(words[:, None, None, :], jnp.square(p), 0.0)) for p in probabilities)
    return jnp.sqrt(total + 1e-12)


# --- ScissorHands -----------------------------------------------------------------------------------------------------


def trimmed(key, params: Params, sensitivity: dict[str, Any], split: Split, count: int, options: "ScissorHands"):
    """``params`` with new initial values where the sensitivity is among the ``count`` largest of all."""
    mask = largest(sensitivity, count)
    part = split.part(key, params)
    fan_in = {path: math.prod(leaf.shape[:-1]) for path, leaf in part.items() if leaf.ndim > 1}
    for path, k in zip(part, jax.random.split(key, len(part))):
        reached = not options.reinitialised or any(name in path for name in options.reinitialised)
        if not reached or (path not in fan_in and not path.endswith("bias")):
            continue  # the scale of a norm is no weight that Kaiming's rule knows
        fresh = jnp.zeros_like(part[path])
        if path in fan_in:
            bound = math.sqrt((1 if options.fresh == "sqrt5" else 6) / fan_in[path])
            fresh = jax.random.uniform(k, part[path].shape, minval=-bound, maxval=bound)
        part[path] = jnp.where(mask[path], fresh, part[path])
    return split.join(split.rest(params), part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScissorHands(ConceptDescent):
    """ScissorHands: the weights to which the concept is most sensitive start anew, then training on the rest away from it.

    The paper's projection of gradients is in the public code for this task an option that does nothing; it is left out here.
    Nothing is proven.
    """

    steps: int = 1000
    batch_size: int = 8
    rate: float = 2e-5
    share: float = 0.001
    """Share of the moving parameters that start anew, in (0, 1): .001 (sparsity .999) for objects, .005 for nudity."""
    reinitialised: tuple[str, ...] = ()
    """Parts of paths outside which nothing starts anew, though all count for the share; none: everywhere. The public code
    has the self-attentions ``up_blocks.1.attentions.1`` and ``up_blocks.2.attentions.1`` of Stable Diffusion."""
    fresh: Literal["sqrt5", "relu"] = "sqrt5"
    """Kaiming's uniform start with a = sqrt(5), within 1 / sqrt(inputs), or for a ReLU, sqrt(6) times as wide."""
    snip_batches: int = 10
    """Batches over which the sensitivity is summed, >= 1."""
    away: Literal["ascent", "anchor"] = "ascent"
    """ascent: minus the training loss on the concept (objects). anchor: plus its distance from the anchor (nudity)."""
    weight: float = 0.1
    """Of that term, >= 0."""

    def __post_init__(self):
        super().__post_init__()
        _validate.open_unit(share=self.share)
        _validate.at_least(1, snip_batches=self.snip_batches)
        _validate.non_negative(weight=self.weight)
        _validate.one_of("fresh", self.fresh, ("sqrt5", "relu"))
        _validate.one_of("away", self.away, ("ascent", "anchor"))

    def build(self, task: TaskInfo) -> Unlearner:
        """A pass for the sensitivity, then the descent."""
        diffusion, split = diffusion_of(task), self.split(task)

        def loss(params, given):
            key_forget, key_retain = jax.random.split(given.key)
            retain = denoising(key_retain, diffusion, params, given.batch.retain)
            if self.away == "anchor":
                return retain + self.weight * towards_anchor(key_forget, diffusion, params, given.batch.forget)
            return retain - self.weight * denoising(key_forget, diffusion, params, given.batch.forget)

        return Unlearner((self._trimming(task, split), self.phase(task, loss, split=split)))

    def _trimming(self, task: TaskInfo, split: Split) -> Phase:
        diffusion = diffusion_of(task)
        batch_size = min(self.batch_size, task.forget_size)

        def init(key, params):
            return params, jax.tree.map(jnp.zeros_like, split.part(key, params))

        def update(key, state, batch, step):
            params, total = state
            rest, part = split.rest(params), split.part(key, params)
            gradient = jax.grad(lambda part: denoising(key, diffusion, split.join(rest, part), batch.forget))(part)
            return params, jax.tree.map(lambda sum_, g: sum_ + jnp.abs(g), total, gradient)

        def finalize(key, state):
            params, total = state
            part = split.part(key, params)
            sensitivity = jax.tree.map(lambda w, g: jnp.abs(w) * g, part, total)
            size = sum(leaf.size for leaf in jax.tree.leaves(part))
            count = int(self.share * size)
            _validate.require(count >= 1, f"Expected share={self.share} to reach one of {size} parameters.")
            return trimmed(key, params, sensitivity, split, count, self)

        epochs = -(-self.snip_batches // steps_per_epoch(task.forget_size, batch_size))
        return Phase("forget", epochs, batch_size, init, update, finalize, max_steps=self.snip_batches)
