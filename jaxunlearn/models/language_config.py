"""Architectures as the ``config.json`` of Hugging Face models: in, and out again."""

from collections.abc import Mapping
from typing import Any

from jaxunlearn._validate import require
from jaxunlearn.models.transformer import Architecture, RopeScaling


def only(config: Mapping[str, Any], source: str, **values: Any) -> None:
    """Raises where a setting of a configuration that changes what a model computes is none of those served."""
    for name, served in values.items():
        served = served if isinstance(served, tuple) else (served,)
        require(
            config.get(name, served[0]) in served,
            f"Expected {name} in {source} to be {' or '.join(map(repr, served))}, got {config.get(name)!r}; "
            "models that need another one are not served.",
        )


def field_of(config: Mapping[str, Any], source: str, name: str) -> Any:
    """A setting of a configuration that must be there."""
    require(config.get(name) is not None, f"Expected {source} to hold {name}; take a complete copy of the model.")
    return config[name]


def _rope(config: Mapping[str, Any], source: str) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from ``rope_parameters`` or, as before transformers 5, ``rope_theta`` and ``rope_scaling``."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    require(
        kind in ("default", "llama3"),
        f"Expected the rope_type in {source} to be 'default' or 'llama3', got {kind!r}; models that need another one are "
        "not served.",
    )
    if kind == "default":
        return base, None
    factor, low, high, context = (
        field_of(rope, source, name)
        for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    return base, RopeScaling(factor=factor, low_frequency=low, high_frequency=high, context=context)


def from_config(config: Mapping[str, Any], source: str) -> Architecture:
    """The architecture that a ``config.json`` describes.

    Args:
        config: What the file holds.
        source: What messages call it.

    Raises:
        InputError: The family, or a setting that changes what the model computes, is not served; a size is missing.
    """
    kind = config.get("model_type")
    require(
        kind in ("gpt2", "llama"),
        f"Expected model_type in {source} to be 'gpt2' or 'llama', got {kind!r}; other families are not served.",
    )

    def field(name: str) -> Any:
        return field_of(config, source, name)

    if kind == "gpt2":
        only(
            config,
            source,
            activation_function=("gelu_new", "gelu_pytorch_tanh"),
            scale_attn_weights=True,
            scale_attn_by_inverse_layer_idx=False,
            add_cross_attention=False,
        )
        return Architecture(
            family="gpt2",
            vocabulary=field("vocab_size"),
            width=field("n_embd"),
            layers=field("n_layer"),
            heads=field("n_head"),
            hidden=config.get("n_inner") or 0,
            context=field("n_positions"),
            norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
            tied=config.get("tie_word_embeddings", True),
        )
    heads, width = field("num_attention_heads"), field("hidden_size")
    only(config, source, hidden_act="silu", attention_bias=False, mlp_bias=False, head_dim=(width // heads, None))
    base, scaling = _rope(config, source)
    return Architecture(
        family="llama",
        vocabulary=field("vocab_size"),
        width=width,
        layers=field("num_hidden_layers"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or 0,
        hidden=field("intermediate_size"),
        context=field("max_position_embeddings"),
        rope_base=base,
        rope_scaling=scaling,
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", False),
    )


def to_config(a: Architecture) -> dict[str, Any]:
    """A ``config.json`` for transformers, with the names of version 5 and of those before."""
    if a.family == "gpt2":
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": a.vocabulary,
            "n_embd": a.width,
            "n_layer": a.layers,
            "n_head": a.heads,
            "n_inner": a.hidden,
            "n_positions": a.context,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": a.norm_epsilon,
            "tie_word_embeddings": a.tied,
            "torch_dtype": "float32",
        }
    scaling = a.rope_scaling
    rope = {"rope_type": "default"}
    if scaling is not None:
        rope = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency,
            "high_freq_factor": scaling.high_frequency,
            "original_max_position_embeddings": scaling.context,
        }
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": a.vocabulary,
        "hidden_size": a.width,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "intermediate_size": a.hidden,
        "max_position_embeddings": a.context,
        "rope_theta": a.rope_base,
        "rope_scaling": None if scaling is None else rope,
        "rope_parameters": rope | {"rope_theta": a.rope_base},
        "rms_norm_eps": a.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": a.tied,
        "torch_dtype": "float32",
    }
