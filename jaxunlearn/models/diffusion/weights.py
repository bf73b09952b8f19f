"""Text-to-image models as folders of diffusers: in, and out again for users of torch.

A folder holds ``model_index.json``, and ``text_encoder``, ``unet``, ``vae`` (absent where pixels are the latents) and
``scheduler``, each with its configuration and, but for the last, weights as safetensors.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.diffusion import Schedule
from jaxunlearn.models.diffusion.model import Architecture, shapes
from jaxunlearn.models.diffusion.text import TextArchitecture
from jaxunlearn.models.diffusion.unet import UNetArchitecture
from jaxunlearn.models.diffusion.vae import AutoencoderArchitecture
from jaxunlearn.models.language_config import field_of, only
from jaxunlearn.models.pretrained import listed

_FILES = {
    "text_encoder": "model.safetensors",
    "unet": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
}
_TEXT = "text_model."
_BUFFERS = ("position_ids",)
_OLD_ATTENTION = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
"""Names of the autoencoder's attention in the first published weights."""
_KEPT = ("tokenizer", "scheduler", "feature_extractor")


# --- configurations ---------------------------------------------------------------------------------------------------


def text_architecture(config: Mapping[str, Any], source: str) -> TextArchitecture:
    """The text encoder that a ``config.json`` of transformers' CLIP describes.

    Raises:
        InputError: A size is missing, or a setting is not served.
    """
    require(
        config.get("model_type", "clip_text_model") in ("clip_text_model", "clip"),
        f"Expected model_type in {source} to be 'clip_text_model', got {config['model_type']!r}; "
        "other text encoders are not served.",
    )
    only(config, source, hidden_act=("quick_gelu", "gelu"))
    vocabulary = field_of(config, source, "vocab_size")
    # The first CLIP configurations name special tokens that the tokenizer does not use; it has the last two.
    end = config.get("eos_token_id")
    if end is None or (end == 2 and vocabulary > 1000):
        start, end, pad = vocabulary - 2, vocabulary - 1, vocabulary - 1
    else:
        start, pad = config.get("bos_token_id", vocabulary - 2), config.get("pad_token_id", end)
    return TextArchitecture(
        vocabulary=vocabulary,
        width=field_of(config, source, "hidden_size"),
        layers=field_of(config, source, "num_hidden_layers"),
        heads=field_of(config, source, "num_attention_heads"),
        hidden=field_of(config, source, "intermediate_size"),
        length=field_of(config, source, "max_position_embeddings"),
        activation=config.get("hidden_act", "quick_gelu"),
        epsilon=config.get("layer_norm_eps", 1e-5),
        start=start,
        end=end,
        pad=pad,
    )


def _attends(config: Mapping[str, Any], source: str, name: str, kinds: tuple[str, str]) -> tuple[bool, ...]:
    types = field_of(config, source, name)
    unknown = [kind for kind in types if kind not in kinds]
    require(
        not unknown, f"Expected {name} in {source} to be of {' and '.join(kinds)}, got {listed(unknown)}; not served."
    )
    return tuple(kind == kinds[0] for kind in types)


