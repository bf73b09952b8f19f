"""The tokenizer in a GGUF file's metadata: a byte-level BPE as GPT-2, SmolLM, Llama 3 and Qwen 2 have it."""

from pathlib import Path
from typing import Any

from jaxunlearn import _validate
from jaxunlearn.data import files

# Llama 3's way of cutting text into words before bytes are merged.
_LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")


def library() -> Any:
    """The ``tokenizers`` library.

    Raises:
        InputError: It is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise _validate.InputError("Tokenizers need their library: pip install 'jaxunlearn[llm]'.") from error
    return tokenizers


def read(path: Path) -> tuple[Any, int, int | None, int | None]:
    """Builds a tokenizer from a GGUF file's metadata.

    Returns:
        (tokenizer of the ``tokenizers`` library, id of EOS, of padding, of the BOS that starts every row); None where the
        file has none.

    Raises:
        InputError: The file is damaged, or its tokenizer is no byte-level BPE of a known kind.
    """
    try:
        import gguf
    except ImportError as error:
        raise _validate.InputError("GGUF files need their library: pip install 'jaxunlearn[llm]'.") from error
    try:
        fields = gguf.GGUFReader(str(path)).fields
        entry = {
            key.removeprefix("tokenizer.ggml."): field.contents()
            for key, field in fields.items()
            if key.startswith("tokenizer.ggml.")
        }
        model, tokens, types = entry["model"], entry["tokens"], entry.get("token_type", [])
        merges = [tuple(merge.split(" ")) for merge in entry.get("merges", [])]
    except (*files.DAMAGE, IndexError) as error:
        raise files.unreadable("a GGUF file with a tokenizer", path, error) from error
    _validate.require(
        model == "gpt2",
        f"Expected a byte-level BPE ('gpt2') as tokenizer of {path}, got {model!r}; use its tokenizer.json.",
    )
    parts = library()
    kind = entry.get("pre", "gpt-2")
    tokenizer = parts.Tokenizer(
        parts.models.BPE({token: i for i, token in enumerate(tokens)}, merges, ignore_merges=kind == "llama-bpe")
    )
    tokenizer.pre_tokenizer = _words(parts, kind, path)
    tokenizer.decoder = parts.decoders.ByteLevel()
    tokenizer.add_special_tokens(  # 3: control tokens
        [parts.AddedToken(token, special=True) for token, type_ in zip(tokens, types) if type_ == 3]
    )
    bos = entry.get("bos_token_id") if entry.get("add_bos_token", kind == "llama-bpe") else None
    return tokenizer, int(entry["eos_token_id"]), entry.get("padding_token_id"), bos


def _words(parts: Any, kind: str, path: Path) -> Any:
    """How text is cut before bytes are merged."""
    pre = parts.pre_tokenizers
    by_regex = pre.ByteLevel(add_prefix_space=False)
    if kind in ("gpt-2", "gpt2"):
        return by_regex
    if kind == "smollm":
        return pre.Sequence([pre.Digits(individual_digits=True), by_regex])
    regexes = {"llama-bpe": _LLAMA, "qwen2": _QWEN}
    _validate.require(
        kind in regexes,
        f"Expected gpt-2, smollm, llama-bpe or qwen2 as pre-tokenizer of {path}, got {kind!r}; use its tokenizer.json.",
    )
    cut = pre.Split(parts.Regex(regexes[kind]), behavior="isolated")
    return pre.Sequence([cut, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
