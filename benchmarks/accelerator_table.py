"""The table of ``accelerator.sh`` from what its parts left: ``accelerator_table.py WORK OUT SECONDS``."""

import json
import sys
from pathlib import Path

from cases import render

POINTS = {
    "part": "part",
    "model": "model",
    "stage": "stage",
    "runs": "R",
    "width": "width",
    "ours": "run-steps/s",
    "loop": "torch loop",
    "ensemble": "torch.func",
    "reference": "reference pattern",
    "compile_seconds": "compile, s",
    "megabytes_per_run": "MB a run",
    "gflops": "GFLOP/s",
    "peak_gflops": "matrix product",
    "share_of_peak": "share",
}


def main(work: Path, out: Path, seconds: int) -> None:
    lines = (work / "parts.tsv").read_text().splitlines()
    parts = [dict(zip(("part", "state", "seconds", "note"), line.split("\t"))) for line in lines]
    measured = {path.stem: json.loads(path.read_text()) for path in sorted(work.glob("*.json"))}
    order = [part["part"] for part in parts]
    points = [
        {"part": name} | row for name in order if name != "scaling" for row in measured.get(name, ()) if "model" in row
    ]
    about = next(
        (f"{row['devices']}, {row['processor']}, jax {row['jax']}" for row in points if "jax" in row), "no device"
    )
    text = [f"{about}; {seconds} s in all; stage score: examples a second over all runs", ""]
    columns = {key: head for key, head in POINTS.items() if any(key in row for row in points)}
    text += [render(points, columns) if points else "nothing was measured", ""]
    if "scaling" in measured:
        heads = {"model": "model", "runs": "R", "side": "side", "rate": "run-steps/s", "efficiency": "efficiency"}
        text += [render(measured["scaling"], heads), ""]
    text += [render(parts, {"part": "part", "state": "state", "seconds": "s"})]
    (out / "results.json").write_text(json.dumps({"parts": parts, "measured": measured}, indent=2) + "\n")
    (out / "table.txt").write_text("\n".join(text) + "\n")
    print("\n" + "\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