def unet_architecture(config: Mapping[str, Any], source: str) -> UNetArchitecture:
    """The U-Net that a ``config.json`` of diffusers' UNet2DConditionModel describes.

    Raises:
        InputError: A size is missing, or a setting is not served.
    """
    only(
        config,
        source,
        act_fn="silu",
        mid_block_type=("UNetMidBlock2DCrossAttn", None),
        norm_eps=1e-5,
        flip_sin_to_cos=True,
        freq_shift=0,
        center_input_sample=False,
        downsample_padding=1,
        mid_block_scale_factor=1,
        only_cross_attention=False,
        dual_cross_attention=False,
        resnet_time_scale_shift="default",
        time_embedding_type="positional",
        transformer_layers_per_block=1,
        conv_in_kernel=3,
        conv_out_kernel=3,
        **dict.fromkeys(("class_embed_type", "addition_embed_type", "encoder_hid_dim", "time_cond_proj_dim"), None),
        **dict.fromkeys(("time_embedding_dim", "cross_attention_norm"), None),
    )
    widths = tuple(field_of(config, source, "block_out_channels"))
    channels = field_of(config, source, "in_channels")
    only(config, source, out_channels=channels)
    heads = config.get("num_attention_heads") or config.get("attention_head_dim", 8)  # the latter is a misnomer
    heads = (heads,) * len(widths) if isinstance(heads, int) else tuple(heads)
    attends = _attends(config, source, "down_block_types", ("CrossAttnDownBlock2D", "DownBlock2D"))
    up = _attends(config, source, "up_block_types", ("CrossAttnUpBlock2D", "UpBlock2D"))[::-1]
    return UNetArchitecture(
        channels=channels,
        size=field_of(config, source, "sample_size"),
        widths=widths,
        attends=attends,
        attends_up=None if up == attends else up,
        middle=config.get("mid_block_type", "UNetMidBlock2DCrossAttn") is not None,
        layers=config.get("layers_per_block", 2),
        heads=heads,
        context=field_of(config, source, "cross_attention_dim"),
        groups=config.get("norm_num_groups", 32),
        linear=config.get("use_linear_projection", False),
    )


def vae_architecture(config: Mapping[str, Any], source: str) -> AutoencoderArchitecture:
    """The autoencoder that a ``config.json`` of diffusers' AutoencoderKL describes.

    Raises:
        InputError: A size is missing, or a setting is not served.
    """
    only(config, source, act_fn="silu", mid_block_add_attention=True, use_quant_conv=True, use_post_quant_conv=True)
    only(config, source, **dict.fromkeys(("latents_mean", "latents_std", "shift_factor"), None))
    _attends(config, source, "down_block_types", ("DownEncoderBlock2D",) * 2)
    _attends(config, source, "up_block_types", ("UpDecoderBlock2D",) * 2)
    channels = field_of(config, source, "in_channels")
    only(config, source, out_channels=channels)
    return AutoencoderArchitecture(
        channels=channels,
        latents=field_of(config, source, "latent_channels"),
        widths=tuple(field_of(config, source, "block_out_channels")),
        layers=config.get("layers_per_block", 1),
        groups=config.get("norm_num_groups", 32),
        scale=config.get("scaling_factor", 0.18215),
    )


def schedule_of(config: Mapping[str, Any], source: str) -> Schedule:
    """The schedule that a ``scheduler_config.json`` describes.

    Raises:
        InputError: A setting is not served.
    """
    only(config, source, prediction_type="epsilon", beta_schedule=("scaled_linear", "linear"))
    only(config, source, trained_betas=None, clip_sample=False, rescale_betas_zero_snr=False)
    return Schedule(
        times=config.get("num_train_timesteps", 1000),
        beta_start=field_of(config, source, "beta_start"),
        beta_end=field_of(config, source, "beta_end"),
        betas=field_of(config, source, "beta_schedule"),
        spacing=config.get("timestep_spacing", "leading"),
        offset=config.get("steps_offset", 0),
        to_one=config.get("set_alpha_to_one", False),
    )


