"""Several processes in one run directory, on one machine or many: each takes every n-th chunk, the first one merges.

Runs do not talk to each other, and neither do the processes: what they share is the directory. Every process writes the
chunks that it owns, which are the same to the bit whoever computes them, and a small file about itself, written anew every
few seconds. A process that falls silent has its chunks taken over by the first one; if the first one dies, the same command
goes on from what is there, with as many processes as there are then.
"""

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from jaxunlearn import records
from jaxunlearn._validate import InputError, at_least, require
from jaxunlearn.engine import store

BEAT_SECONDS = 2.0
POLL_SECONDS = 0.1
PATIENCE_VARIABLE = "JAXUNLEARN_PATIENCE"
PATIENCE_SECONDS = 120.0
"""Silence after which a process counts as dead, unless the environment variable says otherwise; it covers slow starts."""

WORKING, DONE, FAILED = "working", "done", "failed"


@dataclasses.dataclass
class _Other:
    """What is known of another process."""

    heard: dict[str, Any] | None
    polled: float
    silent: float = 0.0
    fresh: bool = False


class Group:
    """This process among those that work in a run directory.

    Args:
        index: Its number, 0 <= index < count; 0 is the one that writes manifests and merges.
        count: How many there are.

    Attributes:
        leave: Called by the others once the first one has merged.

    Raises:
        InputError: ``index`` is out of range.
    """

    def __init__(self, index: int = 0, count: int = 1):
        at_least(1, num_processes=count)
        require(0 <= index < count, f"Expected process_id={index} in 0..{count - 1}, with num_processes={count}.")
        self.index, self.count = index, count
        self.patience = _patience()
        self.leave: Callable[[], None] = lambda: None
        self._directory: Any = None
        self._mine: dict[str, Any] = {"state": WORKING, "opened": [], "adopted": [], "beat": 0}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._others: dict[int, _Other] = {}

    @property
    def first(self) -> bool:
        """Whether this is the process that writes manifests and merges."""
        return self.index == 0

    @property
    def lock(self) -> int | None:
        """What ``store.exclusive`` is told: the number among several processes, or None."""
        return None if self.count == 1 else self.index

    def owner(self, number: int) -> int:
        """The process that computes chunk ``number``."""
        return number % self.count

    def mine(self, number: int) -> bool:
        """Whether chunk ``number`` is this process's to compute."""
        return self.owner(number) == self.index or self.owner(number) in self._mine["adopted"]

    @contextlib.contextmanager
    def working(self, directory: Any) -> Iterator[None]:
        """Tells the others, through the directory, that this process lives, and how it ended."""
        if self.count == 1:
            yield
            return
        self._directory = directory / "processes"
        for other in range(self.count):
            self._others[other] = _Other(self._read(other), time.monotonic())
        with store.disk_errors(directory):
            self._say(session=uuid.uuid4().hex, process=self.index, of=self.count)
        thread = threading.Thread(target=self._keep_beating, name="jaxunlearn-beat", daemon=True)
        thread.start()
        try:
            yield
            self._end(DONE)
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            self._end(
                FAILED, error="interrupted" if interrupted else " ".join(str(error).split()) or type(error).__name__
            )
            raise
        finally:
            self._stop.set()
            thread.join()

    def _path(self, process: int) -> Any:
        return self._directory / f"{process}.json"

    def _read(self, process: int) -> dict[str, Any] | None:
        try:
            return records.read_json(self._path(process))
        except (InputError, OSError):  # not there yet, or renamed under a network file system's reader
            return None

    def _say(self, **facts: Any) -> None:
        with self._lock:
            self._mine |= facts | {"beat": self._mine["beat"] + 1}
            self._mine["time"] = round(time.time(), 1)  # for whoever asks; clocks of machines are never compared
            records.write_json(self._path(self.index), self._mine)

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # a full disk is found by whoever writes results
                self._say()

    def _end(self, state: str, **facts: Any) -> None:
        with contextlib.suppress(Exception):
            self._say(state=state, **facts)

    def announce(self, stage: str, **facts: Any) -> None:
        """Says, if this is the first process, that a stage's files are there, and what else the others must know."""
        if self.count > 1 and self.first:
            with store.disk_errors(self._directory):
                self._say(opened=[*self._mine["opened"], stage], **facts)

    def follow(self, stage: str) -> dict[str, Any]:
        """Waits until the first process has announced a stage.

        Returns:
            All that the first process has said; {} in itself.

        Raises:
            InputError: The first process failed, or is silent.
        """
        if self.first:
            return {}
        self._await_first(lambda heard: stage in heard["opened"])
        return self._others[0].heard or {}

    def check(self) -> None:
        """To be called before a chunk is computed.

        Raises:
            InputError: The first process counts this one as dead and computes its chunks.
        """
        if not self.first:
            self._alive(0)
            known = self._others[0]
            if known.fresh and self.index in (known.heard or {}).get("adopted", ()):
                raise InputError(
                    f"Process 0 has not heard of process {self.index} for {self.patience:g} s and has taken its chunks over."
                )

    def wait_for(self, number: int, ready: Callable[[], bool]) -> bool:
        """Waits for what another process computes.

        Args:
            number: The chunk.
            ready: Whether it is there.

        Returns:
            True once it is there; False, in the first process, if its owner is silent and the chunk is to be computed here,
            as are all chunks of the owner from then on.

        Raises:
            InputError: The owner, or in another process the first one, failed; or the first one is silent.
        """
        owner = self.owner(number)
        while not ready():
            if self.mine(number):
                return False
            if not self.first:
                self._await_first(lambda heard: True)
            elif not self._alive(owner):
                self._say(adopted=[*self._mine["adopted"], owner])
                print(
                    f"jaxunlearn: process {owner} has not been heard of for {self.patience:g} s: its chunks are taken over.",
                    file=sys.stderr,
                )
            time.sleep(POLL_SECONDS)
        return True

    def await_end(self) -> None:
        """Waits, in the other processes, until the first one has merged; in the first, until the others have left.

        Raises:
            InputError: In another process: the first one failed, or is silent.
        """
        if self.count == 1:
            return
        if self.first:
            self._end(DONE)
            for other in set(range(1, self.count)) - set(self._mine["adopted"]):
                with contextlib.suppress(InputError):  # its last words change nothing any more
                    while self._alive(other) and not self._ended(other):
                        time.sleep(POLL_SECONDS)
        else:
            self._await_first(lambda heard: False)
            self.leave()  # while process 0, which the others are connected to, is still there

    def _ended(self, process: int) -> bool:
        known = self._others[process]
        return known.fresh and known.heard is not None and known.heard["state"] == DONE

    def _await_first(self, reached: Callable[[dict[str, Any]], bool]) -> None:
        """Waits until the first process is heard to have reached something, or to be done."""
        while True:
            alive = self._alive(0)
            known = self._others[0]
            if known.fresh and known.heard is not None and (self._ended(0) or reached(known.heard)):
                return
            if not alive:
                raise InputError(
                    f"Process 0 of {self.count} has not been heard of for {self.patience:g} s; finished chunks are kept, "
                    "give the same commands again, all within that time."
                )
            time.sleep(POLL_SECONDS)

    def _alive(self, process: int) -> bool:
        """Whether a process has been heard of lately. What was there before this session counts once it has changed.

        Raises:
            InputError: It said that it failed.
        """
        known, found, now = self._others[process], self._read(process), time.monotonic()
        # If this process itself was held up, by a disk that hangs, others were as well: that is no silence of theirs.
        known.silent += min(now - known.polled, 2 * BEAT_SECONDS)
        known.polled = now
        if found is not None and found != known.heard:
            known.heard, known.silent, known.fresh = found, 0.0, True
        if known.fresh and known.heard is not None:
            of = known.heard.get("of")
            require(
                of == self.count,
                f"Process {process} was started with num_processes={of}, this one with {self.count}; give all the same.",
            )
            if known.heard["state"] == FAILED:
                raise InputError(f"Process {process} of {self.count} failed: {known.heard['error']}")
        return known.silent < self.patience


