"""Steps of unlearning a language model beside transformers and PyTorch.

Command: ``python benchmarks/unlearning.py [--models tiny 135m] [--rounds 3] [--slice 4] [--peers loop processes]``

A step is one of GA with GDR: a batch of the forget set and one of the retain set, float32, the gradient clipped at 1, AdamW.
Both sides start from the same weights (random ones) and batches; it stops unless the first two losses agree to 1e-3. ``loop``
has a thread for each core; ``processes`` are as many single-threaded loops. Ours has as many runs as there are cores side by
side where they fit (tiny), and one run on all cores. All take turns; medians, and the median of the rounds' ratios.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import peers
import unlearning_peers
from cases import cores, machine, median_ratio, processor, render, save

RATE, AGREE = 1e-5, 1e-3
MODELS: dict[str, tuple[dict[str, Any], int, int]] = {
    "tiny": ({"vocabulary": 768, "width": 128, "layers": 4, "heads": 4, "kv_heads": 2, "hidden": 336}, 32, 36),
    "135m": (
        {"vocabulary": 49152, "width": 576, "layers": 30, "heads": 9, "kv_heads": 3, "hidden": 1536, "rope_base": 1e5},
        8,
        64,
    ),
}
"""Sizes, rows of a batch, tokens of a row: the people's decoder, and SmolLM2-135M's architecture."""
COLUMNS = {
    "model": "model",
    "batch": "batch",
    "tokens": "tokens",
    "ours": "ours, one run",
    "population": "ours, a run per core",
    "loop": "transformers + torch",
    "processes": "1-thread processes",
    "ratio_loop": "one run / torch",
    "ratio_population": "a run per core / torch",
    "ratio_processes": "a run per core / processes",
    "gigabytes": "ours, one run, GB",
    "compile_seconds": "compile, s",
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--peers", nargs="*", default=["loop", "processes"], choices=["loop", "processes"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slice", type=float, default=4.0, help="seconds that one measurement should last")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    return parser.parse_args(arguments)


class Ours:
    """Steps of the method's own phase, compiled: of one run on all cores, or of a run for each core."""

    def __init__(self, language: Any, params: Any, job: unlearning_peers.Job, runs: int):
        import jax
        import jax.numpy as jnp

        from jaxunlearn.models.transformer import as_model
        from jaxunlearn.types import Batch, ForgetRetain, TaskInfo
        from jaxunlearn.unlearn.base import AdamW
        from jaxunlearn.unlearn.language import answer_loss
        from jaxunlearn.unlearn.preference import GA

        rows = len(job.forget)
        loss = answer_loss(language)
        method = GA(retain="gdr", epochs=10**6, batch_size=rows, descent=AdamW(peak=job.rate))
        info = TaskInfo(as_model(language), loss, rows, rows, rows, lambda source: None, language=language)
        (phase,) = method.build(info).phases
        batches = [
            Batch(jnp.asarray(x)[:, None], jnp.asarray(x)[:, None], jnp.ones(rows)) for x in (job.retain, job.forget)
        ]
        key = jax.random.key(0)

        def advance(state, count):
            def body(step, state):
                return phase.update(key, state, ForgetRetain(*batches), step)

            return jax.lax.fori_loop(0, count, body, state)

        initial = jax.tree.map(jnp.copy, phase.init(key, params))  # of the run's own: its memory is given away
        if runs == 1:
            program, state = jax.jit(advance, donate_argnums=0), initial
            self._losses = jax.jit(
                lambda state: (
                    loss(phase.finalize(key, state), batches[0]) - loss(phase.finalize(key, state), batches[1])
                )
            )
        else:
            mesh = jax.make_mesh((runs,), ("runs",))
            spec = jax.sharding.PartitionSpec("runs")

            def each(state, count):
                return jax.tree.map(lambda a: a[None], advance(jax.tree.map(lambda a: a[0], state), count))

            mapped = jax.shard_map(
                each, mesh=mesh, in_specs=(spec, jax.sharding.PartitionSpec()), out_specs=spec, check_vma=False
            )
            program = jax.jit(mapped, donate_argnums=0)
            stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (runs, *jnp.shape(a))), initial)
            state = jax.device_put(stacked, jax.sharding.NamedSharding(mesh, spec))
        began = time.perf_counter()
        self._program = program.lower(state, np.int32(1)).compile()
        self.compile_seconds = time.perf_counter() - began
        found = self._program.memory_analysis()
        self.gigabytes = (found.argument_size_in_bytes + found.temp_size_in_bytes) / 1e9
        self._state, self._runs, self._pace = state, runs, None

    def losses(self) -> list[float]:
        """Of the first two steps."""
        first = float(self._losses(self._state))
        self._advance(1)
        return [first, float(self._losses(self._state))]

    def _advance(self, count: int) -> None:
        import jax

        self._state = jax.block_until_ready(self._program(self._state, np.int32(count)))

    def measure(self, seconds: float) -> float:
        """Run-steps a second."""
        if self._pace is None:
            began = time.perf_counter()
            self._advance(2)
            self._pace = 2 / (time.perf_counter() - began)
        count = max(1, round(self._pace * seconds))
        began = time.perf_counter()
        self._advance(count)
        return count * self._runs / (time.perf_counter() - began)


