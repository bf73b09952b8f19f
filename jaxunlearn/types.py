"""Device-side types: what a model, a batch and an unlearner are."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxunlearn.diffusion import Diffusion
from jaxunlearn.patches import Autoencoder
from jaxunlearn.sequences import LanguageModel

Params = Any
"""A pytree of float arrays; of a model with BatchNorm, ``Variables``."""

State = Any
"""A pytree of arrays carried from step to step."""


class Batch(NamedTuple):
    """Examples of one step.

    Attributes:
        x: [b, ...] inputs.
        y: [b] integer labels, [b, T] where every position of a sequence has one.
        weight: [b] 1 for an example, 0 for padding at the end of an epoch. Absent examples are never given weight 0: they
            are not gathered at all, since a zero weight would still move batch boundaries.
        is_forget: [b] whether an example belongs to the run's forget set; the engine always says.
        reference: What the phase's ``reference`` said of these examples; None where it asks for none.
    """

    x: Float[Array, "b ..."]
    y: Int[Array, "b ..."]
    weight: Float[Array, " b"]
    is_forget: Bool[Array, " b"] | None = None
    reference: Any = None


class Start(NamedTuple):
    """What an unlearner with ``with_initial`` starts from.

    Attributes:
        trained: The trained model.
        initial: What that was trained from: initial weights, or a pretrained model.
    """

    trained: Any
    initial: Any


class Variables(NamedTuple):
    """What a model with BatchNorm carries.

    Attributes:
        params: A pytree of what is trained, decayed, masked.
        statistics: A pytree of running means and variances, which no gradient moves.
    """

    params: Params
    statistics: Any


class ForgetRetain(NamedTuple):
    """The batches of one unlearning step; a part that the phase does not ask for is None and must not be touched."""

    retain: Batch
    forget: Batch


class Model(NamedTuple):
    """A model as two pure functions.

    Attributes:
        init: ``(key) -> params``.
        apply: ``(params, x [b, ...]) -> logits [b, classes]``, of sequences [b, T, classes]; always in evaluation mode, in
            which an example's logits do not depend on the rest of its batch.
        train: The same in training mode, ``(params, x, weight [b]) -> (logits, params with moved statistics)``; examples of
            weight 0 count in no statistic. None where the modes do not differ.
    """

    init: Callable[[PRNGKeyArray], Params]
    apply: Callable[[Params, Float[Array, "b ..."]], Float[Array, "b *t classes"]]
    train: Callable[[Params, Float[Array, "b ..."], Float[Array, " b"]], tuple[Array, Params]] | None = None


class Phase(NamedTuple):
    """A stretch of steps with one update rule, over whole epochs of one set of examples.

    Attributes:
        source: Which examples an epoch covers: "train" (all of D(S)), "retain", "forget" (the run's own D_f(S)), or
            "forget-then-retain" (all batches of D_f(S), then all of D_r; no batch holds both).
        epochs: How many epochs, >= 0.
        batch_size: Examples a step; the last batch of an epoch may be smaller.
        init: ``(key, params) -> state``.
        update: ``(key, state, batch: ForgetRetain, step) -> state``, pure; ``step`` counts from 0 within the phase and
            ``key`` is new at every step and run.
        finalize: ``(key, state) -> params``; output noise and averaging go here. A phase that is followed by another may
            hand on any pytree.
        companion: A second source ("forget" beside "retain") whose batches cycle along, or None. With source "train" or
            "forget-then-retain" the examples arrive as ``batch.retain``.
        max_steps: Stop after this many steps even inside an epoch; None means the whole of ``epochs``.
        augment: Whether the task's augmentation of inputs, if it has one, is wanted.
        reference: ``(params, x [b, ...], y [b, ...]) -> arrays [b, ...]`` of what the phase starts from; computed once for
            every example of ``source`` before the first step, and handed to steps as ``Batch.reference`` of the source's
            batches (a companion's have none). None: nothing.
    """

    source: str
    epochs: int
    batch_size: int
    init: Callable[[PRNGKeyArray, Params], State]
    update: Callable[[PRNGKeyArray, State, ForgetRetain, Int[Array, ""]], State]
    finalize: Callable[[PRNGKeyArray, State], Params]
    companion: str | None = None
    max_steps: int | None = None
    augment: bool = True
    reference: Callable[[Params, Array, Array], Any] | None = None


class Unlearner(NamedTuple):
    """An unlearning algorithm: phases run one after the other.

    Attributes:
        phases: The phases, in order.
        from_scratch: True if it starts from the initial weights x_0 instead of the trained model (retraining).
        certificate: ``{"epsilon", "delta", "source"}`` that theory proves for this configuration, or None.
        rewind: Epochs of the base training that are undone first: it starts from the checkpoint so many epochs before the
            end.
        notes: Sentences for the reader of the audit: what the guarantee rests on, or why there is none.
        with_initial: Whether the first phase starts from ``Start`` in place of the trained parameters.
    """

    phases: tuple[Phase, ...]
    from_scratch: bool = False
    certificate: dict[str, Any] | None = None
    rewind: int = 0
    notes: tuple[str, ...] = ()
    with_initial: bool = False


@runtime_checkable
class UnlearnerFactory(Protocol):
    """What ``--methods package.module:name`` must point to: given the task, it builds an Unlearner."""

    def __call__(self, task: "TaskInfo") -> Unlearner:
        """Builds the algorithm for a task."""
        ...


class TaskInfo(NamedTuple):
    """What a method may know when it is built.

    Attributes:
        model: The model's pure functions.
        loss: ``(params, batch) -> scalar``: mean cross-entropy in nats over the batch's real examples.
        retain_size: Examples in D_r.
        forget_size: Examples in D_f(S), equal for all runs because sign vectors are balanced.
        batch_size: Batch size of the base training; at least the training set's size means full batches.
        train_phase: ``(source) -> Phase``: the base training over "train" (as the audited models were made) or over
            "retain" (retraining).
        train_epochs: Epochs of the base training.
        descent: The base training's optimiser settings (``unlearn.base.SGD``), or None where it is another.
        curvature_loss: The same loss in a form that forward-mode differentiation takes; fast layers with a derivative of
            their own refuse it. None: ``loss`` takes it.
        training_loss: ``(params, batch) -> (scalar, params with moved statistics)``: the loss in training mode. None: the
            modes do not differ.
        language: The decoder, of a language task (``sequences``); None elsewhere.
        autoencoder: The masked autoencoder, of an image-to-image task (``patches``); None elsewhere. Its batches are images
            in [0, 1] with labels; ``model.apply`` gives images with their hidden part filled in.
        diffusion: Model and prompts, of a text-to-image task (``diffusion``), whose x are images in [0, 1] and whose y are
            classes; None elsewhere.
    """

    model: Model
    loss: Callable[[Params, Batch], jax.Array]
    retain_size: int
    forget_size: int
    batch_size: int
    train_phase: Callable[[str], Phase]
    train_epochs: int = 0
    descent: Any = None
    curvature_loss: Callable[[Params, Batch], jax.Array] | None = None
    training_loss: Callable[[Params, Batch], tuple[jax.Array, Params]] | None = None
    language: LanguageModel | None = None
    autoencoder: Autoencoder | None = None
    diffusion: Diffusion | None = None
