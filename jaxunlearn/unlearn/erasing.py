"""Methods that draw a text-to-image model away from what its frozen copy says of a concept, without any image: ESD, SPM and
AdvUnlearn. All share negative guidance as their target.

References:
    Gandikota et al., Erasing concepts from diffusion models, 2023, arXiv:2303.07345 (ESD).
    Lyu et al., One-dimensional adapter to rule them all, 2024, arXiv:2312.16145 (SPM).
    Zhang et al., Defensive unlearning with adversarial training, 2024, arXiv:2405.15234 (AdvUnlearn).
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.diffusion import Sampler, TextToImage, ddim, guided, sample
from jaxunlearn.types import Params, TaskInfo, Unlearner
from jaxunlearn.unlearn.concept import ConceptDescent, Subset, diffusion_of, split_of, squared
from jaxunlearn.unlearn.parts import Adapter, Split


def negative_guidance(
    concept: Float[Array, "b h w c"],
    empty: Float[Array, "b h w c"],
    *,
    eta: float,
    base: Literal["empty", "concept"] = "empty",
) -> Float[Array, "b h w c"]:
    """What the noise of the concept should become: base - eta * (concept - empty) (ESD, equation 7).

    Args:
        concept: The teacher's noise for the concept.
        empty: The teacher's noise without words.
        eta: Strength.
        base: What it is taken from: "empty" as in the first code, "concept" as in the present one, in which eta
            is larger by 1 for the same target.
    """
    return {"empty": empty, "concept": concept}[base] - eta * (concept - empty)


def noises(model: TextToImage, params: Params, x: Any, times: Any, contexts: tuple[Any, ...]) -> list[Any]:
    """The noise in x under several contexts, from one pass."""
    count = len(contexts)
    found = model.predict(
        params, jnp.concatenate([x] * count), jnp.concatenate([times] * count), jnp.concatenate(contexts)
    )
    return jnp.split(found, count)


def part_way(
    key: PRNGKeyArray, model: TextToImage, params: Params, tokens: Any, sampler: Sampler, steps: Any, scale: float
) -> Float[Array, "b h w c"]:
    """Latents after ``steps`` steps of sampling prompts with guidance; nothing is differentiated through them."""
    params = lax.stop_gradient(params)
    start = jax.random.normal(key, (tokens.shape[0], *model.latent_shape))
    predict = guided(model, params, model.embed_text(params, tokens), model.without_words(params, len(tokens)), scale)
    return lax.stop_gradient(sample(predict, sampler, start, steps))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sampling(ConceptDescent):
    """Steps on latents that are sampled on the way."""

    sampling_steps: int = 50
    """Steps of DDIM from noise to image, >= 1; a random share of them is taken."""
    sampling_guidance: float = 3.0
    """Of classifier-free guidance while sampling."""

    def __post_init__(self):
        super().__post_init__()
        _validate.at_least(1, sampling_steps=self.sampling_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ESD(_Sampling):
    """Erased stable diffusion: the noise for the concept becomes what guidance away from it would have; nothing is proven.

    ESD-x trains ``xattn`` (styles, nudity), ESD-u ``noxattn`` (objects).
    """

    subset: Subset = "xattn"
    sampled_by: Literal["student", "teacher"] = "student"
    """Who samples the latents. student: the model as it now is, as in the first code. teacher: the frozen one, as in the
    present code, which trains at the very time where sampling stopped."""
    eta: float = 1.0
    """Strength, > 0."""
    base: Literal["empty", "concept"] = "empty"
    """What guidance leads away from; see ``negative_guidance``."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(eta=self.eta)
        _validate.one_of("sampled_by", self.sampled_by, ("student", "teacher"))
        _validate.one_of("base", self.base, ("empty", "concept"))

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase; examples are not looked at."""
        model, prompts = diffusion_of(task)
        sampler = ddim(model.schedule, self.sampling_steps)

        def loss(params, given):
            key_prompt, key_level, key_start, key_time = jax.random.split(given.key, 4)
            tokens = prompts.some(key_prompt, prompts.concept, self.batch_size)
            level = jax.random.randint(key_level, (), 0, self.sampling_steps)  # counted from the image
            sampled_by = params if self.sampled_by == "student" else given.teacher
            taken = self.sampling_steps - 1 - level
            z = part_way(key_start, model, sampled_by, tokens, sampler, taken, self.sampling_guidance)
            if self.sampled_by == "teacher":
                times = jnp.full(self.batch_size, jnp.asarray(sampler.times)[taken])
            else:
                times = time_near(key_time, model, level, self.sampling_steps, self.batch_size)
            target = teachers_target(model, given.teacher, z, times, tokens, eta=self.eta, base=self.base)
            return jnp.mean(squared(model.predict(params, z, times, model.embed_text(params, tokens)), target))

        return Unlearner((self.phase(task, loss, companion=False),))


def time_near(key: PRNGKeyArray, model: TextToImage, level: Any, steps: int, count: int) -> Int[Array, " b"]:
    """A uniform time of those that a sampler of ``steps`` steps passes over at a level, for all rows the same."""
    width = model.schedule.times // steps
    return jnp.full(count, width * level + jax.random.randint(key, (), 0, width))


def teachers_target(model: TextToImage, teacher: Params, z, times, tokens, *, eta: float, base: Any = "empty") -> Any:
    """Negative guidance by the frozen model."""
    concept, empty = noises(
        model, teacher, z, times, (model.embed_text(teacher, tokens), model.without_words(teacher, len(tokens)))
    )
    return lax.stop_gradient(negative_guidance(concept, empty, eta=eta, base=base))


# --- SPM --------------------------------------------------------------------------------------------------------------


def in_transformers(path: str, leaf: Any) -> bool:
    """Whether an adapter goes to a parameter: matrices and kernels inside the U-Net's transformers."""
    return path.startswith("unet.") and ".attentions." in path and path.endswith(".weight") and len(leaf.shape) > 1


