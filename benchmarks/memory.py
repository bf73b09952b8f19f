"""Peak memory of an audit on digits by its number of runs: is it flat?

Command: ``python benchmarks/memory.py [--runs 60 250 1000] [--methods finetune] [--json FILE]``

Every audit is a process of its own; its peak resident memory is what the system counted for it (``wait4``). A sixth of the
runs are evaluated, the others calibrate. The last column is the growth from the row above, per run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from cases import ROOT, cores, processor, render, save

UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def peak(command: list[str], **environment: str) -> tuple[float, float]:
    """Peak resident megabytes and seconds of a command.

    Raises:
        SystemExit: It failed.
    """
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])} | environment
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}.")
    return usage.ru_maxrss * UNIT / 1e6, time.perf_counter() - began


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", type=int, default=[60, 250, 1000])
    parser.add_argument("--methods", nargs="+", default=["finetune"])
    parser.add_argument("--options", default="", help="further options of the audit, in one string")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    options = parser.parse_args(arguments)

    print(f"{processor()}, {cores()} cores, load {os.getloadavg()[0]:.2f}", flush=True)
    megabytes, seconds = peak([sys.executable, "-c", "import jax, jaxunlearn.pipeline.audit; jax.devices()"])
    rows: list[dict[str, Any]] = [{"runs": 0, "megabytes": megabytes, "seconds": seconds, "note": "imports alone"}]
    for runs in sorted(options.runs):
        evaluation = max(1, runs // 6)
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "jaxunlearn.cli", "audit", "digits", "--quiet", "--out", f"{folder}/run"]
            words += ["--methods", *options.methods, "--evaluation-runs", str(evaluation)]
            words += ["--calibration-runs", str(runs - evaluation), *options.options.split()]
            megabytes, seconds = peak(words)
            disk = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)
        row = {"runs": runs, "megabytes": megabytes, "seconds": seconds, "disk_megabytes": disk / 1e6}
        if rows[-1]["runs"]:
            row["growth"] = (megabytes - rows[-1]["megabytes"]) / (runs - rows[-1]["runs"])
        rows.append(row)
        save(options.json, {"methods": options.methods, "processor": processor(), "cores": cores(), "rows": rows})
        print(f"{runs} runs: {megabytes:.0f} MB, {seconds:.0f} s", flush=True)
    heads = {"runs": "runs", "megabytes": "peak MB", "growth": "MB a further run", "disk_megabytes": "MB on disk"}
    print("\n" + render(rows, heads | {"seconds": "s"}))


if __name__ == "__main__":
    sys.exit(main())
