"""The peers of the throughput benchmarks, each in processes of its own that wait for their turn.

``loop``: the usual PyTorch loop, one model at a time. ``ensemble``: R models at once by ``torch.func``
(``stack_module_state``, ``vmap`` over ``grad``). ``reference``: how the audit paper's JAX scripts work, one model at a time
in a process of its own, a Python loop around a jitted step. All have the audit's architecture, batches and optimiser.
PyTorch is imported in the workers only: the benchmarks run without it.
"""

import copy
import importlib.util
import multiprocessing
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import CASES, DECAY, LEARNING_RATE, arrays, epoch_size

TORCH = "pip install torch"
CYCLE = 10**7  # steps of the one-cycle schedule: no measurement may reach its end


def torch_missing() -> str | None:
    """Why the PyTorch peers cannot run here, and what mends it; None if they can."""
    return None if importlib.util.find_spec("torch") else f"PyTorch is not installed; to measure it as well: {TORCH}"


# --- workers ----------------------------------------------------------------------------------------------------------


def _serve(prepare: Callable, arguments: tuple, began: float, requests, answers) -> None:
    """Prepares once, then serves timing requests: start-up is not timed with the work."""
    try:
        step, unit, facts = prepare(*arguments)
        step(1)
        imported = facts.pop("imported", began)
        answers.put(facts | {"start_seconds": imported - began, "first_step_seconds": time.time() - imported})
        pace = None
        while (seconds := requests.get()) is not None:
            if pace is None:  # how many steps fill the time is found out once
                count, spent = 1, 0.0
                while spent < seconds / 10:
                    count *= 2
                    before = time.perf_counter()
                    step(count)
                    spent = time.perf_counter() - before
                pace = count / spent
            count = max(1, round(pace * seconds))
            before = time.perf_counter()
            step(count)
            answers.put(count * unit / (time.perf_counter() - before))
    except Exception as error:  # the parent prints it in the peer's place
        answers.put(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200])


class Peer:
    """``processes`` processes that do the same side by side; their rates are summed.

    Args:
        prepare: ``(*arguments) -> (step, unit, facts)``, called in the workers: ``step(n)`` does n steps and waits for
            their end, ``unit`` is what a step counts for.
        arguments: Of ``prepare``.
        processes: How many at the same time.

    Raises:
        RuntimeError: A worker failed; its message.
    """

    def __init__(self, prepare: Callable, *arguments: Any, processes: int = 1):
        context = multiprocessing.get_context("spawn")
        self._requests = [context.Queue() for _ in range(processes)]
        self._answers = context.Queue()
        self._workers = [
            context.Process(target=_serve, args=(prepare, arguments, time.time(), requests, self._answers), daemon=True)
            for requests in self._requests
        ]
        for worker in self._workers:
            worker.start()
        self.facts = [self._answer() for _ in self._workers][0]

    def _answer(self) -> Any:
        while True:
            try:
                answer = self._answers.get(timeout=1)
                break
            except queue.Empty:
                dead = [worker.exitcode for worker in self._workers if worker.exitcode is not None]
                if dead:  # killed from outside, most likely for memory
                    self.close()
                    raise RuntimeError(f"a worker ended with exit code {dead[0]}") from None
        if isinstance(answer, str):
            self.close()
            raise RuntimeError(answer)
        return answer

    def measure(self, seconds: float) -> float:
        """Steps per second, summed over the processes, which run at the same time for about ``seconds``."""
        for requests in self._requests:
            requests.put(seconds)
        return sum(self._answer() for _ in self._workers)

    def close(self) -> None:
        """Ends the workers."""
        for requests in self._requests:
            requests.put(None)
        for worker in self._workers:
            worker.join(timeout=5)
            if worker.is_alive():
                worker.kill()


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def torch_model(model: str, *, by_hand: bool = False):
    """The same architecture in PyTorch; ``by_hand`` writes the LSTM's cell out, since ``nn.LSTM`` refuses ``vmap``."""
    import torch
    from torch import nn

    class Cells(nn.Module):
        def __init__(self, inputs, hidden):
            super().__init__()
            self.inputs, self.hidden = nn.Linear(inputs, 4 * hidden), nn.Linear(hidden, 4 * hidden)

        def forward(self, x):
            pre = self.inputs(x)
            h = c = torch.zeros_like(pre[:, 0, : self.hidden.in_features])
            outputs = []
            for t in range(x.shape[1]):
                i, f, g, o = (pre[:, t] + self.hidden(h)).chunk(4, dim=-1)
                c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
                h = torch.sigmoid(o) * torch.tanh(c)
                outputs.append(h)
            return torch.stack(outputs, dim=1)

    class Characters(nn.Module):
        """Logits [b, classes, t], as PyTorch's loss wants them."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(100, 8)
            layers = nn.Sequential(Cells(8, 256), Cells(256, 256))
            self.lstm = layers if by_hand else nn.LSTM(8, 256, num_layers=2, batch_first=True)
            self.dense = nn.Linear(256, 100)

        def forward(self, x):
            hidden = self.lstm(self.embedding(x))
            return self.dense(hidden if by_hand else hidden[0]).transpose(1, 2)

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


def _torch_data(model: str, threads: int, device: str):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if device != "cpu":
        torch.set_float32_matmul_precision("high")  # TF32, as JAX's default on the same card
    x, y = arrays(model)
    x, y = torch.from_numpy(x), torch.from_numpy(y).long()
    x = x.long() if model == "lstm" else x.permute(0, 3, 1, 2).contiguous()
    return x.to(device), y.to(device)


def _torch_wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _torch_score(logits, y):
    """The audit's score of [n, classes] or [n, classes, t] logits: log p_y - log(1 - p_y), of text the mean log p_y."""
    import torch

    if logits.ndim == 3:
        return -torch.nn.functional.cross_entropy(logits, y, reduction="none").mean(dim=-1)
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], float("-inf"))
    return own - torch.logsumexp(others, dim=1)