def anchors(key: PRNGKeyArray, context: Float[Array, "n w"], count: int, tries: int = 8) -> Float[Array, "k n w"]:
    """Random contexts: Gaussian directions of nearly the concept's length, accepted with probability 1 - cosine to it.

    Of ``tries`` draws the first that is accepted is taken, or the last.
    """
    key_direction, key_length, key_accept = jax.random.split(key, 3)
    drawn = jax.random.normal(key_direction, (count, tries, context.size))
    length = jnp.linalg.norm(context)
    drawn = drawn / jnp.linalg.norm(drawn, axis=-1, keepdims=True)
    cosine = drawn @ (context.ravel() / length)
    accepted = jax.random.uniform(key_accept, cosine.shape) < 1 - cosine
    first = jnp.argmax(accepted.at[:, -1].set(True), axis=1)
    chosen = jnp.take_along_axis(drawn, first[:, None, None], axis=1)[:, 0]
    factor = length * jax.random.uniform(key_length, (count, 1), minval=0.8, maxval=1.2)
    return (factor * chosen).reshape(count, *context.shape)


def gate(context: Float[Array, "b n w"], concept: Float[Array, "n w"]) -> Float[Array, " b"]:
    """How much of the adapter a prompt gets: the cosine of its context with the concept's, flattened; 0 to 1."""
    flat = context.reshape(context.shape[0], -1)
    lengths = jnp.linalg.norm(flat, axis=1) * jnp.linalg.norm(concept)
    return jnp.clip(flat @ concept.ravel() / lengths, 0.0, 1.0)


