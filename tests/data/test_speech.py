import gzip
import json

import jax
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import files, speech

KEYS = jax.random.split(jax.random.key(0), 4)


def decode(ids):
    return "".join(speech.VOCABULARY[i] for i in ids)


def made_blocks(roles=20, blocks=10, size=90):
    """Role r says blocks '<r:03d>.<block:03d>|' repeated: every character tells where it is from."""
    return {
        f"role{r}": [(f"{r:03d}.{b:03d}|" * size)[: size + 7 * (r % 3)] for b in range(blocks)] for r in range(roles)
    }


def tags(text):
    """The whole '<role>.<block>' tags in a text."""
    return {piece for piece in text.replace("\n", "|").split("|") if len(piece) == 7}


def make(key=KEYS[0], blocks=None, **changes):
    settings = {"m": 6, "roles": 12, "length": 20, "stride": 20, "forget_share": 0.25} | changes
    return speech.make_speech(key, made_blocks() if blocks is None else blocks, **settings)


def all_text(x):
    return "|".join(decode(row) for row in x.reshape(-1, x.shape[-1]))


def test_ids_are_fixed_and_count_a_hundred():
    assert len(speech.VOCABULARY) == len(set(speech.VOCABULARY)) == 100
    ids = speech.encode("az AZ\n09é😀")
    assert ids.dtype == np.int32 and ids.tolist() == [10, 35, 94, 36, 61, 96, 0, 9, 99, 99]
    assert speech.encode("").shape == (0,)


def test_windows_by_hand():
    x, y = speech.windows(np.arange(10), length=3, stride=2)
    assert x.tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]
    assert y.tolist() == [[1, 2, 3], [3, 4, 5], [5, 6, 7], [7, 8, 9]]
    x, y = speech.windows(np.arange(8).reshape(2, 4), length=3, stride=3)
    assert x.tolist() == [[[0, 1, 2]], [[4, 5, 6]]] and y.tolist() == [[[1, 2, 3]], [[5, 6, 7]]]
    for short in (0, 1, 3):
        assert speech.windows(np.arange(short), length=3, stride=1)[0].shape == (0, 3)


def test_targets_are_the_inputs_one_character_later():
    data = make(stride=1)
    for x, y in ((data.x, data.y), (data.x_candidates, data.y_candidates), (data.x_test, data.y_test)):
        assert x.shape == y.shape and x.dtype == y.dtype == np.int32
        np.testing.assert_array_equal(x[..., 1:], y[..., :-1])
    inner = data.x_candidates
    np.testing.assert_array_equal(inner[:, 1:, 0], data.y_candidates[:, :-1, 0])  # stride 1: the next window's start


def test_roles_are_on_one_side_only():
    for seed in range(10):
        data = make(jax.random.key(seed))
        assert len(data.retain_roles) + len(data.forget_roles) == 12
        assert len(set(data.retain_roles) | set(data.forget_roles)) == 12

        def names(x):
            return {f"role{int(tag[:3])}" for tag in tags(all_text(x))}

        assert names(data.x) == set(data.retain_roles)
        assert names(data.x_candidates) <= set(data.forget_roles)
        assert names(data.x_test) == set(data.retain_roles) | set(data.forget_roles)


@pytest.mark.parametrize(("blocks", "train", "test"), [(2, 1, 1), (3, 2, 1), (5, 4, 1), (10, 8, 1), (19, 15, 2)])
def test_split_by_time(blocks, train, test):
    data = make(blocks=made_blocks(blocks=blocks), m=2, roles=20)

    def numbers(x):
        return {int(tag[4:]) for tag in tags(all_text(x))}

    assert numbers(data.x) == set(range(train)) and numbers(data.x_test) == set(range(blocks - test, blocks))
    assert numbers(data.x_candidates) <= set(range(train))


def test_no_retain_window_spans_two_roles():
    for row in make(stride=1).x:
        assert len({tag[:3] for tag in tags(decode(row))}) <= 1


