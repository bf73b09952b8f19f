"""The peers of ``association.py``, in worker processes (``peers.Peer``): torch.func on the same decoder.

A step is the association of all examples.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CHUNKS = {"whole": (10**9,), "gradients": (8, 32, 128), "jvp": (16, 64, 256)}


class Job(NamedTuple):
    """What is associated.

    Attributes:
        params: Of ``models.transformer``, family "gpt2", output tied.
        heads: Of attention.
        tokens: [n, T].
        labels: [n, T], negative where a token is not scored.
        direction: A tree like ``params``.
    """

    params: Any
    heads: int
    tokens: np.ndarray
    labels: np.ndarray
    direction: Any = None


def leaves(tree: Any) -> Iterator[np.ndarray]:
    """The arrays of nested dictionaries, in the order of their keys."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key])
    else:
        yield tree


def to_host(tree: Any) -> Any:
    """Nested dictionaries of NumPy arrays."""
    return {key: to_host(part) for key, part in tree.items()} if isinstance(tree, dict) else np.asarray(tree)


def flat(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Path -> array; stacked blocks are taken apart, as a PyTorch model has them."""
    found = {}
    for key, part in tree.items():
        path = f"{prefix}{key}"
        if isinstance(part, dict):
            found |= flat(part, f"{path}.")
        elif path.startswith("blocks."):
            found |= {f"{path}.{i}": np.ascontiguousarray(one) for i, one in enumerate(part)}
        else:
            found[path] = part
    return found


def losses(params: dict[str, Any], heads: int, tokens, labels):
    """-log p of each sequence's scored tokens [b], as GPT-2 computes it."""
    import torch
    from torch.nn import functional as F

    b, t = tokens.shape
    h = params["embedding"][tokens] + params["positions"][:t]
    width = h.shape[-1]

    def norm(name, x, *block):
        own = (".".join((f"{name}.{kind}", *block)) for kind in ("weight", "bias"))
        return F.layer_norm(x, (width,), *(params[key] for key in own))

    def linear(name, x, block):
        return x @ params[f"blocks.{name}.weight.{block}"] + params[f"blocks.{name}.bias.{block}"]

    hidden = torch.ones(t, t, dtype=torch.bool, device=tokens.device).triu(1)
    for block in (key.rsplit(".", 1)[1] for key in params if key.startswith("blocks.query.weight.")):
        x = norm("blocks.attention_norm", h, block)
        query, key, value = (
            linear(name, x, block).reshape(b, t, heads, -1).transpose(1, 2) for name in ("query", "key", "value")
        )
        scores = (query @ key.transpose(-1, -2)) / (width // heads) ** 0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        h = h + linear("attention_out", (weights @ value).transpose(1, 2).reshape(b, t, width), block)
        up = F.gelu(linear("up", norm("blocks.mlp_norm", h, block), block), approximate="tanh")
        h = h + linear("down", up, block)
    logits = norm("norm", h) @ params["embedding"].T
    nll = F.cross_entropy(
        logits[:, :-1].reshape(b * (t - 1), -1), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="none"
    )
    return nll.reshape(b, t - 1).sum(dim=1)


def growth(run: Callable[[], Any]) -> tuple[Any, float | None]:
    """What ``run`` gives, and by how many megabytes resident memory rose above where it began; None but on Linux."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def kilobytes(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    try:
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator has kept would hide the rise
        reset.write_text("5")  # the peak starts anew
        before = kilobytes("VmRSS")
    except (OSError, AttributeError):
        return run(), None
    value = run()
    return value, (kilobytes("VmHWM") - before) * 1024 / 1e6


def _prepare(job: Job, kind: str, threads: int, device: str, make: Callable[..., Callable[[int], Any]]):
    """``make(params, direction, losses, tokens, labels) -> (chunk) -> [n]``."""
    import torch

    torch.set_num_threads(threads)
    params, direction = (
        {key: torch.from_numpy(np.array(value)).to(device) for key, value in flat(tree).items()}
        for tree in (job.params, job.direction)
    )
    tokens, labels = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (job.tokens, job.labels))
    with torch.no_grad():
        of = torch.cat([losses(params, job.heads, *part) for part in zip(tokens.split(64), labels.split(64))])
    run = make(params, direction, lambda params, *rows: losses(params, job.heads, *rows), tokens, labels)

    def timed(chunk: int) -> float:
        began = time.perf_counter()
        run(chunk).cpu()
        return time.perf_counter() - began

    chunks = CHUNKS[kind]
    if len(chunks) > 1:
        timed(chunks[0])  # what is set up once
    best = min(chunks, key=timed) if len(chunks) > 1 else chunks[0]
    values, megabytes = growth(lambda: run(best).cpu().numpy())
    facts = {"version": torch.__version__, "losses": of.cpu().numpy(), "values": values}
    facts |= {"chunk": min(best, len(tokens)), "megabytes": megabytes}

    def step(count: int) -> None:
        for _ in range(count):
            run(best).cpu()

    return step, len(tokens), facts


def by_gradients(job: Job, threads: int, device: str = "cpu", *, kind: str = "gradients"):
    """``vmap(grad)``, every gradient times the direction."""
    import torch
    from torch.func import grad, vmap

    def make(params, direction, losses, tokens, labels):
        def one(tokens, labels):
            gradient = grad(lambda p: losses(p, tokens[None], labels[None])[0])(params)
            return sum((gradient[key] * direction[key]).sum() for key in params)

        def run(chunk: int):
            return torch.cat([vmap(one)(*part) for part in zip(tokens.split(chunk), labels.split(chunk))])

        return run

    return _prepare(job, kind, threads, device, make)


def by_jvp(job: Job, threads: int, device: str = "cpu"):
    """``torch.func.jvp`` of the vector of losses."""
    import torch
    from torch.func import jvp

    def make(params, direction, losses, tokens, labels):
        def part(tokens, labels):
            return jvp(lambda p: losses(p, tokens, labels), (params,), (direction,))[1]

        def run(chunk: int):
            with torch.no_grad():
                return torch.cat([part(*rows) for rows in zip(tokens.split(chunk), labels.split(chunk))])

        return run

    return _prepare(job, "jvp", threads, device, make)


PREPARE = {"whole": partial(by_gradients, kind="whole"), "gradients": by_gradients, "jvp": by_jvp}
