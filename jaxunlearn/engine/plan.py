"""How many runs go at once, on which devices, and in which form of the layers: chosen by measurement, under a memory bound.

A *chunk* is what lies between two checkpoints; it is the same on every machine that goes on with a run directory. A plan's
*width* and *form* decide how a device computes its share of a chunk, and change results by float rounding only.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import psutil
from jax.sharding import AxisType, Mesh

from jaxunlearn import _validate

AXIS = "runs"
PARAMETERS = "parameters"

ACCELERATOR_WIDTH = 32
"""First guess on an accelerator, where a small model alone leaves the device idle; a CPU core takes one run at a time, whose
working set stays in its cache. What a long job does is measured."""
MEMORY_SHARE = 0.8
"""Share of an accelerator's memory, or of what a host has free, that a phase may take."""
GAIN = 0.1
"""A plan must be faster by this share than one before it in the list: a noisy clock should not change results' last bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """An execution plan.

    Attributes:
        width: Runs that one device computes at once under vmap; the others of its share follow one after the other.
        runs_per_chunk: Runs between two checkpoints, over all devices of a process.
        form: How the model's layers compute, one of the names that the model knows; "" where there is only one.
    """

    width: int
    runs_per_chunk: int
    form: str = ""

    def __str__(self) -> str:
        return f"width {self.width}" + (f", {self.form}" if self.form else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What one plan costs.

    Attributes:
        plan: The plan.
        seconds: Wall time of one step of one run, over all devices; infinite if it does not fit.
        bytes: Memory on each device: arguments, outputs and temporaries, less what they share.
        compile_seconds: Time that compiling took.
    """

    plan: Plan
    seconds: float
    bytes: int
    compile_seconds: float


def make_mesh(devices=None, *, parameter_shards: int = 1, runs: int | None = None) -> Mesh:
    """A mesh of axes "runs" and "parameters" over the given devices (default: all of this process).

    Runs do not talk to each other, so that a process needs no other one's devices: several processes take different chunks.

    Args:
        devices: JAX devices.
        parameter_shards: Devices over which one run's parameters are spread, for models too large for one; >= 1.
        runs: How many models are trained, >= 1. A device without one of its own repeats another's run; on a processor it
            would take cores that the other could use, and is left out. None leaves out no device.

    Raises:
        InputError: ``parameter_shards`` does not divide the number of devices, or it or ``runs`` is below 1.
    """
    devices = jax.local_devices() if devices is None else list(devices)
    _validate.at_least(1, parameter_shards=parameter_shards)
    _validate.require(
        len(devices) % parameter_shards == 0,
        f"Expected parameter_shards={parameter_shards} to divide the {len(devices)} devices of a process.",
    )
    grid = np.asarray(devices).reshape(-1, parameter_shards)
    if runs is not None:
        _validate.at_least(1, runs=runs)
        grid = grid[:runs] if grid[0, 0].platform == "cpu" else grid
    return Mesh(grid, (AXIS, PARAMETERS), axis_types=(AxisType.Auto, AxisType.Auto))


def is_cpu(mesh: Mesh) -> bool:
    """Whether the mesh is of CPU cores."""
    return mesh.devices.flat[0].platform == "cpu"


