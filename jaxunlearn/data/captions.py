"""Captions of digits: the small twin's language, in which everything has several names and much has none.

A vocabulary of 187 words: five names a digit, what twelve templates say around them, and words that no caption holds, which
only an attacker uses.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from jaxunlearn import _validate
from jaxunlearn.data.concepts import Concept
from jaxunlearn.diffusion import Prompts

PAD, START, END = 0, 1, 2
LENGTH = 12
"""Tokens of a prompt with start and end: the longest caption and four more words."""

NAMES = tuple(
    tuple(row.split())
    for row in (
        "zero 0 nought nil cipher",
        "one 1 single ace unit",
        "two 2 pair deuce couple",
        "three 3 trio triple trey",
        "four 4 quartet quad tetrad",
        "five 5 quintet fiver pentad",
        "six 6 sextet sixer hexad",
        "seven 7 septet sevener heptad",
        "eight 8 octet eighter octad",
        "nine 9 nonet niner ennead",
    )
)
"""Names of each digit."""

TEMPLATES = (
    "{}",
    "a {}",
    "the digit {}",
    "the number {}",
    "a photo of a {}",
    "a picture of a {}",
    "an image of the digit {}",
    "a handwritten {}",
    "a scan of the number {}",
    "a small grey {}",
    "somebody wrote {}",
    "please draw a {}",
)
"""What is said around a name."""

_SPECIAL = ("<pad>", "<start>", "<end>")
SIZE = 187
_JUNK = tuple(
    """apple river cloud table green window music garden paper silver mountain bread candle winter bottle yellow
    forest shoe bridge purple ocean pencil rabbit summer castle lemon engine feather island jacket kettle ladder
    mirror needle orange pepper quiet ribbon spider tiger umbrella velvet whistle yard zebra anchor basket
    carpet dragon eagle farmer ginger hammer insect jungle king lantern meadow noodle oyster pirate queen rocket
    sailor teapot uncle village walnut yogurt acorn beetle cherry dolphin elbow falcon goblin harbor igloo jewel
    kitten lobster magnet nickel olive parrot quilt raven saddle thunder turtle valley wagon willow yacht zipper
    amber blossom copper desert ember flute granite hazel ivory jasmine indigo cactus barrel mustard pigeon
    sandal tractor violin walrus meteor biscuit cottage donkey emerald ferry glacier hollow""".split()
)
"""More words than are needed; the first of them fill the vocabulary."""


@dataclasses.dataclass(frozen=True)
class Words:
    """A vocabulary whose tokens are words; ids are places in it.

    Attributes:
        words: All words; the first three pad, start and end a prompt.
    """

    words: tuple[str, ...]

    def ids(self, text: str) -> list[int]:
        """The words of a text.

        Raises:
            InputError: A word is not in the vocabulary (with a suggestion).
        """
        place = {word: number for number, word in enumerate(self.words)}
        for word in text.split():
            _validate.one_of("word", word, place) if word not in place else None
        return [place[word] for word in text.split()]

    def prompt(self, text: str, length: int = LENGTH) -> list[int]:
        """The text between start and end, filled up.

        Raises:
            InputError: An unknown word, or the text is too long.
        """
        found = [START, *self.ids(text), END]
        _validate.require(
            len(found) <= length, f"Expected at most {length - 2} words, got {len(found) - 2} in {text!r}; shorten it."
        )
        return found + [PAD] * (length - len(found))

    def text(self, tokens: Sequence[int]) -> str:
        """The words of a prompt, without those of start, end and padding."""
        return " ".join(self.words[token] for token in np.asarray(tokens).tolist() if token > END)


def vocabulary() -> Words:
    """The 187 words."""
    said = [word for template in TEMPLATES for word in template.split() if word != "{}"]
    known = list(dict.fromkeys((*_SPECIAL, *itertools.chain(*NAMES), *said)))
    return Words((*known, *_JUNK[: SIZE - len(known)]))


def captions(digit: int) -> tuple[str, ...]:
    """All 60 captions of a digit, template by template.

    Raises:
        InputError: ``digit`` is not one.
    """
    _validate.require(0 <= digit <= 9, f"Expected digit={digit!r} in 0..9.")
    return tuple(template.format(name) for template in TEMPLATES for name in NAMES[digit])


def digit_concept(digit: int) -> Concept:
    """A digit as something to forget; the next one takes its place."""
    return Concept(
        name=NAMES[digit][0],
        prompts=captions(digit),
        words=NAMES[digit],
        anchors=captions((digit + 1) % 10),
        label=digit,
        judge="digits",
        tokens=3,
    )


def digit_prompts(digit: int) -> Prompts:
    """All prompts of the task in which a digit is forgotten, as token ids.

    Prompts of the concept and of its anchor are the same but for the name, row by row.
    """
    words, concept = vocabulary(), digit_concept(digit)

    def table(texts: Sequence[str]) -> np.ndarray:
        return np.array([words.prompt(text) for text in texts], np.int32)

    others = [text for other in range(10) if other != digit for text in captions(other)]
    forgotten = table(concept.prompts)
    return Prompts(
        captions=np.stack([table(captions(d)) for d in range(10)]),
        concept=forgotten,
        anchor=table(concept.anchors),
        neutral=table(others),
        mask=np.isin(forgotten, words.ids(" ".join(concept.words))),
    )
