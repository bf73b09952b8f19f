"""Chunks of models on disk: orbax checkpoints that are whole or absent, checked byte by byte, written in the background."""

import contextlib
import hashlib
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from jaxunlearn import _paths, records
from jaxunlearn._paths import AnyPath, absolute, is_local
from jaxunlearn._validate import InputError
from jaxunlearn._version import __version__
from jaxunlearn.engine.store import disk_errors


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


class Writer:
    """One background thread that writes in order; at most one job is under way, so that at most one chunk waits in memory."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, "jaxunlearn-write")
        self._job: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Starts a job once the one before has ended; raises the error of that one, and then starts nothing."""
        self.flush()
        self._job = self._pool.submit(job)

    def flush(self) -> None:
        """Waits for what is being written, and raises its error."""
        job = self._job
        if job is not None:
            wait([job])  # an interrupt leaves the job in place: whoever flushes next waits for it
            self._job = None
            job.result()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        """Waits for what is being written, whatever happened; its error is raised unless another is already."""
        if kind is None:
            self.flush()
        else:
            with contextlib.suppress(Exception):
                self.flush()


class ParamsStore:
    """Chunks of parameters, as orbax checkpoints.

    A chunk is committed by its small JSON file, written after the checkpoint is complete: schema, version, what the models
    depend on, which runs they are, and size and sha256 of every file of the checkpoint. A checkpoint without one is left over
    from a kill and is written again. Sizes are compared whenever it is asked whether a chunk is done, checksums whenever it
    is loaded.

    In an object store a checkpoint goes through a temporary folder of this machine: it is read once, checked and restored,
    and works with every scheme that fsspec knows, where orbax itself writes to gs:// alone.

    Args:
        directory: Where chunks go.
        identity: What the models depend on, JSON-like; None takes any.
        process: This process's index where several share one JAX program and each writes chunks of its own: no save or load
            then waits for another process. None in a program of one process.
        writer: The thread that writes, where several stores share one.

    Attributes:
        writer: The thread that writes.
    """

    def __init__(
        self, directory: AnyPath, *, identity: Any = None, process: int | None = None, writer: Writer | None = None
    ):
        self.directory = absolute(directory)
        self._identity = None if identity is None else records.digest(identity)
        self.writer = writer or Writer()
        self._checkpointer = _Checkpointer(process)
        self._reader = ThreadPoolExecutor(1, "jaxunlearn-read")
        self._writing: int | None = None
        self._ahead: tuple[int, Future[Any]] | None = None

    def _path(self, chunk: int) -> AnyPath:
        return self.directory / f"chunk-{chunk:05d}"

    def _commit(self, chunk: int) -> AnyPath:
        return self.directory / f"chunk-{chunk:05d}.json"

    def facts(self, chunk: int) -> dict[str, Any]:
        """What the commit file says: "runs" and whatever else was given to ``save``, "schema", "version", "files".

        Raises:
            Damaged: It is not there, or it or the size of a file is not as it was written.
            InputError: The models were made with other settings.
        """
        path = self._commit(chunk)
        if not path.exists():
            raise records.Damaged(f"{self._path(chunk)} has no commit file {path.name}.")
        facts = records.read_json(path)
        known = isinstance(facts, dict) and isinstance(facts.get("files"), dict)
        if not known or facts.get("schema") != records.SCHEMA:
            raise records.Damaged(f"{path} is not as this version writes it.")
        if self._identity is not None and facts.get("identity") != self._identity:
            raise InputError(
                f"{self._path(chunk)} holds models that were made with other settings; restore the directory's "
                "manifest.json, or use another directory."
            )
        for name, (size, _) in facts["files"].items():
            try:
                found = _paths.size(self._path(chunk) / name)
            except OSError as error:
                raise records.Damaged(f"{self._path(chunk)} is damaged: {name} is missing.") from error
            if found != size:
                raise records.Damaged(f"{self._path(chunk)} is damaged: {name} has {found} bytes of {size}.")
        return facts

    def verify(self, chunk: int) -> dict[str, Any]:
        """``facts``, with the checksum of every file compared."""
        facts = self.facts(chunk)
        with _staged(self._path(chunk)) as place:
            self._check(chunk, place, facts["files"])
        return facts

    def damage(self, chunk: int, *, checksums: bool = False) -> str | None:
        """What is wrong with a chunk, as far as sizes, or checksums, tell; None if it is whole, or was not written yet.

        Raises:
            InputError: It holds models that were made with other settings.
        """
        self._settle(chunk)
        if not self._commit(chunk).exists() and not self._path(chunk).exists():
            return None
        try:
            self.verify(chunk) if checksums else self.facts(chunk)
        except records.Damaged as error:
            return str(error).rstrip(".")
        return None

    def done(self, chunk: int) -> bool:
        """Whether the chunk is complete, as far as sizes tell."""
        self._settle(chunk)
        return self._commit(chunk).exists() and self.damage(chunk) is None

    def _settle(self, chunk: int) -> None:
        """Waits for the chunk if it is being written."""
        if chunk == self._writing:
            self.flush()

    def save(self, chunk: int, params: Any, facts: Mapping[str, Any]) -> None:
        """Writes a chunk of parameters in the background, once the one before is written.

        Args:
            chunk: Its number.
            params: A pytree of host arrays [R, ...], not to be changed any more.
            facts: Which runs they are; goes into the commit file.

        Raises:
            InputError: The write before this one failed; this chunk is then not written.
        """
        self._ahead = None
        self.writer.submit(lambda: self._write(chunk, params, dict(facts)))
        self._writing = chunk

    def flush(self) -> None:
        """Waits until everything is on disk.

        Raises:
            InputError: The disk is full, or cannot be written.
        """
        self.writer.flush()
        self._writing = None

    def _write(self, chunk: int, params: Any, facts: dict[str, Any]) -> None:
        path = self._path(chunk)
        with disk_errors(self.directory):
            self._commit(chunk).unlink(missing_ok=True)
            _paths.remove_tree(path)
            try:
                files = self._write_checkpoint(path, params)
                facts |= {"schema": records.SCHEMA, "version": __version__, "identity": self._identity, "files": files}
                records.write_json(self._commit(chunk), facts)
            except BaseException:
                _paths.remove_tree(path)  # the disk may be full
                raise

    def _write_checkpoint(self, path: AnyPath, params: Any) -> dict[str, list[Any]]:
        """Writes a checkpoint; size and checksum of each of its files."""
        with _staged(path) as place:
            with _strays_ignored():
                self._checkpointer.save(place, params)
            names = _files(place)
            if not is_local(path):
                for name in names:
                    records.write_bytes(path / name, (place / name).read_bytes())
            return {name: [_paths.size(place / name), _sha256(place / name)] for name in names}

    def prefetch(self, chunk: int, like: Any = None) -> None:
        """Starts to read a chunk in the background, for the next ``load``; at most one is held."""
        if self._ahead is None or self._ahead[0] != chunk:
            self._ahead = chunk, self._reader.submit(self._read, chunk, like)

    def load(self, chunk: int, like: Any = None) -> Any:
        """Reads a chunk back as host arrays, and checks every byte of it.

        Args:
            chunk: Its number.
            like: A pytree of ``jax.ShapeDtypeStruct`` with the expected structure; None takes any.

        Raises:
            Damaged: The checkpoint is not there or not as it was written, or holds other arrays.
            InputError: The models were made with other settings.
        """
        self._settle(chunk)
        if self._ahead is not None and self._ahead[0] == chunk:
            ahead, self._ahead = self._ahead[1], None
            return ahead.result()
        return self._reader.submit(self._read, chunk, like).result()

    def _read(self, chunk: int, like: Any) -> Any:
        path = self._path(chunk)
        files = self.facts(chunk)["files"]
        with _staged(path) as place:
            self._check(chunk, place, files)
            try:
                with _strays_ignored():
                    return self._checkpointer.restore(place, like)
            except Exception as error:  # orbax and tensorstore have no common base class for what they cannot read
                raise records.Damaged(f"{path} cannot be read ({type(error).__name__}).") from error

    def _check(self, chunk: int, place: Path, files: Mapping[str, Any]) -> None:
        """Compares checksums; files of an object store are fetched on the way."""
        path = self._path(chunk)
        for name, (_, checksum) in files.items():
            if not is_local(path):
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes((path / name).read_bytes())
            if _sha256(place / name) != checksum:
                raise records.Damaged(f"{path} is damaged: the content of {name} is not what its checksum says.")

    def chunks(self) -> list[int]:
        """Numbers of the chunks that have a commit file."""
        found = (re.fullmatch(r"chunk-(\d+)\.json", path.name) for path in self.directory.glob("chunk-*.json"))
        return sorted(int(match[1]) for match in found if match)

    def discard(self, chunk: int) -> None:
        """Takes a chunk's commit file away, so that it counts as not written."""
        self._settle(chunk)
        with disk_errors(self.directory):
            self._commit(chunk).unlink(missing_ok=True)

    def clear(self) -> None:
        """Deletes all chunks, commit files first."""
        self._ahead = None
        self.flush()
        with disk_errors(self.directory):
            for chunk in self.chunks():
                self._commit(chunk).unlink()
            for path in [p for p in self.directory.glob("chunk-*") if p.is_dir()]:
                _paths.remove_tree(path)


