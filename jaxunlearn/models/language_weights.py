"""Published weights of GPT-2 and Llama: in, and out again for users of torch.

Read are folders as on the Hugging Face hub (``config.json`` and safetensors, one file or several with an index), GGUF files,
whose quantised tensors become float32, and files of llama2.c. The last two turn neighbouring entries of a head by rotary
positions, where the others turn entries half a head apart: query and key rows are reordered on the way in, once.
"""

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.models.language_config import from_config, to_config
from jaxunlearn.models.pretrained import listed
from jaxunlearn.models.transformer import Architecture, RopeScaling, frequencies, initial
from jaxunlearn.types import Params

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_KEPT = ("*.json", "*.txt", "*.model", "*.jinja")  # of a folder beside its weights: tokenizer, generation settings
_BUFFERS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".rotary_emb.inv_freq",
)  # tensors that older checkpoints hold for nothing
_ROPE_FREQUENCIES = "rope_freqs.weight"


class _Source(NamedTuple):
    """Where a leaf of the parameters lies among the tensors of a Hugging Face model.

    Attributes:
        name: The tensor, with ``{}`` for a block's number from 0.
        transposed: Whether it is (out, in) where the parameters are (in, out).
        share: (i, n) where it is the i-th of n leaves that lie side by side in the tensor's outputs.
    """

    name: str
    transposed: bool = False
    share: tuple[int, int] = (0, 1)


_Path = tuple[str, ...]


def _table(prefix: str, tops: dict[str, str], blocks: dict[str, str], kinds: tuple[str, ...], transposed: bool):
    """Path in the parameters -> where it lies; of a family whose linear layers are (out, in) where ``transposed``."""
    table: dict[_Path, _Source] = {
        ("embedding",): _Source(prefix + tops["embedding"]),
        ("output",): _Source("lm_head.weight", True),
    }
    if "positions" in tops:
        table["positions",] = _Source(prefix + tops["positions"])
    for kind in kinds:
        table["norm", kind] = _Source(f"{prefix}{tops['norm']}.{kind}")
        for part, name in blocks.items():
            leaves = part.split()
            for number, leaf in enumerate(leaves):
                matrix = kind == "weight" and not leaf.endswith("norm")
                table["blocks", leaf, kind] = _Source(
                    f"{prefix}{tops['blocks']}.{{}}.{name}.{kind}", transposed and matrix, (number, len(leaves))
                )
    return table


_TABLES: dict[str, dict[_Path, _Source]] = {
    "gpt2": _table(
        "transformer.",
        {"embedding": "wte.weight", "positions": "wpe.weight", "norm": "ln_f", "blocks": "h"},
        {
            "attention_norm": "ln_1",
            "query key value": "attn.c_attn",
            "attention_out": "attn.c_proj",
            "mlp_norm": "ln_2",
            "up": "mlp.c_fc",
            "down": "mlp.c_proj",
        },
        ("weight", "bias"),
        transposed=False,
    ),
    "llama": _table(
        "model.",
        {"embedding": "embed_tokens.weight", "norm": "norm", "blocks": "layers"},
        {
            "attention_norm": "input_layernorm",
            "query": "self_attn.q_proj",
            "key": "self_attn.k_proj",
            "value": "self_attn.v_proj",
            "attention_out": "self_attn.o_proj",
            "mlp_norm": "post_attention_layernorm",
            "gate": "mlp.gate_proj",
            "up": "mlp.up_proj",
            "down": "mlp.down_proj",
        },
        ("weight",),
        transposed=True,
    ),
}

_GGUF_PARTS = {
    "token_embd": ("embedding",),
    "position_embd": ("positions",),
    "output_norm": ("norm",),
    "output": ("output",),
    "attn_norm": ("blocks", "attention_norm"),
    "attn_qkv": ("blocks", "query"),
    "attn_q": ("blocks", "query"),
    "attn_k": ("blocks", "key"),
    "attn_v": ("blocks", "value"),
    "attn_output": ("blocks", "attention_out"),
    "ffn_norm": ("blocks", "mlp_norm"),
    "ffn_gate": ("blocks", "gate"),
    "ffn_up": ("blocks", "up"),
    "ffn_down": ("blocks", "down"),
}


class _File(NamedTuple):
    """Tensors by their Hugging Face names, read when asked for: what a file of any kind is turned into."""

    names: frozenset[str]
    read: Callable[[str], np.ndarray]
    source: str