def _patience() -> float:
    text = os.environ.get(PATIENCE_VARIABLE) or str(PATIENCE_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    require(0 < seconds < math.inf, f"Expected seconds > 0 in {PATIENCE_VARIABLE}, got {text!r}.")
    return seconds


def _local_devices() -> list[int] | None:
    """What JAX is told of this process's devices; None leaves it to JAX, which under Slurm and Open MPI takes one.

    A process that is the only one on its machine takes all of it, and one that sees a single device takes that, whatever its
    number is.
    """
    visible = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
    alone = tasks.partition("(")[0] == "1" and "," not in tasks
    return list(range(len(visible))) if visible and (alone or len(visible) == 1) else None


def join(
    *,
    distributed: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Group:
    """Finds out which of several processes this one is; to be called before JAX starts its back end.

    Args:
        distributed: Let JAX's cluster detection say (Slurm, Open MPI, Kubernetes, TPU pods).
        coordinator: HOST:PORT of process 0, for ``jax.distributed``; with ``num_processes`` and ``process_id``.
        num_processes: How many there are; without a coordinator they share nothing but the run directory.
        process_id: Which one this is.

    Raises:
        InputError: JAX finds no cluster, or cannot reach the others.
    """
    if not distributed and coordinator is None:
        return Group(process_id or 0, 1 if num_processes is None else num_processes)
    require(
        coordinator is None or coordinator.rpartition(":")[2].isdecimal(),
        f"Expected coordinator as HOST:PORT, got {coordinator!r}.",
    )
    import jax

    # A process that dies must not take the others with it: its chunks are computed by another one.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, local_device_ids=_local_devices())
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"Cannot join the other processes ({' '.join(str(error).split())}); is this a Slurm, Open MPI or Kubernetes job "
            "or a TPU pod? Else give coordinator, num_processes and process_id."
        ) from error
    group = Group(jax.process_index(), jax.process_count())
    group.leave = jax.distributed.shutdown
    return group