class _Checkpointer:
    """orbax's checkpointer for host arrays in one local folder, without a word to other processes.

    Args:
        process: This process's index, or None.
    """

    def __init__(self, process: int | None):
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs every save, and every error before raising it
        options = ocp.options.MultiprocessingOptions()
        own: dict[str, Any] = {}
        if process is not None:
            options = ocp.options.MultiprocessingOptions(
                primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"jaxunlearn-{process}"
            )
            own = {
                "type_handler_registry": ocp.type_handlers.create_type_handler_registry((np.ndarray, _own_arrays(ocp)))
            }
        self._arguments = ocp.args
        self._as_arrays = ocp.RestoreArgs(restore_type=np.ndarray)
        self._orbax = ocp.Checkpointer(
            ocp.PyTreeCheckpointHandler(multiprocessing_options=options, **own),
            multiprocessing_options=options,
        )

    def save(self, path: Path, params: Any) -> None:
        """Writes a pytree of host arrays into a new folder."""
        self._orbax.save(path, args=self._arguments.PyTreeSave(params))

    def restore(self, path: Path, like: Any) -> Any:
        """Reads it back; ValueError if it is not as ``like``."""
        import jax

        if like is None:
            return self._orbax.restore(path, args=self._arguments.PyTreeRestore())
        kinds = jax.tree.map(lambda _: self._as_arrays, like)
        found = self._orbax.restore(path, args=self._arguments.PyTreeRestore(item=like, restore_args=kinds))
        if not all(jax.tree.leaves(jax.tree.map(lambda a, b: a.shape == b.shape and a.dtype == b.dtype, found, like))):
            raise ValueError("other shapes than expected")
        return found


