"""Methods that steer hidden states: RMU (Li et al., 2024, arXiv:2403.03218) to a random direction, RAU (PrivUn, 2026,
arXiv:2604.22076) to what they were before the model was fine-tuned.

Blocks are counted from 1: state l is the residual stream after l of them. Papers that count layers from 0 call it l - 1.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxunlearn import _validate
from jaxunlearn.sequences import IGNORED, LanguageModel, Reduction, reduce
from jaxunlearn.types import Batch, Params, TaskInfo, Unlearner
from jaxunlearn.unlearn.language import Given, LanguageDescent, Retaining, Seen, decoder, variant
from jaxunlearn.unlearn.parts import Trained

_ANCHORS = (
    "RAU anchors the states of the model that is trained; the PrivUn paper's formula names the target's, which stay as they "
    "are. It leaves the weights of blocks and the retain loss open."
)

Positions = Literal["answer", "prediction", "all"]
Distance = Literal["mean", "squared_norm"]


def steered(labels: Int[Array, "b t"], positions: Positions) -> Bool[Array, "b t"]:
    """Where states are compared.

    Args:
        labels: Negative where a token is not scored.
        positions: answer: at scored tokens. prediction: where those are predicted from, a position earlier. all: everywhere,
            prompt and padding included.
    """
    if positions == "all":
        return jnp.ones(labels.shape, bool)
    return labels >= 0 if positions == "answer" else jnp.pad(labels[:, 1:] >= 0, ((0, 0), (0, 1)))


def state_loss(
    states: Float[Array, "b t d"],
    target: Float[Array, "b t d"],
    batch: Batch,
    *,
    positions: Positions = "answer",
    distance: Distance = "mean",
    reduction: Reduction = "token_mean",
) -> Float[Array, ""]:
    """How far states are from their target.

    Args:
        states: Hidden states.
        target: Where they should be.
        batch: Says which tokens are scored and which rows are real.
        positions: See ``steered``.
        distance: mean: the squared difference's mean over d, as in the code of RMU. squared_norm: its sum, d times that, as
            in the papers' formulas.
        reduction: How positions are summed.
    """
    difference = jnp.square(states - target)
    values = difference.mean(axis=-1) if distance == "mean" else difference.sum(axis=-1)
    marks = jnp.where(steered(batch.y, positions), 0, IGNORED)
    return reduce(values, jnp.pad(marks, ((0, 0), (1, 0))), batch.weight, reduction)


def direction(key, width: int) -> Float[Array, " d"]:
    """RMU's u: uniform in [0, 1)^d, scaled to length 1; all its entries are positive."""
    u = jax.random.uniform(key, (width,))
    return u / jnp.linalg.norm(u)


def state_norm(model: LanguageModel, params: Params, batch: Batch, block: int, positions: Positions = "answer") -> Any:
    """Mean length of the states after a block, which c of RMU should be set against; ``batch`` has all variants."""
    row = variant(batch, "answer")
    lengths = jnp.linalg.norm(model.hidden(params, row.x, block, block)[0], axis=-1)
    marks = jnp.where(steered(row.y, positions), 0, IGNORED)
    return reduce(lengths, jnp.pad(marks, ((0, 0), (1, 0))), row.weight)


def _three_quarters(layers: int) -> int:
    return max(1, round(3 * layers / 4))


def _together(*batches: Batch) -> Array:
    return jnp.concatenate([batch.x for batch in batches])


