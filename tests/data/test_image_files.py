import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import files, images

RNG = np.random.default_rng(0)
LAYOUT = {
    "cifar10": ("cifar-10-python.tar.gz", "cifar-10-batches-py", b"labels", 10, images.cifar10),
    "cifar100": ("cifar-100-python.tar.gz", "cifar-100-python", b"fine_labels", 100, images.cifar100),
}
BATCHES = {"cifar10": [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"], "cifar100": ["train", "test"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(images, "_from_tfds", lambda name: None)  # or a missing file would be downloaded
    return tmp_path


def official_batches(name, n=4):
    """name -> pickle in the official layout: [n, 3072] uint8, one colour plane after the other."""
    label, classes = LAYOUT[name][2:4]
    contents = {}
    for part in BATCHES[name]:
        data = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
        labels = RNG.integers(0, classes, n).tolist()
        contents[part] = {b"data": data, label: labels, b"batch_label": part.encode(), b"filenames": [b"a.png"] * n}
        if name == "cifar100":
            contents[part][b"coarse_labels"] = [0] * n
    return contents


def as_python_2(content):
    # The official files name numpy.core, as NumPy before 2 did.
    return pickle.dumps(content, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_official(folder, name, contents, form):
    archive, inner = LAYOUT[name][:2]
    files = {part: c if isinstance(c, bytes) else as_python_2(c) for part, c in contents.items()}
    if form == "folder":
        (folder / inner).mkdir()
        for part, data in files.items():
            (folder / inner / part).write_bytes(data)
        return
    with tarfile.open(folder / archive, "w:gz") as tar:
        for part, data in files.items():
            info = tarfile.TarInfo(f"{inner}/{part}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def pixels(name, image, row, column):
    mean, std = images.CIFAR_STATS[name]
    planes = image.reshape(3, 1024)[:, 32 * row + column]
    return (planes / 255 - np.array(mean)) / np.array(std)


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_official_cifar_files(folder, name, form):
    contents = official_batches(name)
    write_official(folder, name, contents, form)
    data = LAYOUT[name][4]()
    parts, label = [contents[part] for part in BATCHES[name]], LAYOUT[name][2]
    assert data.x.shape == (4 * (len(parts) - 1), 32, 32, 3) and data.x.dtype == np.float32
    assert data.y.tolist() == [v for part in parts[:-1] for v in part[label]] and data.y.dtype == np.int32
    assert data.y_test.tolist() == parts[-1][label] and data.classes == LAYOUT[name][3]
    np.testing.assert_allclose(data.x[1, 5, 7], pixels(name, parts[0][b"data"][1], 5, 7), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.x_test[3, 31, 0], pixels(name, parts[-1][b"data"][3], 31, 0), rtol=1e-5, atol=1e-5)


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_malicious_pickle_is_refused_and_not_run(folder, form):
    contents = official_batches("cifar100")
    contents["train"][b"data"] = Trap(folder / "owned")
    write_official(folder, "cifar100", contents, form)
    with pytest.raises(InputError, match="found .*open.*not the official archive"):
        images.cifar100()
    assert not (folder / "owned").exists()


@pytest.mark.parametrize("gadget", ["os system", "builtins eval", "numpy load", "numpy.core.multiarray fromfile"])
def test_no_function_by_name(gadget):
    module, name = gadget.split()
    with pytest.raises(InputError, match=f"{module}.{name}"):
        images.unpickle(f"c{module}\n{name}\n(S'x'\ntR.".encode())


@pytest.mark.parametrize("data", [b"", b"not a pickle", pickle.dumps({b"data": 1})[:-3]])
def test_a_broken_pickle_is_an_input_error(data):
    with pytest.raises(InputError, match="download it again"):
        images.unpickle(data)


@pytest.mark.parametrize("content", [{b"data": np.zeros((2, 3072), np.uint8)}, [1, 2], {b"data": 1, b"fine_labels": 1}])
def test_a_pickle_without_images_and_labels_is_an_input_error(folder, content):
    write_official(folder, "cifar100", {"train": content, "test": content}, "folder")
    with pytest.raises(InputError, match="cifar100.*download it again"):
        images.cifar100()


@pytest.mark.parametrize("damage", ["cut", "flip", "text"])
def test_a_damaged_archive_is_an_input_error(folder, damage):
    contents = official_batches("cifar100", n=200)
    for content in contents.values():
        content[b"data"] //= 64  # compressible, or the archive would store it and only a checksum would fail
    write_official(folder, "cifar100", contents, "archive")
    path = folder / "cifar-100-python.tar.gz"
    whole = bytearray(path.read_bytes())
    half = len(whole) // 2
    whole[half : half + 5000] = b"\xff" * 5000
    path.write_bytes({"cut": path.read_bytes()[:half], "flip": bytes(whole), "text": b"<html>404</html>"}[damage])
    with pytest.raises(InputError, match="cifar-100-python.tar.gz.*download it again"):
        images.cifar100()


def test_an_incomplete_folder_names_what_is_missing(folder):
    contents = official_batches("cifar10")
    del contents["data_batch_3"]
    write_official(folder, "cifar10", contents, "folder")
    with pytest.raises(InputError, match="Expected data_batch_3 in"):
        images.cifar10()


def test_npz_files(folder):
    x, y = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8), np.arange(6)
    names = [f"class {i}" for i in range(10)]
    np.savez(folder / "cifar10_train_6.npz", images=x, labels=y, class_names=names)
    np.savez(folder / "cifar10_test_2.npz", images=x[:2], labels=y[:2])
    data = images.cifar10()
    assert data.x.shape == (6, 32, 32, 3) and data.y.tolist() == list(range(6)) and data.y_test.tolist() == [0, 1]
    assert data.class_names == tuple(names)
    mean, std = images.CIFAR_STATS["cifar10"]
    np.testing.assert_allclose(data.x, (x / 255 - np.array(mean)) / np.array(std), rtol=1e-5, atol=1e-5)


def test_npz_without_its_arrays(folder):
    for part in ("train", "test"):
        np.savez(folder / f"cifar10_{part}.npz", x=np.zeros(3))
    with pytest.raises(InputError, match="arrays images and labels in .*cifar10_train.npz, got x"):
        images.cifar10()


@pytest.mark.parametrize("damage", ["cut", "text", "array", "objects"])
def test_a_damaged_npz_is_an_input_error(folder, damage):
    for part in ("train", "test"):
        np.savez(folder / f"cifar10_{part}.npz", images=np.zeros((9, 32, 32, 3), np.uint8), labels=np.zeros(9, int))
    path = folder / "cifar10_test.npz"
    if damage == "objects":
        np.savez(path, images=np.array([Trap(folder / "owned")]), labels=np.zeros(1, int))
    elif damage == "array":
        np.save(folder / "one.npy", np.zeros(3))
        path.write_bytes((folder / "one.npy").read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:20_000] if damage == "cut" else b"<html>404</html>")
    with pytest.raises(InputError, match="cifar10_test.npz"):
        images.cifar10()
    assert not (folder / "owned").exists()


def idx(array):
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, stem, n, suffix="", prefix=""):
    x, y = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), RNG.integers(0, 10, n, dtype=np.uint8)
    for kind, array in (("images-idx3", x), ("labels-idx1", y)):
        data = idx(array)
        path = folder / f"{prefix}{stem}-{kind}-ubyte{suffix}"
        path.write_bytes(gzip.compress(data) if suffix == ".gz" else data)
    return x, y


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("prefix", ["", "mnist-"])
def test_mnist_idx_files(folder, suffix, prefix):
    x, y = write_mnist(folder, "train", 7, suffix, prefix)
    x_test, y_test = write_mnist(folder, "t10k", 5, suffix, prefix)
    data = images.mnist()
    assert data.name == "mnist" and data.x.shape == (7, 28, 28, 1) and data.x.dtype == np.float32
    np.testing.assert_allclose(data.x[..., 0], x / 255, rtol=1e-6)
    np.testing.assert_allclose(data.x_test[..., 0], x_test / 255, rtol=1e-6)
    assert data.y.tolist() == y.tolist() and data.y_test.tolist() == y_test.tolist() and data.y.dtype == np.int32


