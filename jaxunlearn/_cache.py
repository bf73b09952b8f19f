"""The folder for what is dear to find out again: measured plans and compiled programs.

It is named by the environment variable ``JAXUNLEARN_CACHE``, else ``~/.cache/jaxunlearn``. Deleting it costs time only.
"""

import contextlib
import hashlib
import os
import platform
from pathlib import Path

CACHE_VARIABLE = "JAXUNLEARN_CACHE"


def cache_dir() -> Path:
    """The folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "jaxunlearn")


def processor() -> str:
    """A short name of this kind of CPU: a program compiled for one may not run on another that shares the folder."""
    text = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        text += "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