def _half_apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """[heads * size, ...] rows whose rotary pairs are neighbours, reordered to have them half a head apart."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _numbers(architecture: Architecture, path: _Path) -> range:
    return range(architecture.layers if path[0] == "blocks" else 1)


def _wanted(a: Architecture) -> dict[_Path, tuple[_Source, tuple[int, ...]]]:
    """Where each leaf of an architecture's parameters lies, and the leaf's shape."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.eval_shape(lambda key: initial(a, key), jax.random.key(0)))
    shapes = {tuple(key.key for key in path): leaf.shape for path, leaf in leaves}
    return {path: (source, shapes[path]) for path, source in _TABLES[a.family].items() if path in shapes}


def _load(a: Architecture, file: _File) -> tuple[Architecture, Params]:
    """The parameters that a file holds; raises where a tensor is missing, left over or has another shape."""
    embedding, output = (_TABLES[a.family][part,].name for part in ("embedding", "output"))
    if a.tied and {embedding, output} <= file.names:  # written a second time
        require(
            np.array_equal(file.read(embedding), file.read(output)),
            f"Expected {output} in {file.source} to equal {embedding}, because its configuration ties them; "
            "set tie_word_embeddings to false there if they differ on purpose.",
        )
        file = file._replace(names=file.names - {output})
    wanted = _wanted(a)
    expected = {source.name.format(n) for path, (source, _) in wanted.items() for n in _numbers(a, path)}
    missing, unexpected = sorted(expected - file.names), sorted(file.names - expected)
    require(
        not missing and not unexpected,
        f"Expected {file.source} to hold the tensors of a {a.family} of {a.layers} layers"
        + (f", missing are {listed(missing)}" if missing else "")
        + (f", unexpected are {listed(unexpected)}" if unexpected else "")
        + "; take the weights that its configuration is of.",
    )

    def one(name: str, source: _Source, shape: tuple[int, ...]) -> np.ndarray:
        tensor = np.asarray(file.read(name), np.float32)
        part, parts = source.share
        whole = (*shape[:-1], shape[-1] * parts)
        whole = whole[::-1] if source.transposed else whole
        require(
            tensor.shape == whole,
            f"Expected {name} in {file.source} of shape {whole}, got {tensor.shape}; "
            "take the weights that its configuration is of.",
        )
        return np.split(tensor.T if source.transposed else tensor, parts, axis=-1)[part]

    params: dict[str, Any] = {}
    for path, (source, shape) in wanted.items():
        if path[0] == "blocks":
            value = np.empty(shape, np.float32)
            for number in range(a.layers):
                value[number] = one(source.name.format(number), source, shape[1:])
        else:
            value = one(source.name, source, shape)
        place = params
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = jnp.asarray(value)
    return a, params


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"Expected {path} to be JSON ({error}); take a complete copy of the model.") from error


def _safetensors(folder: Path) -> _File:
    """All tensors of a folder, by the names that models with an output layer have."""
    from safetensors import SafetensorError, safe_open

    if (folder / _INDEX).is_file():
        files = sorted(set(_json(folder / _INDEX)["weight_map"].values()))
    else:
        files = [_WEIGHTS]
    absent = [name for name in files if not (folder / name).is_file()]
    require(
        not absent,
        f"Expected {listed(absent)} in {folder}; take a complete copy of the model, with weights as safetensors.",
    )
    opened: dict[str, Any] = {}
    for name in files:
        try:
            handle = safe_open(folder / name, "numpy")
        except SafetensorError as error:
            raise InputError(
                f"Expected {folder / name} to be a safetensors file ({error}); take a complete copy of the model."
            ) from error
        opened |= dict.fromkeys(handle.keys(), handle)
    handles = {name: handle for name, handle in opened.items() if not name.endswith(_BUFFERS)}
    return _File(frozenset(handles), lambda name: handles[name].get_tensor(name), str(folder))


def _from_folder(folder: Path) -> tuple[Architecture, Params]:
    path = folder / "config.json"
    require(path.is_file(), f"Expected config.json in {folder}; take the folder of a model with its configuration.")
    architecture, file = from_config(_json(path), str(path)), _safetensors(folder)
    if architecture.family == "gpt2" and "wte.weight" in file.names:  # saved without its output layer
        prefix, read = "transformer.", file.read
        file = _File(
            frozenset(prefix + name for name in file.names), lambda name: read(name.removeprefix(prefix)), file.source
        )
    return _load(architecture, file)


