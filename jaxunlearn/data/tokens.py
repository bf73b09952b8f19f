"""Tokenizers, and text as arrays of fixed shape for language models.

Rows are padded on the right, since causal attention needs no mask for that; prompts that are to be continued are padded on
the left. What is scored and what is private is decided by ranges of characters, never by counting the tokens of a part.
A row starts with the tokenizer's BOS if its models were trained with one.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Int

from jaxunlearn import _validate
from jaxunlearn.data import files, gguf_vocabulary
from jaxunlearn.data.llama2c import Llama2c
from jaxunlearn.data.pii import Fact, Passage
from jaxunlearn.sequences import IGNORED

if TYPE_CHECKING:
    import tokenizers

END = "<|endoftext|>"
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>")


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
        self._tokenizer = gguf_vocabulary.library().Tokenizer.from_str(self._saved)
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
        config: dict[str, Any] = {name: self._tokenizer.id_to_token(i) for name, i in named.items() if i is not None}
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
    library = gguf_vocabulary.library()
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


def load(path: Path | str) -> Tokenizer:
    """Reads a tokenizer.

    Args:
        path: A folder with tokenizer.json (and tokenizer_config.json), or that file; a GGUF file, whose metadata hold a
            byte-level BPE; or llama2.c's tokenizer as a .bin file.

    Raises:
        InputError: Nothing of the kind is there; it is damaged; or it is of a kind that is not supported.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    _validate.require(
        path.is_file(), f"Found no tokenizer at {path}; name a tokenizer.json, its folder, a .gguf or a .bin."
    )
    if path.suffix == ".bin":
        return Llama2c.read(path)
    return HuggingFace(*gguf_vocabulary.read(path)) if path.suffix == ".gguf" else _from_json(path)


def _from_json(path: Path) -> HuggingFace:
    try:
        tokenizer = gguf_vocabulary.library().Tokenizer.from_file(str(path))
        beside = path.with_name("tokenizer_config.json")
        config = json.loads(beside.read_text()) if beside.is_file() else {}
    except _validate.InputError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise files.unreadable("a tokenizer", path, error) from error

    def named(name: str) -> int | None:
        token = config.get(name)
        return tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None

    guesses = (tokenizer.token_to_id(end) for end in _ENDS)
    eos = named("eos_token")
    eos = next((i for i in guesses if i is not None), None) if eos is None else eos
    if eos is None:
        raise _validate.InputError(f"Expected an eos_token in {beside} beside {path}; add the file with that entry.")
    return HuggingFace(tokenizer, eos, named("pad_token"), named("bos_token") if config.get("add_bos_token") else None)


class Rows(NamedTuple):
    """Questions and answers, or passages, as rows of T tokens.

    Attributes:
        tokens: [n, A, T] int32 (passages [n, T]); ``sequences.VARIANTS``, the true answer first.
        labels: Likewise: the token where it is scored, ``IGNORED`` elsewhere; aligned with the tokens.
        pii: [n, T] bool, the tokens of the true answer that hold characters of the private part; aligned with the tokens.
    """

    tokens: Int[np.ndarray, "n ... t"]
    labels: Int[np.ndarray, "n ... t"]
    pii: Bool[np.ndarray, "n t"]


class _Row(NamedTuple):
    text: str
    ids: list[int]
    scored: list[bool]
    private: list[bool]


