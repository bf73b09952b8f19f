"""``jaxunlearn robustness sd1`` on folders of a tiny random model, written by our own writer; and CLIP's tokenizer."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jaxunlearn import cli
from jaxunlearn._paths import as_path
from jaxunlearn._validate import InputError
from jaxunlearn.attack.prompts import Options
from jaxunlearn.data import concepts
from jaxunlearn.data.clip_tokens import ClipTokenizer
from jaxunlearn.models.diffusion.model import Architecture, initial
from jaxunlearn.models.diffusion.text import TextArchitecture
from jaxunlearn.models.diffusion.unet import UNetArchitecture
from jaxunlearn.models.diffusion.weights import save_text_to_image
from jaxunlearn.pipeline.diffusion import published
from jaxunlearn.pipeline.diffusion.published_config import PublishedRobustness
from jaxunlearn.pipeline.diffusion.published_study import load_judge
from jaxunlearn.records import read_json, read_npz
from jaxunlearn.robustness import RobustnessRecord

_LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
VOCABULARY = [*_LETTERS, *(f"{c}</w>" for c in _LETTERS), "ch", "ch</w>", "chur", "ur", "church</w>"]
VOCABULARY += ["<|startoftext|>", "<|endoftext|>"]
MERGES = "#version: 0.2\nc h\nu r\nc h</w>\nch ur\nchur ch</w>\n"
LENGTH = 12

JUDGE = '''
"""Calls every image that is darker than most a church."""


def judge(images):
    return (images.reshape(len(images), -1).mean(axis=1) < 0.5) * 497


def scores(images):
    return images.reshape(len(images), -1).mean(axis=1)


def wrong(images):
    return 3
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def tokenizer(folder):
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(VOCABULARY)}))
    (folder / "tokenizer" / "merges.txt").write_text(MERGES)
    return ClipTokenizer(folder / "tokenizer", LENGTH)


@pytest.fixture
def judged(folder, monkeypatch):
    (folder / "dark_judge.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_tokens_as_transformers_has_them(tokenizer, folder):
    from transformers import CLIPTokenizer

    theirs = CLIPTokenizer(
        vocab=str(folder / "tokenizer" / "vocab.json"), merges=str(folder / "tokenizer" / "merges.txt")
    )
    for text in ("a Church", "the  old\tchurch churn ach", "a b c d e f g h i j k l m", ""):
        want = theirs(text, padding="max_length", max_length=LENGTH, truncation=True)["input_ids"]
        assert tokenizer.prompt(text).tolist() == want


def test_writing_out_and_reading_again(tokenizer):
    place = {word: number for number, word in enumerate(VOCABULARY)}
    start, end = place["<|startoftext|>"], place["<|endoftext|>"]
    # Two tokens side by side that the tokenizer itself would write as one, and a rest that stays.
    split = [start, place["chur"], place["ch</w>"], place["a</w>"], end] + [end] * 7
    joined = [start, place["church</w>"], place["a</w>"], end] + [end] * 8
    np.testing.assert_array_equal(tokenizer.again(np.array([split, joined])), [joined, joined])
    assert tokenizer.text(split) == "church a"


def test_a_folder_without_a_vocabulary_is_named(tmp_path):
    with pytest.raises(InputError, match=r"vocab\.json"):
        ClipTokenizer(tmp_path, LENGTH)


def test_judges_by_label_and_by_threshold(judged):
    images = np.stack([np.zeros((2, 2, 3)), np.full((2, 2, 3), 0.5), np.ones((2, 2, 3))])
    judge, _ = load_judge("dark_judge:judge", concepts.concept("church"))
    assert judge(images).tolist() == [497, 0, 0]
    scores, _ = load_judge("dark_judge:scores", concepts.concept("nudity"))  # above .45
    assert scores(images).tolist() == [0, 1, 1]
    wrong, _ = load_judge("dark_judge:wrong", concepts.concept("church"))
    with pytest.raises(InputError, match="a label or score for each of 3"):
        wrong(images)
    for name, said in (("dark_judge", "--judge"), ("no_such:judge", "Cannot import"), ("dark_judge:no", "function no")):
        with pytest.raises(InputError, match=said):
            load_judge(name, concepts.concept("church"))


def test_settings_of_published_models():
    config = PublishedRobustness(concept="nudity", unlearned=("a=x/y", "b=z"))
    assert {options.tokens for options in config.attacks.values()} == {5}
    assert list(config.folders) == ["a", "b"]
    assert PublishedRobustness(baselines=False).conditions == ["clean", "gradient"]
    for wrong in (("a",), ("a=x", "a=y"), ("original=x",)):
        with pytest.raises(InputError, match="unlearned"):
            _ = PublishedRobustness(unlearned=wrong).folders
    with pytest.raises(InputError, match="--weights"):
        published.run(PublishedRobustness())


def _architecture():
    text = TextArchitecture(
        vocabulary=len(VOCABULARY),
        width=8,
        layers=1,
        heads=2,
        hidden=8,
        length=LENGTH,
        start=len(VOCABULARY) - 2,
        end=len(VOCABULARY) - 1,
        pad=len(VOCABULARY) - 1,
    )
    unet = UNetArchitecture(
        channels=3, size=4, widths=(8,), attends=(True,), attends_up=(False,), middle=False, layers=1, heads=(2,),
        context=8, groups=4,
    )  # fmt: skip
    return Architecture(text=text, unet=unet, vae=None)


@pytest.mark.slow
def test_folders_are_attacked_and_finished_ones_read(judged, tokenizer, capsys):
    folder, architecture = judged, _architecture()
    for name, seed in (("first", 0), ("second", 1)):
        params = jax.jit(lambda key: initial(architecture, key))(jax.random.key(seed))
        save_text_to_image(folder / name, architecture, jax.tree.map(np.asarray, params))
        (folder / name / "tokenizer").mkdir(exist_ok=True)
        for file in ("vocab.json", "merges.txt"):
            (folder / name / "tokenizer" / file).write_bytes((folder / "tokenizer" / file).read_bytes())
    rows = ["prompt,evaluation_seed,evaluation_guidance", "a church,1,7.5", "old church,2,3", "church church,3,5"]
    (folder / "prompts.csv").write_text("\n".join([*rows, "far too long a prompt for so few tokens,4,5"]) + "\n")
    config = PublishedRobustness(
        weights=as_path(folder / "first"),
        prompts=as_path(folder / "prompts.csv"),
        judge="dark_judge:judge",
        unlearned=(f"other={folder / 'second'}",),
        out=as_path(folder / "run"),
        sampling_steps=2,
        sampler="ddim",
        attack=Options(rounds=2, inner_steps=1),
        baselines=False,
        at_once=2,
        quiet=True,
    )
    directory = published.run(config)
    assert "1 of 4 prompts are left out" in capsys.readouterr().err
    record = RobustnessRecord.from_json(read_json(directory / "other" / "robustness.json"))
    arrays = read_npz(directory / "other" / "attacked.npz", sealed=True)
    targets = read_npz(directory / "targets.npz", sealed=True)
    assert arrays["prompts"].shape == (1, 3, LENGTH) and targets["images"].shape == (3, 4, 4, 3)
    dark = (arrays["images"].reshape(1, 3, -1).mean(axis=-1) < 0.5) * 497
    np.testing.assert_array_equal(dark, arrays["said"])
    np.testing.assert_array_equal(arrays["success"], arrays["said"] == 497)
    assert record.metric("asr").values[1] == [np.mean(arrays["success"])] and record.metric("asr").count == 3
    assert record.metric("steps").values == [[], [np.mean(arrays["steps"])]]

    written = (directory / "other" / "attacked.npz").stat().st_mtime_ns
    published.run(config)
    assert (directory / "other" / "attacked.npz").stat().st_mtime_ns == written
    assert cli.main(["status", str(directory)]) == 0 and "ASR gradient" in capsys.readouterr().out
    with pytest.raises(InputError, match="sampling_steps"):
        published.run(dataclasses.replace(config, sampling_steps=3))
