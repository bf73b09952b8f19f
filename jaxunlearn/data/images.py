"""CIFAR-10, CIFAR-100 and MNIST from local files, or through tensorflow-datasets where the extra is installed.

``load_images`` gives any of them, the digits and Tiny-ImageNet as images in [0, 1], for attacks that move pixels. Files are
looked for in ``files.data_dir``. Nothing is downloaded unless tensorflow-datasets is installed.
"""

import gzip
import importlib.util
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jaxunlearn import records
from jaxunlearn._validate import InputError, one_of, require
from jaxunlearn.data import digits, files, tiny_imagenet
from jaxunlearn.data.splits import Dataset

# Per-channel mean and standard deviation of the training images in [0, 1].
CIFAR_STATS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
MNIST_STATS = (0.1307,), (0.3081,)
_HELP = {
    "cifar10": "cifar-10-python.tar.gz (the official 'python version' archive, or its folder cifar-10-batches-py), or "
    "cifar10_train*.npz and cifar10_test*.npz with arrays images and labels",
    "cifar100": "cifar-100-python.tar.gz (the official 'python version' archive, or its folder cifar-100-python)",
    "mnist": "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz",
}


class _RestrictedUnpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays and plain containers, and nothing else: a pickle is a program, and this one came by download."""

    _ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }

    def find_class(self, module, name):
        if (module, name) not in self._ALLOWED:
            raise InputError(
                f"Expected only arrays in the data pickle, found {module}.{name}; "
                "the file is not the official archive, download it again."
            )
        if module.startswith("numpy.core"):
            module = "numpy._core.multiarray"
        return super().find_class(module, name)


def unpickle(data: bytes) -> dict:
    """Reads one official CIFAR batch without running anything it names.

    Raises:
        InputError: The pickle asks for anything but arrays, or is broken.
    """
    try:
        return _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()
    except InputError:
        raise
    except Exception as error:  # a broken pickle raises almost anything
        raise InputError(
            f"Expected a CIFAR batch in pickle form, but it cannot be read ({error}); download it again."
        ) from error


def _members(
    folder: Path, archive: str, inner: str, names: list[str], optional: str
) -> tuple[list[bytes], bytes | None] | None:
    """The named files from ``folder/inner/`` or ``folder/archive``, and one that may be missing; None if neither is there."""
    if (folder / inner).is_dir():
        missing = [name for name in names if not (folder / inner / name).is_file()]
        require(
            not missing, f"Expected {', '.join(missing)} in {folder / inner}; unpack the whole official archive there."
        )
        extra = folder / inner / optional
        return [(folder / inner / name).read_bytes() for name in names], extra.read_bytes() if extra.is_file() else None
    if (folder / archive).is_file():
        try:
            with tarfile.open(folder / archive) as tar:
                parts = [tar.extractfile(f"{inner}/{name}").read() for name in names]  # type: ignore[union-attr]
                has_extra = f"{inner}/{optional}" in tar.getnames()
                extra = tar.extractfile(f"{inner}/{optional}").read() if has_extra else None  # type: ignore[union-attr]
                return parts, extra
        except (*files.DAMAGE, AttributeError) as error:  # AttributeError: a folder has the name of a file
            raise files.unreadable("the official archive", folder / archive, error) from error
    return None


def _from_pickles(folder: Path, name: str):
    if name == "cifar10":
        batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        found = _members(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", batches, "batches.meta")
        key, names_key = b"labels", b"label_names"
    else:
        found = _members(folder, "cifar-100-python.tar.gz", "cifar-100-python", ["train", "test"], "meta")
        key, names_key = b"fine_labels", b"fine_label_names"
    if found is None:
        return None
    parts = [unpickle(data) for data in found[0]]
    try:
        images = [np.asarray(p[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for p in parts]
        labels = [np.asarray(p[key], np.int32).reshape(-1) for p in parts]
        names = None if found[1] is None else tuple(label.decode() for label in unpickle(found[1])[names_key])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise files.unreadable(f"images and labels of {name}", folder, error) from error
    return np.concatenate(images[:-1]), np.concatenate(labels[:-1]), images[-1], labels[-1], names


def _from_npz(folder: Path, name: str):
    found = {part: sorted(folder.glob(f"{name}_{part}*.npz")) for part in ("train", "test")}
    if not (found["train"] and found["test"]):
        return None
    arrays, names = [], None
    for part in ("train", "test"):
        path = found[part][0]
        file = records.read_npz(path)
        require(
            {"images", "labels"} <= set(file),
            f"Expected arrays images and labels in {path}, got {', '.join(file)}.",
        )
        arrays += [file["images"], file["labels"].astype(np.int32)]
        names = names or (tuple(file["class_names"].tolist()) if "class_names" in file else None)
    return (*arrays, names)


def _from_tfds(name: str):
    if importlib.util.find_spec("tensorflow_datasets") is None:
        return None
    import tensorflow_datasets as tfds  # type: ignore[import-not-found]

    def arrays(split):
        data = tfds.as_numpy(tfds.load(name, split=split, batch_size=-1))
        return np.asarray(data["image"]), np.asarray(data["label"], np.int32)

    return (*arrays("train"), *arrays("test"), None)


def _missing(name: str, folder: Path) -> InputError:
    return files.missing(name, folder, _HELP[name], "install the data extra: pip install 'jaxunlearn[data]'")


def _cifar(name: str, classes: int, standardise: bool) -> Dataset:
    folder = files.data_dir()
    arrays = _from_npz(folder, name) or _from_pickles(folder, name) or _from_tfds(name)
    if arrays is None:
        raise _missing(name, folder)
    x, y, x_test, y_test, class_names = arrays
    mean, std = CIFAR_STATS[name]
    data = Dataset(
        name=name,
        x=x.astype(np.float32) / 255,
        y=y,
        x_test=x_test.astype(np.float32) / 255,
        y_test=y_test,
        classes=classes,
        class_names=class_names,
        mean=mean,
        std=std,
    )
    return data.standardised() if standardise else data


def cifar10(*, standardise: bool = True) -> Dataset:
    """CIFAR-10, standardised per channel, or in [0, 1].

    Raises:
        InputError: No files are there; the message says what to download and where to put it.
    """
    return _cifar("cifar10", 10, standardise)


def cifar100(*, standardise: bool = True) -> Dataset:
    """CIFAR-100 with its 100 fine labels, standardised per channel, or in [0, 1].

    Raises:
        InputError: No files are there; the message says what to download and where to put it.
    """
    return _cifar("cifar100", 100, standardise)


def read_idx(path: Path) -> np.ndarray:
    """Reads one MNIST idx file of unsigned bytes, gzipped or not.

    Raises:
        InputError: Not an idx file of unsigned bytes, or cut short.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, dimensions = struct.unpack(">HBB", data[:4])
        shape = struct.unpack(f">{dimensions}I", data[4 : 4 + 4 * dimensions])
        require(zero == 0 and kind == 8, f"Expected unsigned bytes in {path}, got idx type {kind}.")
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except InputError:
        raise
    except files.DAMAGE as error:
        raise files.unreadable("an idx file", path, error) from error