def configurations(architecture: Architecture) -> dict[str, dict[str, Any]]:
    """Folder -> what its configuration says, as diffusers and transformers read it."""
    text, unet, vae, schedule = architecture.text, architecture.unet, architecture.vae, architecture.schedule
    up = (unet.attends if unet.attends_up is None else unet.attends_up)[::-1]
    found: dict[str, dict[str, Any]] = {
        "text_encoder": {
            "architectures": ["CLIPTextModel"],
            "model_type": "clip_text_model",
            "vocab_size": text.vocabulary,
            "hidden_size": text.width,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "intermediate_size": text.hidden,
            "max_position_embeddings": text.length,
            "hidden_act": text.activation,
            "layer_norm_eps": text.epsilon,
            "bos_token_id": text.start,
            "eos_token_id": text.end,
            "pad_token_id": text.pad,
        },
        "unet": {
            "_class_name": "UNet2DConditionModel",
            "in_channels": unet.channels,
            "out_channels": unet.channels,
            "sample_size": unet.size,
            "block_out_channels": list(unet.widths),
            "down_block_types": ["CrossAttnDownBlock2D" if on else "DownBlock2D" for on in unet.attends],
            "up_block_types": ["CrossAttnUpBlock2D" if on else "UpBlock2D" for on in up],
            "mid_block_type": "UNetMidBlock2DCrossAttn" if unet.middle else None,
            "layers_per_block": unet.layers,
            "attention_head_dim": list(unet.heads),
            "cross_attention_dim": unet.context,
            "norm_num_groups": unet.groups,
            "use_linear_projection": unet.linear,
        },
        "scheduler": {
            "_class_name": "DDIMScheduler",
            "num_train_timesteps": schedule.times,
            "beta_start": schedule.beta_start,
            "beta_end": schedule.beta_end,
            "beta_schedule": schedule.betas,
            "timestep_spacing": schedule.spacing,
            "steps_offset": schedule.offset,
            "set_alpha_to_one": schedule.to_one,
            "clip_sample": False,
            "prediction_type": "epsilon",
        },
    }
    if vae is not None:
        found["vae"] = {
            "_class_name": "AutoencoderKL",
            "in_channels": vae.channels,
            "out_channels": vae.channels,
            "latent_channels": vae.latents,
            "block_out_channels": list(vae.widths),
            "down_block_types": ["DownEncoderBlock2D"] * len(vae.widths),
            "up_block_types": ["UpDecoderBlock2D"] * len(vae.widths),
            "layers_per_block": vae.layers,
            "norm_num_groups": vae.groups,
            "scaling_factor": vae.scale,
            "sample_size": unet.size * 2 ** (len(vae.widths) - 1),
        }
    return found


# --- tensors ----------------------------------------------------------------------------------------------------------


def _is_turned(name: str, dimensions: int) -> bool:
    return dimensions == 2 and not name.endswith("_embedding.weight")  # tables of tokens and positions are rows in both


def _to_torch(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1)
    return array.T if _is_turned(name, array.ndim) else array


def _from_torch(name: str, array: np.ndarray) -> np.ndarray:
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)
    return array.T if _is_turned(name, array.ndim) else array


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their paths, joined by dots."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _current(name: str) -> str:
    name = name.removeprefix(_TEXT)
    for old, new in _OLD_ATTENTION.items():
        name = name.replace(old, new)
    return name


def from_torch(tensors: Mapping[str, np.ndarray], expected: Any, source: str = "tensors") -> Any:
    """One part's tensors, by torch's names, as its parameters.

    Args:
        tensors: As the libraries save them, also with the names of the first published weights.
        expected: The part's tree of shapes, from ``model.shapes``.
        source: What messages call the tensors.

    Raises:
        InputError: Tensors are missing, left over or have another shape.
    """
    wanted = _named(expected)
    found = {_current(name): value for name, value in tensors.items() if not name.endswith(_BUFFERS)}
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    require(
        not missing and not unexpected,
        f"Expected {source} to hold the tensors that its configuration is of"
        + (f", missing are {listed(missing)}" if missing else "")
        + (f", unexpected are {listed(unexpected)}" if unexpected else "")
        + "; take a complete copy of the model.",
    )
    values, wrong = [], []
    for name, leaf in wanted.items():
        value = np.asarray(found[name], np.float32)
        if len(leaf.shape) == 2 and value.ndim == 4 and value.shape[2:] == (1, 1):
            value = value[:, :, 0, 0]  # linear layers that old weights have as convolutions
        value = _from_torch(name, value)
        if value.shape != leaf.shape:
            wrong.append(f"{name} {tuple(found[name].shape)}")
        values.append(value)
    require(not wrong, f"Expected {source} to hold tensors of its configuration's shapes, got {listed(wrong)}.")
    return jax.tree.unflatten(jax.tree.structure(expected), [jnp.asarray(value) for value in values])


