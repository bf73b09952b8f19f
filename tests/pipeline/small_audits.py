"""One small audit that several test files start, break and compare."""

import json

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn.cli import main

CALIBRATION_RUNS, L, M = 16, 4, 40
SETTINGS = {"calibration_runs": CALIBRATION_RUNS, "evaluation_runs": L, "pool_size": M, "model": "linear"}
SMALL = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value))]
SMALL += ["--quiet", "--training.epochs", "2", "--method.finetune.epochs", "1", "--training.batch-size", "256"]
CONFIG = configuration.Audit(
    dataset="digits", **SETTINGS, training=configuration.Training(epochs=2, batch_size=256), quiet=True
)


def audit(out, *extra):
    return main(["audit", "digits", "--out", str(out), *SMALL, *map(str, extra)])


def read(out, method):
    def refuse(constant):
        raise AssertionError(f"{constant} in bound.json")

    return json.loads((out / method / "bound.json").read_text(), parse_constant=refuse)


def results(out, method):
    """What has to be equal bit by bit: everything but the seconds, and the checksum that covers them."""
    record = {k: v for k, v in read(out, method).items() if k not in ("seconds", "checksum")}
    arrays = [records.read_npz(out / method / f"{name}.npz", sealed=True) for name in ("scores", "evaluation")]
    return record, [{k: v.tobytes() for k, v in a.items()} for a in arrays]


def interrupt(*arguments, **options):
    raise KeyboardInterrupt
