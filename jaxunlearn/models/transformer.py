"""GPT-2 and Llama as pure functions over one pytree, whose blocks lie along a leading axis of every array.

Blocks are gone through by ``lax.scan``, so that compiling takes no longer for 48 layers than for 13; up to ``WRITTEN_OUT``
the loop is unrolled. Attention is plain, without a kernel that has a derivative of its own: forward-mode differentiation
goes through.

References:
    Radford et al., Language models are unsupervised multitask learners, 2019 (GPT-2).
    Touvron et al., LLaMA, 2023, arXiv:2302.13971; Llama team, The Llama 3 herd of models, 2024, arXiv:2407.21783.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.sequences import LanguageModel
from jaxunlearn.types import Model, Params

Family = Literal["gpt2", "llama"]
Compute = Literal["float32", "bfloat16"]

WRITTEN_OUT = 12
"""Blocks up to which the loop is unrolled: a training step of 4 or 12 layers of width 128 takes 15% less time on a CPU, which
need not copy states in and out of stacks; compiling 12 takes 2 s more."""
_DEVIATION = 0.02  # of initial weights, in both families


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How Llama 3.1 and later stretch rotary frequencies to longer contexts: slow ones are divided, fast ones kept.

    Raises:
        InputError: A value is not positive, or ``high_frequency`` is not above ``low_frequency``.
    """

    factor: float = 32.0
    """What slow frequencies are divided by, >= 1."""
    low_frequency: float = 1.0
    """Wavelengths above ``context`` / this are divided by the whole factor."""
    high_frequency: float = 4.0
    """Wavelengths below ``context`` / this stay; between the two it goes over smoothly."""
    context: int = 8192
    """Tokens that the unscaled model was trained on."""

    def __post_init__(self):
        _validate.positive(factor=self.factor, low_frequency=self.low_frequency)
        _validate.at_least(1, context=self.context)
        _validate.require(
            self.high_frequency > self.low_frequency,
            f"Expected high_frequency={self.high_frequency!r} above low_frequency={self.low_frequency!r}.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a decoder is made of.

    Raises:
        InputError: A size is below 1, ``heads`` does not divide ``width``, or a field does not go with the family.
    """

    family: Family
    """gpt2: learned positions, LayerNorm, biases, GELU (tanh form). llama: rotary positions, RMSNorm, no biases, SwiGLU."""
    vocabulary: int
    """Tokens, V."""
    width: int
    """Size of the residual stream, d."""
    layers: int
    """Blocks, L."""
    heads: int
    """Query heads; each has width / heads entries."""
    kv_heads: int = 0
    """Key and value heads, each shared by heads / kv_heads query heads; 0 means as many as ``heads``."""
    hidden: int = 0
    """Units between the two matrices of a feed-forward part; 0 means 4 times the width."""
    context: int = 1024
    """Tokens that a sequence may have: of gpt2 the rows of its position table, of llama what it was trained on."""
    rope_base: float = 10000.0
    """Rotary positions turn pair i by position / base^(2i / head size)."""
    rope_scaling: RopeScaling | None = None
    """Of Llama 3.1 and later; None for none."""
    norm_epsilon: float = 1e-5
    """Added to variances."""
    tied: bool = True
    """Whether the output layer is the embedding."""

    def __post_init__(self):
        _validate.one_of("family", self.family, get_args(Family))
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.hidden:
            object.__setattr__(self, "hidden", 4 * self.width)
        sizes = ("vocabulary", "width", "layers", "heads", "kv_heads", "hidden", "context")
        _validate.at_least(1, **{name: getattr(self, name) for name in sizes})
        _validate.positive(rope_base=self.rope_base, norm_epsilon=self.norm_epsilon)
        _validate.require(self.width % self.heads == 0, f"Expected heads={self.heads} to divide width={self.width}.")
        _validate.require(
            self.heads % self.kv_heads == 0, f"Expected kv_heads={self.kv_heads} to divide heads={self.heads}."
        )
        if self.family == "gpt2":
            _validate.require(
                self.kv_heads == self.heads and self.rope_scaling is None,
                "Expected kv_heads and rope_scaling to be left out, because GPT-2 has neither; use family='llama'.",
            )
        else:
            _validate.require(
                self.head_size % 2 == 0,
                f"Expected width / heads = {self.head_size} to be even, because rotary positions turn pairs.",
            )

    @property
    def head_size(self) -> int:
        """Entries of a head."""
        return self.width // self.heads


def initial(architecture: Architecture, key: PRNGKeyArray) -> Params:
    """Initial weights: normal of deviation .02, matrices that write to the residual stream less by sqrt(2 L); biases 0.

    Matrices are [layers, in, out].
    """
    a, biased = architecture, architecture.family == "gpt2"
    kv_width = a.kv_heads * a.head_size
    matrices = {
        "query": (a.width, a.width),
        "key": (a.width, kv_width),
        "value": (a.width, kv_width),
        "attention_out": (a.width, a.width),
        "up": (a.width, a.hidden),
        "down": (a.hidden, a.width),
    } | ({} if biased else {"gate": (a.width, a.hidden)})
    tables = {"embedding": (a.vocabulary, a.width)}
    tables |= {"positions": (a.context, a.width)} if biased else {}
    tables |= {} if a.tied else {"output": (a.width, a.vocabulary)}
    shapes = tables | {name: (a.layers, *shape) for name, shape in matrices.items()}

    # One draw for all: each costs half a second to compile.
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    draws = jnp.split(_DEVIATION * jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
    drawn = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), draws)}
    for name in ("attention_out", "down"):
        drawn[name] = drawn[name] / math.sqrt(2 * a.layers)

    def with_bias(weight, outputs):
        return {"weight": weight} | ({"bias": jnp.zeros(outputs)} if biased else {})

    blocks = {name: with_bias(drawn[name], (a.layers, shape[-1])) for name, shape in matrices.items()}
    for name in ("attention_norm", "mlp_norm"):
        blocks[name] = with_bias(jnp.ones((a.layers, a.width)), (a.layers, a.width))
    norm = with_bias(jnp.ones(a.width), a.width)
    return {name: drawn[name] for name in tables} | {"blocks": blocks, "norm": norm}


def frequencies(architecture: Architecture) -> np.ndarray:
    """[head size / 2] float32 radians by which a position turns each pair, as the published weights were trained with."""
    half = np.arange(0, architecture.head_size, 2, dtype=np.float32) / np.float32(architecture.head_size)
    plain = (1.0 / np.float32(architecture.rope_base) ** half).astype(np.float32)
    scaling = architecture.rope_scaling
    if scaling is None:
        return plain
    turns = scaling.context * plain / (2 * np.pi)  # of the context it was trained on
    kept = np.clip((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency), 0.0, 1.0)
    return (kept * plain + (1 - kept) * plain / scaling.factor).astype(np.float32)


def _rows(x):
    """[..., d] as [n, d]: XLA takes its fast matrix product for sure only with a single contracted axis."""
    return x.reshape(-1, x.shape[-1])


def _linear(p, x):
    out = _rows(x) @ p["weight"]
    if "bias" in p:
        out = out + p["bias"][None, :]
    return out.reshape(*x.shape[:-1], -1)


def _norm(p, x, epsilon):
    """LayerNorm where there is a bias, RMSNorm elsewhere; in float32."""
    h = x.astype(jnp.float32)
    shape = (1,) * (h.ndim - 1) + (-1,)
    if "bias" in p:
        h = h - h.mean(axis=-1, keepdims=True)
    h = h * lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + epsilon)
    h = h * p["weight"].astype(jnp.float32).reshape(shape)
    if "bias" in p:
        h = h + p["bias"].astype(jnp.float32).reshape(shape)
    return h.astype(x.dtype)


def _rotated(x, turn):
    """Turns pairs (i, i + half) of [b, t, heads, size] by angles whose cosine and sine [b or 1, t, size / 2] are ``turn``."""
    cosine, sine = (part[:, :, None, :] for part in turn)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1).astype(x.dtype)


def _keys_and_values(a, p, x, turn):
    """[b, kv_heads, t, size] keys and values of normalised inputs [b, t, d].

    Heads first: with a cache [b, s, heads, size] attention takes 25 times as long on a CPU, which would reorder all of it.
    """
    key, value = (_linear(p[name], x).reshape(*x.shape[:2], a.kv_heads, a.head_size) for name in ("key", "value"))
    key = key if turn is None else _rotated(key, turn)
    return key.swapaxes(1, 2), value.swapaxes(1, 2)


def _attention(a, p, x, turn, key, value, seen):
    """Heads' outputs [b, t, d] of normalised inputs [b, t, d] over keys and values [b, kv_heads, s, size].

    ``seen`` [b or 1, t, s] says which are looked at. The softmax is taken in float32.
    """
    b, t, _ = x.shape
    query = _linear(p["query"], x).reshape(b, t, a.heads, a.head_size)
    if turn is not None:
        query = _rotated(query, turn)
    query = query.reshape(b, t, a.kv_heads, a.heads // a.kv_heads, a.head_size)
    scores = jnp.einsum("btkgd,bksd->bkgts", query, key, preferred_element_type=jnp.float32)
    scores = jnp.where(seen[:, None, None], scores / math.sqrt(a.head_size), jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    return jnp.einsum("bkgts,bksd->btkgd", weights, value).reshape(b, t, a.width)


def _feed_forward(a, p, x):
    up = _linear(p["up"], x)
    up = jax.nn.gelu(up, approximate=True) if a.family == "gpt2" else jax.nn.silu(_linear(p["gate"], x)) * up
    return _linear(p["down"], up)


def _block(a, p, h, turn, attend):
    """One block; ``attend(p, normalised, turn) -> (heads' outputs, what it hands on)``."""
    heads, handed_on = attend(p, _norm(p["attention_norm"], h, a.norm_epsilon), turn)
    h = h + _linear(p["attention_out"], heads)
    return h + _feed_forward(a, p, _norm(p["mlp_norm"], h, a.norm_epsilon)), handed_on


def _embedded(a, params, tokens, positions, dtype):
    """The residual stream [b, t, d] before the first block, and the rotation of positions [b or 1, t], if there is one."""
    h = jnp.asarray(params["embedding"])[tokens]
    if a.family == "gpt2":
        return (h + jnp.asarray(params["positions"])[positions]).astype(dtype), None
    angles = positions[..., None].astype(jnp.float32) * frequencies(a)[None, None, :]
    return h.astype(dtype), (jnp.cos(angles), jnp.sin(angles))


def _cast(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def _hidden(a, dtype, remat, params, tokens, first, last):
    _validate.require(0 <= first <= last <= a.layers, f"Expected 0 <= {first=} <= {last=} <= layers={a.layers}.")
    t = tokens.shape[1]
    if a.family == "gpt2":
        _validate.require(t <= a.context, f"Expected at most context={a.context} tokens, got {t}; cut the sequences.")
    h, turn = _embedded(a, params, tokens, jnp.arange(t)[None], dtype)
    seen = jnp.tril(jnp.ones((t, t), bool))[None]

    def attend(p, x, turn):
        key, value = _keys_and_values(a, p, x, turn)
        return _attention(a, p, x, turn, key, value, seen), None

    def step(h, p):
        h, _ = _block(a, _cast(p, dtype), h, turn, attend)
        return h, h if first < last else None

    blocks = params["blocks"] if last == a.layers else jax.tree.map(lambda leaf: leaf[:last], params["blocks"])
    end, states = lax.scan(jax.checkpoint(step) if remat else step, h, blocks, unroll=last <= WRITTEN_OUT)
    states = end[None] if states is None else jnp.concatenate([h[None], states])[first:]
    return states.astype(jnp.float32)


def _head(a, dtype, params, h):
    h = _norm(params["norm"], h, a.norm_epsilon).astype(dtype)
    output = params["embedding"].T if a.tied else params["output"]
    return jnp.dot(_rows(h), output.astype(dtype), preferred_element_type=jnp.float32).reshape(*h.shape[:-1], -1)


def _block_of(a, params):
    def within(name, part):
        if name == "blocks":
            return jax.tree.map(lambda leaf: np.arange(1, a.layers + 1).reshape(-1, *(1,) * (leaf.ndim - 1)), part)
        return jax.tree.map(lambda _: 0 if name in ("embedding", "positions") else a.layers + 1, part)

    return {name: within(name, part) for name, part in params.items()}


def generate(
    architecture: Architecture,
    params: Params,
    prompts: Int[Array, "b p"],
    lengths: Int[Array, " b"],
    *,
    new_tokens: int,
    stop: Sequence[int] = (),
    dtype: Compute = "float32",
) -> Int[Array, "b n"]:
    """Greedy continuations, with a cache of keys and values; pure, to be compiled by the caller.

    Args:
        architecture: What ``params`` are of.
        params: The model.
        prompts: Token ids, padded on the left with any id.
        lengths: Tokens of each prompt, in 1..p; the others are padding, which nothing looks at.
        new_tokens: How many tokens are added, >= 1 (static).
        stop: Ids that end a continuation. After the first of them it is repeated to the end; all ended, no more is computed.
        dtype: What matrix products are computed in.

    Returns:
        The added tokens, the most probable at every step; of equal ones the lowest id.

    Raises:
        InputError: ``new_tokens`` is below 1, or prompt and continuation exceed GPT-2's table of positions.
    """
    a, compute = architecture, jnp.dtype(dtype)
    _validate.at_least(1, new_tokens=new_tokens)
    b, p = prompts.shape
    size = p + new_tokens - 1
    if a.family == "gpt2":
        _validate.require(
            size <= a.context,
            f"Expected prompts of {p} and new_tokens={new_tokens} to stay within context={a.context}; take fewer.",
        )
    start = p - lengths  # where each prompt begins
    columns = jnp.arange(size)
    real = columns[None, :] >= start[:, None]
    rows = jnp.maximum(jnp.arange(p)[None, :] - start[:, None], 0)
    stops = jnp.asarray(tuple(stop), jnp.int32)

    h, turn = _embedded(a, params, prompts, rows, compute)
    seen = jnp.tril(jnp.ones((p, p), bool))[None] & real[:, None, :p]

    def attend_prompt(block, x, turn):
        key, value = _keys_and_values(a, block, x, turn)
        return _attention(a, block, x, turn, key, value, seen), (key, value)

    h, cache = lax.scan(lambda h, block: _block(a, _cast(block, compute), h, turn, attend_prompt), h, params["blocks"])
    cache = jax.tree.map(lambda c: jnp.pad(c, ((0, 0), (0, 0), (0, 0), (0, size - p), (0, 0))), cache)

    def chosen(h):
        return jnp.argmax(_head(a, compute, params, h[:, -1]), axis=-1).astype(jnp.int32)

    def ended(token):
        return jnp.any(token[:, None] == stops[None, :], axis=1)

    def going_on(carry):
        n, _, done, *_ = carry
        return (n < new_tokens) & ~jnp.all(done)

    def step(carry):
        n, token, done, added, cache = carry
        at = p + n - 1
        h, turn = _embedded(a, params, token[:, None], (lengths + n - 1)[:, None], compute)
        seen = (real & (columns <= at)[None, :])[:, None, :]

        def layer(number, state):
            h, cache = state
            block = jax.tree.map(
                lambda leaf: lax.dynamic_index_in_dim(leaf, number, keepdims=False).astype(compute), params["blocks"]
            )

            def attend(block, x, turn):
                new = _keys_and_values(a, block, x, turn)
                grown = jax.tree.map(
                    lambda c, one: lax.dynamic_update_slice(c, one[None], (number, 0, 0, at, 0)), cache, new
                )
                key, value = (lax.dynamic_index_in_dim(c, number, keepdims=False) for c in grown)
                return _attention(a, block, x, turn, key, value, seen), grown

            return _block(a, block, h, turn, attend)

        h, cache = lax.fori_loop(0, a.layers, layer, (h, cache))
        token = jnp.where(done, token, chosen(h))
        return n + 1, token, done | ended(token), lax.dynamic_update_slice(added, token[:, None], (0, n)), cache

    token = chosen(h)
    added = jnp.broadcast_to(token[:, None], (b, new_tokens))
    n, token, _, added, _ = lax.while_loop(going_on, step, (1, token, ended(token), added, cache))
    return jnp.where(jnp.arange(new_tokens)[None, :] < n, added, token[:, None])


def language_model(architecture: Architecture, *, dtype: Compute = "float32", remat: bool = False) -> LanguageModel:
    """The decoder of an architecture.

    Args:
        architecture: What it is made of.
        dtype: What matrix products are computed in; parameters, norms, softmax, states handed out and logits are float32.
        remat: Whether a backward pass computes blocks again instead of keeping what is inside them: a third more work, and
            of each block only its input is kept.

    Returns:
        Pure functions, see ``sequences.LanguageModel``. Of ``hidden``, state l is the residual stream after l blocks.

    Raises:
        InputError: An unknown ``dtype``.
    """
    _validate.one_of("dtype", dtype, get_args(Compute))
    a, compute = architecture, jnp.dtype(dtype)
    return LanguageModel(
        layers=a.layers,
        width=a.width,
        vocabulary=a.vocabulary,
        init=partial(initial, a),
        hidden=partial(_hidden, a, compute, remat),
        head=partial(_head, a, compute),
        block_of=partial(_block_of, a),
        generate=partial(generate, a, dtype=dtype),
    )


def as_model(language: LanguageModel) -> Model:
    """A decoder as an ordinary model of sequences.

    Returns:
        A model whose ``apply`` takes token ids [b, T], or [b, A, T] of which it reads the true answer's, and returns logits
        [b, T, V] of the token after each.
    """

    def apply(params: Params, x: Any) -> Float[Array, "b t v"]:
        return language.logits(params, x[:, 0] if x.ndim == 3 else x)

    return Model(language.init, apply)
