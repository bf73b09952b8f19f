"""What survives a kill: manifests that refuse another configuration, locks, and chunks of scores."""

import contextlib
import errno
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath, is_local
from jaxunlearn._validate import InputError
from jaxunlearn._version import __version__


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """The leaves in which two JSON-like values differ, as "path: old -> new"."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted(old.keys() | new.keys()):
            path = f"{prefix}.{key}" if prefix else str(key)
            lines += differences(old.get(key, "(absent)"), new.get(key, "(absent)"), path)
        return lines
    return [] if old == new else [f"{prefix}: {old} -> {new}"]


_LOST = {
    "manifest.json": "It holds what was preregistered and cannot be computed again: restore it from a copy, or begin again "
    "in another --out directory (with --population, the trained models of this one are used again).",
    "method.json": "It says what the method's results were computed with: restore it from a copy, or delete the method's "
    "folder, and the same command computes it again.",
}


def open_manifest(directory: AnyPath, name: str, config: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Writes ``directory/name`` on the first call; later calls must come with the same configuration.

    Args:
        directory: Run directory, made if absent.
        name: File name of the manifest.
        config: Everything that results depend on, JSON-like.
        facts: Written beside it and not compared (versions, device, time).

    Returns:
        The manifest on disk.

    Raises:
        records.Damaged: The manifest is not as it was written.
        InputError: The directory holds another configuration; the message shows the difference.
    """
    path = directory / name
    with disk_errors(directory):
        if not path.exists():
            records.write_json(
                path, {"schema": records.SCHEMA, "version": __version__, "config": dict(config), **facts}
            )
        try:
            manifest = records.read_json(path)
        except records.Damaged as error:
            raise records.Damaged(f"{path} is damaged. {_LOST.get(name, 'Restore it from a copy.')}") from error
    found = manifest if isinstance(manifest, dict) else {}
    if found.get("schema") != records.SCHEMA or not isinstance(found.get("config"), dict):
        by = f", written by version {found['version']}" if "version" in found else ""
        raise InputError(
            f"Expected schema={records.SCHEMA} in {path}, got {found.get('schema')!r}{by}; use another --out directory."
        )
    changed = differences(manifest["config"], dict(config))
    if changed:
        raise InputError(
            f"{directory} holds a run of another configuration ({'; '.join(changed)}); "
            "use another --out directory, restore the setting, or delete the directory."
        )
    return manifest


def require_manifest(path: AnyPath, *witnesses: AnyPath) -> None:
    """Refuses a directory whose manifest has gone while files that were written after it are there.

    Raises:
        InputError: A witness exists and the manifest does not.
    """
    if not path.exists():
        left = [witness.name for witness in witnesses if witness.exists()]
        if left:
            raise InputError(f"{path} is missing beside {' and '.join(left)}. {_LOST[path.name]}")


def sweep(*folders: AnyPath) -> None:
    """Deletes temporary files that a kill left; to be called by whoever holds the lock."""
    for folder in filter(is_local, folders):
        for stray in folder.glob(".*.tmp"):
            stray.unlink(missing_ok=True)


def notice(text: str) -> None:
    """Says on standard error, in one line, what was found damaged and what is done."""
    print(f"jaxunlearn: {text}", file=sys.stderr, flush=True)


_UNWRITABLE = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP),
}


@contextlib.contextmanager
def exclusive(directory: AnyPath, process: int | None = None) -> Iterator[None]:
    """Keeps a directory to one command; the system lets go of the lock when the process ends, however it ends.

    An object store has no locks: there it rests on the user that one command at a time works in a directory.

    Args:
        directory: The directory, made if absent.
        process: This process's number among those of one command; they share the directory, each number once.

    Raises:
        InputError: Another command works in the directory, or it cannot be written.
    """
    if not is_local(directory):
        yield
        return
    with disk_errors(directory), contextlib.ExitStack() as stack:
        directory.mkdir(parents=True, exist_ok=True)
        files = [stack.enter_context(open(directory / ".lock", "w"))]
        if process is not None:
            files.append(stack.enter_context(open(directory / f".lock-{process}", "w")))
        held = stack.pop_all()
    with held:
        try:
            import fcntl

            for file in files:
                shared = process is not None and file is files[0]
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"Another process works in {directory}; wait until it ends, or use another directory."
            ) from error
        except (OSError, ImportError):  # a file system or an operating system without such locks
            pass
        yield


@contextlib.contextmanager
def disk_errors(directory: AnyPath) -> Iterator[None]:
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


def read_chunk(path: AnyPath) -> dict[str, np.ndarray] | None:
    """A finished chunk of scores, or None if it is absent or, which is said, damaged (it is then computed again)."""
    try:
        return records.read_npz(path, sealed=True)
    except records.Damaged as error:
        notice(f"{error} Its runs are unlearned and scored again.")
    except InputError:
        pass
    return None


def register(path: AnyPath, entry: Any) -> list[Any]:
    """Adds an entry to a JSON list on disk, once; to be called by whoever holds the directory's lock.

    Returns:
        The other entries that the list holds.

    Raises:
        InputError: The list is damaged.
    """
    fix = (
        "it lists all terms under which these runs were bounded: restore it from a copy, or train new models in another "
        "--population directory with another --seed"
    )
    found = records.read_json(path, fix) if path.exists() else {"schema": records.SCHEMA, "entries": []}
    if (
        not isinstance(found, dict)
        or found.get("schema") != records.SCHEMA
        or not isinstance(found.get("entries"), list)
    ):
        raise records.Damaged(f"{path} is not as this version writes it; {fix}.")
    entries = found["entries"]
    if entry not in entries:
        with disk_errors(path.parent):
            records.write_json(path, {"schema": records.SCHEMA, "version": __version__, "entries": [*entries, entry]})
    return [other for other in entries if other != entry]
