"""Weights of masked autoencoders as Hugging Face's ViT-MAE has them: in, and out again for users of torch.

A folder holds ``config.json`` and ``model.safetensors``, and perhaps ``preprocessor_config.json`` with the normalisation of
inputs. Names of tensors are those of the published checkpoints; those that transformers 5 uses and saves are read too.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.models.mae import Architecture, autoencoder, positions
from jaxunlearn.models.pretrained import listed, read_tensors
from jaxunlearn.types import Params

_CONFIG, _WEIGHTS, _INPUTS = "config.json", "model.safetensors", "preprocessor_config.json"
_TABLES = {"vit.embeddings.position_embeddings": "width", "decoder.decoder_pos_embed": "decoder_width"}
_SIZES = {
    "side": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
    "decoder_width": "decoder_hidden_size",
    "decoder_depth": "decoder_num_hidden_layers",
    "decoder_heads": "decoder_num_attention_heads",
    "decoder_mlp": "decoder_intermediate_size",
}
_NAMES = {
    "encoder.patch": "vit.embeddings.patch_embeddings.projection",
    "encoder.class_token": "vit.embeddings.cls_token",
    "encoder.norm": "vit.layernorm",
    "encoder.block": "vit.encoder.layer.{}",
    "decoder.embed": "decoder.decoder_embed",
    "decoder.mask_token": "decoder.mask_token",
    "decoder.norm": "decoder.decoder_norm",
    "decoder.predict": "decoder.decoder_pred",
    "decoder.block": "decoder.decoder_layers.{}",
}
_PARTS = {
    "norm_1": ("layernorm_before",),
    "attention.qkv": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
    "attention.out": ("attention.output.dense",),
    "norm_2": ("layernorm_after",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_RENAMED = (  # what transformers 5 calls its modules, and how its release 5.24 saves a decoder
    (r"^vit\.layers\.", "vit.encoder.layer."),
    (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
    (r"attention\.([qkv])_proj", lambda found: "attention.attention." + _SHORT[found[1]]),
    (r"attention\.o_proj", "attention.output.dense"),
    (r"mlp\.fc1", "intermediate.dense"),
    (r"mlp\.fc2", "output.dense"),
)
_SHORT = {"q": "query", "k": "key", "v": "value"}


class Pretrained(NamedTuple):
    """What a folder holds.

    Attributes:
        architecture: For ``mae.autoencoder``.
        params: The model's.
        mean: Of each channel, to be taken off images in [0, 1]; None if the folder does not say.
        std: Likewise, to divide by.
    """

    architecture: Architecture
    params: Params
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def from_config(config: Mapping[str, Any], source: str) -> Architecture:
    """The architecture that a ``config.json`` describes.

    Raises:
        InputError: It is of another family, lacks a size, or has a setting that is not served.
    """
    kind = config.get("model_type")
    require(kind == "vit_mae", f"Expected model_type in {source} to be 'vit_mae', got {kind!r}; take a ViT-MAE.")
    for name, served in {"hidden_act": "gelu", "qkv_bias": True}.items():
        require(
            config.get(name, served) == served,
            f"Expected {name} in {source} to be {served!r}, got {config.get(name)!r}; models that need another one are not "
            "served.",
        )
    sizes = {}
    for field, name in _SIZES.items():
        value = config.get(name)
        sides = value if isinstance(value, list) else [value]
        require(value is not None, f"Expected {source} to hold {name}; take a complete copy of the model.")
        require(len(set(sides)) == 1, f"Expected {name} in {source} to be of a square, got {value}.")
        sizes[field] = sides[0]
    return Architecture(
        **sizes,
        epsilon=config.get("layer_norm_eps", Architecture.epsilon),
        normalised=config.get("norm_pix_loss", Architecture.normalised),
    )


def to_config(architecture: Architecture) -> dict[str, Any]:
    """A ``config.json`` for transformers."""
    return {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        **{name: getattr(architecture, field) for field, name in _SIZES.items()},
        "hidden_act": "gelu",
        "qkv_bias": True,
        "layer_norm_eps": architecture.epsilon,
        "norm_pix_loss": architecture.normalised,
        "mask_ratio": 0.75,
        "torch_dtype": "float32",
    }


def _names(path: str) -> tuple[str, ...]:
    """The tensors that a leaf is made of, side by side: "encoder.block_0.attention.qkv.bias" is three."""
    block = re.fullmatch(r"(\w+)\.block_(\d+)\.(.+)\.(\w+)", path)
    if block:
        stack, number, part, kind = block.groups()
        prefix = _NAMES[f"{stack}.block"].format(number)
        return tuple(f"{prefix}.{name}.{_KINDS[kind]}" for name in _PARTS[part])
    if path in _NAMES:
        return (_NAMES[path],)
    part, _, kind = path.rpartition(".")
    return (f"{_NAMES[part]}.{_KINDS[kind]}",)


def _shapes(architecture: Architecture) -> Any:
    return jax.eval_shape(autoencoder(architecture).init, jax.random.key(0))


def _paths(tree: Any) -> list[str]:
    return [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _is_projection(name: str) -> bool:
    return "projection.weight" in name


def _to_torch(a: Architecture, name: str, array: np.ndarray) -> np.ndarray:
    """Matrices as [out, in]; the patches' [p * p * c, d] as a convolution's [d, c, p, p]."""
    if _is_projection(name):
        return array.reshape(a.patch, a.patch, a.channels, a.width).transpose(3, 2, 0, 1)
    return array.T if array.ndim == 2 else array


def _from_torch(name: str, array: np.ndarray) -> np.ndarray:
    if _is_projection(name):
        return array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0])
    return array.T if array.ndim == 2 else array


def from_torch(tensors: Mapping[str, np.ndarray], architecture: Architecture, *, source: str = "tensors") -> Params:
    """Arrays by Hugging Face's names as parameters.

    Args:
        tensors: A state dictionary as NumPy arrays.
        architecture: What they are of.
        source: What messages call them.

    Raises:
        InputError: Tensors are missing, left over or have another shape, or positions are not the fixed ones.
    """
    a = architecture
    named = {}
    for name, value in tensors.items():
        for pattern, now in _RENAMED:
            name = re.sub(pattern, now, name)
        named[name] = np.asarray(value, np.float32)
    shapes = _shapes(a)
    expected = {name for path in _paths(shapes) for name in _names(path)} | set(_TABLES)
    missing, unexpected = sorted(expected - named.keys()), sorted(named.keys() - expected)
    require(
        not missing and not unexpected,
        f"Expected {source} to hold the tensors of a masked autoencoder of {a.depth} and {a.decoder_depth} blocks"
        + (f", missing are {listed(missing)}" if missing else "")
        + (f", unexpected are {listed(unexpected)}" if unexpected else "")
        + "; take the weights of ViTMAEForPreTraining that its configuration is of.",
    )
    for name, width in _TABLES.items():
        table = positions(getattr(a, width), a.grid)[None]
        require(
            named[name].shape == table.shape and np.allclose(named[name], table, rtol=0, atol=1e-4),
            f"Expected {name} in {source} to be the fixed sines and cosines of {a.grid} x {a.grid} patches; models that "
            "learn their positions are not served.",
        )
    parts, wrong = {}, []
    for path, leaf in zip(_paths(shapes), jax.tree.leaves(shapes)):
        names = _names(path)
        share = (*leaf.shape[:-1], leaf.shape[-1] // len(names))
        for name in names:
            wanted = _to_torch(a, name, np.empty(share, np.bool_)).shape
            if named[name].shape != wanted:
                wrong.append(f"{name} {named[name].shape} for {wanted}")
        parts[path] = names
    require(
        not wrong,
        f"Expected {source} to hold tensors of this architecture's shapes, got {listed(wrong)}; take the weights that its "
        "configuration is of.",
    )
    leaves = [
        jnp.asarray(np.concatenate([_from_torch(name, named[name]) for name in names], axis=-1))
        for names in parts.values()
    ]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _json(path: Path) -> dict[str, Any]:
    require(path.is_file(), f"Expected {path.name} in {path.parent}; take a complete copy of the model.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"Expected {path} to be JSON ({error}); take a complete copy of the model.") from error


def load_autoencoder(folder: str | Path) -> Pretrained:
    """A published masked autoencoder.

    Args:
        folder: With ``config.json`` and ``model.safetensors``.

    Raises:
        InputError: A file is missing or damaged; as for ``from_config`` and ``from_torch``.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"Expected the folder of a model at {folder}, found none; check the path.")
    architecture = from_config(_json(folder / _CONFIG), str(folder / _CONFIG))
    params = from_torch(read_tensors(folder / _WEIGHTS), architecture, source=str(folder))
    inputs = _json(folder / _INPUTS) if (folder / _INPUTS).is_file() else {}
    mean, std = (tuple(inputs[name]) if inputs.get(name) else None for name in ("image_mean", "image_std"))
    return Pretrained(architecture, params, mean, std)