def gated(model: TextToImage) -> TextToImage:
    """The model that takes the parameters that a gated ``SPM`` hands on: every example has its own share of the adapter.

    The public code's gate is the larger of this cosine and of the overlap in tokens, which a context does not show.
    """

    def own(params, context):
        split = split_of(model, in_transformers, "transformers", rank=1)
        share = gate(context, params["spm"]["concept"])
        base = {name: part for name, part in params.items() if name != "spm"}

        def of_one(factor):
            part = {path: Adapter(factor * a["left"], a["right"]) for path, a in params["spm"]["adapters"].items()}
            return split.join(split.rest(base), part)

        return share, of_one

    def predict(params, x, times, context):
        share, of_one = own(params, context)

        def one(factor, x, time, context):
            return model.predict(of_one(factor), x[None], time[None], context[None])[0]

        return jax.vmap(one)(share, x, times, context)

    def attend(params, x, times, context):
        share, of_one = own(params, context)

        def one(factor, x, time, context):
            noise, seen = model.attend(of_one(factor), x[None], time[None], context[None])
            return noise[0], tuple(p[0] for p in seen)

        return jax.vmap(one)(share, x, times, context)

    return model._replace(predict=predict, attend=attend)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SPM(_Sampling):
    """Semi-permeable membrane: rank-1 adapters learn negative guidance, and to say nothing for random contexts; nothing is
    proven.

    The public code's optimiser keeps its moments in 8 bits; here they are float32.
    """

    steps: int = 3000
    rate: float = 1e-4
    warmup: int = 500
    """Steps in which the rate rises from 0, >= 0; after them come three cosines down to 0."""
    cycles: int = 3
    """Cosines, >= 1."""
    sampling_steps: int = 30
    eta: float = 1.0
    """Strength, > 0."""
    anchor_weight: float = 1000.0
    """Weight of the loss on random contexts, >= 0."""
    anchor_count: int = 4
    """Random contexts a step, >= 1."""
    gated: bool = False
    """False: the adapters are added to the weights, as attacked checkpoints are. True: the parameters handed on hold them
    beside the weights, for ``gated(model)``, which gives each prompt its share."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(eta=self.eta)
        _validate.non_negative(anchor_weight=self.anchor_weight)
        _validate.at_least(1, anchor_count=self.anchor_count, cycles=self.cycles)
        _validate.at_least(0, warmup=self.warmup)
        _validate.require(self.warmup < self.steps, f"Expected warmup={self.warmup} < steps={self.steps}.")

    def optimizer(self) -> optax.GradientTransformation:
        """AdamW with the rate's warm-up and restarts."""
        each = max(1, (self.steps - self.warmup) // self.cycles)
        cosines = [optax.cosine_decay_schedule(self.rate, each) for _ in range(self.cycles)]
        ends = [self.warmup + each * n for n in range(self.cycles)]
        rising = optax.linear_schedule(0.0, self.rate, max(1, self.warmup))
        schedule = optax.join_schedules([rising, *cosines], ends)
        return optax.adamw(schedule, weight_decay=self.weight_decay)

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase; examples are not looked at."""
        model, prompts = diffusion_of(task)
        sampler = ddim(model.schedule, self.sampling_steps)
        split = _Kaiming(**vars(split_of(model, in_transformers, "transformers", rank=1)))

        def loss(params, given):
            key_prompt, key_level, key_start, key_time, key_anchor = jax.random.split(given.key, 5)
            tokens = prompts.some(key_prompt, prompts.concept, self.batch_size)
            taken = jax.random.randint(key_level, (), 1, max(2, self.sampling_steps))
            z = part_way(key_start, model, params, tokens, sampler, taken, self.sampling_guidance)
            level = jnp.maximum(self.sampling_steps - 1 - taken, 0)
            times = time_near(key_time, model, level, self.sampling_steps, self.batch_size)
            context = model.embed_text(params, tokens)
            target = teachers_target(model, given.teacher, z, times, tokens, eta=self.eta)
            random = anchors(key_anchor, context[0], self.anchor_count)
            around, at = jnp.repeat(z[:1], self.anchor_count, axis=0), jnp.repeat(times[:1], self.anchor_count)
            kept = lax.stop_gradient(model.predict(given.teacher, around, at, random))
            now = model.predict(
                params,
                jnp.concatenate([z, around]),
                jnp.concatenate([times, at]),
                jnp.concatenate([context, random]),
            )
            erased, held = jnp.split(now, [self.batch_size])
            return jnp.mean(squared(erased, target)) + self.anchor_weight * jnp.mean(squared(held, kept))

        def finish(split, state):
            if not self.gated:
                return split.join(state.rest, state.part)
            params = jax.tree.unflatten(split.structure, state.rest)
            context = model.embed_text(params, jnp.asarray(prompts.concept)[:1])[0]
            adapters = {path: {"left": a.left, "right": a.right} for path, a in state.part.items()}
            return params | {"spm": {"adapters": adapters, "concept": context}}

        return Unlearner((self.phase(task, loss, companion=False, split=split, finish=finish),))


class _Kaiming(Split):
    """Adapters that start within 1 / sqrt(inputs), uniformly."""

    def _adapter(self, key: PRNGKeyArray, leaf: Float[Array, "*l m n"]) -> Adapter:
        *stack, m, n = leaf.shape
        bound = 1 / math.sqrt(m)
        left = jax.random.uniform(key, (*stack, m, self.rank), leaf.dtype, -bound, bound)
        return Adapter(left, jnp.zeros((*stack, self.rank, n), leaf.dtype))


# --- AdvUnlearn -------------------------------------------------------------------------------------------------------


def with_prefix(embeddings: Float[Array, "b n d"], prefix: Float[Array, "b k d"]) -> Float[Array, "b n d"]:
    """Embeddings of prompts with more of them right after the start; as many fall out at the end."""
    kept = embeddings.shape[1] - prefix.shape[1]
    return jnp.concatenate([embeddings[:, :1], prefix, embeddings[:, 1:kept]], axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvUnlearn(_Sampling):
    """Adversarial training of the text encoder: negative guidance also for prompts that an inner attack has found; nothing is
    proven.

    Unlike in the public code, gradients of the inner attack are not added up over its steps, and latents are sampled once a
    step by the frozen model, not anew by the student in every step of the attack.
    """

    subset: Subset = "text"
    warmup: int = 200
    """First steps, without an attack, >= 0."""
    eta: float = 1.0
    """Strength, > 0."""
    attack_steps: int = 30
    """Steps of the inner attack, >= 1."""
    attack_rate: float = 1e-3
    """Adam's step size in it, > 0."""
    attack_tokens: int = 1
    """Embeddings that it puts before the prompt, >= 1."""
    retain_weight: float = 0.3
    """Weight of the difference from the frozen model on prompts that have nothing to do with the concept, >= 0."""
    retain_batch: int = 5
    """Such prompts a step, >= 1."""

    def __post_init__(self):
        super().__post_init__()
        _validate.positive(eta=self.eta, attack_rate=self.attack_rate)
        _validate.non_negative(retain_weight=self.retain_weight)
        _validate.at_least(0, warmup=self.warmup)
        _validate.at_least(
            1, attack_steps=self.attack_steps, attack_tokens=self.attack_tokens, retain_batch=self.retain_batch
        )

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase; examples are not looked at."""
        model, prompts = diffusion_of(task)
        sampler = ddim(model.schedule, self.sampling_steps)

        def latents(key, given, table: Any, count: int):
            key_prompt, key_level, key_start, key_time = jax.random.split(key, 4)
            tokens = prompts.some(key_prompt, table, count)
            level = jax.random.randint(key_level, (), 0, self.sampling_steps)
            taken = self.sampling_steps - 1 - level
            z = part_way(key_start, model, given.teacher, tokens, sampler, taken, self.sampling_guidance)
            return tokens, z, time_near(key_time, model, level, self.sampling_steps, count)

        def loss(params, given):
            key_concept, key_attack, key_retain = jax.random.split(given.key, 3)
            tokens, z, times = latents(key_concept, given, prompts.concept, self.batch_size)
            plain = model.table(params)[tokens]
            adversarial = self._attacked(key_attack, model, lax.stop_gradient(params), given, z, times, tokens)
            embeddings = jnp.where(given.step < self.warmup, plain, adversarial)
            target = teachers_target(model, given.teacher, z, times, tokens, eta=self.eta)
            erased = model.predict(params, z, times, model.encode_text(params, embeddings))
            total = jnp.mean(squared(erased, target))
            if self.retain_weight == 0:
                return total
            tokens, z, times = latents(key_retain, given, prompts.neutral, self.retain_batch)
            kept = model.predict(given.teacher, z, times, model.embed_text(given.teacher, tokens))
            now = model.predict(params, z, times, model.embed_text(params, tokens))
            # In the warm-up, too, nothing is retained in the public code.
            weight = jnp.where(given.step < self.warmup, 0.0, self.retain_weight)
            return total + weight * jnp.mean(squared(now, lax.stop_gradient(kept)))

        return Unlearner((self.phase(task, loss, companion=False),))

    def _attacked(self, key, model: TextToImage, params: Params, given, z, times, tokens) -> Any:
        """Embeddings of prompts with the prefix by which the student says most nearly what the teacher says without it."""
        plain = lax.stop_gradient(model.table(params)[tokens])
        wanted = model.predict(given.teacher, z, times, model.embed_text(given.teacher, tokens))
        adam = optax.adam(self.attack_rate)
        # Starts as words are spread.
        spread = jnp.std(model.table(params))
        prefix = spread * jax.random.normal(key, (tokens.shape[0], self.attack_tokens, plain.shape[-1]))

        def distance(prefix):
            context = model.encode_text(params, with_prefix(plain, prefix))
            return jnp.sum(squared(model.predict(params, z, times, context), wanted))

        def step(carry, _):
            prefix, state = carry
            updates, state = adam.update(jax.grad(distance)(prefix), state)
            return (optax.apply_updates(prefix, updates), state), None

        def search():
            return lax.scan(step, (prefix, adam.init(prefix)), None, length=self.attack_steps)[0][0]

        found = lax.cond(given.step < self.warmup, lambda: prefix, search)
        return lax.stop_gradient(with_prefix(plain, found))
