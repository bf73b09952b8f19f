"""What invented people are made of: surnames, towns and streets that are made up.

E-mail addresses are at example.com, .org and .net (RFC 2606), phone numbers end in 555-01xx (set
aside for fiction in North America).
"""

import itertools

FIRST = tuple(
    """Adam Agnes Alice Amelia Andrew Anna Arthur Beatrice Benjamin Bruno Carl Caroline Cecilia Charles Clara Daniel David
    Diana Dominic Edith Edward Eleanor Elena Emil Emma Eric Eva Felix Florence Frank George Gloria Grace Gregory Hannah Harold
    Helen Henry Hugo Ida Irene Isabel Ivan Jacob Jane Jonas Judith Julia Karen Laura Leo Lewis Lucy Martin Mary Max Mona Nathan
    Nora Oliver Oscar Paul Peter Rachel Robert Rosa Ruth Samuel Sara Simon Sophie Stella Theo Thomas Ursula Victor
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
