"""What unlearning methods of text-to-image models share: what is trained, losses of predicted noise, and descending phases.

A step's forget batch holds images of the concept, its retain batch images of all else; x are images in [0, 1], y classes. The
teacher is what the phase starts from. Text encoders stay as they are but for AdvUnlearn's.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.diffusion import Diffusion, TextToImage, add_noise
from jaxunlearn.types import Batch, ForgetRetain, Params, Phase, State, TaskInfo
from jaxunlearn.unlearn.base import steps_per_epoch
from jaxunlearn.unlearn.parts import Split

Subset = Literal["full", "xattn", "noxattn", "selfattn", "text"]


def diffusion_of(task: TaskInfo) -> Diffusion:
    """The task's text-to-image model and prompts.

    Raises:
        InputError: It has none.
    """
    if task.diffusion is None:
        raise _validate.InputError(
            "Expected a task with a text-to-image model, got one of another kind; take another method."
        )
    return task.diffusion


def in_subset(path: str, subset: Subset) -> bool:
    """Whether a parameter belongs to a subset.

    Args:
        path: Its path, joined by dots.
        subset: full: the U-Net. xattn: its cross-attentions. noxattn: the U-Net but for those, its last layers and the
            embedding of the time. selfattn: its self-attentions. text: the text encoder's blocks and last norm.
    """
    if subset == "text":
        return path.startswith(("text_encoder.encoder.", "text_encoder.final_layer_norm."))
    if not path.startswith("unet."):
        return False
    if subset == "noxattn":
        left_out = path.startswith(("unet.conv_out.", "unet.conv_norm_out.", "unet.time_embedding."))
        return ".attn2." not in path and not left_out
    return {"full": True, "xattn": ".attn2." in path, "selfattn": ".attn1." in path}[subset]


def split_of(model: TextToImage, chosen: Callable[[str, Any], bool], what: str, *, rank: int = 0) -> Split:
    """How a model's parameters divide into those that move and the rest.

    Args:
        model: The model.
        chosen: ``(path, shape) -> whether it moves``.
        what: What messages call the chosen ones.
        rank: Of adapters that move in place of the parameters; 0: none.

    Raises:
        InputError: Nothing would move.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    moves: dict[str, Any] = {path: None for path, (_, leaf) in zip(paths, leaves) if chosen(path, leaf)}
    _validate.require(bool(moves), f"Expected the model to have parameters of {what}, found none; take others.")
    return Split(structure, tuple(paths), moves, rank, 1.0)


def mean_of(values: Float[Array, " b"], batch: Batch) -> Float[Array, ""]:
    """Mean over the real examples of a batch."""
    return jnp.sum(batch.weight * values) / jnp.maximum(jnp.sum(batch.weight), 1.0)


def squared(a: Float[Array, "b ..."], b: Float[Array, "b ..."]) -> Float[Array, " b"]:
    """Each example's mean squared difference."""
    return jnp.mean(jnp.square(a - b).reshape(a.shape[0], -1), axis=1)


class Noised(NamedTuple):
    """Noised images of a batch.

    Attributes:
        x: [b, h, w, c] x_t.
        noise: [b, h, w, c] that was added.
        times: [b].
    """

    x: Float[Array, "b h w c"]
    noise: Float[Array, "b h w c"]
    times: Int[Array, " b"]


def noised(key: PRNGKeyArray, model: TextToImage, params: Params, images: Float[Array, "b h w c"]) -> Noised:
    """Images at uniform times; nothing is differentiated through the autoencoder."""
    key_noise, key_time = jax.random.split(key)
    latents = lax.stop_gradient(model.encode(params, images))
    noise = jax.random.normal(key_noise, latents.shape)
    times = jax.random.randint(key_time, latents.shape[:1], 0, model.schedule.times)
    return Noised(add_noise(model.schedule, latents, noise, times), noise, times)


def denoising(key: PRNGKeyArray, diffusion: Diffusion, params: Params, batch: Batch) -> Float[Array, ""]:
    """The loss that models are trained on: MSE of the noise in a batch's images, each with a caption of its class."""
    key_image, key_caption = jax.random.split(key)
    at = noised(key_image, diffusion.model, params, batch.x)
    context = diffusion.model.embed_text(params, diffusion.prompts.of_classes(key_caption, batch.y))
    return mean_of(squared(diffusion.model.predict(params, at.x, at.times, context), at.noise), batch)