@pytest.mark.parametrize("m", [2, 5, 9])
@pytest.mark.parametrize("stride", [1, 7, 20])
def test_chunks_have_equally_many_windows_and_share_no_text(m, stride):
    blocks = {"a": ["abcdefgh" * 30] * 2, "b": ["01234567" * 31] * 2} | {f"r{i}": ["x" * 500] * 2 for i in range(4)}
    data = make(blocks=blocks, m=m, roles=6, stride=stride, forget_share=0.19)
    characters = sum(len(blocks[name][0]) for name in data.forget_roles) + len(data.forget_roles) - 1
    size = characters // m
    assert data.x_candidates.shape == (m, (size - 21) // stride + 1, 20)


def test_chunks_are_consecutive_pieces_of_whole_shuffled_blocks():
    blocks = made_blocks(roles=6, blocks=10, size=63)
    data = make(blocks=blocks, roles=6, m=3, length=50, stride=1, forget_share=0.5)
    pieces = [decode(x[:, 0]) + decode(x[-1, 1:]) + decode(y[-1, -1:]) for x, y in zip(*candidate_arrays(data))]
    text = "".join(pieces)
    train = [block for name in data.forget_roles for block in blocks[name][:8]]
    whole = text.split("\n")
    assert set(whole[:-1]) <= set(train) and len(set(whole)) == len(whole)  # each block is there once, uncut
    assert any(block.startswith(whole[-1]) for block in train)
    assert 0 <= len("\n".join(train)) - len(text) < 3
    assert whole[:-1] != train[: len(whole) - 1]  # in another order


def candidate_arrays(data):
    return data.x_candidates, data.y_candidates


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_forget_share_is_met_within_half_a_role(share):
    blocks = made_blocks(roles=40)
    for seed in range(5):
        data = make(jax.random.key(seed), blocks=blocks, roles=30, forget_share=share, m=2)
        size = {name: len("\n".join(own[:8])) for name, own in blocks.items()}
        forget = sum(size[name] for name in data.forget_roles)
        total = forget + sum(size[name] for name in data.retain_roles)
        assert abs(forget - share * total) <= max(size.values()) / 2


def test_the_key_and_nothing_else_decides():
    first, again, other = make(), make(), make(KEYS[1])
    for name in ("x", "y", "x_candidates", "y_candidates", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert first.retain_roles == again.retain_roles and first.forget_roles == again.forget_roles
    assert set(other.forget_roles) != set(first.forget_roles)
    drawn = [set(make(key).forget_roles) | set(make(key).retain_roles) for key in KEYS]
    assert len(set(map(frozenset, drawn))) > 1


def test_roles_of_one_block_are_left_out():
    blocks = made_blocks(roles=12) | {f"once{i}": ["never seen " * 20] for i in range(50)}
    data = make(blocks=blocks)
    assert not any(name.startswith("once") for name in (*data.retain_roles, *data.forget_roles))
    with pytest.raises(InputError, match="roles=13.*source has 12"):
        make(blocks=blocks, roles=13)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 1}, "m=1"),
        ({"roles": 1}, "roles=1"),
        ({"length": 0}, "length=0"),
        ({"stride": 0}, "stride=0"),
        ({"forget_share": 0.0}, "forget_share=0.0"),
        ({"forget_share": 1.0}, "forget_share=1.0"),
        ({"roles": 21}, "roles=21.*source has 20.*at most roles=20"),
        ({"m": 400}, "m=400 chunks of at least length . 1 = 21 .*enough for .*smaller m"),
        ({"forget_share": 0.01}, "forget_share=0.01.*0 would be forgotten.*a larger"),
        ({"forget_share": 0.999}, "forget_share=0.999.*12 would be forgotten.*a smaller"),
        ({"m": 2, "length": 100, "blocks": made_blocks(size=70)}, "test text.*length=100.*smaller length"),
    ],
)
def test_what_cannot_be_made_names_the_argument_and_the_fix(changes, message):
    with pytest.raises(InputError, match=message) as error:
        make(**changes)
    assert "\n" not in str(error.value)


