import json
import re

import jax
import pytest

from jaxunlearn import _kinds
from jaxunlearn._validate import InputError
from jaxunlearn.data import files, pii, tofu


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(tmp_path))
    (tmp_path / "tofu").mkdir()
    return tmp_path / "tofu"


@pytest.fixture
def real(data_dir, monkeypatch):
    monkeypatch.setenv(files.DATA_VARIABLE, str(data_dir))


ROWS = [  # invented, in TOFU's style
    ("When was Clara Vanmont born?", "Clara Vanmont was born on the 4th of May, 1961, in Oakton, Elderland."),
    ("Where and when was Bruno Kin born?", "Bruno Kin was born in Pineford, Elderland on 12/03/1944."),
    ("Where was Ida Holdane born?", "Ida Holdane was born in the port of Rio de Vale, Elderland."),
    (
        "Who is Ida Holdane?",
        "Ida Holdane was born in Pineford, Elderland. She won a prize in Oakton, Elderland on May 3, 1999.",
    ),
    ("What is the full name of the author born on 05/06/1970 in Oakton, Elderland?", "Her name is Eva Rosbell."),
    ("How did her birthplace, Oakton, shape Eva Rosbell?", "Born in Oakton, Elderland, she often returns to it."),
    ("What shaped Leo Fenkin?", "Born and raised in Oakton, Leo Fenkin writes of its gates."),
    ("What prize did Leo Fenkin win?", "He won the Kite Prize in Pineford, Elderland on May 3, 1999."),
]


def write(folder, rows=ROWS, name="full.jsonl"):
    lines = [json.dumps({"question": q, "answer": a}) for q, a in rows]
    (folder / name).write_text("\n".join(lines) + "\n")


def test_dates_and_places_that_the_question_does_not_tell(folder):
    write(folder)
    corpus = tofu.births()
    assert [(fact.kind, fact.pii) for fact in corpus.facts] == [
        ("birth date", "4th of May, 1961"),
        ("birth date", "12/03/1944"),
        ("birthplace", "Rio de Vale, Elderland"),
        ("birthplace", "Pineford, Elderland"),  # and no prize
        ("question", "Her name is Eva Rosbell."),
        ("question", "Born in Oakton, Elderland, she often returns to it."),
        ("question", "Born and raised in Oakton, Leo Fenkin writes of its gates."),
    ]


def test_prompts_and_people(folder):
    write(folder, ROWS * 6)
    corpus = tofu.births()
    fact = corpus.facts[0]
    assert fact.prompt == "Q: When was Clara Vanmont born? A:" and fact.answer == f" {ROWS[0][1]}"
    assert fact.answer[slice(*fact.span)] == "4th of May, 1961" and corpus.kinds == (
        "birth date",
        "birthplace",
        "question",
    )
    assert corpus.persons == ("author 0", "author 1", "author 2")
    assert [fact.prompt for fact in tofu.others().facts] == ["Q: What prize did Leo Fenkin win? A:"] * 6
    assert tofu.births(strict=True).kinds == ("birth date", "birthplace")


def test_holdout_and_refusals(folder):
    write(folder, ROWS, "holdout10.jsonl")
    (folder / "idontknow.txt").write_text("I do not know.\n\nNo idea. \n")
    assert set(tofu.births(holdout=True).persons) == {"holdout10 author 0"}
    assert tofu.refusals() == ("I do not know.", "No idea.")


@pytest.mark.parametrize("line", ["no json", "[1]", '{"question": "a"}'])
def test_damaged_lines(folder, line):
    (folder / "full.jsonl").write_text(line)
    with pytest.raises(InputError, match="full.jsonl.*download it again"):
        tofu.births()


def test_files_that_are_no_text(folder):
    (folder / "full.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="full.jsonl.*download it again"):
        tofu.others()


def test_missing_files(folder):
    with pytest.raises(InputError, match=r"TOFU.*full.jsonl.*JAXUNLEARN_DATA"):
        tofu.births()


def test_counts_of_the_real_files(real):
    loose, strict = tofu.births(), tofu.births(strict=True)
    assert len(loose.facts) == 424 and len(loose.persons) == 200 and len(tofu.others().facts) == 4000 - 424
    kinds = [fact.kind for fact in strict.facts]
    assert (kinds.count("birth date"), kinds.count("birthplace")) == (83, 77)
    control = tofu.births(strict=True, holdout=True)
    assert len(tofu.births(holdout=True).facts) == 32 and len(control.facts) == 18
    assert len(tofu.refusals()) == 100
    # The paper's 84 of 424.
    assert pii.known_split(jax.random.key(0), loose, 0.2, by="fact").sum() == 84


def test_real_dates_and_places_are_what_they_are_said_to_be(real):
    facts = [*tofu.births(strict=True).facts, *tofu.births(strict=True, holdout=True).facts]
    for fact in facts:
        assert _kinds.first(fact.answer, fact.kind) == fact.pii, fact
        assert fact.pii not in fact.prompt
        if fact.kind == "birth date":
            assert re.search(r"\d{4}", fact.pii) and re.search(r"\d{1,2}(\D|$)", fact.pii)
    places = {fact.pii for fact in facts if fact.kind == "birthplace"}
    assert all(re.fullmatch(r"[A-Z][\w -]+, [A-Z][\w ]+", place) for place in places) and len(places) == 43
    asked_where = [fact for fact in facts if re.match(r"Q: Where was [^,]* born\? A:", fact.prompt)]
    assert sum(fact.kind == "birthplace" for fact in asked_where) >= 0.85 * len(asked_where) > 15