def towards_anchor(key: PRNGKeyArray, diffusion: Diffusion, params: Params, batch: Batch) -> Float[Array, ""]:
    """MSE of the noise that the model predicts for the concept against what it predicts for the anchor, itself and now."""
    key_image, key_prompt, key_anchor = jax.random.split(key, 3)
    model, prompts = diffusion
    at = noised(key_image, model, params, batch.x)
    named = model.embed_text(params, prompts.some(key_prompt, prompts.concept, batch.x.shape[0]))
    instead = model.embed_text(params, prompts.some(key_anchor, prompts.anchor, batch.x.shape[0]))
    target = lax.stop_gradient(model.predict(params, at.x, at.times, instead))
    return mean_of(squared(model.predict(params, at.x, at.times, named), target), batch)


class Given(NamedTuple):
    """What the loss of one step may look at besides the parameters.

    Attributes:
        key: New at every step.
        batch: Its examples.
        teacher: The parameters that the phase started from.
        step: Its number, from 0.
    """

    key: PRNGKeyArray
    batch: ForgetRetain
    teacher: Params
    step: Int[Array, ""]


class ConceptState(NamedTuple):
    """State of a phase; ``frozen`` is the moving part at the start."""

    rest: list[Any]
    part: dict[str, Any]
    optimizer: optax.OptState
    frozen: Any
    constant: Any


Loss = Callable[[Params, Given], Float[Array, ""]]


