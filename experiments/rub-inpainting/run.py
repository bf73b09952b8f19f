"""RUB's Tables 2 and 4 in small: a masked autoencoder of digits made to forget five classes, and attacked."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import common

from jaxunlearn.pipeline.inpainting.presets import PRESETS

SMALL = {"digits": PRESETS["digits-inpainting"][1]}

if __name__ == "__main__":
    common.inpainting_main(__file__, SMALL)
