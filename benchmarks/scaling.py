"""Throughput of the engine over 1, 2, ... devices of this machine, and of independent processes of one device each.

Command: ``python benchmarks/scaling.py [--models mlp cnn] [--runs 16] [--devices 1 2] [--rounds 5] [--json FILE]``

Every count of devices is a process of its own (JAX_NUM_CPU_DEVICES; on accelerators the first so many are used), all are
timed turn about. R is the same for all counts. Efficiency is the rate over that of one device, divided by the count. On a CPU
one device spreads a large operation over all cores by itself, so "one device, one core" (pinned) stands beside it.
"""

import argparse
import os
import statistics
import sys

import peers
from cases import CASES, STAGES, cores, machine, median_ratio, processor, render, save


def engine(model: str, stage: str, runs: int, seconds: float, devices: int, core: int | None):
    """The engine on some devices as a peer: its chunk of R runs is one unit of work, so a request does whole chunks."""
    if core is not None:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    import ours

    nominal = CASES[model].nominal * devices * (3 * CASES[model].batch if stage == "score" else 1)
    mine = ours.Ours(model, stage, runs, width=None, rate=nominal, seconds=seconds, devices=devices)
    return lambda count: [mine.measure() for _ in range(count)], mine.work, {"compile_seconds": mine.compile_seconds}


def named(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"], choices=list(CASES))
    parser.add_argument("--stage", default="train", choices=STAGES)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--devices", nargs="+", type=int, default=list(range(1, cores() + 1)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=1.0, help="seconds that one measurement should last")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    options = parser.parse_args(arguments)

    about, most, rows = machine(), max(options.devices), []
    print(
        f"{processor()}, {cores()} cores, jax {about['jax']}, {options.rounds} rounds, load {about['load']}", flush=True
    )
    on_cpu = "(cpu)" in about["devices"]
    for model in options.models:
        work = (model, options.stage, options.runs, options.slice / 2)
        sides = {named(count): (peers.Peer(engine, *work, count, None), count) for count in options.devices}
        if on_cpu:
            if hasattr(os, "sched_setaffinity"):
                sides["1 device, one core"] = peers.Peer(engine, *work, 1, 0), 1
            sides[f"{most} processes x 1 device"] = peers.Peer(engine, *work, 1, None, processes=most), most
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, (side, _) in sides.items():
                samples[name].append(side.measure(options.slice))
        least = named(min(options.devices))
        for name, (side, count) in sides.items():
            side.close()
            ratio = median_ratio(samples[name], samples[least])
            rows.append(
                {"model": model, "stage": options.stage, "runs": options.runs, "side": name, "samples": samples[name]}
                | {
                    "rate": statistics.median(samples[name]),
                    "ratio": ratio,
                    "efficiency": ratio * sides[least][1] / count,
                }
                | side.facts
                | about
            )
        save(options.json, rows)
    heads = {
        "model": "model",
        "stage": "stage",
        "runs": "R",
        "side": "side",
        "rate": "run-steps/s",
        "ratio": "times the least",
    }
    print(render(rows, heads | {"efficiency": "efficiency", "compile_seconds": "compile, s"}))


if __name__ == "__main__":
    sys.exit(main())
