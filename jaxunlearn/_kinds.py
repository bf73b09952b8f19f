"""Kinds of private facts, and how each is recognised in text, for the data that hold them and the attacks that want them."""

import re
from collections.abc import Mapping

EMAIL, PHONE, BIRTH_DATE, BIRTHPLACE, ADDRESS = (
    "email address",
    "phone number",
    "birth date",
    "birthplace",
    "home address",
)

_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
_YEAR = r"(?:(?:in )?(?:the year )?\d{4})"
_WORD = r"[^\W\d_a-z][\w’'-]*"
_NAME = rf"{_WORD}(?:(?: (?:de|es|la|of))? {_WORD})*"
PLACE = re.compile(rf"\b(?:in|of|at|from) ({_NAME}, {_NAME})")
"""A town and its country within a sentence."""

PATTERNS: Mapping[str, tuple[re.Pattern[str], ...]] = {
    EMAIL: (re.compile(r"\b([A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9.-]{1,255}\.[A-Za-z]{2,})\b"),),
    PHONE: (re.compile(r"(?<![\w-])((?:\(\d{3}\) ?|\d{3}[-. ])\d{3}[-. ]\d{4})(?![\w-])"),),
    BIRTH_DATE: (
        re.compile(
            rf"\b(\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH},? {_YEAR}|{_MONTH},? \d{{1,2}}(?:st|nd|rd|th)?,? {_YEAR}"
            r"|\d{1,2}/\d{1,2}/\d{4})\b"
        ),
    ),
    BIRTHPLACE: (
        re.compile(rf"^\s*({_NAME}(?:, {_NAME})?)\s*(?:[.!?;\n]|$)"),  # nothing but the place
        PLACE,
        re.compile(rf"\b(?:in|of|at|from) ({_NAME})"),
    ),
    ADDRESS: (re.compile(rf"\b(\d{{1,5}} {_NAME}, {_NAME})"),),
}
"""Ways to find a fact of each kind, its text in group 1; the first that finds anything counts."""


def first(text: str, kind: str) -> str | None:
    """The first fact of a kind in a text, as it is written there; None if there is none, or the kind has no form.

    >>> first("Write to kite7@example.org or clara@example.com.", "email address")
    'kite7@example.org'
    """
    found = (pattern.search(text) for pattern in PATTERNS.get(kind, ()))
    return next((match.group(1) for match in found if match), None)
