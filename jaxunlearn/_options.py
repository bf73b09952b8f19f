"""What command-line options share."""

import os
from typing import Annotated

import tyro

from jaxunlearn._paths import AnyPath, as_path

UNSAID = tyro.conf.arg(help_behavior_hint="")
"""For options whose text names the real default: without it help adds "(default: None)"."""

PathOption = Annotated[
    AnyPath,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH",
        instance_from_str=lambda words: as_path(words[0]),
        is_instance=lambda value: isinstance(value, os.PathLike),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""An option that is a path, local or of an object store."""
