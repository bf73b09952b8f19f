"""RUB's Table 3 in small: a digit forgotten by a text-to-image model, and prompts attacked to draw it again."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.pipeline.diffusion.presets import PRESETS

if __name__ == "__main__":
    common.diffusion_main(__file__, {"digit 0": PRESETS["digits-diffusion"][1]})
