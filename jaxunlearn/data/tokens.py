"""Tokenizers, and text as arrays of fixed shape for language models.

Rows are padded on the right, since causal attention needs no mask for that; prompts that are to be continued are padded on the
left. What is scored and what is private is decided by ranges of characters, never by counting the tokens of a part.
A row starts with the tokenizer's BOS if its models were trained with one.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Int

from jaxunlearn import _validate
from jaxunlearn.data import files
from jaxunlearn.data.llama2c import Llama2c
from jaxunlearn.data.pii import Fact, Passage
from jaxunlearn.sequences import IGNORED

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>")

# Llama 3's way of cutting text into words before bytes are merged.
_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")


class Tokenizer(Protocol):
    """Text to ids and back.

    Attributes:
        vocabulary: Number of ids.
        bos: Id that starts every row, or None where models are trained without one.
        eos: Id that ends an answer.
        pad: Id that fills rows; it is never scored.
    """

    vocabulary: int
    bos: int | None
    eos: int
    pad: int

    def encode(self, text: str) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, "n 2"]]:
        """Ids without BOS and EOS, and the range of characters that each stands for; text never becomes a special id."""
        ...

    def decode(self, ids: Int[np.ndarray, " n"]) -> str:
        """Text of ids, special ones left out."""
        ...

    def save(self, path: Path) -> None:
        """Writes what ``load`` reads."""
        ...


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise _validate.InputError("Tokenizers need their library: pip install 'jaxunlearn[llm]'.") from error
    return tokenizers


class HuggingFace:
    """A tokenizer of the ``tokenizers`` library.

    Args:
        tokenizer: With the post-processor that its models expect: it is asked whether rows start with BOS.
        eos: Its id.
        pad: Its id; EOS if None.
        bos: Its id, if the file says so without a post-processor.
    """

    def __init__(self, tokenizer: "tokenizers.Tokenizer", eos: int, pad: int | None = None, bos: int | None = None):
        self._saved = tokenizer.to_str()
        first, plain = (tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
        self.bos = first[0] if first[: len(plain)] != plain else bos
        self.eos, self.pad = eos, eos if pad is None else pad
        self.vocabulary = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self._tokenizer = _library().Tokenizer.from_str(self._saved)
        self._tokenizer.post_processor = None  # it trims the space before a word from the word's range
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids [n] int32 and ranges of characters [n, 2] int32."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)

    def decode(self, ids: np.ndarray) -> str:
        """Text of ids, special ones left out."""
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def save(self, path: Path) -> None:
        """Writes a folder with tokenizer.json and tokenizer_config.json, which transformers reads as well."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "tokenizer.json").write_text(self._saved)
        named = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad}
        config: dict[str, Any] = {
            name: self._tokenizer.id_to_token(i) for name, i in named.items() if i is not None
        }
        config |= {"add_bos_token": self.bos is not None, "tokenizer_class": "PreTrainedTokenizerFast"}
        (path / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def train_bpe(texts: Iterable[str], vocabulary: int = 768) -> HuggingFace:
    """Byte-level byte-pair encoding, learnt from texts; the same texts give the same ids.

    Args:
        texts: What to learn from.
        vocabulary: Ids at most, >= 257: the bytes and one that starts and ends a row. Fewer texts give fewer.

    Raises:
        InputError: Fewer ids than the bytes need.
    """
    _validate.at_least(257, vocabulary=vocabulary)
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{END} $A", pair=f"{END} $A $B", special_tokens=[(END, 0)]
    )
    return HuggingFace(tokenizer, eos=0)
