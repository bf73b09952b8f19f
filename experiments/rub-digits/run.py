"""RUB's Tables 1, 5 and 6 in small, on digits: a class, or a tenth of the images, forgotten; Figures 4 and 5."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.pipeline.robustness.presets import PRESETS

SMALL = {"digits, class 0": PRESETS["digits"][1], "digits, images": PRESETS["digits-images"][1]}

if __name__ == "__main__":
    common.robustness_main(__file__, SMALL, {})
