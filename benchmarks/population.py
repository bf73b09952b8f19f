"""Training throughput of a population of runs against PyTorch, both sides in one session.

Command: ``python benchmarks/population.py [--json FILE] [--models mlp cnn tinynet lstm] [--runs 16 64] [--rounds 5]``

Ours: the engine's own training phase (one-cycle SGD with weight decay, rows gathered by index) on all CPU cores. Peer: the
usual PyTorch loop with the same architecture, batches and optimiser, once in one process with two threads, once as two
processes with one thread each. Ours and the peers are timed turn about, ``--rounds`` times; medians and ratios are reported,
compile time apart. PyTorch is needed here and nowhere else: ``pip install torch``. On another machine than a two-core one,
set ``--threads``.
"""

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import time

import numpy as np

BATCH = {"mlp": 64, "cnn": 64, "tinynet": 32, "lstm": 64}
CLASSES = {"mlp": 10, "cnn": 10, "tinynet": 100, "lstm": 100}
SHAPES = {"mlp": (8, 8, 1), "cnn": (8, 8, 1), "tinynet": (32, 32, 3), "lstm": (80,)}
EXAMPLES = {"mlp": 1300, "cnn": 1300, "tinynet": 256, "lstm": 256}
TORCH_STEPS = {"mlp": 1500, "cnn": 400, "tinynet": 10, "lstm": 10}
OUR_EPOCHS = {"mlp": 40, "cnn": 6, "tinynet": 1, "lstm": 1}
FOUR_RUNS = ("tinynet", "lstm")  # a step takes long enough that more runs would only take longer