def test_mnist_with_the_test_files_only(folder):
    x, y = write_mnist(folder, "t10k", 2010, ".gz")
    data = images.mnist()
    assert data.name == "mnist (t10k files only)" and data.x.shape[0] == 10 and data.x_test.shape[0] == 2000
    assert data.y.tolist() == y[:10].tolist() and data.y_test.tolist() == y[10:].tolist()


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [0, 3, 10, 20, 900])
def test_a_truncated_idx_file_is_an_input_error(folder, suffix, keep):
    write_mnist(folder, "t10k", 5, suffix)
    path = folder / f"t10k-images-idx3-ubyte{suffix}"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="t10k-images-idx3-ubyte.*download it again"):
        images.mnist()


@pytest.mark.parametrize("start", [10, 500])
def test_a_damaged_gzip_is_an_input_error(folder, start):
    write_mnist(folder, "t10k", 5, ".gz")
    path = folder / "t10k-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[start : start + 300] = b"\xff" * 300  # at 10 the deflate stream breaks, further on the checksum
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="t10k-images-idx3-ubyte.gz.*download it again"):
        images.mnist()


def test_other_idx_types_are_refused(tmp_path):
    (tmp_path / "floats").write_bytes(struct.pack(">HBBI", 0, 13, 1, 1) + struct.pack(">f", 1.0))
    with pytest.raises(InputError, match="got idx type 13"):
        images.read_idx(tmp_path / "floats")


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (images.cifar10, "cifar-10-python.tar.gz"),
        (images.cifar100, "cifar-100-python.tar.gz"),
        (images.mnist, "t10k-images-idx3-ubyte.gz"),
    ],
)
def test_missing_files_say_what_to_download_and_where_to_put_it(folder, load, file):
    with pytest.raises(InputError) as error:
        load()
    text = str(error.value)
    assert file in text and str(folder) in text and files.DATA_VARIABLE in text and "jaxunlearn[data]" in text
    assert "\n" not in text


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize(
    ("name", "meta", "key"), [("cifar10", "batches.meta", "label"), ("cifar100", "meta", "fine_label")]
)
def test_official_files_in_the_unit_range_with_class_names(folder, name, meta, key, form):
    contents, load = official_batches(name), LAYOUT[name][4]
    names = [f"class {i}" for i in range(LAYOUT[name][3])]
    write_official(folder, name, contents | {meta: {f"{key}_names".encode(): [n.encode() for n in names]}}, form)
    data, usual = images.load_images(name), load()
    assert data.class_names == usual.class_names == tuple(names)
    expected = contents[BATCHES[name][0]][b"data"][1].reshape(3, 32, 32).transpose(1, 2, 0).astype(np.float32) / 255
    np.testing.assert_array_equal(data.x[1], expected)
    mean, std = (np.array(v, np.float32) for v in (data.mean, data.std))
    np.testing.assert_array_equal((data.x - mean) / std, usual.x)
    assert usual.mean is None and usual.std is None


