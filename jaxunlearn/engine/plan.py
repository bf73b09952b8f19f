"""How many runs go at once, and on which devices."""

import dataclasses

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxunlearn import _validate

AXIS = "runs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """An execution plan.

    Attributes:
        width: Runs that one device computes at once under vmap; the others of its share follow one after the other.
        runs_per_chunk: Runs between two checkpoints, over all devices; a multiple of devices * width.
    """

    width: int
    runs_per_chunk: int


def make_mesh(devices=None) -> Mesh:
    """A one-dimensional mesh named "runs" over the given devices (default: all of this process)."""
    devices = jax.local_devices() if devices is None else list(devices)
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def choose(mesh: Mesh, runs: int, *, width: int | None = None, runs_per_chunk: int | None = None) -> Plan:
    """A plan for ``runs`` runs.

    On CPU one run at a time per core keeps its working set in cache; an accelerator wants all of a chunk at once.

    Args:
        mesh: The devices.
        runs: Runs to do, >= 1.
        width: Runs under vmap per device; None chooses.
        runs_per_chunk: Runs between two checkpoints; None chooses; rounded up to a multiple of devices * width.

    Returns:
        The plan; chunks are of equal size so that all go through one compiled program.
    """
    _validate.at_least(1, runs=runs)
    devices = mesh.devices.size
    cpu = mesh.devices.flat[0].platform == "cpu"
    share = -(-runs // devices)
    width = min(share, (1 if cpu else 32) if width is None else width)
    _validate.at_least(1, width=width)
    unit = devices * width
    wanted = unit * -(-8 // width) if runs_per_chunk is None else runs_per_chunk
    _validate.at_least(1, runs_per_chunk=wanted)
    chunks = -(-runs // max(wanted, unit))
    return Plan(width=width, runs_per_chunk=unit * -(-runs // (chunks * unit)))


def choose_open(mesh: Mesh, *, width: int | None = None, runs_per_chunk: int | None = None) -> Plan:
    """A plan for runs whose number is not known beforehand: small chunks, the same ones however many there will be.

    Args:
        mesh: The devices.
        width: Runs under vmap per device; None chooses 1 on a CPU core and 4 on an accelerator.
        runs_per_chunk: Runs between two looks; None means one round of all devices; rounded up to a multiple of that.
    """
    cpu = mesh.devices.flat[0].platform == "cpu"
    width = (1 if cpu else 4) if width is None else width
    _validate.at_least(1, width=width)
    unit = mesh.devices.size * width
    wanted = unit if runs_per_chunk is None else runs_per_chunk
    _validate.at_least(1, runs_per_chunk=wanted)
    return Plan(width=width, runs_per_chunk=unit * -(-wanted // unit))
