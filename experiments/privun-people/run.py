"""PrivUn's Tables 1 and 3 and Figures 1 to 4 in small: invented people, and a Llama of 0.8 million parameters."""

import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.pipeline.privacy.presets import PRESETS

PEOPLE = PRESETS["people"][1]
POPULATION = common.runs_folder() / "privun-people" / "population"


def share(known: float, selection: str) -> tuple[str, dict[str, object]]:
    """Figure 1: gradient ascent on a share of the forget set, drawn at random or the core of it."""
    # P3 by people who stay: the smallest share holds fewer answers than are fine-tuned on.
    recovery = dataclasses.replace(PEOPLE.recovery, source="retained")
    settings = {"known": known, "selection": selection, "recovery": recovery, "methods": ("ga",), "curves": ()}
    return f"{known:.0%} {selection}", settings


SETTINGS = {
    "all methods": {"methods": ("all",)},
    **dict(share(known, selection) for selection in ("random", "core-set") for known in (0.05, 0.1, 0.2, 0.5)),
    **dict([share(1.0, "random")]),
}
SMALL = {label: dataclasses.replace(PEOPLE, population=POPULATION, **settings) for label, settings in SETTINGS.items()}

if __name__ == "__main__":
    common.privacy_main(__file__, SMALL, {})