def _from_gguf(path: Path) -> tuple[Architecture, Params]:
    try:
        import gguf
    except ImportError as error:
        raise InputError(f"Reading {path} needs the package gguf; pip install 'jaxunlearn[llm]'.") from error

    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError) as error:
        raise InputError(f"Expected {path} to be a GGUF file ({error}); take a complete copy of it.") from error

    def field(name: str, default: Any = None) -> Any:
        found = reader.get_field(name)
        value = default if found is None else found.contents()
        require(value is not None, f"Expected {path} to hold {name}; take a complete copy of the model.")
        return value

    family = field("general.architecture")
    require(
        family in _TABLES, f"Expected {path} to hold a gpt2 or llama, got {family!r}; other families are not served."
    )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    require(
        "token_embd.weight" in tensors, f"Expected {path} to hold token_embd.weight; take a complete copy of the model."
    )

    def dequantised(name: str) -> np.ndarray:
        return gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)

    heads, size = field(f"{family}.attention.head_count"), field(f"{family}.embedding_length")
    epsilon = "layer_norm_epsilon" if family == "gpt2" else "layer_norm_rms_epsilon"
    a = Architecture(
        family=family,
        vocabulary=int(tensors["token_embd.weight"].shape[1]),  # shapes are the wrong way round in this format
        width=size,
        layers=field(f"{family}.block_count"),
        heads=heads,
        kv_heads=field(f"{family}.attention.head_count_kv", heads),
        hidden=field(f"{family}.feed_forward_length"),
        context=field(f"{family}.context_length"),
        rope_base=field(f"{family}.rope.freq_base", 10000.0),
        norm_epsilon=field(f"{family}.attention.{epsilon}"),
        tied="output.weight" not in tensors,
    )
    if family == "llama":
        turned = field("llama.rope.dimension_count", a.head_size)
        require(
            turned == a.head_size,
            f"Expected llama.rope.dimension_count in {path} to be {a.head_size}, the size of a head, got {turned}; "
            "models that turn a part of each head are not served.",
        )
    if _ROPE_FREQUENCIES in tensors:
        a = _scaled(a, dequantised(_ROPE_FREQUENCIES), path)
    stored = {_from_gguf_name(family, name): name for name in tensors if name != _ROPE_FREQUENCIES}

    def read(name: str) -> np.ndarray:
        tensor, part = dequantised(stored[name]), stored[name].rsplit(".", 2)[-2]
        if family == "llama" and part in ("attn_q", "attn_k"):
            return _half_apart(tensor, a.heads if part == "attn_q" else a.kv_heads)
        # Linear layers are (out, in) in every GGUF file, in the tables only of llama; embeddings are rows in both.
        return tensor.T if family == "gpt2" and stored[name].startswith("blk.") else tensor

    return _load(a, _File(frozenset(stored), read, str(path)))


def _from_gguf_name(family: str, name: str) -> str:
    """The Hugging Face name of a tensor of a GGUF file; a name that is not known is left as it is, and is unexpected."""
    block, _, rest = name.removeprefix("blk.").partition(".") if name.startswith("blk.") else ("", "", name)
    part, _, kind = rest.partition(".")
    path = _GGUF_PARTS.get(part, ())
    source = _TABLES[family].get(path) or _TABLES[family].get((*path, kind))
    return name if source is None else source.name.format(block)


