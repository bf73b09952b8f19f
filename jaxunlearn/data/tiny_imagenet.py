"""Tiny-ImageNet in its standard layout, from a folder or straight from the archive.

``tiny-imagenet-200/{wnids.txt,words.txt,train/<wnid>/images/*.JPEG,val/images/*.JPEG,val/val_annotations.txt}``, looked for
in ``files.data_dir``: the folder, else a zip or tar file. Nothing is unpacked to disk; an archive is read once, in order.
"""

import io
import os
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxunlearn._validate import InputError, require
from jaxunlearn.data import files
from jaxunlearn.data.splits import Dataset

ROOT = "tiny-imagenet-200"
SIDE = 64
STATS = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
"""Per-channel mean and standard deviation of the training images in [0, 1]: over all pixels, where the 0.23 that is often
seen is the mean of every image's own."""
_PATTERNS = (ROOT + ".*", "tiny-imagenet*.*", "tiny_imagenet*.*")
_TAR, _ZIP = (".tar", ".tar.gz", ".tgz"), (".zip",)
_LISTS = ("wnids.txt", "words.txt", "val/val_annotations.txt")
# What reading a damaged zip raises beyond ``files.DAMAGE``: its directory, a method of compression nobody here knows.
_DAMAGE = (*files.DAMAGE, zipfile.BadZipFile, RuntimeError)


def _find(folder: Path) -> Path | None:
    """The folder, or the first archive: the official name before others, those by name."""
    if (folder / ROOT).is_dir():
        return folder / ROOT
    found = (path for pattern in _PATTERNS for path in sorted(folder.glob(pattern)))
    return next((path for path in found if path.name.endswith(_TAR + _ZIP) and path.is_file()), None)


def _wanted(name: str) -> bool:
    """Whether a file belongs to the lists, the training or the validation images; file managers leave others behind."""
    if name in _LISTS:
        return True
    *folders, image = name.split("/")
    is_place = folders == ["val", "images"] or (len(folders) == 3 and folders[::2] == ["train", "images"])
    return is_place and image.endswith(".JPEG") and not image.startswith(".")


def _read(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name below the root, content) of every wanted file."""

    def below(name: str) -> str:
        name = name.removeprefix("./")
        return name.removeprefix(ROOT + "/") if name.startswith(ROOT + "/") else ""

    if path.is_dir():
        for place, _, names in os.walk(path):
            for file in (Path(place) / name for name in names):
                if _wanted(name := file.relative_to(path).as_posix()):
                    yield name, file.read_bytes()
    elif path.name.endswith(_ZIP):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if _wanted(below(name)):
                    yield below(name), archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive:  # in order: going back in a compressed file means reading it from the start
                if _wanted(below(member.name)) and (opened := archive.extractfile(member)) is not None:
                    yield below(member.name), opened.read()


def _rows(path: Path, contents: Mapping[str, bytes], name: str) -> list[list[str]]:
    """The lines of a list, split at tabs; empty ones are no rows."""
    require(name in contents, f"Expected {name} in {path}, found none; download it again, the whole of it.")
    return [line.split("\t") for line in contents[name].decode().splitlines() if line.strip()]


def _decode(path: Path, contents: Mapping[str, bytes], names: Sequence[str]) -> np.ndarray:
    """[n, 64, 64, 3] float32 in [0, 1], images in the order of ``names``; grey ones become three equal channels."""
    from PIL import Image

    out = np.empty((len(names), SIDE, SIDE, 3), np.float32)
    for row, name in enumerate(names):  # threads are no faster: so small an image is mostly Python
        try:
            with Image.open(io.BytesIO(contents[name]), formats=("JPEG",)) as image:
                size = image.size  # before any pixel is decoded: a few bytes can announce gigabytes
                require(size == (SIDE, SIDE), f"Expected {SIDE} x {SIDE} pixels in {name} of {path}, got {size}.")
                out[row] = np.asarray(image.convert("RGB"))
        except InputError:
            raise
        except Exception as error:  # a broken picture raises almost anything
            raise files.unreadable(f"a JPEG image {name}", path, error) from error
    out /= 255
    return out


def load() -> Dataset:
    """Tiny-ImageNet in [0, 1]: all of train for training, all of the official val (50 images a class) for testing.

    As many classes as wnids.txt names. They are numbered in the order of their sorted wnids, not in that of the file: so
    does torchvision's ImageFolder, and by its numbers papers name classes. Rows go class by class, within a class by
    file name; test rows by file name. Public code of RUB cuts val in halves, the first for validation; not so here.
    A class is called by the first of its synonyms in words.txt, by its wnid where there is none.

    The full 110,000 images take 5.4 GB and some 15 seconds.

    Raises:
        InputError: No files are there; a list or a class's images are missing; a label is not in wnids.txt; something is
            damaged.
    """
    folder = files.data_dir()
    path = _find(folder)
    if path is None:
        raise files.missing("tiny-imagenet", folder, f"{ROOT}.zip (or a tar file of it, or its folder {ROOT})")
    try:
        contents = dict(_read(path))
        listed = [row[0].strip() for row in _rows(path, contents, "wnids.txt")]
        words = {row[0]: row[1].split(",")[0] for row in _rows(path, contents, "words.txt")}
        label_of = {row[0]: row[1] for row in _rows(path, contents, "val/val_annotations.txt")}
    except InputError:
        raise
    except (*_DAMAGE, IndexError) as error:
        raise files.unreadable("Tiny-ImageNet", path, error) from error
    wnids = sorted(set(listed))
    require(0 < len(wnids) == len(listed), f"Expected wnids.txt of {path} to name every class once; download it again.")
    number = {wnid: i for i, wnid in enumerate(wnids)}

    train = sorted((name for name in contents if name.startswith("train/")), key=lambda name: name.split("/"))
    test = sorted(name for name in contents if name.startswith("val/images/"))
    owners = [name.split("/")[1] for name in train]
    for place, labels in (("train", owners), ("val/val_annotations.txt", label_of.values())):
        unknown, empty = sorted(set(labels) - set(wnids)), sorted(set(wnids) - set(labels))
        require(not unknown, f"Expected only wnids of wnids.txt in {place} of {path}, got {', '.join(unknown[:3])}.")
        require(not empty, f"Expected images of {', '.join(empty[:3])} in {place} of {path}, found none.")
    odd = sorted({name.removeprefix("val/images/") for name in test} ^ set(label_of))
    require(
        not odd, f"Expected every image of val in {path} to have a label and a file; {', '.join(odd[:3])} lacks one."
    )

    mean, std = STATS
    return Dataset(
        name="tiny-imagenet",
        x=_decode(path, contents, train),
        y=np.array([number[wnid] for wnid in owners], np.int32),
        x_test=_decode(path, contents, test),
        y_test=np.array([number[label_of[name.removeprefix("val/images/")]] for name in test], np.int32),
        classes=len(wnids),
        class_names=tuple(words.get(wnid, wnid) for wnid in wnids),
        mean=mean,
        std=std,
    )
