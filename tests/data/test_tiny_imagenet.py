import io
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from jaxunlearn._validate import InputError
from jaxunlearn.data import files, images, tiny_imagenet

WNIDS = ["n03", "n01", "n02"]  # not in order, as in the official file


def jpeg(level, mode="RGB", size=(64, 64)):
    """An even picture, which survives the format's loss: of ``level`` in the first channel, 0 in the others."""
    colour = level if mode == "L" else (level, 0, 0)
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, "JPEG", quality=95)
    return out.getvalue()


def layout():
    """Three classes of 11 training and one validation image: training image i of class c has level 80 c + i."""
    contents = {
        "wnids.txt": "\n".join(WNIDS).encode() + b"\n",
        "words.txt": b"n01\tgoldfish, Carassius auratus\nn03\tox\nn99\tnot here\n",
        "val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t0\t1\t1\nval_2.JPEG\tn03\t0\t0\t1\t1\nval_10.JPEG\tn01\t0\t0\n",
        "val/images/val_0.JPEG": jpeg(30),
        "val/images/val_2.JPEG": jpeg(60),
        "val/images/val_10.JPEG": jpeg(90, "L"),
        "test/images/test_0.JPEG": b"no business of ours",
        "train/n01/n01_boxes.txt": b"nor this",
        "train/n01/images/._n01_0.JPEG": b"nor what a file manager left",
    }
    for c, wnid in enumerate(["n01", "n02", "n03"]):
        contents |= {f"train/{wnid}/images/{wnid}_{i}.JPEG": jpeg(80 * c + i) for i in range(11)}
    return contents


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(tmp_path))
    return tmp_path


def write(folder, contents, form="folder", prefix=""):
    named = {f"{prefix}tiny-imagenet-200/{name}": data for name, data in contents.items()}
    if form == "folder":
        for name, data in named.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder / "tiny-imagenet-200"
    path = folder / form
    if form.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in named.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, "w:gz" if form.endswith("gz") else "w") as archive:
        for name, data in named.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


FORMS = ["folder", "tiny_imagenet_3x11.tar", "tiny-imagenet-200.tar.gz", "tiny-imagenet-200.zip"]


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(folder, form, prefix):
    contents = layout()
    # The order in an archive decides nothing.
    write(folder, dict(reversed(contents.items())), form, prefix)
    data = tiny_imagenet.load()
    assert (data.name, data.classes) == ("tiny-imagenet", 3)
    assert data.class_names == ("goldfish", "n02", "ox")
    assert data.y.tolist() == [0] * 11 + [1] * 11 + [2] * 11 and data.y.dtype == data.y_test.dtype == np.int32
    assert data.y_test.tolist() == [1, 0, 2]  # val_0, val_10, val_2
    assert data.x.shape == (33, 64, 64, 3) and data.x_test.shape == (3, 64, 64, 3) and data.x.dtype == np.float32
    by_name = [0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]
    levels = np.array([80 * c + i for c in range(3) for i in by_name])
    np.testing.assert_allclose(255 * data.x[:, 9, 9, 0], levels, atol=1.5)
    np.testing.assert_allclose(255 * data.x_test[:, 63, 0], [[30, 0, 0], [90, 90, 90], [60, 0, 0]], atol=1.5)


def test_pixels_are_those_of_the_decoder(folder):
    contents = layout()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "JPEG")
    write(folder, contents | {"train/n01/images/n01_0.JPEG": out.getvalue()})
    expected = np.asarray(Image.open(io.BytesIO(out.getvalue()))).astype(np.float32) / 255
    np.testing.assert_array_equal(tiny_imagenet.load().x[0], expected)


def test_the_folder_comes_before_the_official_archive_and_that_before_others(folder):
    write(folder, layout(), "tiny_imagenet_a.tar")
    path = write(folder, layout() | {"words.txt": b"n01\tofficial\n"}, "tiny-imagenet-200.zip")
    assert tiny_imagenet.load().class_names[0] == "official"
    path.rename(folder / "tiny_imagenet_b.zip")
    assert tiny_imagenet.load().class_names[0] == "goldfish"
    write(folder, layout() | {"words.txt": b"n01\tunpacked\n"})
    assert tiny_imagenet.load().class_names[0] == "unpacked"