@pytest.mark.parametrize("meta", [{b"other": []}, {b"label_names": [1] * 10}, {b"label_names": [b"a"]}, [1]])
def test_wrong_class_names_are_an_input_error(folder, meta):
    write_official(folder, "cifar10", official_batches("cifar10") | {"batches.meta": meta}, "folder")
    with pytest.raises(InputError, match="cifar10"):
        images.cifar10()


def test_images_by_name():
    data = images.load_images("digits")
    assert data.class_names is not None and data.class_names[3] == "3" and (data.x.min(), data.x.max()) == (0, 1)
    assert data.mean == pytest.approx([data.x.mean()], abs=1e-4) and data.std == pytest.approx([data.x.std()], abs=1e-4)
    with pytest.raises(InputError, match="Did you mean 'cifar10'"):
        images.load_images("cifar-10")


def test_real_images_in_the_unit_range(data_dir, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))
    for name, first in (("mnist", "0"), ("cifar10", "airplane")):
        data = images.load_images(name)
        some = data.x[::7]  # classes take turns in the sample of CIFAR-10
        assert (some.min(), some.max()) == (0, 1) and some.dtype == np.float32 and some.ndim == 4
        np.testing.assert_allclose(some.mean(axis=(0, 1, 2)), data.mean, atol=0.02)
        np.testing.assert_allclose(some.std(axis=(0, 1, 2)), data.std, atol=0.01)
        assert data.class_names is not None and data.class_names[0] == first


def test_real_cifar10(data_dir, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))
    data = images.cifar10()
    assert data.x.shape[1:] == (32, 32, 3) and data.x.shape[0] >= 10_000 and data.x.dtype == np.float32
    assert set(data.y.tolist()) == set(data.y_test.tolist()) == set(range(10))
    np.testing.assert_allclose(data.x.mean(axis=(0, 1, 2)), 0, atol=0.05)
    np.testing.assert_allclose(data.x.std(axis=(0, 1, 2)), 1, atol=0.05)


def test_real_mnist(data_dir, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))
    data = images.mnist()
    assert data.x.shape[0] + data.x_test.shape[0] in (10_000, 70_000) and data.x.shape[1:] == (28, 28, 1)
    assert data.x.min() == 0 and data.x.max() == 1
    assert set(data.y.tolist()) == set(data.y_test.tolist()) == set(range(10))
