"""Weights of torch's ResNets with BatchNorm in safetensors files: in, and out again.

The names are torchvision's, as in the checkpoints of the public unlearning code (Fan et al., 2024). Those models carry their
normalisation too, ``normalize.mean`` and ``normalize.std``; here it belongs to the model (``models.base.normalised``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.types import Model, Variables

_NORMALISATION = ("normalize.mean", "normalize.std")
_NAMED = 6  # tensors that a message names


class Pretrained(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        variables: For a model of ``models.resnet`` with BatchNorm.
        mean: Of each channel, as the checkpoint's own normalisation has it; None if it has none.
        std: Likewise.
    """

    variables: Variables
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def _to_torch(array: np.ndarray) -> np.ndarray:
    """[kh, kw, i, o] kernels as [o, i, kh, kw], [i, o] matrices as [o, i]."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def _from_torch(array: np.ndarray) -> np.ndarray:
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def from_torch(tensors: Mapping[str, np.ndarray], model: Model, *, source: str = "tensors") -> Pretrained:
    """Arrays by torch's names as the variables of a model.

    Args:
        tensors: A state dictionary as NumPy arrays. A ``module.`` before all names, which a model trained on several
            devices has, and ``num_batches_tracked`` are passed over.
        model: From ``models.resnet``, with ``norm="batch"``; wrapped or not.
        source: What messages call the tensors.

    Returns:
        The variables, and the normalisation that the checkpoint has of its own.

    Raises:
        InputError: The model has no BatchNorm; tensors are missing, left over or have another shape.
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    require(
        isinstance(shapes, Variables),
        "Expected a model with BatchNorm, as torch's checkpoints are of one; make it with norm='batch'.",
    )
    expected = shapes.params | shapes.statistics
    named = {name.removeprefix("module."): value for name, value in tensors.items()}
    named = {name: value for name, value in named.items() if not name.endswith("num_batches_tracked")}
    own = {name: named.pop(name) for name in _NORMALISATION if name in named}
    missing, unexpected = sorted(expected.keys() - named.keys()), sorted(named.keys() - expected.keys())
    require(
        not missing and not unexpected,
        f"Expected {source} to hold this model's tensors"
        + (f", missing are {listed(missing)}" if missing else "")
        + (f", unexpected are {listed(unexpected)}" if unexpected else "")
        + "; choose the architecture (resnet18 or resnet50) that the checkpoint is of, with a first convolution of 3 x 3.",
    )
    wrong = []
    for name, wanted in expected.items():
        shape = _to_torch(np.empty(wanted.shape, np.bool_)).shape
        if named[name].shape != shape:
            wrong.append(f"{name} {named[name].shape} for {shape}")
    require(
        not wrong,
        f"Expected {source} to hold tensors of this model's shapes, got {listed(wrong)}; "
        "choose its architecture and its number of classes.",
    )

    def part(names: Mapping[str, Any]) -> dict[str, jax.Array]:
        return {name: jnp.asarray(_from_torch(np.asarray(named[name], np.float32))) for name in names}

    mean, std = (tuple(own[name].ravel().tolist()) if name in own else None for name in _NORMALISATION)
    return Pretrained(Variables(part(shapes.params), part(shapes.statistics)), mean, std)


def read_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file by name.

    Raises:
        InputError: There is no such file, or it is no safetensors file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    require(Path(path).is_file(), f"Expected a safetensors file, found none at {path}; check the path.")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"Expected {path} to be a safetensors file ({error}); of a torch checkpoint make one by "
            "safetensors.torch.save_file(model.state_dict(), path)."
        ) from error
    return tensors


def load_resnet(path: str | Path, model: Model) -> Pretrained:
    """Variables of a model from a safetensors file, see ``from_torch``.

    A torch user writes one by ``safetensors.torch.save_file(model.state_dict(), path)``.

    Raises:
        InputError: There is no such file, or it is no safetensors file; also those of ``from_torch``.
    """
    return from_torch(read_tensors(path), model, source=str(path))


def save_resnet(
    path: str | Path,
    variables: Variables,
    *,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> None:
    """Writes variables as a safetensors file that torch's ``load_state_dict`` takes, with ``normalize.*`` if given."""
    from safetensors.numpy import save_file

    tensors = {n: _to_torch(np.asarray(v, np.float32)) for n, v in (variables.params | variables.statistics).items()}
    tensors |= {
        name.replace("running_var", "num_batches_tracked"): np.zeros((), np.int64)
        for name in variables.statistics
        if name.endswith("running_var")
    }
    own = {n: np.asarray(v, np.float32) for n, v in zip(_NORMALISATION, (mean, std)) if v is not None}
    save_file({name: np.asarray(value, order="C") for name, value in (tensors | own).items()}, path)
