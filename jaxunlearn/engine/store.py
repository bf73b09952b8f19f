"""What survives a kill: manifests that refuse another configuration, and chunks that are whole or absent."""

import contextlib
import errno
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxunlearn import records
from jaxunlearn._validate import InputError


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The leaves in which two JSON-like values differ, as "path: old -> new"."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            path = f"{prefix}.{key}" if prefix else str(key)
            lines += differences(old.get(key, "(absent)"), new.get(key, "(absent)"), path)
        return lines
    return [] if old == new else [f"{prefix}: {old} -> {new}"]


def open_manifest(directory: Path, name: str, config: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Writes ``directory/name`` on the first call; later calls must come with the same configuration.

    Args:
        directory: Run directory, made if absent.
        name: File name of the manifest.
        config: Everything that results depend on, JSON-like.
        facts: Written beside it and not compared (versions, device, time).

    Returns:
        The manifest on disk.

    Raises:
        InputError: The directory holds another configuration; the message shows the difference.
    """
    path = directory / name
    with disk_errors(directory):
        if not path.exists():
            records.write_json(path, {"schema": records.SCHEMA, "config": dict(config), **facts})
        manifest = records.read_json(path)
    found = manifest if isinstance(manifest, dict) else {}
    if found.get("schema") != records.SCHEMA or not isinstance(found.get("config"), dict):
        raise InputError(
            f"Expected schema={records.SCHEMA} in {path}, got {found.get('schema')!r}; use another --out directory."
        )
    changed = differences(manifest["config"], dict(config))
    if changed:
        raise InputError(
            f"{directory} holds a run of another configuration ({'; '.join(changed)}); "
            "use another --out directory, restore the setting, or delete the directory."
        )
    return manifest


_UNWRITABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP),
}


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Keeps a directory to one process; the system lets go of the lock when the process ends, however it ends.

    Raises:
        InputError: Another process works in the directory, or it cannot be written.
    """
    with disk_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = open(directory / ".lock", "w")
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another process works in {directory}; wait until it ends, or use another directory."
            ) from error
        except (OSError, ImportError):  # a file system or an operating system without such locks
            pass
        yield


@contextlib.contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Turns a full, read-only or forbidden disk into an InputError; what was written before stays usable."""
    try:
        yield
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        text = str(error)
        if code in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text or "RESOURCE_EXHAUSTED" in text:
            fix = "free some space and give the same command again; finished chunks are kept"
            raise InputError(f"The disk of {directory} is full; {fix}.") from error
        if code in _UNWRITABLE:
            raise InputError(f"Cannot write to {directory} ({error}); choose another --out directory.") from error
        raise


@contextlib.contextmanager
def _strays_ignored() -> Iterator[None]:
    """After a failed save or restore its other writes or reads find their event loop closed, and would print so."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: None if "loop is closed" in str(found.exc_value) else hook(found)
    try:
        yield
    except Exception:
        time.sleep(0.5)  # they end within milliseconds
        raise
    finally:
        sys.unraisablehook = hook


class ParamsStore:
    """Chunks of trained parameters, as orbax checkpoints.

    A chunk is committed by its small JSON file, written after the checkpoint is complete; a checkpoint without one is
    left over from a kill and is written again.

    Args:
        directory: Where chunks go.
    """

    def __init__(self, directory: Path):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs every save, and every error before raising it
        self.directory = directory.absolute()
        self._checkpointer = ocp.StandardCheckpointer()

    def _commit(self, chunk: int) -> Path:
        return self.directory / f"chunk-{chunk:05d}.json"

    def done(self, chunk: int) -> bool:
        """Whether the chunk is complete."""
        return self._commit(chunk).exists()

    def save(self, chunk: int, params: Any, runs: Mapping[str, Any]) -> None:
        """Writes a chunk of parameters [R, ...] and which runs they are."""
        path = self.directory / f"chunk-{chunk:05d}"
        with disk_errors(self.directory):
            shutil.rmtree(path, ignore_errors=True)
            with _strays_ignored():
                self._checkpointer.save(path, params)
                self._checkpointer.wait_until_finished()
            records.write_json(self._commit(chunk), dict(runs))

    def load(self, chunk: int, like: Any) -> Any:
        """Reads a chunk back as host arrays.

        Args:
            chunk: Its number.
            like: A pytree of ``jax.ShapeDtypeStruct`` with the expected structure.

        Raises:
            InputError: The checkpoint is damaged.
        """
        path = self.directory / f"chunk-{chunk:05d}"
        try:
            with _strays_ignored():
                return self._checkpointer.restore(path, like)
        except Exception as error:  # orbax and tensorstore have no common base class for damaged files
            raise InputError(
                f"Cannot read {path} ({type(error).__name__}); delete {self._commit(chunk)} and give the same command again."
            ) from error


def read_chunk(path: Path) -> dict[str, np.ndarray] | None:
    """A finished chunk of scores, or None if it is absent or damaged (it is then computed again)."""
    try:
        return records.read_npz(path)
    except InputError:
        return None


def register(path: Path, entry: Any) -> list[Any]:
    """Adds an entry to a JSON list on disk, once.

    Returns:
        The other entries that the list holds.
    """
    entries = records.read_json(path) if path.exists() else []
    if entry not in entries:
        with disk_errors(path.parent):
            records.write_json(path, [*entries, entry])
    return [other for other in entries if other != entry]
