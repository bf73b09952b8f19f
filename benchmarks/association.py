"""Gradient association beside torch.func: every example's gradient times one direction, of a small decoder.

Command: ``python benchmarks/association.py [--json FILE] [--tokens 16 32] [--examples 512] [--rounds 5]
[--threads 1] [--peers whole gradients jvp]``

Both sides have one GPT-2 of 2.8 million parameters with the same weights, sum -log p over the second half of each sequence,
and take the mean gradient of all examples as direction; it stops unless losses and associations agree to 1e-4 of the largest.
``whole``: ``torch.func.vmap(grad)`` of all examples, as its documentation has it; ``gradients``: the same in chunks; ``jvp``:
``torch.func.jvp`` in chunks. The last two choose the fastest of three chunk sizes first. All sides take turns on the same
``--threads`` cores, ``--rounds`` times; medians, and the median of the rounds' ratios. Memory: ours is what the compiler
allots for temporaries, theirs the rise of resident memory in one call.
"""

import argparse
import os
import statistics
import sys
import time
from functools import partial
from typing import Any

import association_peers
import numpy as np
import peers
from cases import machine, median_ratio, processor, render, save

SIZES = {"vocabulary": 768, "width": 192, "layers": 6, "heads": 6}
AGREE = 1e-4
OURS = ("jvp", "gradients", "forward")
COLUMNS = {
    "tokens": "tokens",
    "ours_jvp": "ours, jvp",
    "ours_gradients": "ours, gradients",
    "ours_forward": "ours, forward alone",
    "forwards": "jvp in forwards",
    "whole": "torch vmap(grad)",
    "gradients": "torch vmap(grad), chunks",
    "jvp": "torch jvp",
    "ratio_whole": "ours, jvp / vmap(grad)",
    "ratio_gradients": "ours, jvp / in chunks",
    "ratio_jvp": "ours, jvp / torch jvp",
}
MEMORY = {
    "tokens": "tokens",
    "megabytes_jvp": "ours, jvp, MB",
    "megabytes_gradients": "ours, gradients, MB",
    "megabytes_torch_whole": "torch vmap(grad), MB",
    "megabytes_torch_gradients": "torch vmap(grad), chunks, MB",
    "megabytes_torch_jvp": "torch jvp, MB",
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", nargs="+", type=int, default=[16, 32], help="of a sequence; a row each")
    parser.add_argument("--examples", type=int, default=512)
    parser.add_argument("--chunk", type=int, default=64, help="examples that our jvp takes at once")
    parser.add_argument("--gradient-chunk", type=int, default=32, help="examples that our gradients take at once")
    parser.add_argument(
        "--peers", nargs="*", default=list(association_peers.PREPARE), choices=association_peers.PREPARE
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=2.0, help="seconds that one measurement should last")
    parser.add_argument("--threads", type=int, default=1, help="cores that both sides are held to; 0: all")
    parser.add_argument("--torch-device", default="cpu", help="cuda: the same card")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    return parser.parse_args(arguments)


def decoder(tokens: int):
    from jaxunlearn.models import transformer

    return transformer.language_model(transformer.Architecture(family="gpt2", context=tokens, **SIZES))


def make_job(examples: int, length: int) -> association_peers.Job:
    """The weights of a random decoder, and random sequences whose second halves are scored."""
    import jax

    model = decoder(length)
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0)))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: a + 0.02 * rng.normal(size=a.shape).astype(np.float32), params)  # no bias is 0
    tokens = rng.integers(0, SIZES["vocabulary"], (examples, length)).astype(np.int32)
    labels = np.where(np.arange(length)[None] >= length // 2, tokens, -100).astype(np.int32)
    return association_peers.Job(params, SIZES["heads"], tokens, labels)


class Ours:
    """Our functions, compiled, over all examples."""

    def __init__(self, job: association_peers.Job, options: argparse.Namespace):
        import jax

        from jaxunlearn.metrics import association as assoc

        losses = assoc.token_losses(decoder(job.tokens.shape[1]))
        params, examples = jax.device_put((job.params, (job.tokens, job.labels)))
        mean = jax.jit(partial(assoc.mean_gradient, losses, chunk=options.gradient_chunk))
        self.direction = jax.block_until_ready(mean(params, examples))

        def forward(params, examples, direction):
            return assoc.mapped(partial(losses, params), examples, options.chunk)

        programs = {
            "jvp": partial(assoc.association, losses, chunk=options.chunk),
            "gradients": partial(assoc.association_by_gradients, losses, chunk=options.gradient_chunk),
            "forward": forward,
        }
        arguments = (params, examples, self.direction)
        self._programs = {name: jax.jit(program).lower(*arguments).compile() for name, program in programs.items()}
        self._arguments, self.size = arguments, len(job.tokens)
        self.values = {name: np.asarray(program(*arguments)) for name, program in self._programs.items()}
        self.megabytes = {
            name: program.memory_analysis().temp_size_in_bytes / 1e6 for name, program in self._programs.items()
        }

    def measure(self, name: str, seconds: float) -> float:
        """Examples a second."""
        began, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - began < seconds:
            self._programs[name](*self._arguments).block_until_ready()
            calls += 1
        return calls * self.size / (time.perf_counter() - began)


def same(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Stops unless two columns agree to ``AGREE`` of the largest."""
    gap = float(np.abs(found - expected).max() / np.abs(expected).max())
    if not gap < AGREE:
        raise SystemExit(f"Expected {name} to agree with ours to {AGREE} of the largest, got a gap of {gap:.2g}.")


def measure(options: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """The row of a length."""
    job = make_job(options.examples, tokens)
    mine = Ours(job, options)
    same("our gradients", mine.values["gradients"], mine.values["jvp"])
    direction = association_peers.to_host(mine.direction)
    threads = options.threads or len(os.sched_getaffinity(0))
    others, notes = {}, []
    for name in options.peers:
        if why := peers.torch_missing():
            notes.append(f"{name} not run: {why}")
            continue
        prepare = association_peers.PREPARE[name]
        try:
            peer = peers.Peer(prepare, job._replace(direction=direction), threads, options.torch_device)
        except RuntimeError as error:
            notes.append(f"{name}: {error}")
            continue
        same(f"{name}'s losses", peer.facts["losses"], mine.values["forward"])
        same(f"{name}'s associations", peer.facts["values"], mine.values["jvp"])
        others[name] = peer
    samples: dict[str, list[float]] = {side: [] for side in (*(f"ours_{name}" for name in OURS), *others)}
    for _ in range(options.rounds):
        for name in OURS:
            samples[f"ours_{name}"].append(mine.measure(name, options.slice))
        for name, peer in others.items():
            samples[name].append(peer.measure(options.slice))
    for peer in others.values():
        peer.close()
    row: dict[str, Any] = {"tokens": tokens, "parameters": sum(a.size for a in association_peers.leaves(job.params))}
    row |= {"examples": options.examples, "chunk": options.chunk, "threads": threads}
    row |= {side: statistics.median(values) for side, values in samples.items()}
    row["forwards"] = median_ratio(samples["ours_forward"], samples["ours_jvp"])
    row |= {f"ratio_{name}": median_ratio(samples["ours_jvp"], samples[name]) for name in others}
    row |= {f"megabytes_{name}": mine.megabytes[name] for name in OURS}
    row |= {f"megabytes_torch_{name}": peer.facts["megabytes"] for name, peer in others.items()}
    chunks = {name: peer.facts["chunk"] for name, peer in others.items()}
    versions = {name: peer.facts["version"] for name, peer in others.items()}
    return row | {"torch_chunk": chunks, "torch": versions, "samples": samples, "note": "; ".join(notes) or None}


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if options.threads and hasattr(os, "sched_setaffinity"):  # before any pool of threads is made; workers inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.threads :])
    about = machine()
    print(
        f"{processor()}, {about['devices']}, jax {about['jax']}, {options.rounds} rounds, load {about['load']}",
        flush=True,
    )
    rows = []
    for tokens in options.tokens:
        rows.append(measure(options, tokens) | about)
        save(options.json, rows)
        print(tokens, f"{rows[-1]['ours_jvp']:,.0f} examples/s", flush=True)
    print(
        f"\n{rows[0]['parameters'] / 1e6:.2f} M parameters, {options.examples} examples; examples a second, medians\n"
    )
    for columns in (COLUMNS, MEMORY):
        kept = {key: head for key, head in columns.items() if any(row.get(key) is not None for row in rows)}
        print(render(rows, kept), end="\n\n")


if __name__ == "__main__":
    sys.exit(main())
