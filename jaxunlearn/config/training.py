"""How models are trained, and the sizes of those that read text."""

import dataclasses
from typing import Literal

from jaxunlearn import _validate
from jaxunlearn.unlearn.base import SGD, AdamW


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the audited models are trained."""

    epochs: int = 60
    """Epochs over D(S), >= 1."""
    batch_size: int | None = 64
    """Examples a step in training and unlearning, >= 1; None takes all at once (full-batch descent)."""
    descent: SGD | AdamW = SGD()

    def __post_init__(self):
        _validate.at_least(1, epochs=self.epochs)
        if self.batch_size is not None:
            _validate.at_least(1, batch_size=self.batch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text:
    """What is drawn from Shakespeare, and the size of its character model."""

    source: Literal["plays", "tiny"] = "plays"
    """plays: all plays by role (shakespeare_speeches.jsonl.gz). tiny: tinyshakespeare.txt by speaker."""
    roles: int = 300
    """Roles that are drawn, >= 2."""
    forget_share: float = 0.1
    """Share of the training characters whose roles are in the pool, in (0, 1)."""
    length: int = 80
    """Characters of a window, >= 1."""
    stride: int = 80
    """Characters from one window's start to the next, >= 1."""
    embedding: int = 8
    """Size of a character's embedding, >= 1."""
    hidden: int = 256
    """Units of each LSTM layer, >= 1."""
    layers: int = 2
    """LSTM layers, >= 1."""

    def __post_init__(self):
        _validate.at_least(2, roles=self.roles)
        _validate.open_unit(forget_share=self.forget_share)
        sizes = ("length", "stride", "embedding", "hidden", "layers")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder:
    """Sizes of a small Llama and of the byte-pair encoding that is learnt for it."""

    vocabulary: int = 768
    """Tokens, >= 257."""
    width: int = 128
    """Of the residual stream; heads divide it."""
    layers: int = 4
    """Blocks."""
    heads: int = 4
    """Query heads."""
    kv_heads: int = 2
    """Key and value heads, which divide the query heads."""
    hidden: int = 336
    """Units of the feed-forward parts."""

    def __post_init__(self):
        _validate.at_least(257, vocabulary=self.vocabulary)
        sizes = ("width", "layers", "heads", "kv_heads", "hidden")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})