def _own_arrays(ocp: Any) -> Any:
    """Orbax's handler of NumPy arrays lets process 0 write alone; this one writes in whatever process saves."""
    from orbax.checkpoint._src.serialization import ocdbt_utils, tensorstore_utils

    class OwnArrays(ocp.type_handlers.NumpyHandler):
        async def _background_serialize(self, values, infos, args=None):
            for value, info, arg in zip(values, infos, args or [ocp.SaveArgs()] * len(values)):
                await info.await_path_creation()
                spec = tensorstore_utils.build_array_write_spec(
                    info=info,
                    arg=arg,
                    global_shape=value.shape,
                    local_shape=value.shape,
                    dtype=value.dtype,
                    use_ocdbt=info.is_ocdbt_checkpoint,
                    process_index=ocdbt_utils.get_process_index_for_subdir(use_ocdbt=info.is_ocdbt_checkpoint),
                    metadata_key=self._metadata_key,
                )
                await self._open_and_write(value, spec.json, info.ts_context)

    return OwnArrays()


@contextlib.contextmanager
def _staged(path: AnyPath) -> Iterator[Path]:
    """The folder itself if it is local, else a temporary one in its place."""
    if is_local(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="jaxunlearn-") as folder:
        yield Path(folder) / path.name


def _files(folder: Path) -> list[str]:
    """The files below a folder, relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise records.Damaged(f"{path} cannot be read ({error}).") from error
