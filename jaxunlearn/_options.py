"""What command-line options share."""

import os
from typing import Annotated

import tyro

from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import InputError

UNSAID = tyro.conf.arg(help_behavior_hint="")
"""For options whose text names the real default: without it help adds "(default: None)"."""


class Refused(Exception):
    """What an option's value was refused for; tyro would take a ValueError for a hint to try something else."""


def _read_path(words: list[str]) -> AnyPath:
    try:
        return as_path(words[0])
    except InputError as error:
        raise Refused(str(error)) from error


PathOption = Annotated[
    AnyPath,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=_read_path,
        is_instance=lambda value: isinstance(value, os.PathLike),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""An option that is a path, local or of an object store."""
