"""Where data files are looked for, and what is said when they are missing or damaged.

The folder is the one named by the environment variable ``JAXUNLEARN_DATA``, else ``~/.cache/jaxunlearn/data``.
"""

import os
import struct
import tarfile
import zlib
from pathlib import Path

from jaxunlearn._validate import InputError

DATA_VARIABLE = "JAXUNLEARN_DATA"

# What reading a damaged file raises: tar, deflate, idx header, gzip, a cut, the contents, a missing member.
DAMAGE = (tarfile.TarError, zlib.error, struct.error, OSError, EOFError, ValueError, KeyError)


def data_dir() -> Path:
    """The folder in which data files are looked for."""
    return Path(os.environ.get(DATA_VARIABLE) or Path.home() / ".cache" / "jaxunlearn" / "data")


def unreadable(expected: str, path: Path, error: Exception) -> InputError:
    """The error of a file that is there and is not what its name says."""
    reason = " ".join(str(error).split())  # tarfile writes a line per compression it tried
    return InputError(f"Expected {expected} in {path}, but it cannot be read ({reason}); download it again.")


def missing(name: str, folder: Path, wanted: str, otherwise: str = "") -> InputError:
    """The error of data that is not there: what to download and where to put it, and another way, if there is one."""
    return InputError(
        f"Found no {name} files in {folder}. Download {wanted} and put them there, or set {DATA_VARIABLE} to the folder "
        f"that has them{f', or {otherwise}' if otherwise else ''}."
    )
