"""What commands share that measure models under conditions: the manifest of a run directory, and which results are whole."""

import datetime
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import InputError, require
from jaxunlearn.engine import store
from jaxunlearn.pipeline.audit import PACKAGES


def open_run(
    directory: AnyPath, identity: Mapping[str, Any], *, command: str, mark: str, file: str, title: str, **facts: Any
) -> dict[str, Any]:
    """Begins a run directory, or holds one that was begun to its settings.

    Args:
        directory: The run directory.
        identity: What all its results depend on.
        command: Its name, for messages.
        mark: A setting that no other command has.
        file: The record in each method's folder.
        title: The data, for headings.
        facts: What else its manifest says when it is begun.

    Returns:
        The manifest.

    Raises:
        InputError: It is of another command or of other settings, or results are there without a manifest.
    """
    path = directory / "manifest.json"
    results = [f"{found.parent.name}/{found.name}" for found in directory.glob(f"*/{file}")]
    fix = "restore it from a copy, or delete the directory and begin again"
    require(path.exists() or not results, f"{path} is missing beside {', '.join(sorted(results))}; {fix}.")
    if path.exists():
        found = records.read_json(path, fix)
        require(
            mark in (found.get("config") or {}),
            f"{directory} holds a run of another command than {command}; use another --out directory.",
        )
    said = {
        "title": title,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
    }
    return store.open_manifest(directory, "manifest.json", dict(identity), **said, **facts)


def chunks_begun(manifest: AnyPath, *keys: str) -> int | None:
    """The chunk size that a directory was begun with; it is the same on whatever machine goes on.

    Args:
        manifest: Its manifest.json.
        keys: What leads to the mapping that holds it.
    """
    try:
        found = records.read_json(manifest)
        for key in keys:
            found = found[key]
        return int(found["runs_per_chunk"])
    except (InputError, OSError, KeyError, TypeError, ValueError):
        return None  # none yet; or damaged, which whoever opens it says


def whole(record: AnyPath, arrays: AnyPath, read: Callable[[Any], Any]) -> dict[str, np.ndarray] | None:
    """The arrays beside a record, None unless both are whole on disk; damage is named on standard error.

    Args:
        record: The JSON file.
        arrays: The file of arrays.
        read: Makes the record of what its file holds.
    """
    try:
        read(records.read_json(record))
        return records.read_npz(arrays, sealed=True)
    except InputError as error:
        if record.exists():
            store.notice(f"{str(error).rstrip('.')}: these results are computed again.")
        return None
