"""The unlearning mapping attack (sign-PGD) beside torchattacks, foolbox and a careful PyTorch loop.

Command: ``python benchmarks/attack.py [--json FILE] [--models cnn tinynet resnet18] [--rounds 5]
[--peers torchattacks foolbox loop processes]``

All attack the same batch of images on the same network with the same weights (it stops unless their logits agree to 1e-4)
with all cores: ours with a device for each core that takes its share of the batch, torchattacks, foolbox and ``loop`` with a
thread for each core, ``processes`` with a process for each. Ours, ``loop`` and ``processes`` bring down the KL divergence
from the original model's outputs; torchattacks and foolbox know cross-entropy alone. All take turns, ``--rounds`` times;
medians, and the median of the rounds' ratios. Printed are images a second of a PGD-100: image-steps a second over 100.
Ours does not stop early, as the peers do not; what early exit brings is measured apart, with steps of the whole attack, on
digits: a model that never saw class 0 is to answer as one that did.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from functools import partial
from typing import Any

import attack_peers
import numpy as np
import peers
from cases import arrays, cores, machine, median_ratio, processor, render, save

PEERS = {
    "torchattacks": "torchattacks",
    "foolbox": "foolbox",
    "loop": "torch, frozen, channels-last",
    "processes": "the same, 1-thread processes",
}
SPEED = {
    "model": "model",
    "batch": "batch",
    "steps": "steps",
    "ours": "ours",
    **PEERS,
    **{f"ratio_{name}": f"ours / {name}" for name in PEERS},
    "early": "ours, early exit",
    "early_gradients": "gradients of 100",
    "ratio_early": "early / whole",
    "compile_seconds": "compile, s",
}
EPSILON, STEP = 8 / 255, 1 / 255
AGREE = 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A model at a size.

    Attributes:
        shape: Of one image.
        classes: Outputs.
        batch: Images attacked at once, by all cores together.
        steps: Of one attack of ours; few where a step takes long. The last forward pass is in the time.
    """

    shape: tuple[int, ...]
    classes: int
    batch: int
    steps: int


CASES = {
    "cnn": Case((8, 8, 1), 10, batch=64, steps=100),
    "tinynet": Case((32, 32, 3), 100, batch=32, steps=20),
    "resnet18": Case((32, 32, 3), 10, batch=32, steps=10),
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), help="none: --peers alone")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slice", type=float, default=3.0, help="seconds that one measurement should last")
    parser.add_argument("--batch", type=int, default=None, help="in place of each model's own")
    parser.add_argument("--steps", type=int, default=None, help="of one attack of ours, in place of each model's own")
    parser.add_argument("--threads", type=int, default=cores(), help="threads, processes or devices of each side")
    parser.add_argument("--torch-device", default="cpu", help="cuda: the same card")
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    return parser.parse_args(arguments)


def build(name: str):
    """Our model in the form for one model at a time."""
    import jax

    from jaxunlearn.pipeline.task import forms_of

    case = CASES[name]
    if name == "resnet18":
        from jaxunlearn.models.resnet import resnet18

        return resnet18(case.shape, case.classes, norm="batch", form=forms_of("tinynet", jax.default_backend())[0])
    import ours

    return ours.build_model(name, form=forms_of(name, jax.default_backend())[0])


def weights(name: str, model, seed: int):
    """Random weights; BatchNorm's statistics are those of noise, or activations would grow from layer to layer."""
    import jax
    import jax.numpy as jnp

    params = jax.jit(model.init)(jax.random.key(seed))
    if model.train is not None:
        x = jnp.asarray(np.random.default_rng(seed).random((32, *CASES[name].shape)), jnp.float32)
        train = jax.jit(model.train)
        for _ in range(30):
            params = train(params, x, jnp.ones(32))[1]
    return params


