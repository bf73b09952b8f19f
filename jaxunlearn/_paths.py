"""Paths of files: on this machine, or in an object store (gs://, s3://, az://, hf://) through etils.epath and fsspec."""

import importlib.util
import os
import pathlib
import shutil

from etils import epath

from jaxunlearn._validate import InputError

AnyPath = pathlib.Path | epath.Path
"""A local path, or one of an object store. Of the two only what both have is used; the rest is below."""


def as_path(path: str | os.PathLike[str]) -> AnyPath:
    """A path from what was written: ``pathlib`` for local ones, since it would lose a slash of ``gs://bucket/x``.

    Raises:
        InputError: Nobody here reads that scheme, or the package that does is not installed.
    """
    text = os.fspath(path)
    scheme, found, _ = text.partition("://")
    if not found:
        return pathlib.Path(text)
    try:
        remote = epath.Path(text)
    except KeyError as error:
        raise InputError(
            f"Expected a local path, gs://, s3://, az:// or hf://, got {text}; no other scheme is known."
        ) from error
    if importlib.util.find_spec("tensorflow") is None:  # which etils prefers where it is installed
        import fsspec

        try:
            fsspec.get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"Cannot open {text} ({' '.join(str(error).split())}); pip install 'jaxunlearn[cloud]' has Google's and "
                "Amazon's."
            ) from error
    return remote


def is_local(path: os.PathLike[str]) -> bool:
    """Whether the operating system itself reads the path: such files can be locked, and are renamed into place."""
    return "://" not in os.fspath(path)


def absolute(path: AnyPath) -> AnyPath:
    """The path from the root; those of object stores are."""
    return pathlib.Path(path).absolute() if is_local(path) else path


def size(path: AnyPath) -> int:
    """Bytes in a file.

    Raises:
        FileNotFoundError: There is none.
    """
    return os.stat(path).st_size if is_local(path) else path.stat().length  # pyrefly: ignore


def remove_tree(path: AnyPath) -> None:
    """Deletes a folder and what is in it, if it is there."""
    if isinstance(path, epath.Path) and not is_local(path):
        if path.exists():
            path.rmtree()
    else:
        shutil.rmtree(path, ignore_errors=True)
