"""The tokenizer of CLIP's text encoder, out of the two files that published text-to-image models bring."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from jaxunlearn._validate import InputError, require
from jaxunlearn.data import gguf_vocabulary

START, END = "<|startoftext|>", "<|endoftext|>"
_WORDS = r"""<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""


class ClipTokenizer:
    """Text to prompts of fixed length, and back.

    Args:
        folder: With vocab.json and merges.txt.
        length: Tokens of a prompt with start and end.
        pad: What fills up; None: the end's id, as in Stable Diffusion 1.x.

    Attributes:
        start: Id before every prompt.
        end: Id after it.
        pad: Id that fills up.

    Raises:
        InputError: A file is missing or damaged, or the ``tokenizers`` library is not installed.
    """

    def __init__(self, folder: str | Path, length: int, *, pad: int | None = None):
        library, folder = gguf_vocabulary.library(), Path(folder)
        for name in ("vocab.json", "merges.txt"):
            require((folder / name).is_file(), f"Expected {folder / name}; take a complete copy of the model.")
        try:
            vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
            lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
            merges = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")]
            self.start, self.end = vocabulary[START], vocabulary[END]
            model = library.models.BPE(vocabulary, merges, unk_token=END, end_of_word_suffix="</w>")
        except Exception as error:  # the library has no error of its own
            raise InputError(
                f"Expected the vocabulary of a CLIP text encoder in {folder} ({type(error).__name__}: {error}); take a "
                "complete copy of the model."
            ) from error
        self.pad, self.length = self.end if pad is None else pad, length
        steps = library.normalizers
        self._tokenizer = library.Tokenizer(model)
        self._tokenizer.normalizer = steps.Sequence(
            [steps.NFC(), steps.Replace(library.Regex(r"\s+"), " "), steps.Lowercase()]
        )
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(
            [
                library.pre_tokenizers.Split(library.Regex(_WORDS), behavior="removed", invert=True),
                library.pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
        self._tokenizer.decoder = library.decoders.ByteLevel()

    def words(self, text: str) -> list[int]:
        """The ids of a text, without start and end."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, text: str) -> Int[np.ndarray, " n"]:
        """The text between start and end, filled up; what is too long is cut off."""
        ids = [self.start, *self.words(text)[: self.length - 2], self.end]
        return np.array(ids + [self.pad] * (self.length - len(ids)), np.int32)

    def text(self, tokens: Sequence[int]) -> str:
        """What stands between the start and the first end."""
        ids = [int(token) for token in tokens]
        ids = ids[1 : ids.index(self.end)] if self.end in ids else ids[1:]
        return self._tokenizer.decode(ids, skip_special_tokens=False).replace("</w>", " ").strip()

    def again(self, tokens: Int[np.ndarray, "b n"]) -> Int[np.ndarray, "b n"]:
        """What becomes of prompts whose tokens are written out and read again."""
        return np.stack([self.prompt(self.text(row)) for row in np.asarray(tokens)])