def trained(model, x: np.ndarray, y: np.ndarray, seed: int):
    """A digits classifier, trained for 600 steps of batch 64 at a constant rate."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from jaxunlearn.types import Batch
    from jaxunlearn.unlearn import base

    x, y, loss = jnp.asarray(x), jnp.asarray(y), base.cross_entropy(model)

    def step(params, key):
        rows = jax.random.randint(key, (64,), 0, len(y))
        slope = jax.grad(loss)(params, Batch(x[rows], y[rows], jnp.ones(64)))
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope), None

    keys = jax.random.split(jax.random.key(seed), 600)
    return jax.jit(lambda p: lax.scan(step, p, keys)[0])(model.init(jax.random.key(seed)))


class Ours:
    """The attack on one model, the batch spread over all devices of this process.

    Args:
        model: Ours.
        params: Of the model under attack.
        x: [b, h, w, c] images.
        target: [b, classes] the original model's logits.
        steps: Of the attack.
        early_exit: Whether examples end when their iterates repeat.
        slots: Images at once over all devices.
    """

    def __init__(self, model, params, x, target, *, steps: int, early_exit: bool, slots: int):
        import jax
        import jax.numpy as jnp
        import ours

        from jaxunlearn.attack.mapping import Constraint, Options, attack
        from jaxunlearn.engine import plan as planning
        from jaxunlearn.engine.population import Engine
        from jaxunlearn.engine.train import Examples, Sizes

        mesh = planning.make_mesh(jax.local_devices())
        devices = mesh.devices.size
        size = len(x) // devices
        options = Options(steps=steps, step_size=STEP, batch_size=max(1, slots // devices), early_exit=early_exit)
        constraint = Constraint(EPSILON)

        def one(_, params, key, x, target):
            return attack(key, target, partial(model.apply, params), x, constraint=constraint, options=options)

        plan = planning.choose(mesh, devices, width=1, runs_per_chunk=devices)
        nothing = Examples(jnp.zeros((4, 1)), jnp.zeros(4, jnp.int32))
        engine = Engine(mesh, plan, nothing, Sizes(2, 2, 1), jax.random.key(0))
        run = engine.map(one, params, width=1)
        parts = [np.asarray(a)[: size * devices].reshape(devices, size, *a.shape[1:]) for a in (x, target)]
        arguments = (jax.random.split(jax.random.key(1), devices), *parts)
        self.images, self.steps = size * devices, steps
        self._run = lambda: run(*arguments)
        before = ours.compile_seconds()
        self.found = self._run()
        self.compile_seconds = ours.compile_seconds() - before

    @property
    def gradients(self) -> float:
        """Gradients computed for an image, on average."""
        return float(np.mean(self.found.iterations))

    def measure(self, seconds: float) -> float:
        """Images a second, each with all its steps."""
        began, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - began < seconds:
            self._run()
            calls += 1
        return calls * self.images / (time.perf_counter() - began)


def make_job(name: str, model, batch: int):
    """(parameters under attack, the job of the peers)."""
    import jax

    case = CASES[name]
    if name == "cnn":
        images, labels = arrays("cnn")
        original = trained(model, images, labels, 0)
        params = trained(model, images[labels != 0], labels[labels != 0], 1)
        x = np.resize(images[labels == 0], (batch, *case.shape))
    else:
        original, params = weights(name, model, 0), weights(name, model, 1)
        x = np.random.default_rng(0).random((batch, *case.shape)).astype(np.float32)
    target = np.asarray(jax.jit(model.apply)(original, x))
    return params, attack_peers.Job(name, attack_peers.torch_weights(name, params), x, target, EPSILON, STEP)


def make_peers(options, job, logits: np.ndarray) -> tuple[dict[str, peers.Peer], list[str]]:
    """The peers that can run, held to our logits, and why others cannot."""
    made, notes = {}, []
    for name in options.peers:
        if why := attack_peers.missing(name):
            notes.append(why)
            continue
        processes = options.threads if name == "processes" else 1
        share, threads = job.part(processes), options.threads // processes
        try:
            peer = peers.Peer(attack_peers.PREPARE[name], share, threads, options.torch_device, processes=processes)
        except RuntimeError as error:
            notes.append(f"{name}: {error}")
            continue
        theirs = peer.facts["logits"]
        gap = float(np.abs(theirs - logits[: len(theirs)]).max())
        if gap > AGREE * max(1.0, float(np.abs(logits).max())):
            raise SystemExit(f"Expected {name}'s logits of {job.name} to agree to {AGREE}, got a gap of {gap}.")
        made[name] = peer
    return made, notes


def measure_case(options, name: str) -> dict[str, Any]:
    """One row."""
    import jax

    case = CASES[name]
    batch, steps = options.batch or case.batch, options.steps or case.steps
    model = build(name)
    params, job = make_job(name, model, batch)
    logits = np.asarray(jax.jit(model.apply)(params, job.x))
    mine = Ours(model, params, job.x, job.target, steps=steps, early_exit=False, slots=batch)
    early = None
    if name == "cnn":
        images, labels = arrays("cnn")
        early = early_sides(model, params, job, batch, options.steps or 100)
    others, notes = make_peers(options, job, logits)
    samples: dict[str, list[float]] = {side: [] for side in ("ours", *others, *(early or ()))}
    for _ in range(options.rounds):
        samples["ours"].append(mine.measure(options.slice) * steps / 100)
        for peer in others:
            samples[peer].append(others[peer].measure(options.slice) / 100)
        for side in early or ():
            samples[side].append(early[side].measure(options.slice) * early[side].steps / 100)
    for peer in others.values():
        peer.close()
    row: dict[str, Any] = {"model": name, "batch": batch, "steps": steps, "threads": options.threads}
    row |= {side: statistics.median(values) for side, values in samples.items()}
    row |= {f"ratio_{peer}": median_ratio(samples["ours"], samples[peer]) for peer in others}
    if early:
        row["ratio_early"] = median_ratio(samples["early"], samples["whole"])
        row["early_gradients"] = early["early"].gradients
    versions = {peer: others[peer].facts["version"] for peer in others}
    return row | {
        "compile_seconds": mine.compile_seconds,
        "samples": samples,
        "torch": versions,
        "note": "; ".join(notes) or None,
    }


def early_sides(model, params, job, batch: int, steps: int) -> dict[str, Ours]:
    """All images of the forgotten class, twice as many as slots at least, with and without early exit."""
    x, target = (np.concatenate([a] * 4) for a in (job.x, job.target))
    return {
        side: Ours(model, params, x, target, steps=steps, early_exit=side == "early", slots=batch)
        for side in ("early", "whole")
    }


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        import jax

        jax.config.update("jax_num_cpu_devices", options.threads)
    about = machine()
    print(
        f"{processor()}, {about['devices']}, jax {about['jax']}, {options.rounds} rounds, load {about['load']}",
        flush=True,
    )
    rows = []
    for name in options.models:
        rows.append(measure_case(options, name) | about)
        save(options.json, rows)
        print(name, f"{rows[-1]['ours']:,.2f} images/s", flush=True)
    print("\nimages a second of a PGD-100 (image-steps a second over 100), medians of the rounds\n")
    print(render(rows, {key: head for key, head in SPEED.items() if any(row.get(key) is not None for row in rows)}))


if __name__ == "__main__":
    sys.exit(main())