def no_hook(key: PRNGKeyArray, state: ConceptState, given: Given) -> ConceptState:
    """Nothing happens before a step."""
    return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConceptDescent:
    """Adam on a loss of a text-to-image model; the optimiser is given what moves and nothing else."""

    steps: int = 1000
    """Steps, >= 1."""
    batch_size: int = 1
    """Examples or drawn latents a step, >= 1; of retain examples as many."""
    rate: float = 1e-5
    """Adam's step size, > 0."""
    subset: Subset = "full"
    """What moves; see ``in_subset``."""
    weight_decay: float = 0.0
    """Decoupled decay, times the rate; >= 0."""
    clip_norm: float | None = None
    """Largest norm of a step's gradient, > 0; None does not clip."""

    def __post_init__(self):
        _validate.at_least(1, steps=self.steps, batch_size=self.batch_size)
        _validate.positive(rate=self.rate)
        _validate.non_negative(weight_decay=self.weight_decay)
        _validate.one_of("subset", self.subset, get_args(Subset))
        if self.clip_norm is not None:
            _validate.positive(clip_norm=self.clip_norm)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam, with decay and clipping where there are any."""
        clip = optax.identity() if self.clip_norm is None else optax.clip_by_global_norm(self.clip_norm)
        return optax.chain(clip, optax.adamw(self.rate, weight_decay=self.weight_decay))

    def split(self, task: TaskInfo) -> Split:
        """What moves."""
        return split_of(
            diffusion_of(task).model, lambda path, _: in_subset(path, self.subset), f"subset {self.subset!r}"
        )

    def phase(
        self,
        task: TaskInfo,
        loss: Loss,
        *,
        companion: bool = True,
        split: Split | None = None,
        starting: Callable[[Any], Params] = lambda start: start,
        constant: Callable[[PRNGKeyArray, Any], Any] = lambda key, start: (),
        optimizer: Callable[[Any], optax.GradientTransformation] | None = None,
        before: Callable[[PRNGKeyArray, ConceptState, Given], ConceptState] = no_hook,
        finish: Callable[[Split, ConceptState], Any] = lambda split, state: split.join(state.rest, state.part),
    ) -> Phase:
        """The phase that descends a loss over images of the concept.

        Args:
            task: What is unlearned.
            loss: ``(params, given) -> scalar``.
            companion: Whether retain examples are wanted.
            split: What moves; None: the method's subset.
            starting: ``(what the phase starts from) -> params``.
            constant: ``(key, what the phase starts from) -> arrays`` that stay as they are.
            optimizer: ``(constant) -> optimiser`` in place of the method's.
            before: What happens to the state before each step.
            finish: ``(split, state) -> what is handed on``.
        """
        split, adam = split or self.split(task), self.optimizer()
        batch_size = min(self.batch_size, task.forget_size)

        def init(key: PRNGKeyArray, start: Any) -> State:
            key_part, key_constant = jax.random.split(key)
            params = starting(start)
            part = split.part(key_part, params)
            leaves = dict(zip(split.paths, jax.tree.leaves(params)))
            frozen = None if split.rank else {path: leaves[path] for path in part}
            return ConceptState(split.rest(params), part, adam.init(part), frozen, constant(key_constant, start))

        def teacher(state: ConceptState) -> Params:
            if split.rank:  # adapters lie beside weights that stay
                return lax.stop_gradient(jax.tree.unflatten(split.structure, state.rest))
            return lax.stop_gradient(split.join(state.rest, state.frozen))

        def update(key: PRNGKeyArray, state: ConceptState, batch: ForgetRetain, step: Int[Array, ""]) -> State:
            key_before, key_loss = jax.random.split(key)
            given = Given(key_loss, batch, teacher(state), step)
            state = before(key_before, state, given)
            gradient = jax.grad(lambda part: loss(split.join(state.rest, part), given))(state.part)
            rule = adam if optimizer is None else optimizer(state.constant)
            updates, optimizer_state = rule.update(gradient, state.optimizer, state.part)
            part: Any = optax.apply_updates(state.part, updates)
            return state._replace(part=part, optimizer=optimizer_state)

        return Phase(
            "forget",
            -(-self.steps // steps_per_epoch(task.forget_size, batch_size)),
            batch_size,
            init,
            update,
            lambda key, state: finish(split, state),
            companion="retain" if companion else None,
            max_steps=self.steps,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising:
    """Training a U-Net on images and their captions; of it and of retraining."""

    steps: int = 1000
    """Steps, >= 1."""
    batch_size: int = 64
    """Examples a step, >= 1."""
    rate: float = 2e-3
    """Adam's step size, > 0."""
    average: float = 0.005
    """Weight of each step's parameters in the running average that is handed on, in (0, 1]; 1 hands on the last."""
    without_words: float = 0.1
    """Share of examples whose caption is left out, in [0, 1), so that guidance has what to start from."""

    def __post_init__(self):
        _validate.at_least(1, steps=self.steps, batch_size=self.batch_size)
        _validate.positive(rate=self.rate, average=self.average)
        _validate.require(self.average <= 1, f"Expected average={self.average!r} <= 1.")
        _validate.half_open_unit(without_words=self.without_words)

    def phase(self, diffusion: Diffusion, source: str, size: int) -> Phase:
        """The training over ``source`` ("train" or "retain"), which has ``size`` examples; for ``TaskInfo.train_phase``."""
        model, prompts = diffusion
        split = split_of(model, lambda path, _: path.startswith("unet."), "a U-Net")
        adam, batch_size = optax.adam(self.rate), min(self.batch_size, size)

        def init(key, params):
            part = split.part(key, params)
            return ConceptState(split.rest(params), part, adam.init(part), part, ())

        def update(key, state, batch, step):
            key_image, key_caption, key_drop = jax.random.split(key, 3)
            examples = batch.retain
            tokens = prompts.of_classes(key_caption, examples.y)
            dropped = jax.random.uniform(key_drop, examples.y.shape) < self.without_words
            tokens = jnp.where(dropped[:, None], model.nothing[None, :], tokens)

            def loss(part):
                params = split.join(state.rest, part)
                at = noised(key_image, model, params, examples.x)
                predicted = model.predict(params, at.x, at.times, model.embed_text(params, tokens))
                return mean_of(squared(predicted, at.noise), examples)

            updates, optimizer_state = adam.update(jax.grad(loss)(state.part), state.optimizer, state.part)
            part: Any = optax.apply_updates(state.part, updates)
            # As far as there have been few steps they count alike: the start is no part of the average.
            share = jnp.maximum(self.average, 1 / (step + 1.0))
            averaged = jax.tree.map(lambda mean, now: mean + share * (now - mean), state.frozen, part)
            return state._replace(part=part, optimizer=optimizer_state, frozen=averaged)

        return Phase(
            source,
            -(-self.steps // steps_per_epoch(size, batch_size)),
            batch_size,
            init,
            update,
            lambda key, state: split.join(state.rest, state.frozen),
            max_steps=self.steps,
        )