@pytest.mark.parametrize("form", ["folder", "tiny-imagenet-200.zip"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wnids.txt": None}, "Expected wnids.txt in .*found none"),
        ({"words.txt": None}, "Expected words.txt in .*found none"),
        ({"val/val_annotations.txt": None}, "Expected val/val_annotations.txt in .*found none"),
        ({"wnids.txt": b"\n"}, "to name every class once"),
        ({"wnids.txt": b"n01\nn02\nn03\nn01\n"}, "to name every class once"),
        ({"wnids.txt": b"n01\nn02\n"}, "Expected only wnids of wnids.txt in train of .*got n03"),
        ({"wnids.txt": b"n01\nn02\nn03\nn04\n"}, "Expected images of n04 in train of"),
        ({"wnids.txt": b"\xff\xfe"}, "cannot be read"),
        ({"words.txt": b"no tab"}, "cannot be read"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn77\n"}, "in val/val_annotations.txt of .*got n77"),
        ({"val/val_annotations.txt": b"val_0.JPEG\tn01\n"}, "Expected images of n02, n03 in val/val_annotations.txt"),
        ({"val/images/val_2.JPEG": None}, "have a label and a file; val_2.JPEG lacks one"),
        ({"val/images/val_7.JPEG": jpeg(3)}, "have a label and a file; val_7.JPEG lacks one"),
        (
            {"train/n02/images/n02_4.JPEG": jpeg(3)[:400]},
            "JPEG image train/n02/images/n02_4.JPEG in .*download it again",
        ),
        ({"train/n02/images/n02_4.JPEG": b"<html>"}, "JPEG image train/n02/images/n02_4.JPEG in .*download it again"),
        ({"train/n02/images/n02_4.JPEG": jpeg(3, size=(64, 32))}, r"64 x 64 pixels in train/n02.*got \(64, 32\)"),
    ],
)
def test_what_is_missing_or_wrong_is_named(folder, form, changes, message):
    write(folder, {name: data for name, data in (layout() | changes).items() if data is not None}, form)
    with pytest.raises(InputError, match=message) as error:
        tiny_imagenet.load()
    assert "\n" not in str(error.value) and "tiny-imagenet-200" in str(error.value)


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "empty"])
@pytest.mark.parametrize("form", FORMS[1:])
def test_a_damaged_archive_is_an_input_error(folder, form, damage):
    path = write(folder, layout(), form)
    whole = bytearray(path.read_bytes())
    half = len(whole) // 2
    whole[half : half + 3000] = b"\xff" * 3000
    broken = {"cut": path.read_bytes()[:half], "flip": bytes(whole), "text": b"<html>404</html>", "empty": b""}
    path.write_bytes(broken[damage])
    with pytest.raises(InputError, match=f"{form}") as error:
        tiny_imagenet.load()
    assert "\n" not in str(error.value)


def test_an_encrypted_zip_is_an_input_error(folder):
    path = write(folder, layout(), "tiny-imagenet-200.zip")
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(signature)
        while start >= 0:
            data[start + flags] |= 1
            start = data.find(signature, start + 4)
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="tiny-imagenet-200.zip.*cannot be read"):
        tiny_imagenet.load()


def test_missing_files_say_what_to_download(folder):
    (folder / "tiny-imagenet-200.txt").write_text("no archive")
    with pytest.raises(InputError, match=f"no tiny-imagenet files in {folder}.*tiny-imagenet-200.zip"):
        images.load_images("tiny-imagenet")


def test_the_real_sample(data_dir, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))
    data = tiny_imagenet.load()
    assert np.bincount(data.y).tolist() == [150] * 20 and np.bincount(data.y_test).tolist() == [20] * 20
    assert data.class_names[:2] == ("goldfish", "European fire salamander")  # n01443537, n01629819
    assert data.x.dtype == np.float32 and (data.x.min(), data.x.max()) == (0, 1)
    some = data.x[::10]
    np.testing.assert_allclose(some.mean(axis=(0, 1, 2)), data.mean, atol=0.03)
    np.testing.assert_allclose(some.std(axis=(0, 1, 2)), data.std, atol=0.01)
    is_grey = (some == some[..., :1]).all(axis=(1, 2, 3))
    assert 0 < is_grey.sum() < 30
