"""Training a part of a language model: some blocks, some matrices, or low-rank adapters (LoRA; Hu et al., 2021,
arXiv:2106.09685).

The optimiser is given what moves and nothing else, so that neither decay nor momentum reaches the rest.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.sequences import LanguageModel
from jaxunlearn.types import Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What of the model is trained; all else stays as it is to the last bit."""

    blocks: tuple[int, ...] = ()
    """Blocks that move, 1..L; 0 is the embedding, L + 1 the final norm and output layer. None named: all."""
    matrices: tuple[str, ...] = ()
    """Names of parameters that move, such as down or query.weight: whole parts of a parameter's path. None named: all."""
    adapter_rank: int = 0
    """Rank of low-rank adapters (LoRA) that are trained in place of the matrices, >= 0; 0 trains the parameters themselves.
    Without blocks, adapters go to the matrices inside blocks."""
    adapter_alpha: float = 16.0
    """Adapters' product times this over the rank is added to a matrix, > 0."""

    def __post_init__(self):
        _validate.at_least(0, adapter_rank=self.adapter_rank, **{"blocks": min(self.blocks, default=0)})
        _validate.positive(adapter_alpha=self.adapter_alpha)

    def split(self, model: LanguageModel) -> "Split":
        """How a model's parameters divide.

        Raises:
            InputError: There is no such block or name, or nothing would move.
        """
        last = model.layers + 1
        _validate.require(
            max(self.blocks, default=0) <= last,
            f"Expected trained blocks={self.blocks} to be within 0..{last}: the model has {model.layers} blocks.",
        )
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        with jax.ensure_compile_time_eval():  # which block a parameter belongs to is no matter of a trace
            numbers = jax.tree.leaves(jax.tree.map(np.asarray, model.block_of(shapes)))
        leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
        paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
        for name in self.matrices:
            known = sorted({part for path in paths for part in path.split(".")})
            _validate.require(
                any(_has(path, name) for path in paths),
                f"Expected trained matrices to name parts of {', '.join(known)}; got {name!r}.",
            )
        chosen = {}
        for path, (_, leaf), number in zip(paths, leaves, numbers):
            rows = self._rows(path, leaf, number, model.layers)
            if rows is None or len(rows) > 0:
                chosen[path] = rows
        _validate.require(
            len(chosen) > 0,
            f"Nothing would be trained: no parameter is in blocks={self.blocks or 'all'} and in matrices="
            f"{self.matrices or 'all'}"
            + (" and is a matrix; leave one out." if self.adapter_rank else "; leave one out."),
        )
        return Split(structure, tuple(paths), chosen, self.adapter_rank, self.adapter_alpha)

    def _rows(self, path: str, leaf: Any, number: np.ndarray, layers: int) -> np.ndarray | None:
        """Entries of the first axis that move; None means the whole parameter."""
        stacked = number.ndim > 0
        allowed = self.blocks or (range(1, layers + 1) if self.adapter_rank else range(layers + 2))
        moves = np.isin(number.ravel(), list(allowed))
        if self.matrices and not any(_has(path, name) for name in self.matrices):
            moves[:] = False
        if self.adapter_rank and leaf.ndim != 2 + stacked:
            moves[:] = False
        return None if moves.all() else np.flatnonzero(moves) if stacked else np.arange(0)


def _has(path: str, name: str) -> bool:
    return f".{name}." in f".{path}."


class Adapter(NamedTuple):
    """Two factors of what is added to a matrix, or to each of a stack of matrices."""

    left: Float[Array, "*l m r"]
    right: Float[Array, "*l r n"]


@dataclasses.dataclass(frozen=True)
class Split:
    """A model's parameters in two: the part that moves, and the rest.

    Attributes:
        structure: Of the parameters' tree.
        paths: Names of the parameters, in its order.
        chosen: Name of each parameter that moves -> entries of its first axis that do; None means all.
        rank: Of adapters; 0 where the parameters themselves move.
        scale: Adapters' alpha.
    """

    structure: Any
    paths: tuple[str, ...]
    chosen: dict[str, np.ndarray | None]
    rank: int
    scale: float

    def part(self, key: PRNGKeyArray, params: Params) -> dict[str, Any]:
        """What moves, at the start; adapters add nothing there."""
        leaves = dict(zip(self.paths, jax.tree.leaves(params)))
        part = {path: leaves[path] if rows is None else leaves[path][rows] for path, rows in self.chosen.items()}
        if not self.rank:
            return part
        keys = jax.random.split(key, len(part))
        return {path: self._adapter(k, part[path]) for k, path in zip(keys, part)}

    def _adapter(self, key: PRNGKeyArray, leaf: Float[Array, "*l m n"]) -> Adapter:
        *stack, m, n = leaf.shape
        left = jax.random.normal(key, (*stack, m, self.rank), leaf.dtype) / math.sqrt(m)
        return Adapter(left, jnp.zeros((*stack, self.rank, n), leaf.dtype))

    def rest(self, params: Params) -> list[Any]:
        """What does not move: None in place of parameters of which all does."""
        leaves = jax.tree.leaves(params)
        if self.rank:
            return leaves
        whole = {path for path, rows in self.chosen.items() if rows is None}
        return [None if path in whole else leaf for path, leaf in zip(self.paths, leaves)]

    def join(self, rest: Sequence[Any], part: dict[str, Any]) -> Params:
        """The parameters again."""
        leaves = [self._joined(path, leaf, part) for path, leaf in zip(self.paths, rest)]
        return jax.tree.unflatten(self.structure, leaves)

    def _joined(self, path: str, leaf: Any, part: dict[str, Any]) -> Any:
        if path not in self.chosen:
            return leaf
        moved, rows = part[path], self.chosen[path]
        if self.rank:
            added = self.scale / self.rank * (moved.left @ moved.right)
            return leaf + added if rows is None else leaf.at[rows].add(added)
        return moved if rows is None else leaf.at[rows].set(moved)