def choose(
    mesh: Mesh, runs: int, *, width: int | None = None, runs_per_chunk: int | None = None, processes: int = 1
) -> Plan:
    """A first plan for ``runs`` runs, before anything is measured.

    Args:
        mesh: The devices.
        runs: Runs to do, >= 1.
        width: Runs under vmap per device; None guesses.
        runs_per_chunk: Runs between two checkpoints; None chooses chunks of equal size, about 8 or more runs a device.
        processes: Processes that share the chunks, >= 1; each gets as many of those chosen here, or one less.

    Returns:
        The plan; its width is at most a device's share of a chunk.
    """
    _validate.at_least(1, runs=runs, processes=processes)
    groups = mesh.shape[AXIS]
    share = -(-runs // (groups * processes))
    width = min(share, (1 if is_cpu(mesh) else ACCELERATOR_WIDTH) if width is None else width)
    _validate.at_least(1, width=width)
    if runs_per_chunk is None:
        unit = groups * width
        chunks = -(-runs // (unit * -(-8 // width)))
        chunks = processes * -(-chunks // processes)
        runs_per_chunk = min(runs, unit * -(-runs // (chunks * unit)))
    return _fitted(mesh, width, runs_per_chunk)


def choose_open(mesh: Mesh, *, width: int | None = None, runs_per_chunk: int | None = None) -> Plan:
    """A plan for runs whose number is not known beforehand: small chunks, the same ones however many there will be.

    Args:
        mesh: The devices.
        width: Runs under vmap per device; None means 1 on a CPU core and 4 on an accelerator.
        runs_per_chunk: Runs between two looks; None means one round of all devices.
    """
    width = (1 if is_cpu(mesh) else 4) if width is None else width
    _validate.at_least(1, width=width)
    return _fitted(mesh, width, mesh.shape[AXIS] * width if runs_per_chunk is None else runs_per_chunk)


def _fitted(mesh: Mesh, width: int, runs_per_chunk: int) -> Plan:
    _validate.at_least(1, runs_per_chunk=runs_per_chunk)
    return Plan(width=min(width, -(-runs_per_chunk // mesh.shape[AXIS])), runs_per_chunk=runs_per_chunk)


def padded(mesh: Mesh, runs: int, width: int) -> int:
    """Runs that are computed for ``runs`` wanted ones: every device has as many, in whole groups of ``width``."""
    unit = mesh.shape[AXIS] * width
    return unit * -(-runs // unit)


def candidates(mesh: Mesh, first: Plan, forms: Sequence[str] = ("",)) -> list[Plan]:
    """Plans worth measuring, the first guess first, then by width, away from the guess.

    Args:
        mesh: The devices.
        first: The first guess.
        forms: Forms of the model's layers: the one for a width of 1 first, the one for larger widths last.
    """
    share = -(-first.runs_per_chunk // mesh.shape[AXIS])
    widths = sorted({w for w in (1, 4, 8, 32, 128, share) if w <= share} | {first.width})
    widths.sort(key=lambda w: (w < first.width, abs(w - first.width)))
    plans = [first]
    for width in widths:
        plans += [dataclasses.replace(first, width=width, form=f) for f in (forms if width == 1 else forms[-1:])]
    return list(dict.fromkeys(plans))


def pick(
    plans: Sequence[Plan], measure: Callable[[Plan], Measured], *, steps: int, limit: float, always: bool = False
) -> tuple[Plan, list[Measured], str]:
    """Measures plans and picks one.

    The first plan is measured in any case. The others are measured only if the job is long enough for the time to come back:
    if a third of it is more than what compiling them takes. Wider plans than one that was slower, or did not fit, are left
    out.

    Args:
        plans: Candidates, the first guess first; a later one must be faster by ``GAIN``.
        measure: Compiles and times a plan; ``seconds`` infinite where it does not fit.
        steps: Steps of all runs that the job has, to judge whether measuring repays.
        limit: Memory of a device in bytes, for the words; ``measure`` holds plans to it.
        always: Measure all of them, however short the job.

    Returns:
        The plan, what was measured, and why it was picked, in words.

    Raises:
        InputError: No plan fits.
    """
    rows: list[Measured] = []
    best: Measured | None = None
    for plan in plans:
        if best is not None and not always:
            work = steps * best.seconds
            if work / 3 < (len(plans) - len(rows)) * (best.compile_seconds + 1):
                break
        # Beyond a width that was slower than the best one it only gets worse.
        if best is not None and any(_beyond(best.plan.width, row.plan.width, plan.width) for row in rows):
            continue
        row = measure(plan)
        rows.append(row)
        if row.seconds < float("inf") and (best is None or row.seconds < (1 - GAIN) * best.seconds):
            best = row
    if best is None:
        least = min(row.bytes for row in rows)
        raise _validate.InputError(
            f"The smallest plan takes {show_size(least)} of a device's {show_size(limit)}; use a smaller batch_size or "
            "model, or spread each run's parameters over several devices with parameter_shards."
        )
    why = f"{show_time(best.seconds)} a run-step, {show_size(best.bytes)} a device"
    others = [row for row in rows if row is not best]
    if others:
        told = (
            f"{row.plan} does not fit ({show_size(row.bytes)})"
            if row.seconds == float("inf")
            else f"{row.plan} takes {show_time(row.seconds)}"
            for row in others
        )
        why += f"; {', '.join(told)}"
    elif len(plans) > 1:
        why += f"; about {steps * best.seconds:.0f} s of work would not repay trying others"
    return best.plan, rows, why


def _beyond(best: int, slower: int, width: int) -> bool:
    """Whether ``width`` lies further away from the best one than a slower one, on the same side."""
    return best < slower < width or best > slower > width


def show_time(seconds: float) -> str:
    """Three digits, in microseconds or milliseconds."""
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def show_size(count: float) -> str:
    """Three digits, in MiB or GiB."""
    return f"{count / 2**20:.3g} MiB" if count < 2**30 else f"{count / 2**30:.3g} GiB"


def device_memory(mesh: Mesh) -> float:
    """Bytes that a phase may take on each device of the mesh: a share of what is there.

    An accelerator says so itself; host devices share what the machine, or the container that the process is in, has free.
    """
    device = mesh.devices.flat[0]
    stats = None if is_cpu(mesh) else device.memory_stats()
    if stats and stats.get("bytes_limit"):
        return MEMORY_SHARE * stats["bytes_limit"]
    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError, KeyError):  # outside Linux, or "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        bound, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        kept = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, bound - used + int(kept["inactive_file"]))  # cached files give way
    return MEMORY_SHARE * max(free, 0) / mesh.devices.size