@dataclasses.dataclass(frozen=True, kw_only=True)
class RMU(LanguageDescent):
    """Representation misdirection: moves the states of forget rows after one block to a random vector, and holds those of
    retain rows; nothing is proven.
    """

    loss_block: int | None = None
    """Block after which states are compared, 1..L. Default: three quarters of the depth (21 of 28, which is layer 20 counted
    from 0)."""
    c: float = 20.0
    """Length of the vector that states are moved to, > 0; to be set against the states' own length."""
    adaptive: bool = False
    """Whether c is a multiple of the length that each state had before unlearning (adaptive RMU, arXiv:2408.06223)."""
    alpha: float = 100.0
    """Weight of the retain rows' term, >= 0."""
    positions: Positions = "answer"
    """Where states are compared. answer: at scored tokens. prediction: where these are predicted from. all: everywhere,
    prompt and padding included, as in the code of RMU."""
    distance: Distance = "mean"
    """mean: squared differences' mean over the width, as in the code of RMU. squared_norm: their sum, as in its formula."""
    trained: Trained = Trained()
    """Blocks that move, all <= loss_block, since later ones have no gradient. None named: loss_block and the two before."""

    def __post_init__(self):
        super().__post_init__()
        if self.loss_block is not None:
            _validate.at_least(1, loss_block=self.loss_block)
        _validate.positive(c=self.c)
        _validate.non_negative(alpha=self.alpha)
        _validate.one_of("positions", self.positions, get_args(Positions))
        _validate.one_of("distance", self.distance, get_args(Distance))

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase; the model is run up to ``loss_block`` only.

        Raises:
            InputError: ``loss_block`` is deeper than the model, or a block that should move comes after it.
        """
        model = decoder(task)
        at = _three_quarters(model.layers) if self.loss_block is None else self.loss_block
        _validate.require(at <= model.layers, f"Expected loss_block={at} <= {model.layers}, the model's blocks.")
        late = [block for block in self.trained.blocks if block > at]
        _validate.require(
            not late, f"Expected trained blocks <= loss_block={at}, got {late}: they have no gradient; leave them out."
        )
        blocks = self.trained.blocks or tuple(range(max(1, at - 2), at + 1))
        method = dataclasses.replace(self, trained=dataclasses.replace(self.trained, blocks=blocks))

        def states(params: Params, x: Array) -> Float[Array, "b t d"]:
            return model.hidden(params, x, at, at)[0]

        def lengths(params: Params, x: Array, y: Array) -> Float[Array, "b t"]:
            return jnp.linalg.norm(states(params, x[:, 0]), axis=-1)

        phase = method.phase(
            task,
            self._loss(states),
            companion=self.alpha > 0,
            frozen=self.alpha > 0,
            reference=lengths if self.adaptive else None,
            constant=lambda key, _: direction(key, model.width),
        )
        return Unlearner((phase,), notes=self._notes(model, at, blocks))

    def _loss(self, states: Callable[[Params, Array], Array]) -> Callable[[Params, Given], Array]:
        options = {"positions": self.positions, "distance": self.distance, "reduction": self.reduction}

        def loss(params, given):
            forget = variant(given.forget, "answer")
            length = given.forget.reference[..., None] if self.adaptive else jnp.ones((1, 1, 1))
            target = self.c * length * given.constant[None, None, :]
            if given.retain is None:
                now = states(params, forget.x)
                return state_loss(now, jnp.broadcast_to(target, now.shape), forget, **options)
            retain = variant(given.retain, "answer")
            now, held = jnp.split(states(params, _together(forget, retain)), [forget.x.shape[0]])
            misdirected = state_loss(now, jnp.broadcast_to(target, now.shape), forget, **options)
            return misdirected + self.alpha * state_loss(held, states(given.frozen, retain.x), retain, **options)

        return loss

    def _notes(self, model: LanguageModel, at: int, blocks: tuple[int, ...]) -> tuple[str, ...]:
        return (
            f"RMU compares states after block {at} of {model.layers} and moves blocks {', '.join(map(str, blocks))}. The "
            "PrivUn paper lists the layers after the compared one as updated; those have no gradient.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RAU(Retaining):
    """Representation anchoring: draws the states of forget rows after several blocks to those of the model before it was
    fine-tuned; nothing is proven.
    """

    retain: Literal["none", "gdr", "klr"] = "gdr"
    """Loss on the retain set, which the paper leaves open. none. gdr: -log p of its answers. klr: the divergence of the
    model's next-token distributions from those before unlearning."""
    first_block: int | None = None
    """l0: first block after which states are anchored, 1..L. Default: three quarters of the depth (21 of 28, which is layer
    20 counted from 0)."""
    last_block: int | None = None
    """Last such block, first_block..L. Default: L."""
    block_weights: tuple[float, ...] = ()
    """alpha_l of each of these blocks, >= 0. None given: all equal, with sum 1."""
    positions: Positions = "answer"
    """Where states are compared. answer: at scored tokens. prediction: where these are predicted from. all: everywhere."""
    distance: Distance = "mean"
    """mean: squared differences' mean over the width. squared_norm: their sum, as in the paper's formula."""
    cached: bool = True
    """Whether the anchors, blocks x tokens x width numbers a row, are computed once. Otherwise a copy of the model before
    fine-tuning runs in every step, with equal results."""

    def __post_init__(self):
        super().__post_init__()
        if self.first_block is not None:
            _validate.at_least(1, first_block=self.first_block)
        if self.last_block is not None:
            _validate.at_least(self.first_block or 1, last_block=self.last_block)
        _validate.non_negative(**{f"block_weights[{i}]": weight for i, weight in enumerate(self.block_weights)})
        _validate.one_of("positions", self.positions, get_args(Positions))
        _validate.one_of("distance", self.distance, get_args(Distance))

    def build(self, task: TaskInfo) -> Unlearner:
        """One phase that starts from the trained model and the one it was trained from.

        Raises:
            InputError: Blocks are deeper than the model or in the wrong order, or not as many as their weights.
        """
        model = decoder(task)
        first = _three_quarters(model.layers) if self.first_block is None else self.first_block
        last = model.layers if self.last_block is None else self.last_block
        _validate.require(
            first <= last <= model.layers,
            f"Expected first_block={first} <= last_block={last} <= {model.layers}, the model's blocks.",
        )
        count = last - first + 1
        weights = self.block_weights or (1 / count,) * count
        _validate.require(
            len(weights) == count,
            f"Expected block_weights to hold {count} numbers, for blocks {first} to {last}, got {len(weights)}.",
        )

        def anchors(initial: Params, x: Array) -> Float[Array, "b n t d"]:
            return jnp.moveaxis(model.hidden(initial, x, first, last), 0, 1)

        def reference(start: Any, x: Array, y: Array) -> Float[Array, "b n t d"]:
            return anchors(start.initial, x[:, 0])

        phase = self.phase(
            task,
            self._loss(model, first, weights, anchors),
            companion=self.retain != "none",
            frozen=self.retain == "klr",
            starting=lambda start: start.trained,
            reference=reference if self.cached else None,
            constant=lambda key, start: () if self.cached else start.initial,
        )
        return Unlearner((phase,), notes=(_ANCHORS, *self.notes), with_initial=True)

    def _loss(
        self, model: LanguageModel, first: int, weights: tuple[float, ...], anchors
    ) -> Callable[[Params, Given], Any]:
        last = first + len(weights) - 1
        options = {"positions": self.positions, "distance": self.distance, "reduction": self.reduction}

        def anchoring(states, given, forget):
            kept = given.forget.reference if self.cached else lax.stop_gradient(anchors(given.constant, forget.x))
            terms = [weight * state_loss(states[i], kept[:, i], forget, **options) for i, weight in enumerate(weights)]
            return self.gamma * sum(terms)

        def loss(params, given):
            forget = variant(given.forget, "answer")
            if given.retain is None:
                return anchoring(model.hidden(params, forget.x, first, last), given, forget)
            retain = variant(given.retain, "answer")
            size = forget.x.shape[0]
            states = model.hidden(params, _together(forget, retain), first, model.layers)
            frozen = None if given.frozen is None else model.logits(given.frozen, retain.x)
            seen = Seen(retain, model.head(params, states[-1, size:]), frozen)
            return anchoring(states[:, :size], given, forget) + self.alpha * self.retain_loss(seen)

        return loss