def mnist() -> Dataset:
    """MNIST in [0, 1].

    Where only the test files (t10k) are there, their 10,000 images are split: the last 2,000 are held out.

    Raises:
        InputError: No files are there; the message says what to download and where to put it.
    """
    folder = files.data_dir()

    def find(stem):
        for prefix in ("", "mnist-"):
            for suffix in ("", ".gz"):
                path = folder / f"{prefix}{stem}{suffix}"
                if path.is_file():
                    return read_idx(path)
        return None

    x_test, y_test = find("t10k-images-idx3-ubyte"), find("t10k-labels-idx1-ubyte")
    if x_test is None or y_test is None:
        raise _missing("mnist", folder)
    name, x, y = "mnist", find("train-images-idx3-ubyte"), find("train-labels-idx1-ubyte")
    if x is None or y is None:
        x, y, x_test, y_test, name = (
            x_test[:-2000],
            y_test[:-2000],
            x_test[-2000:],
            y_test[-2000:],
            "mnist (t10k files only)",
        )
    x, x_test = (v.astype(np.float32)[..., None] / 255 for v in (x, x_test))
    mean, std = MNIST_STATS
    return Dataset(
        name=name,
        x=x,
        y=y.astype(np.int32),
        x_test=x_test,
        y_test=y_test.astype(np.int32),
        classes=10,
        class_names=digits.NAMES,
        mean=mean,
        std=std,
    )


IMAGES: dict[str, Callable[[], Dataset]] = {
    "digits": digits.load,
    "mnist": mnist,
    "cifar10": lambda: cifar10(standardise=False),
    "cifar100": lambda: cifar100(standardise=False),
    "tiny-imagenet": tiny_imagenet.load,
}
"""Name -> loader of images in [0, 1]."""


def load_images(name: str) -> Dataset:
    """A data set of images in [0, 1], channels last, with the mean and std that a model applies to them.

    Args:
        name: One of ``IMAGES``.

    Raises:
        InputError: No such data set; its files are not there, or damaged.
    """
    one_of("dataset", name, IMAGES)
    return IMAGES[name]()
