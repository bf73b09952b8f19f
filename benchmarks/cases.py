"""What the throughput benchmarks share: the models' sizes, their data, FLOP counts, the machine, tables and JSON."""

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout is what is measured, whatever version is installed
STAGES = ("train", "finetune", "ascent", "score")
SOURCES = {"train": "train", "finetune": "retain", "ascent": "forget"}
LEARNING_RATE, DECAY = 0.1, 5e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A model at a size, and the data that its speed is measured on.

    Attributes:
        shape: Of one example.
        classes: Outputs.
        batch: Examples a step.
        examples: Rows of the data.
        steps: Fewest and most steps of a run in one measurement: fewer would time starts and ends, more gain nothing.
        nominal: Run-steps a second and core, to size the first measurement and for nothing else.
        score_batch: Examples that are scored at once.
        macs: Multiply-adds of one example's forward pass, layer by layer: matrix products and convolutions alone.
        first_input: Whether the first layer's input gradient is needed (an embedding lies below it).
    """

    shape: tuple[int, ...]
    classes: int
    batch: int
    examples: int
    steps: tuple[int, int]
    nominal: float
    score_batch: int
    macs: tuple[int, ...]
    first_input: bool = False

    @property
    def step_flop(self) -> int:
        """FLOP of a training step by formula: forward, weight gradient, input gradient, 2 a multiply-add each."""
        return 2 * self.batch * (3 * sum(self.macs) - (0 if self.first_input else self.macs[0]))

    def flop(self, stage: str) -> int:
        """FLOP of one step, or of one example's score."""
        return 2 * sum(self.macs) if stage == "score" else self.step_flop


_DIGITS = {"shape": (8, 8, 1), "classes": 10, "batch": 64, "examples": 1300, "score_batch": 512}
_LONG = {"classes": 100, "examples": 256, "steps": (2, 8)}
CASES = {
    "mlp": Case(**_DIGITS, steps=(40, 720), nominal=5000, macs=(64 * 128, 128 * 128, 128 * 10)),
    "cnn": Case(**_DIGITS, steps=(10, 360), nominal=1000, macs=(64 * 9 * 16, 16 * 9 * 16 * 32, 128 * 10)),
    "tinynet": Case(
        **_LONG,
        shape=(32, 32, 3),
        batch=32,
        nominal=4,
        score_batch=512,
        macs=(1024 * 9 * 3 * 64, 1024 * 9 * 64 * 64, 256 * 9 * 64 * 128, 256 * 9 * 128 * 128, 128 * 100),
    ),
    "lstm": Case(
        **_LONG,
        shape=(80,),
        batch=64,
        nominal=2.5,
        score_batch=64,
        macs=(80 * 8 * 1024, 80 * 256 * 1024, 80 * 256 * 1024, 80 * 256 * 1024, 80 * 256 * 100),
        first_input=True,
    ),
}


def arrays(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits for the small models, noise of CIFAR's or a text's shape for the others: speed does not depend on it."""
    case, rng = CASES[model], np.random.default_rng(0)
    if model == "lstm":
        ids = rng.integers(0, case.classes, (case.examples, 81)).astype(np.int32)
        return ids[:, :-1], ids[:, 1:]
    if model == "tinynet":
        x = rng.normal(size=(case.examples, *case.shape)).astype(np.float32)
        return x, rng.integers(0, case.classes, case.examples).astype(np.int32)
    from sklearn.datasets import load_digits

    data = load_digits()
    n = case.examples
    return (data.images[:n, :, :, None] / 16).astype(np.float32), data.target[:n].astype(np.int32)


def counts(model: str) -> tuple[int, int, int]:
    """Examples of the retain set, the pool and the forget set: a fifth are candidates, half of them forgotten."""
    n = CASES[model].examples
    pool = n // 5 // 2 * 2
    return n - pool, pool, pool // 2


def epoch_size(model: str, stage: str) -> int:
    """Examples that an epoch of a stage covers."""
    retain, _, forget = counts(model)
    return {"train": retain + forget, "finetune": retain, "ascent": forget}[stage]


def machine() -> dict[str, Any]:
    """Where and with what a row was measured."""
    import jax

    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    devices = jax.local_devices()
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
        "machine": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "devices": f"{len(devices)} x {devices[0].device_kind} ({devices[0].platform})",
        "load": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def median_ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """The median of the rounds' ratios: each round saw the same machine."""
    return statistics.median(a / b for a, b in zip(ours, peer))


def show(value: Any) -> str:
    """A number with three or so figures, a dash for what was not measured."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def render(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """A table in Markdown: ``columns`` names the header of each key; what a row says under "note" stands at its end."""
    cells = [list(columns.values())]
    cells += [[show(row.get(key)) for key in columns] + [row.get("note") or ""] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(cell.rjust(w) for cell, w in zip(line, widths)) + " |" for line in cells]
    lines = [
        f"{line} {cell[len(columns)]}".rstrip() if len(cell) > len(columns) else line
        for line, cell in zip(lines, cells)
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|", *lines[1:]])


def save(path: str | None, rows: Any) -> None:
    """Writes rows as JSON, whole or not at all, so that a killed benchmark leaves what it had."""
    if path:
        part = Path(f"{path}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(rows, indent=2) + "\n")
        part.replace(path)