def save_autoencoder(folder: str | Path, pretrained: Pretrained) -> None:
    """Writes a folder that ``transformers.ViTMAEForPreTraining.from_pretrained`` and ``load_autoencoder`` take.

    Args:
        folder: Made if absent; files of these names in it are overwritten.
        pretrained: The model.

    Raises:
        InputError: The parameters are not of the architecture.
    """
    from safetensors.numpy import save_file

    folder, a = Path(folder), pretrained.architecture
    shapes = _shapes(a)
    require(
        jax.tree.structure(pretrained.params) == jax.tree.structure(shapes)
        and all(p.shape == s.shape for p, s in zip(jax.tree.leaves(pretrained.params), jax.tree.leaves(shapes))),
        "Expected params of this architecture; take both from one load_autoencoder or autoencoder.",
    )
    tensors = {name: positions(getattr(a, width), a.grid)[None] for name, width in _TABLES.items()}
    for path, leaf in zip(_paths(shapes), jax.tree.leaves(pretrained.params)):
        names = _names(path)
        for name, part in zip(names, np.split(np.asarray(leaf, np.float32), len(names), axis=-1)):
            tensors[name] = _to_torch(a, name, part)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()},
        folder / _WEIGHTS,
        metadata={"format": "pt"},
    )
    (folder / _CONFIG).write_text(json.dumps(to_config(a), indent=2) + "\n", encoding="utf-8")
    if pretrained.mean is not None and pretrained.std is not None:
        inputs = {
            "image_mean": list(pretrained.mean),
            "image_std": list(pretrained.std),
            "image_processor_type": "ViTImageProcessor",
        }
        (folder / _INPUTS).write_text(json.dumps(inputs, indent=2) + "\n", encoding="utf-8")