def _json(path: Path) -> dict[str, Any]:
    require(path.is_file(), f"Expected {path}; take a complete copy of the model, in the format of diffusers.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"Expected {path} to be JSON ({error}); take a complete copy of the model.") from error


def _tensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    require(
        path.is_file(),
        f"Expected {path}; take the model's weights as safetensors, of which pickled files (.bin, .ckpt) are not read.",
    )
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"Expected {path} to be a safetensors file ({error}); take a complete copy of it.") from error


def load_text_to_image(folder: str | Path) -> tuple[Architecture, dict[str, Any]]:
    """A published model.

    Args:
        folder: In the format of diffusers.

    Returns:
        What it is made of, for ``model.text_to_image``, and its float32 parameters.

    Raises:
        InputError: Something is missing or damaged; the model needs what is not served; tensors do not fit.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"Expected the folder of a model in the format of diffusers at {folder}; check the path.")
    index = _json(folder / "model_index.json")
    has_vae = index.get("vae", [None, None])[1] is not None

    def config(part: str, name: str = "config.json") -> tuple[dict[str, Any], str]:
        path = folder / part / name
        return _json(path), str(path)

    architecture = Architecture(
        text=text_architecture(*config("text_encoder")),
        unet=unet_architecture(*config("unet")),
        vae=vae_architecture(*config("vae")) if has_vae else None,
        schedule=schedule_of(*config("scheduler", "scheduler_config.json")),
    )
    params = {}
    for part, expected in shapes(architecture).items():
        path = folder / part / _FILES[part]
        params[part] = from_torch(_tensors(path), expected, str(path))
    return architecture, params


def save_text_to_image(
    folder: str | Path, architecture: Architecture, params: Any, *, like: str | Path | None = None
) -> None:
    """Writes a folder that diffusers and ``load_text_to_image`` take.

    Args:
        folder: Made if absent; what is in it under the same names is overwritten.
        architecture: What the parameters are of.
        params: The model.
        like: A folder of diffusers, such as the one that the model was loaded from: its tokenizer and scheduler are copied.

    Raises:
        InputError: ``params`` are not of the architecture.
    """
    from safetensors.numpy import save_file

    folder, expected = Path(folder), shapes(architecture)
    require(
        jax.tree.map(lambda leaf: leaf.shape, expected) == jax.tree.map(lambda leaf: leaf.shape, params),
        "Expected params of this architecture; take both from one load_text_to_image or text_to_image.",
    )
    configs = configurations(architecture)
    for part, config in configs.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        name = "scheduler_config.json" if part == "scheduler" else "config.json"
        (folder / part / name).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for part in expected:
        prefix = _TEXT if part == "text_encoder" else ""
        tensors = {name: _to_torch(name, np.asarray(leaf, np.float32)) for name, leaf in _named(params[part]).items()}
        tensors = {prefix + name: np.ascontiguousarray(value) for name, value in tensors.items()}
        save_file(tensors, folder / part / _FILES[part], metadata={"format": "pt"})
    for name in _KEPT if like is not None else ():
        source = Path(str(like)) / name
        if source.is_dir() and source.resolve() != (folder / name).resolve():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
    index = {
        "_class_name": "StableDiffusionPipeline",
        "text_encoder": ["transformers", "CLIPTextModel"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"] if architecture.vae is not None else [None, None],
        "scheduler": ["diffusers", configs["scheduler"]["_class_name"]],
    }
    if like is not None:
        index = _json(Path(like) / "model_index.json")
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