def _scaled(architecture: Architecture, divisors: np.ndarray, path: Path) -> Architecture:
    """The architecture with the scaling that a GGUF file states as a divisor of every frequency."""
    scaling = RopeScaling(factor=float(divisors.max()))  # all but the factor is the same in every Llama that scales
    scaled = dataclasses.replace(architecture, rope_scaling=scaling)
    require(
        divisors.shape == (architecture.head_size // 2,)
        and np.allclose(frequencies(architecture) / divisors, frequencies(scaled), rtol=1e-4),
        f"Expected {_ROPE_FREQUENCIES} in {path} to scale frequencies as Llama 3.1 does; other scalings are not served.",
    )
    return scaled


def _from_llama2c(path: Path) -> tuple[Architecture, Params]:
    """A "version 0" export: seven integers, then float32 tensors in a fixed order, matrices (out, in)."""
    header = np.fromfile(path, "<i4", 7)
    require(
        header.size == 7 and min(header[:5]) > 0 and header[6] > 0,
        f"Expected {path} to be a file of llama2.c: sizes as seven integers, then float32; it starts with "
        f"{header.tolist()}; check the path.",
    )
    width, hidden, layers, heads, kv_heads, vocabulary, context = header.tolist()
    a = Architecture(
        family="llama",
        vocabulary=abs(vocabulary),
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
        context=context,
        tied=vocabulary > 0,
    )
    kv_width = kv_heads * a.head_size
    shapes = {
        ("embedding",): (a.vocabulary, width),
        ("blocks", "attention_norm", "weight"): (layers, width),
        ("blocks", "query", "weight"): (layers, width, width),
        ("blocks", "key", "weight"): (layers, kv_width, width),
        ("blocks", "value", "weight"): (layers, kv_width, width),
        ("blocks", "attention_out", "weight"): (layers, width, width),
        ("blocks", "mlp_norm", "weight"): (layers, width),
        ("blocks", "gate", "weight"): (layers, hidden, width),
        ("blocks", "down", "weight"): (layers, width, hidden),
        ("blocks", "up", "weight"): (layers, hidden, width),
        ("norm", "weight"): (width,),
        ("rotations",): (2, context, a.head_size // 2),  # cosines and sines, which are computed here
    } | ({} if a.tied else {("output",): (a.vocabulary, width)})
    values = np.memmap(path, "<f4", "r", offset=header.nbytes)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    require(
        values.size == ends[-1],
        f"Expected {path} to hold {ends[-1]} numbers after its header, got {values.size}; take a complete copy of it.",
    )
    tensors: dict[str, np.ndarray] = {}
    for (place, shape), end in zip(shapes.items(), ends):
        if place not in _TABLES["llama"]:
            continue
        value, name = values[end - math.prod(shape) : end].reshape(shape), _TABLES["llama"][place].name
        for number in _numbers(a, place):
            one = value[number] if place[0] == "blocks" else value
            if "query" in place or "key" in place:
                one = _half_apart(one, heads if "query" in place else kv_heads)
            tensors[name.format(number)] = one
    return _load(a, _File(frozenset(tensors), tensors.__getitem__, str(path)))


def load_language_model(path: str | Path) -> tuple[Architecture, Params]:
    """A published model.

    Args:
        path: A folder with ``config.json`` and safetensors; a GGUF file; or a llama2.c file (``.bin``).

    Returns:
        What the model is made of, for ``transformer.language_model``, and its float32 parameters.

    Raises:
        InputError: There is nothing at the path; the model is of another family or needs what is not served; tensors are
            missing, left over or have another shape.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    require(path.is_file(), f"Expected a model at {path}, found nothing; check the path.")
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"GGUF":
        return _from_gguf(path)
    require(
        path.suffix == ".bin",
        f"Expected {path} to be a folder with config.json and safetensors, a GGUF file or a llama2.c file (.bin); "
        "give the folder rather than one of its files.",
    )
    return _from_llama2c(path)


def save_language_model(
    folder: str | Path, architecture: Architecture, params: Params, *, like: str | Path | None = None
) -> None:
    """Writes a folder that ``transformers.AutoModelForCausalLM.from_pretrained`` and ``load_language_model`` take.

    Args:
        folder: Made if absent; ``config.json`` and ``model.safetensors`` (float32) in it are overwritten.
        architecture: What the parameters are of.
        params: The model.
        like: A Hugging Face folder, such as the one that the model was loaded from: its tokenizer and generation settings
            are copied, and what its ``config.json`` says beyond the architecture.

    Raises:
        InputError: ``params`` are not of the architecture.
    """
    from safetensors.numpy import save_file

    folder, a = Path(folder), architecture
    wanted = _wanted(a)
    leaves = {tuple(k.key for k in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    require(
        {path: leaf.shape for path, leaf in leaves.items()} == {path: shape for path, (_, shape) in wanted.items()},
        "Expected params of this architecture; take both from one load_language_model or language_model.",
    )
    config, copied = to_config(a), []
    if like is not None:
        config = _json(Path(like) / "config.json") | config
        copied = [file for pattern in _KEPT for file in Path(like).glob(pattern)]
    folder.mkdir(parents=True, exist_ok=True)
    for file in copied:
        if file.name not in ("config.json", _INDEX) and file.resolve() != (folder / file.name).resolve():
            shutil.copyfile(file, folder / file.name)
    tensors: dict[str, list[np.ndarray]] = {}
    for path, (source, _) in wanted.items():  # leaves that share a tensor come in the order of their shares
        value = np.asarray(leaves[path], np.float32)
        for number in _numbers(a, path):
            one = value[number] if path[0] == "blocks" else value
            tensors.setdefault(source.name.format(number), []).append(one.T if source.transposed else one)
    (folder / _INDEX).unlink(missing_ok=True)
    save_file(
        {name: np.ascontiguousarray(np.concatenate(parts, axis=-1)) for name, parts in tensors.items()},
        folder / _WEIGHTS,
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
