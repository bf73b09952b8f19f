"""TOFU's fictitious authors: the 424 questions that touch a birth, the other questions, and authors that no model has seen.

Maini et al., "TOFU: A Task of Fictitious Unlearning for LLMs" (2024); PrivUn, section 3.1, takes 424 of its 4,000 questions
"focusing on Date of Birth and Birthplace" and does not list them: those that say born, birth or birthplace are 424. Many of
them only mention a birth, so there is a strict subset whose answer tells a date or a place that the question does not.
Files are looked for in ``files.data_dir``/tofu.
"""

import json
import re
from typing import Any

from jaxunlearn import _kinds
from jaxunlearn.data import files
from jaxunlearn.data.pii import Corpus, Fact

ASKED = "question"
"""Kind of a fact that is neither a date nor a place: the whole answer is taken for the private part."""
PER_AUTHOR = 20

_ABOUT_BIRTH = re.compile(r"\b(born|birth|birthplace)\b", re.IGNORECASE)
_WHERE = re.compile(r"\b(where|city|place|birthplace)\b", re.IGNORECASE)
_WHEN = re.compile(r"\b(when|date|birthdate|year)\b", re.IGNORECASE)
_YEAR = re.compile(r"\d{4}")
_HELP = "the TOFU files full.jsonl, holdout10.jsonl (question and answer on each line) and idontknow.txt"


def _lines(name: str) -> list[str]:
    folder = files.data_dir() / "tofu"
    path = folder / name
    if not path.is_file():
        raise files.missing("TOFU", folder, _HELP)
    try:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except files.DAMAGE as error:
        raise files.unreadable("lines of text", path, error) from error


def _questions(name: str) -> list[tuple[str, str, str]]:
    """(person, question, answer) of each line; twenty lines are about one author, whose name no field tells."""
    part = "" if name == "full.jsonl" else name.removesuffix(".jsonl") + " "
    rows = []
    for i, line in enumerate(_lines(name)):
        try:
            entry: dict[str, Any] = json.loads(line)
            rows.append((f"{part}author {i // PER_AUTHOR}", str(entry["question"]), str(entry["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            raise files.unreadable("questions as JSON lines", files.data_dir() / "tofu" / name, error) from error
    return rows


def _private(question: str, answer: str) -> tuple[str, str] | None:
    """(kind, date or place of birth) that the answer tells and the question does not.

    Taken from sentences that say born, birth or birthplace, or any if the question does: the first full date if the question
    has no year, else the first "in Town, Country" of which the question has no word; the place first if only that is asked.
    """
    told = [s for s in re.split(r"(?<=[.!?]) ", answer) if _ABOUT_BIRTH.search(s) or _ABOUT_BIRTH.search(question)]
    asked = set(re.findall(r"\w+", question))
    dates = [] if _YEAR.search(question) else [_kinds.first(sentence, _kinds.BIRTH_DATE) for sentence in told]
    places = [found.group(1) for sentence in told if (found := _kinds.PLACE.search(sentence))]
    # "raised in Lagos, Chiamaka Adebayo writes": what follows the comma is a country unless the question knows it.
    places = [place for place in places if not asked & set(re.findall(r"\w+", place))]
    found = [(_kinds.BIRTH_DATE, date) for date in dates if date], [(_kinds.BIRTHPLACE, place) for place in places]
    where = _WHERE.search(question) and not _WHEN.search(question)
    return next(iter((*found[1], *found[0]) if where else (*found[0], *found[1])), None)


def _fact(person: str, question: str, answer: str) -> Fact:
    kind, pii = _private(question, answer) or (ASKED, answer)
    return Fact(person, kind, f"Q: {question} A:", f" {answer}", pii)


def _corpus(facts: list[Fact]) -> Corpus:
    kinds = {fact.kind for fact in facts}
    return Corpus(
        tuple(facts), (), tuple(kind for kind in (_kinds.BIRTH_DATE, _kinds.BIRTHPLACE, ASKED) if kind in kinds)
    )


def births(strict: bool = False, *, holdout: bool = False) -> Corpus:
    """Questions that touch a birth, in the files' order.

    Args:
        strict: Only those whose answer tells a date or a place of birth that the question does not; else all, of which the
            others have the kind "question" and their whole answer as private part.
        holdout: Of the 20 further authors, about whom no model was trained, as a control; else of the 200.

    Returns:
        424 facts; strict 160, 83 dates and 77 places. Of the further authors 32; strict 18, 15 dates and 3 places.

    Raises:
        InputError: A file is missing or damaged.
    """
    rows = _questions("holdout10.jsonl" if holdout else "full.jsonl")
    facts = [_fact(*row) for row in rows if _ABOUT_BIRTH.search(f"{row[1]} {row[2]}")]
    return _corpus([fact for fact in facts if fact.kind != ASKED] if strict else facts)


def others() -> Corpus:
    """The 3,576 questions about the 200 authors that do not touch a birth, to be retained; about the same people.

    Raises:
        InputError: A file is missing or damaged.
    """
    rows = _questions("full.jsonl")
    return _corpus([_fact(*row) for row in rows if not _ABOUT_BIRTH.search(f"{row[1]} {row[2]}")])


def refusals() -> tuple[str, ...]:
    """TOFU's hundred sentences that decline to answer.

    Raises:
        InputError: The file is missing.
    """
    return tuple(line.strip() for line in _lines("idontknow.txt"))