def arrays(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Digits for the small models, noise of CIFAR's or a text's shape for the others: speed does not depend on it."""
    if model == "lstm":
        ids = np.random.default_rng(0).integers(0, CLASSES[model], (EXAMPLES[model], 81)).astype(np.int32)
        return ids[:, :-1], ids[:, 1:]
    if model == "tinynet":
        rng = np.random.default_rng(0)
        x = rng.normal(size=(EXAMPLES[model], *SHAPES[model])).astype(np.float32)
        return x, rng.integers(0, 100, EXAMPLES[model]).astype(np.int32)
    from sklearn.datasets import load_digits

    data = load_digits()
    n = EXAMPLES[model]
    return (data.images[:n, :, :, None] / 16).astype(np.float32), data.target[:n].astype(np.int32)


# --- the peer -------------------------------------------------------------------------------------------------------


def torch_model(model: str):
    """The same architecture in PyTorch."""
    from torch import nn

    class Characters(nn.Module):
        """Logits [b, classes, t], as PyTorch's loss wants them."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(100, 8)
            self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
            self.dense = nn.Linear(256, 100)

        def forward(self, x):
            return self.dense(self.lstm(self.embedding(x))[0]).transpose(1, 2)

    if model == "lstm":
        return Characters()
    if model == "mlp":
        layers = [nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    elif model == "cnn":
        layers = []
        for inputs, outputs in ((1, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(128, 10)]
    else:
        layers = []
        for block in (((3, 64), (64, 64)), ((64, 128), (128, 128))):
            for inputs, outputs in block:
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)]
    return nn.Sequential(*layers)


def torch_worker(model: str, threads: int, requests, answers) -> None:
    """Serves timing requests; stays alive so that start-up is not timed."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = arrays(model)
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    x = x.long() if model == "lstm" else x.permute(0, 3, 1, 2).contiguous()
    network = torch_model(model)
    steps, batch = TORCH_STEPS[model], BATCH[model]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10**7)
    criterion = torch.nn.CrossEntropyLoss()
    rows = torch.randint(0, len(y), (steps, batch))

    def run(count: int) -> None:
        for i in range(count):
            optimizer.zero_grad()
            criterion(network(x[rows[i]]), y[rows[i]]).backward()
            optimizer.step()
            schedule.step()

    run(max(1, steps // 10))
    answers.put(torch.__version__)
    while requests.get():
        began = time.perf_counter()
        run(steps)
        answers.put(steps / (time.perf_counter() - began))


class TorchPeer:
    """``processes`` worker processes with ``threads`` threads each; steps/s of all together."""

    def __init__(self, model: str, *, processes: int, threads: int):
        context = multiprocessing.get_context("spawn")
        self.requests = [context.Queue() for _ in range(processes)]
        self.answers = context.Queue()
        self.workers = [
            context.Process(target=torch_worker, args=(model, threads, queue, self.answers), daemon=True)
            for queue in self.requests
        ]
        for worker in self.workers:
            worker.start()
        self.version = [self.answers.get() for _ in self.workers][0]

    def measure(self) -> float:
        """Run-steps per second, summed over the processes, which run at the same time."""
        for queue in self.requests:
            queue.put(True)
        return sum(self.answers.get() for _ in self.workers)

    def close(self) -> None:
        """Ends the workers."""
        for queue in self.requests:
            queue.put(False)
        for worker in self.workers:
            worker.join()


# --- ours -----------------------------------------------------------------------------------------------------------


class Ours:
    """The engine's training phase over R runs on all host devices."""

    def __init__(self, model: str, runs: int, width: int | None):
        import jax
        import jax.numpy as jnp

        from jaxunlearn.engine import plan as planning
        from jaxunlearn.engine.population import Engine, Runs, members
        from jaxunlearn.engine.train import Examples, Sizes, total_steps
        from jaxunlearn.pipeline.task import make_model
        from jaxunlearn.unlearn import base

        x, y = arrays(model)
        mesh = planning.make_mesh()
        devices = mesh.devices.size
        chunk = -(-runs // devices) * devices
        plan = planning.choose(mesh, chunk, width=width, runs_per_chunk=chunk)
        self.runs, self.width = plan.runs_per_chunk, plan.width
        half = len(y) // 5 // 2 * 2
        sizes = Sizes(retain=len(y) - half, pool=half, forget=half // 2)
        net = make_model(model, SHAPES[model], CLASSES[model], width=plan.width)
        phase = base.SGD().phase(
            base.cross_entropy(net),
            source="train",
            size=sizes.of("train"),
            epochs=OUR_EPOCHS[model],
            batch_size=BATCH[model],
        )
        engine = Engine(mesh, plan, Examples(jnp.asarray(x), jnp.asarray(y)), sizes, jax.random.key(0))
        rng = np.random.default_rng(0)
        signs = np.stack([rng.permutation(np.repeat([1, -1], half // 2)) for _ in range(self.runs)])
        self.arguments = Runs(members(signs, sizes), jax.random.split(jax.random.key(1), self.runs))
        first = net.init(jax.random.key(2))
        self.params = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.runs, *a.shape)), first)
        self.steps = total_steps(phase, sizes) * self.runs
        self.run = engine.phase_runner(phase, 0)
        began = time.perf_counter()
        jax.block_until_ready(self.run(self.arguments, self.params, None))
        first_call = time.perf_counter() - began
        self.compile_seconds = max(0.0, first_call - self.steps / self.measure())

    def measure(self) -> float:
        """Run-steps per second."""
        import jax

        began = time.perf_counter()
        jax.block_until_ready(self.run(self.arguments, self.params, None))
        return self.steps / (time.perf_counter() - began)


def main() -> None:
    """Runs the benchmark and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(BATCH), choices=list(BATCH))
    parser.add_argument("--runs", nargs="+", type=int, default=[16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="PyTorch threads, and single-threaded processes")
    parser.add_argument(
        "--width", type=int, default=None, help="runs per device under vmap; default: the engine's choice"
    )
    parser.add_argument("--json", default=None, help="also write the rows to this file")
    options = parser.parse_args()

    import jax

    jax.config.update("jax_num_cpu_devices", multiprocessing.cpu_count())
    rows = []
    names = ("model", "R", "width", "ours", "torch", "2 proc.", "ratio", "ratio 2p", "compile")
    head = "{:8} {:>4} {:>5} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}".format(*names)
    print(
        f"run-steps/s, medians of {options.rounds} rounds, {platform.processor() or platform.machine()}, {jax.devices()}"
    )
    print(head)
    for model in options.models:
        loop = TorchPeer(model, processes=1, threads=options.threads)
        pair = TorchPeer(model, processes=options.threads, threads=1)
        for runs in options.runs if model not in FOUR_RUNS else [min(options.runs[0], 4)]:
            ours = Ours(model, runs, options.width)
            samples: dict[str, list[float]] = {"ours": [], "torch": [], "torch_processes": []}
            for _ in range(options.rounds):
                samples["ours"].append(ours.measure())
                samples["torch"].append(loop.measure())
                samples["torch_processes"].append(pair.measure())
            ratios = [[a / b for a, b in zip(samples["ours"], samples[k])] for k in ("torch", "torch_processes")]
            median = {k: statistics.median(v) for k, v in samples.items()}
            row = {
                "model": model,
                "runs": ours.runs,
                "width": ours.width,
                "batch": BATCH[model],
                **{f"steps_per_second_{k}": round(v, 1) for k, v in median.items()},
                "ratio": round(statistics.median(ratios[0]), 2),
                "ratio_processes": round(statistics.median(ratios[1]), 2),
                "compile_seconds": round(ours.compile_seconds, 2),
                "jax": jax.__version__,
                "torch": loop.version,
                "machine": platform.platform(),
                "cores": multiprocessing.cpu_count(),
            }
            rows.append(row)
            print(
                f"{model:8} {ours.runs:4d} {ours.width:5d} {median['ours']:9.1f} {median['torch']:9.1f} "
                f"{median['torch_processes']:9.1f} {row['ratio']:7.2f} {row['ratio_processes']:8.2f} "
                f"{row['compile_seconds']:7.1f}s",
                flush=True,
            )
        loop.close()
        pair.close()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    sys.exit(main())
