"""Reads run directories of ``jaxunlearn robustness``: optional files that are absent or damaged are noted, others refused."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.report.load import asked, folders_with, in_order, load_measured, optional, read_manifest
from jaxunlearn.report.robustness import generated
from jaxunlearn.report.robustness.classified import load_attacked, load_targets
from jaxunlearn.report.robustness.pictures import gallery
from jaxunlearn.report.robustness.tasks import ORIGINAL
from jaxunlearn.robustness import FILE, RobustnessRecord


class Shown(NamedTuple):
    """How the pictures of a task are read and shown.

    Attributes:
        targets: ``(targets.npz) -> what is attacked``.
        attacked: ``(attacked.npz, targets) -> what was made of it``.
        gallery: ``(method, targets, attacked, condition) -> HTML``.
    """

    targets: Callable[[AnyPath], Any]
    attacked: Callable[[AnyPath, Any], Any]
    gallery: Callable[[str, Any, Any, str], str]


SHOWN: Mapping[str, Shown] = MappingProxyType(
    {
        "classification": Shown(load_targets, load_attacked, gallery),
        "image-to-image": Shown(generated.load_masked, generated.load_filled, generated.filled_gallery),
        "text-to-image": Shown(generated.load_prompted, generated.load_drawn, generated.drawn_gallery),
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustMethod:
    """One method: what DIR/<method>/ holds.

    Attributes:
        directory: DIR/<method>.
        record: Its metrics.
        attacked: Its answers and pictures, or None.
        absent: Sentences that say what was left out, and why.
    """

    directory: AnyPath
    record: RobustnessRecord
    attacked: Any = None
    absent: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustDirectory:
    """One run: the manifest, what was attacked, and the methods.

    Attributes:
        path: DIR.
        manifest: manifest.json, {} when there is none.
        targets: What was attacked, or None.
        methods: The original models first, then in the order in which the methods were asked for.
        absent: Sentences on what was left out.
    """

    path: AnyPath
    manifest: dict[str, Any]
    targets: Any
    methods: list[RobustMethod]
    absent: list[str] = dataclasses.field(default_factory=list)

    @property
    def records(self) -> list[RobustnessRecord]:
        """The records of all methods."""
        return [method.record for method in self.methods]


def _load_method(directory: AnyPath, record: RobustnessRecord, targets: Any) -> RobustMethod:
    absent: list[str] = []
    attacked = None
    if record.method != ORIGINAL and targets is not None:
        read = SHOWN[record.task].attacked
        attacked = optional(lambda path: read(path, targets), directory / "attacked.npz", absent, None)
    return RobustMethod(directory=directory, record=record, attacked=attacked, absent=absent)


def load_robustness(path: AnyPath) -> RobustDirectory:
    """Reads a run directory.

    Raises:
        InputError: It does not exist, holds no robustness.json, or one that is broken.
    """
    found = folders_with(path, FILE)
    absent: list[str] = []
    manifest = read_manifest(path, absent)
    records = [load_measured(directory / FILE, RobustnessRecord.from_json) for directory in found]
    tasks = {record.task for record in records}
    require(
        len(tasks) == 1 and tasks <= set(SHOWN),
        f"Expected records of one task of {', '.join(SHOWN)} in {path}, got {', '.join(sorted(tasks))}; use a directory "
        "of one command.",
    )
    targets = optional(SHOWN[tasks.pop()].targets, path / "targets.npz", absent, None)
    methods = [_load_method(directory, record, targets) for directory, record in zip(found, records)]
    return RobustDirectory(
        path=path,
        manifest=manifest,
        targets=targets,
        methods=in_order(methods, [ORIGINAL, *asked(manifest)]),
        absent=absent,
    )
