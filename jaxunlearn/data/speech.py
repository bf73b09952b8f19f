"""Shakespeare by speaking role: from plays to a retain set and chunks of forgotten text (audit paper, appendix D.2).

A role is a speaker of a play, its blocks are the speeches in the order of the play. Roles, never single speeches, are either
retained or in the forget pool, so that no character's text is on both sides. Files are looked for in ``files.data_dir``.
"""

import dataclasses
import gzip
import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn.data import files
from jaxunlearn.data.splits import host_generator

Blocks = Mapping[str, Sequence[str]]
"""Role -> its dialogue blocks, in order."""

VOCABULARY = string.printable
"""The 100 characters with an id, their position here: ASCII's printable ones, whatever text is drawn."""
UNKNOWN = 99
"""The id of every other character. It is the form feed's, the last one, which no play holds."""

FILES = {"plays": "shakespeare_speeches.jsonl.gz", "tiny": "tinyshakespeare.txt"}
_HELP = {
    "plays": "shakespeare_speeches.jsonl.gz (one speech a line, with keys play, speaker and text, in the order of the play)",
    "tiny": "tinyshakespeare.txt (data/tinyshakespeare/input.txt of the char-rnn repository)",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speech:
    """Windows of character ids; y is x one character later.

    Attributes:
        x: [n, length] int32, the retain roles' training text.
        y: [n, length] int32.
        x_candidates: [m, windows, length] int32; row j is chunk D_{f,j} of the forget roles' training text.
        y_candidates: [m, windows, length] int32.
        x_test: [k, length] int32, text of all roles, held out.
        y_test: [k, length] int32.
        retain_roles: Names of the retained roles.
        forget_roles: Names of the roles in the forget pool.
    """

    x: np.ndarray
    y: np.ndarray
    x_candidates: np.ndarray
    y_candidates: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    retain_roles: tuple[str, ...]
    forget_roles: tuple[str, ...]


def encode(text: str) -> Int[np.ndarray, " n"]:
    """[n] int32 ids in 0..99, one per character of the text."""
    table = np.full(128, UNKNOWN, np.int32)
    table[[ord(c) for c in VOCABULARY]] = np.arange(len(VOCABULARY))
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return np.where(codes < 128, table[np.minimum(codes, 127)], UNKNOWN).astype(np.int32)


def read_plays(path: Path) -> dict[str, list[str]]:
    """Reads gzipped JSON lines with keys play, speaker and text; the role is ``play/speaker``. An empty speech is no block.

    Raises:
        InputError: The file is damaged, or a line lacks a key.
    """
    blocks: dict[str, list[str]] = {}
    try:
        for line in gzip.decompress(path.read_bytes()).decode().strip().split("\n"):
            speech = json.loads(line)
            if text := speech["text"].strip():
                blocks.setdefault(f"{speech['play']}/{speech['speaker']}", []).append(text)
    except (*files.DAMAGE, TypeError, AttributeError) as error:
        raise files.unreadable("speeches as JSON lines", path, error) from error
    return blocks


def read_speakers(path: Path) -> dict[str, list[str]]:
    """Reads blocks separated by blank lines, each a line ``SPEAKER:`` and its text; the role is the speaker's name.

    A heading without text is no block. The plays are not told apart: speakers of one name are one role.

    Raises:
        InputError: A block has no heading, or the file is no text.
    """
    blocks: dict[str, list[str]] = {}
    try:
        for block in path.read_bytes().decode().split("\n\n"):
            heading, _, text = block.strip().partition("\n")
            if not heading.endswith(":"):
                raise ValueError(f"a block begins with {heading[:40]!r} in place of a speaker and a colon")
            if text:
                blocks.setdefault(heading[:-1], []).append(text)
    except files.DAMAGE as error:
        raise files.unreadable("blocks of speakers", path, error) from error
    return blocks


def load(source: str = "plays") -> dict[str, list[str]]:
    """The dialogue blocks of every role.

    Args:
        source: "plays" (37 plays, 1,117 roles of two blocks or more, a role is a speaker of a play) or "tiny"
            (tinyshakespeare; parts of the plays, 247 such roles, a role is a speaker's name).

    Raises:
        InputError: The file is not there or damaged; the message says what to download and where to put it.
    """
    _validate.one_of("source", source, FILES)
    folder = files.data_dir()
    path = folder / FILES[source]
    if not path.is_file():
        raise files.missing("Shakespeare", folder, _HELP[source])
    return read_plays(path) if source == "plays" else read_speakers(path)


def windows(ids: np.ndarray, *, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets [w, length] that start at 0, stride, 2 * stride ... and end within ``ids`` ([..., n], w per row)."""
    if ids.shape[-1] <= length:
        empty = np.zeros((*ids.shape[:-1], 0, length), ids.dtype)
        return empty, empty
    cut = np.lib.stride_tricks.sliding_window_view(ids, length + 1, axis=-1)[..., ::stride, :]
    return cut[..., :-1].copy(), cut[..., 1:].copy()


def _windows_by_role(texts: Sequence[str], length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    cut = [windows(encode(text), length=length, stride=stride) for text in texts]
    x, y = (np.concatenate(part) for part in zip(*cut))
    return x, y


def _chronological(blocks: Sequence[str]) -> tuple[list[str], list[str]]:
    """The first 80 % of a role's blocks and the last 10 %; of two blocks or more, each gets at least one."""
    n = len(blocks)
    return list(blocks[: n * 8 // 10]), list(blocks[n * 9 // 10 :])


def _forget_pool(sizes: Sequence[int], share: float) -> int:
    """How many of the shuffled roles come nearest to ``share`` of all characters, taking them from the first on."""
    target, total, count = share * sum(sizes), 0, 0
    for size in sizes:
        if abs(total + size - target) >= abs(total - target):
            break
        total, count = total + size, count + 1
    return count


def make_speech(
    key: PRNGKeyArray,
    blocks: Blocks,
    *,
    m: int = 400,
    roles: int = 300,
    length: int = 80,
    stride: int = 80,
    forget_share: float = 0.1,
) -> Speech:
    """Draws roles, splits each by time, sets some of them apart to be forgotten and cuts their text into m chunks.

    Roles of fewer than two blocks are left out, ``roles`` of the rest are drawn. Of each role's blocks the first 80 % are for
    training and the last 10 % for testing; the 10 % between, the paper's validation set, is in neither. The drawn roles, in
    random order, fill the forget pool for as long as that brings it nearer to its share of the training characters. The
    pool's blocks are shuffled, each kept whole, joined by line breaks and cut into m chunks of equal length, so that all
    have equally many windows and every run equally many examples; the remainder, fewer than m characters, is left out.
    Retain and test text is joined and cut role by role: no window spans two roles, and a role with no more than ``length``
    characters has none. What remains at the end of a role or a chunk, too short for a window, is left out as well.

    Args:
        key: Typed PRNG key.
        blocks: Every role's dialogue blocks in order, as from ``load``.
        m: Chunks, the candidate batches, >= 2.
        roles: Roles to draw, >= 2.
        length: Characters of a window, >= 1.
        stride: Characters from one window's start to the next, >= 1. The paper says "sliding" and not how far; with
            ``length``, the default, no character is predicted twice.
        forget_share: Share of the training characters in the forget pool, in (0, 1).

    Returns:
        The windows. A window takes 8 * length bytes: with stride 1 expect about a gigabyte.

    Raises:
        InputError: Too few roles, or too little text for a chunk, for the pool, or for a window.
    """
    _validate.at_least(2, m=m, roles=roles)
    _validate.at_least(1, length=length, stride=stride)
    _validate.open_unit(forget_share=forget_share)
    names = [name for name, own in blocks.items() if len(own) >= 2]
    _validate.require(
        roles <= len(names),
        f"Expected roles={roles} with two dialogue blocks or more, but the source has {len(names)}; "
        f"use at most roles={len(names)}, or another source.",
    )
    rng = host_generator(key)
    drawn = [names[i] for i in rng.permutation(len(names))[:roles]]  # a random subset in random order
    train, test = ({name: _chronological(blocks[name])[part] for name in drawn} for part in (0, 1))
    texts = {name: "\n".join(own) for name, own in train.items()}
    count = _forget_pool([len(text) for text in texts.values()], forget_share)
    _validate.require(
        0 < count < roles,
        f"Expected forget_share={forget_share!r} of roles={roles} to leave a role on either side, but {count} would be "
        f"forgotten; use {'a larger' if count == 0 else 'a smaller'} forget_share, or more roles.",
    )
    forget, retain = drawn[:count], drawn[count:]
    pool = [block for name in forget for block in train[name]]
    text = "\n".join(pool[i] for i in rng.permutation(len(pool)))
    size = len(text) // m
    _validate.require(
        size > length,
        f"Expected m={m} chunks of at least length + 1 = {length + 1} characters, but the {count} forget roles have "
        f"{len(text)} in all, enough for {len(text) // (length + 1)}; use a smaller m or length, or a larger forget_share.",
    )
    x_candidates, y_candidates = windows(encode(text[: m * size]).reshape(m, size), length=length, stride=stride)
    x, y = _windows_by_role([texts[name] for name in retain], length, stride)
    x_test, y_test = _windows_by_role(["\n".join(own) for own in test.values()], length, stride)
    for part, found in (("retain", x), ("test", x_test)):
        _validate.require(
            found.shape[0] > 0,
            f"Expected some role's {part} text to be longer than length={length}, found none; use a smaller length.",
        )
    return Speech(
        x=x,
        y=y,
        x_candidates=x_candidates,
        y_candidates=y_candidates,
        x_test=x_test,
        y_test=y_test,
        retain_roles=tuple(retain),
        forget_roles=tuple(forget),
    )
