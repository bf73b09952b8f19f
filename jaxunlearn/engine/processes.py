"""Several processes in one run directory, on one machine or many: each takes every n-th chunk, the first one merges.

Runs do not talk to each other, and neither do the processes: what they share is the directory. Every process writes the
chunks that it owns, which are the same to the bit whoever computes them, and a small file about itself, written anew every
few seconds. A process that falls silent has its chunks taken over by the first one; if the first one dies, the same command
goes on from what is there, with as many processes as there are then.
"""

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from jaxunlearn import records
from jaxunlearn._validate import InputError, at_least, require

BEAT_SECONDS = 2.0
POLL_SECONDS = 0.1
PATIENCE_VARIABLE = "JAXUNLEARN_PATIENCE"
PATIENCE_SECONDS = 120.0
"""Silence after which a process counts as dead, unless the environment variable says otherwise; it covers slow starts."""

WORKING, DONE, FAILED = "working", "done", "failed"


class Group:
    """This process among those that work in a run directory.

    Args:
        index: Its number, 0 <= index < count; 0 is the one that writes manifests and merges.
        count: How many there are.

    Raises:
        InputError: ``index`` is out of range.
    """

    def __init__(self, index: int = 0, count: int = 1):
        at_least(1, num_processes=count)
        require(0 <= index < count, f"Expected process_id={index} in 0..{count - 1}, with num_processes={count}.")
        self.index, self.count = index, count
        self.patience = float(os.environ.get(PATIENCE_VARIABLE) or PATIENCE_SECONDS)
        self.leave: Callable[[], None] = lambda: None
        self._adopted: set[int] = set()
        self._directory: Any = None
        self._mine: dict[str, Any] = {"state": WORKING, "opened": [], "beat": 0}
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._others: dict[int, tuple[Any, float, bool]] = {}

    @property
    def first(self) -> bool:
        """Whether this is the process that writes manifests and merges."""
        return self.index == 0

    def owner(self, number: int) -> int:
        """The process that computes chunk ``number``."""
        return number % self.count

    def mine(self, number: int) -> bool:
        """Whether chunk ``number`` is this process's to compute."""
        return self.owner(number) == self.index or self.owner(number) in self._adopted

    @contextlib.contextmanager
    def working(self, directory: Any) -> Iterator[None]:
        """Tells the others, through the directory, that this process lives, and how it ended."""
        if self.count == 1:
            yield
            return
        self._directory = directory / "processes"
        self._mine |= {"session": uuid.uuid4().hex, "process": self.index, "of": self.count}
        for other in range(self.count):
            self._others[other] = (self._read(other), time.monotonic(), False)
        self._write()
        thread = threading.Thread(target=self._keep_beating, name="jaxunlearn-beat", daemon=True)
        thread.start()
        try:
            yield
            self._end(DONE)
        except BaseException as error:
            self._end(FAILED, error=" ".join(str(error).split()) or type(error).__name__)
            raise
        finally:
            self._stop.set()
            thread.join()

    def _path(self, process: int) -> Any:
        return self._directory / f"{process}.json"

    def _read(self, process: int) -> dict[str, Any] | None:
        try:
            return records.read_json(self._path(process))
        except InputError:
            return None

    def _write(self) -> None:
        with self._lock:
            self._mine["beat"] += 1
            self._mine["time"] = round(time.time(), 1)  # for whoever asks; clocks of machines are never compared
            records.write_json(self._path(self.index), self._mine)

    def _keep_beating(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError, ValueError):  # a full disk is found by whoever writes results
                self._write()

    def _end(self, state: str, **facts: Any) -> None:
        self._mine |= {"state": state, **facts}
        with contextlib.suppress(OSError, ValueError):
            self._write()

    def announce(self, stage: str) -> None:
        """Says, if this is the first process, that a stage's files are there."""
        if self.count > 1 and self.first:
            self._mine["opened"].append(stage)
            self._write()

    def follow(self, stage: str) -> None:
        """Waits until the first process has announced a stage.

        Raises:
            InputError: The first process failed, or is silent.
        """
        if self.first:
            return
        if not self._await(0, lambda heard: stage in heard["opened"]):
            raise InputError(
                f"Process 0 of {self.count} has not been heard of for {self.patience:g} s; finished chunks are kept, give "
                "the same commands again."
            )

    def wait_for(self, number: int, ready: Callable[[], bool]) -> bool:
        """Waits for what another process computes.

        Args:
            number: The chunk.
            ready: Whether it is there.

        Returns:
            True once it is there; False if its owner is silent and this process is to compute it: all chunks of the owner
            are this process's from then on.

        Raises:
            InputError: The owner failed.
        """
        owner = self.owner(number)
        while not ready():
            if not self._alive(owner):
                self._adopted.add(owner)
                print(
                    f"jaxunlearn: process {owner} has not been heard of for {self.patience:g} s: its chunks are taken over.",
                    file=sys.stderr,
                )
                return False
            time.sleep(POLL_SECONDS)
        return True

    def await_end(self) -> None:
        """Waits, in the other processes, until the first one has merged; in the first, until the others have left."""
        if self.count == 1:
            return
        if self.first:
            self._end(DONE)
            for other in set(range(1, self.count)) - self._adopted:
                self._await(other, lambda heard: False)
        else:
            self._await(0, lambda heard: False)
            self.leave()  # while process 0, which the others are connected to, is still there

    def _await(self, process: int, reached: Callable[[dict[str, Any]], bool]) -> bool:
        """Waits until another process is heard to have reached something, or to be done; False if it is silent."""
        while True:
            alive = self._alive(process)
            heard, _, fresh = self._others[process]
            if fresh and (heard["state"] == DONE or reached(heard)):
                return True
            if not alive:
                return False
            time.sleep(POLL_SECONDS)

    def _alive(self, process: int) -> bool:
        """Whether a process has been heard of lately. What was there before this session counts once it has changed.

        Raises:
            InputError: It said that it failed.
        """
        heard, since, fresh = self._others[process]
        found = self._read(process)
        if found is not None and found != heard:
            heard, since, fresh = found, time.monotonic(), True
            self._others[process] = heard, since, fresh
        if fresh and heard["state"] == FAILED:
            raise InputError(f"Process {process} of {self.count} failed: {heard['error']}")
        return time.monotonic() - since < self.patience


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
    import jax

    # A process that dies must not take the others with it: its chunks are computed by another one.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            f"Cannot join the other processes ({' '.join(str(error).split())}); is this a Slurm, Open MPI or Kubernetes job "
            "or a TPU pod? Else give coordinator, num_processes and process_id."
        ) from error
    group = Group(jax.process_index(), jax.process_count())
    group.leave = jax.distributed.shutdown
    return group