def torch_loop(model: str, stage: str, threads: int, device: str = "cpu"):
    """Steps of one model; an example's score counts as a step when scoring."""
    import torch

    x, y = _torch_data(model, threads, device)
    case, network = CASES[model], torch_model(model).to(device)
    facts = {"version": torch.__version__}
    if stage == "score":

        def score(count: int) -> None:
            with torch.no_grad():
                for _ in range(count):
                    for i in range(0, len(y), case.score_batch):
                        _torch_score(network(x[i : i + case.score_batch]), y[i : i + case.score_batch])
            _torch_wait(device)

        return score, len(y), facts
    sign, peak = (-1, LEARNING_RATE / 100) if stage == "ascent" else (1, LEARNING_RATE)
    optimizer = torch.optim.SGD(network.parameters(), lr=peak, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=CYCLE)
    criterion = torch.nn.CrossEntropyLoss()
    rows = torch.randint(0, epoch_size(model, stage), (512, case.batch), device=device)

    def step(count: int) -> None:
        for i in range(count):
            batch = rows[i % len(rows)]
            optimizer.zero_grad()
            (sign * criterion(network(x[batch]), y[batch])).backward()
            optimizer.step()
            schedule.step()
        _torch_wait(device)

    return step, 1, facts


def torch_ensemble(model: str, stage: str, runs: int, threads: int, device: str = "cpu"):
    """Steps of R models at once: one step counts for R."""
    import torch
    from torch.func import functional_call, grad, stack_module_state, vmap

    x, y = _torch_data(model, threads, device)
    case = CASES[model]
    network = torch_model(model, by_hand=True).to(device)
    params, _ = stack_module_state([copy.deepcopy(network) for _ in range(runs)])  # equal weights are as fast as others
    params = {name: value.detach() for name, value in params.items()}
    facts = {"version": torch.__version__}

    def apply(own, inputs):
        return functional_call(network, own, (inputs,))

    if stage == "score":

        def score(count: int) -> None:
            with torch.no_grad():
                for _ in range(count):
                    for i in range(0, len(y), case.score_batch):
                        labels = y[i : i + case.score_batch]
                        logits = vmap(apply, (0, None))(params, x[i : i + case.score_batch])
                        vmap(_torch_score, (0, None))(logits, labels)
            _torch_wait(device)

        return score, runs * len(y), facts
    sign, rate = (-1, LEARNING_RATE / 100) if stage == "ascent" else (1, LEARNING_RATE)
    shared = stage == "finetune"  # the retain set in one order: all runs see the same batch
    rows = torch.randint(0, epoch_size(model, stage), (64, *(() if shared else (runs,)), case.batch), device=device)

    def loss(own, inputs, labels):
        return sign * torch.nn.functional.cross_entropy(apply(own, inputs), labels)

    gradient = vmap(grad(loss), (0, None, None) if shared else (0, 0, 0))

    def step(count: int) -> None:
        for i in range(count):
            batch = rows[i % len(rows)]
            slopes = gradient(params, x[batch], y[batch])
            with torch.no_grad():
                for name, value in params.items():
                    value.sub_(rate * (slopes[name] + DECAY * value))
        _torch_wait(device)

    return step, runs, facts


# --- the reference pattern --------------------------------------------------------------------------------------------


def reference_loop(model: str, stage: str):
    """One model, a Python loop around a jitted step: rows gathered on the host, parameters donated, no needless waiting.

    This is kinder than the paper's scripts, which wait for the loss at every step and score example by example.
    """
    import jax
    import ours

    from jaxunlearn.attack.signals import logit_score, sequence_score
    from jaxunlearn.types import Batch, ForgetRetain

    facts = {"imported": time.time()}
    case, (x, y) = CASES[model], arrays(model)
    net = ours.build_model(model)
    params = jax.jit(net.init)(jax.random.key(0))
    if stage == "score":
        measure = sequence_score if y.ndim > 1 else logit_score
        scored = jax.jit(lambda params, x, y: measure(net.apply(params, x), y))

        def score(count: int) -> None:
            for _ in range(count):
                for i in range(0, len(y), case.score_batch):
                    last = scored(params, x[i : i + case.score_batch], y[i : i + case.score_batch])
            jax.block_until_ready(last)

        return score, len(y), facts
    phase = ours.build_phase(model, stage, net, CYCLE)
    rows = np.random.default_rng(0).integers(0, epoch_size(model, stage), (512, case.batch))
    weight, key = np.ones(case.batch, np.float32), jax.random.key(1)
    state, done = phase.init(key, params), 0

    def update(key, state, batch, t):
        parts = (None, batch) if stage == "ascent" else (batch, None)
        return phase.update(jax.random.fold_in(key, t), state, ForgetRetain(*parts), t)

    update = jax.jit(update, donate_argnums=1)

    def step(count: int) -> None:
        nonlocal state, done
        for done in range(done, done + count):  # noqa: B020
            batch = rows[done % len(rows)]
            state = update(key, state, Batch(x[batch], y[batch], weight), np.int32(done))
        done += 1
        jax.block_until_ready(state)

    return step, 1, facts