def _within(offsets: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """[n] bool, whether a token holds a character of one of the spans."""
    inside = np.zeros(len(offsets), bool)
    for start, end in spans:
        inside |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
    return inside


def _pack(tokenizer: Tokenizer, rows: Sequence[_Row], length: int | None) -> Rows:
    longest = max(rows, key=lambda row: len(row.ids))
    length = len(longest.ids) if length is None else length
    _validate.require(
        len(longest.ids) <= length,
        f"Expected rows of at most length={length} tokens, but {longest.text!r} has {len(longest.ids)}; "
        f"use length={len(longest.ids)}.",
    )
    tokens = np.full((len(rows), length), tokenizer.pad, np.int32)
    labels = np.full((len(rows), length), IGNORED, np.int32)
    pii = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        n = len(row.ids)
        tokens[i, :n] = row.ids
        labels[i, :n] = np.where(row.scored, row.ids, IGNORED)
        pii[i, :n] = row.private
    return Rows(tokens, labels, pii)


def _joined(tokenizer: Tokenizer, prompt: str, answer: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Ids and offsets of a prompt and its answer, and how many are the prompt's."""
    ids, offsets = tokenizer.encode(prompt + answer)
    alone, _ = tokenizer.encode(prompt)
    _validate.require(
        np.array_equal(ids[: len(alone)], alone) and bool((offsets[len(alone) :, 1] > len(prompt)).all()),
        f"Expected a token to end where the prompt {prompt!r} does, but the tokenizer joins it to {answer!r}, so that "
        "a model asked for the answer would not see what it was trained on; let the prompt end without a space and the "
        "answer begin with one.",
    )
    return ids, offsets, len(alone)


def _answered(tokenizer: Tokenizer, fact: Fact, answer: str, span: tuple[int, int], scored: str) -> _Row:
    text, prompt = fact.prompt + answer, len(fact.prompt)
    ids, offsets, alone = _joined(tokenizer, fact.prompt, answer)
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    in_answer = [scored == "all"] * alone + [True] * (len(ids) - alone)
    private = _within(offsets, [(prompt + span[0], prompt + span[1])])
    private[:alone] = False
    return _Row(
        text,
        [*start, *ids.tolist(), tokenizer.eos],
        [False] * len(start) + [*in_answer, True],
        [False] * len(start) + [*private.tolist(), False],
    )


def encode_facts(
    tokenizer: Tokenizer,
    facts: Sequence[Fact],
    length: int | None = None,
    substitutes: Sequence[Sequence[str]] | None = None,
    scored: Literal["answer", "all"] = "answer",
) -> Rows:
    """Rows [BOS] prompt answer EOS.

    Args:
        tokenizer: Makes the ids.
        facts: Questions, at least one.
        length: T; None takes the longest row's.
        substitutes: For each fact A - 1 other answers, as from ``pii.substitutes``; None has A = 1.
        scored: "answer": the answer and EOS, the prompt is not scored (TOFU, open-unlearning). "all": the prompt too, which
            is MUSE's choice.

    Returns:
        Rows of all variants; ``pii`` is the true answer's.

    Raises:
        InputError: A row does not fit (the longest is named), a substitute is missing, or the tokenizer joins the end of a
            prompt to its answer.
    """
    _validate.not_empty("facts", facts)
    _validate.one_of("scored", scored, ("answer", "all"))
    others: Sequence[Sequence[str]] = [()] * len(facts) if substitutes is None else substitutes
    _validate.require(
        len(others) == len(facts) and len({len(answers) for answers in others}) == 1,
        f"Expected as many substitutes for each of {len(facts)} facts, got {len(others)} lists of lengths "
        f"{sorted({len(answers) for answers in others})}.",
    )
    rows = [
        _answered(tokenizer, fact, answer, fact.span if i == 0 else (0, 0), scored)
        for fact, answers in zip(facts, others)
        for i, answer in enumerate((fact.answer, *answers))
    ]
    packed = _pack(tokenizer, rows, length)
    tokens, labels, private = (part.reshape(len(facts), -1, part.shape[-1]) for part in packed)
    return Rows(tokens, labels, private[:, 0])


def encode_continuations(
    tokenizer: Tokenizer, prompts: Sequence[str], continuations: Sequence[str]
) -> tuple[Int[np.ndarray, "n t"], Int[np.ndarray, "n t"]]:
    """Rows [BOS] prompt continuation, of which the continuation alone is scored.

    Args:
        tokenizer: Makes the ids.
        prompts: At least one.
        continuations: What follows each.

    Returns:
        (tokens, labels), int32; the longest row has no padding.

    Raises:
        InputError: The tokenizer joins the end of a prompt to what follows.
    """
    _validate.not_empty("prompts", prompts)
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    rows = []
    for prompt, continuation in zip(prompts, continuations, strict=True):
        ids, _, alone = _joined(tokenizer, prompt, continuation)
        before = len(start) + alone
        scored = [False] * before + [True] * (len(ids) - alone)
        rows.append(_Row(prompt + continuation, [*start, *ids.tolist()], scored, [False] * len(scored)))
    packed = _pack(tokenizer, rows, None)
    return packed.tokens, packed.labels


def encode_passages(
    tokenizer: Tokenizer,
    passages: Sequence[Passage],
    length: int | None = None,
    scored: Literal["all", "pii"] = "all",
) -> Rows:
    """Rows [BOS] text EOS of running text, [n, T].

    Args:
        tokenizer: Makes the ids.
        passages: At least one.
        length: T; None takes the longest row's.
        scored: "all": every token after BOS, and EOS. "pii": the private ones alone.

    Raises:
        InputError: A row does not fit; the longest is named.
    """
    _validate.not_empty("passages", passages)
    _validate.one_of("scored", scored, ("all", "pii"))
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    rows = []
    for passage in passages:
        ids, offsets = tokenizer.encode(passage.text)
        private = [*_within(offsets, passage.spans).tolist(), False]
        counted = private if scored == "pii" else [True] * (len(ids) + 1)
        no = [False] * len(start)
        rows.append(_Row(passage.text, [*start, *ids.tolist(), tokenizer.eos], no + counted, no + private))
    return _pack(tokenizer, rows, length)


def chunk_text(tokenizer: Tokenizer, text: str, length: int) -> Int[np.ndarray, "n t"]:
    """Cuts text into rows without padding, of which every token but BOS can be scored.

    Args:
        tokenizer: Makes the ids, of the text as a whole. Each row starts with its BOS, if it has one.
        text: Any; what is left at its end, too short for a row, is left out.
        length: T, >= 2.

    Returns:
        [n, T] int32.

    Raises:
        InputError: The text is too short for one row.
    """
    _validate.at_least(2, length=length)
    ids, _ = tokenizer.encode(text)
    body = length - (tokenizer.bos is not None)
    n = len(ids) // body
    _validate.require(
        n > 0, f"Expected text of at least {body} tokens, got {len(ids)}; use a smaller length or more text."
    )
    rows = ids[: n * body].reshape(n, body)
    return rows if tokenizer.bos is None else np.concatenate([np.full((n, 1), tokenizer.bos, np.int32), rows], axis=1)


def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[str], length: int | None = None
) -> tuple[Int[np.ndarray, "n p"], Int[np.ndarray, " n"]]:
    """Prompts to be continued, padded on the left so that all end in the last column.

    Args:
        tokenizer: Makes the ids; BOS comes first, if it has one.
        prompts: At least one.
        length: P; None takes the longest prompt's.

    Returns:
        (ids [n, P] int32, lengths [n] int32): the last ``lengths[i]`` ids of row i are the prompt, those before are padding.

    Raises:
        InputError: A prompt does not fit; the longest is named.
    """
    _validate.not_empty("prompts", prompts)
    start = [] if tokenizer.bos is None else [tokenizer.bos]
    rows = [_Row(prompt, [*start, *tokenizer.encode(prompt)[0].tolist()], [], []) for prompt in prompts]
    longest = max(rows, key=lambda row: len(row.ids))
    length = len(longest.ids) if length is None else length
    _validate.require(
        len(longest.ids) <= length,
        f"Expected prompts of at most length={length} tokens, but {longest.text!r} has {len(longest.ids)}; "
        f"use length={len(longest.ids)}.",
    )
    ids = np.full((len(rows), length), tokenizer.pad, np.int32)
    for i, row in enumerate(rows):
        ids[i, length - len(row.ids) :] = row.ids
    return ids, np.array([len(row.ids) for row in rows], np.int32)
