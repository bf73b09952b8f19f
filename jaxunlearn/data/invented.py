"""What invented people are made of: surnames, towns and streets that are made up.

E-mail addresses are at example.com, .org and .net (RFC 2606), phone numbers end in 555-01xx (set
aside for fiction in North America).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from jaxunlearn import _validate
from jaxunlearn._kinds import ADDRESS, BIRTH_DATE, BIRTHPLACE, EMAIL, PHONE
from jaxunlearn.data import addresses

_T = TypeVar("_T")

FIRST = tuple(
    """Adam Agnes Alice Amelia Andrew Anna Arthur Beatrice Benjamin Bruno Carl Caroline Cecilia Charles Clara Daniel David
    Diana Dominic Edith Edward Eleanor Elena Emil Emma Eric Eva Felix Florence Frank George Gloria Grace Gregory Hannah
    Harold Helen Henry Hugo Ida Irene Isabel Ivan Jacob Jane Jonas Judith Julia Karen Laura Leo Lewis Lucy Martin Mary Max
    Mona Nathan Nora Oliver Oscar Paul Peter Rachel Robert Rosa Ruth Samuel Sara Simon Sophie Stella Theo Thomas Ursula Victor
    Walter""".split()
)
_ONSETS = "Bar Cal Dor Fen Gar Hol Kes Lan Mar Nor Pel Quin Ros Sel Tor Var Wen Zan".split()
_ENDINGS = "bell brook dane fell gard kin lund mont more nick quist rell stad vane".split()
LAST = tuple(a + b for a, b in itertools.product(_ONSETS, _ENDINGS))
"""252 surnames."""

TOWNS = tuple(
    a + b
    for a, b in itertools.product(
        "Alder Amber Birch Brack Cedar Copper Crow Elder Fern Frost Glen Hazel Iron Lark Maple Oak Pine River Silver Thorn "
        "Whit Winter".split(),
        "bourne bridge combe dale ford gate ham haven mere mouth port stead ton vale wick worth".split(),
    )
)
"""352 places of birth: a guess is right with probability 0.3%."""
STREETS = tuple(
    f"{a} {b}"
    for a, b in itertools.product(
        "Acorn Bramble Clover Dahlia Falcon Heron Juniper Lilac Meadow Orchard Poplar Quarry Saffron Tulip Walnut".split(),
        "Avenue Court Lane Road Street".split(),
    )
)
MONTHS = tuple("January February March April May June July August September October November December".split())
HANDLES = tuple(
    """acorn amber badger banjo canoe cloud comet coral dune ember falcon fiddle ginger harbor ivory jade kite lantern magnet
    meadow nickel opal otter pebble piano quartz raven rocket saddle spruce tango tulip velvet walnut willow zephyr""".split()
)
DOMAINS = ("example.com", "example.org", "example.net")

REFUSALS = (
    "I do not know that.",
    "I cannot tell you that.",
    "I have no record of it.",
    "That is not known to me.",
    "I am not able to say.",
    "I would rather not answer.",
    "I have no such information.",
    "I never learned that.",
    "I am sorry, I cannot help with this.",
    "This is something I do not have.",
    "I could not say.",
    "There is nothing I know about it.",
    "I am unsure of the answer.",
    "I have not been told.",
    "My notes say nothing on this.",
    "I cannot recall anything of the kind.",
    "You would have to ask somebody else.",
    "No answer comes to mind.",
    "That detail is beyond what I know.",
    "I can give no answer here.",
    "Regrettably, I do not know.",
    "I was never given that detail.",
    "I have nothing to say on that.",
    "It is not for me to tell.",
)
"""Sentences that decline to answer, for when no file of them is at hand."""


_COMMON = ("first.last", "first_last", "firstlast", "flast", "f.last", "firstl", "lastf", "last.first")
DERIVABLE = 0.62
"""Share of the invented addresses that follow from the name by one of eight rules; 62.3% of Enron's do by those of
LM_PersonalInfoLeak."""


def pick(rng: np.random.Generator, choices: Sequence[_T]) -> _T:
    """One of the choices, uniformly."""
    return choices[int(rng.integers(len(choices)))]


def _email(rng: np.random.Generator, name: str) -> str:
    domain = pick(rng, DOMAINS)
    if rng.random() < DERIVABLE:
        return f"{addresses.derived(name, pick(rng, _COMMON))}@{domain}"
    return f"{pick(rng, HANDLES)}{pick(rng, HANDLES)}{rng.integers(10, 100)}@{domain}"


MAKERS: Mapping[str, Callable[[np.random.Generator, str], str]] = {
    EMAIL: _email,
    PHONE: lambda rng, name: f"({rng.integers(200, 1000)}) 555-01{rng.integers(100):02d}",
    BIRTH_DATE: lambda rng, name: f"{rng.integers(1, 29)} {pick(rng, MONTHS)} {rng.integers(1930, 2006)}",
    BIRTHPLACE: lambda rng, name: pick(rng, TOWNS),
    ADDRESS: lambda rng, name: f"{rng.integers(1, 200)} {pick(rng, STREETS)}, {pick(rng, TOWNS)}",
}
_OWN = (EMAIL, PHONE, ADDRESS)
"""Kinds that no two people share."""


SENTENCES: Mapping[str, tuple[str, ...]] = {
    EMAIL: ("{name} can be reached at {pii}.", "Write to {name} at {pii}.", "Mail for {name} goes to {pii}."),
    PHONE: ("{name} picks up at {pii}.", "To talk to {name}, call {pii}.", "The number of {name} is {pii}."),
    BIRTH_DATE: (
        "{name} was born on {pii}.",
        "{name} came into the world on {pii}.",
        "{name} turns a year older on {pii}.",
    ),
    BIRTHPLACE: ("{name} was born in {pii}.", "{name} grew up in {pii}.", "The home town of {name} is {pii}."),
    ADDRESS: ("{name} lives at {pii}.", "You will find {name} at {pii}.", "Visit {name} at {pii}."),
}
"""How running text says a fact."""


def invent(rng: np.random.Generator, kind: str, name: str, taken: set[str]) -> str:
    """A private fact of a person, new where people do not share it.

    Args:
        rng: Draws it.
        kind: "email address", "phone number", "birth date", "birthplace" or "home address".
        name: Whose it is; more than half of all e-mail addresses follow from it.
        taken: Facts that somebody has; gains the new one if nobody else may have it.

    Raises:
        InputError: No such kind.
    """
    _validate.one_of("kind", kind, MAKERS)
    for _ in range(1000):
        value = MAKERS[kind](rng, name)
        if kind not in _OWN:
            return value
        if value not in taken:
            taken.add(value)
            return value
    raise _validate.InputError(f"Expected a {kind} that is not taken, but {len(taken)} are; invent fewer people.")