def measure(options: argparse.Namespace, name: str, folder: Path) -> dict[str, Any]:
    """The row of a model."""
    import jax

    from jaxunlearn.models import language_weights, transformer

    sizes, rows, tokens = MODELS[name]
    architecture = transformer.Architecture(family="llama", **sizes)
    language = transformer.language_model(architecture)
    params = jax.jit(language.init)(jax.random.key(0))
    language_weights.save_language_model(folder, architecture, params)
    forget, retain = np.random.default_rng(0).integers(0, sizes["vocabulary"], (2, rows, tokens)).astype(np.int32)
    job = unlearning_peers.Job(str(folder), forget, retain, RATE)
    sides: dict[str, Any] = {"ours": Ours(language, params, job, 1)}
    first = sides["ours"].losses()
    if name == "tiny" and cores() > 1:
        sides["population"] = Ours(language, params, job, cores())
    notes = []
    for peer in options.peers:
        if why := peers.torch_missing():
            notes.append(f"{peer} not run: {why}")
            continue
        threads, processes = (cores(), 1) if peer == "loop" else (1, cores())
        if peer == "processes" and name != "tiny":
            continue  # a model fills the machine
        sides[peer] = peers.Peer(unlearning_peers.loop, job, threads, processes=processes)
        gap = max(abs(a - b) for a, b in zip(sides[peer].facts["losses"], first))
        if not gap < AGREE:
            raise SystemExit(f"Expected {peer}'s first losses to agree with ours to {AGREE}, got a gap of {gap:.2g}.")
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(options.rounds):
        for side, of in sides.items():
            samples[side].append(of.measure(options.slice))
    for side in options.peers:
        if side in sides:
            sides[side].close()
    row: dict[str, Any] = {"model": name, "batch": rows, "tokens": tokens}
    row |= {side: statistics.median(values) for side, values in samples.items()}
    for key, ours, peer in (
        ("ratio_loop", "ours", "loop"),
        ("ratio_population", "population", "loop"),
        ("ratio_processes", "population", "processes"),
    ):
        if ours in samples and peer in samples:
            row[key] = median_ratio(samples[ours], samples[peer])
    row |= {"gigabytes": sides["ours"].gigabytes, "compile_seconds": sides["ours"].compile_seconds}
    return row | {"samples": samples, "first_losses": first, "note": "; ".join(notes) or None}


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(cores())  # before JAX starts
    about = machine()
    print(
        f"{processor()}, {about['devices']}, jax {about['jax']}, {options.rounds} rounds, load {about['load']}",
        flush=True,
    )
    rows = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(options, name, Path(folder)) | about)
        save(options.json, rows)
        print(name, f"{rows[-1]['ours']:.3g} steps/s", flush=True)
    kept = {key: head for key, head in COLUMNS.items() if any(row.get(key) is not None for row in rows)}
    print("\nsteps a second, medians\n\n" + render(rows, kept))


if __name__ == "__main__":
    sys.exit(main())