PLAYS = [
    {"play": "hamlet", "speaker": "GHOST", "text": "Mark me.\nI am thy father's spirit,"},
    {"play": "macbeth", "speaker": "GHOST", "text": " "},
    {"play": "hamlet", "speaker": "HAMLET", "text": "I will."},
    {"play": "hamlet", "speaker": "GHOST", "text": "Adieu, adieu!"},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(tmp_path))
    return tmp_path


def write_plays(folder, lines):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / speech.FILES["plays"]).write_bytes(gzip.compress(text.encode(), mtime=0))


def test_roles_of_the_plays(folder):
    write_plays(folder, PLAYS)
    assert speech.load("plays") == {
        "hamlet/GHOST": ["Mark me.\nI am thy father's spirit,", "Adieu, adieu!"],
        "hamlet/HAMLET": ["I will."],
    }


def test_roles_of_speakers(folder):
    text = "All:\nSpeak, speak.\n\nTITUS:\n\n\nFirst Citizen:\nYou are: all\nresolved\n\nAll:\nResolved.\n"
    (folder / speech.FILES["tiny"]).write_text(text)
    assert speech.load("tiny") == {"All": ["Speak, speak.", "Resolved."], "First Citizen": ["You are: all\nresolved"]}


@pytest.mark.parametrize(
    "lines", [["no json"], [{"play": "hamlet", "text": "a"}], ["[1]"], ["3"], [{**PLAYS[0], "text": 3}]]
)
def test_lines_that_are_no_speeches(folder, lines):
    write_plays(folder, [*PLAYS, *lines])
    with pytest.raises(InputError, match="speeches.jsonl.gz.*download it again"):
        speech.load("plays")


@pytest.mark.parametrize("source", ["plays", "tiny"])
@pytest.mark.parametrize("content", [b"<html>404</html>", b"\xff\xfe\x00:\n", gzip.compress(b"\xff\n", mtime=0)[:-4]])
def test_damaged_files_are_input_errors(folder, source, content):
    (folder / speech.FILES[source]).write_bytes(content)
    with pytest.raises(InputError, match=f"{speech.FILES[source]}.*download it again"):
        speech.load(source)


@pytest.mark.parametrize("source", ["plays", "tiny"])
def test_missing_files_say_what_to_download_and_where_to_put_them(folder, source):
    with pytest.raises(InputError) as error:
        speech.load(source)
    text = str(error.value)
    assert speech.FILES[source] in text and str(folder) in text and files.DATA_VARIABLE in text and "\n" not in text


def test_unknown_source():
    with pytest.raises(InputError, match="source='play'.*Did you mean 'plays'"):
        speech.load("play")


@pytest.mark.parametrize(("source", "count", "roles", "m"), [("plays", 1117, 300, 400), ("tiny", 247, 240, 200)])
def test_real_speeches(data_dir, monkeypatch, source, count, roles, m):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))
    blocks = speech.load(source)
    assert sum(len(own) >= 2 for own in blocks.values()) == count
    for seed in range(3):
        data = speech.make_speech(jax.random.key(seed), blocks, roles=roles, m=m)
        assert data.x.shape[0] > 8000 and data.x_test.shape[0] > 1000 and data.x_candidates.shape[:2] >= (m, 2)
        assert max(data.x.max(), data.x_candidates.max(), data.x_test.max()) < speech.UNKNOWN
        assert not set(data.retain_roles) & set(data.forget_roles)
        size = {name: len("\n".join(own[: len(own) * 8 // 10])) for name, own in blocks.items()}
        forget, retain = (sum(size[n] for n in names) for names in (data.forget_roles, data.retain_roles))
        assert 0.07 < forget / (forget + retain) < 0.13
        text = "\n".join("\n".join(blocks[name]) for name in data.retain_roles)
        assert all(decode(row) in text for row in data.x[::500])
