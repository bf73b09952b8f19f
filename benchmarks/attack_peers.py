"""The peers of ``attack.py``, in worker processes (``peers.Peer``): torchattacks, foolbox and a careful PyTorch loop.

A step is one gradient step on a whole batch. All attack one network: ours, weights and all, written in PyTorch.
"""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import peers

NEEDS = {"torchattacks": "torchattacks", "foolbox": "foolbox", "loop": "torch", "processes": "torch"}
LONGEST = 100  # steps of one attack


class Job(NamedTuple):
    """What is attacked.

    Attributes:
        name: The model.
        weights: Name -> array, as in the PyTorch model.
        x: [b, h, w, c] clean images in [0, 1].
        target: [b, classes] the original model's logits at x.
        epsilon: Radius.
        step: Step size.
    """

    name: str
    weights: dict[str, np.ndarray]
    x: np.ndarray
    target: np.ndarray
    epsilon: float
    step: float

    def part(self, parts: int) -> "Job":
        """The first of so many equal parts of the batch."""
        size = len(self.x) // parts
        return self._replace(x=self.x[:size], target=self.target[:size])


def missing(peer: str) -> str | None:
    """Why a peer cannot run here, and what mends it."""
    needs = {"torch", NEEDS[peer]}
    absent = sorted(name for name in needs if importlib.util.find_spec(name) is None)
    return f"{peer} not run: pip install {' '.join(absent)}" if absent else None


def convolution(kernel: Any) -> np.ndarray:
    """[kh, kw, i, o] as PyTorch stores it: [o, i, kh, kw]."""
    return np.ascontiguousarray(np.asarray(kernel).transpose(3, 2, 0, 1))


def torch_weights(name: str, params: Any) -> dict[str, np.ndarray]:
    """Our parameters by the names of the PyTorch model's."""
    if name == "resnet18":
        found = {}
        for key, value in params.params.items():
            value = np.asarray(value)
            found[key] = convolution(value) if value.ndim == 4 else value.T if value.ndim == 2 else value
        return found | {key: np.asarray(value) for key, value in params.statistics.items()}
    found, layer = {}, 0
    for number in range(2 if name == "cnn" else 4):
        own = params[f"_Convolution_{number}"]
        found |= {f"{layer}.weight": convolution(own["kernel"]), f"{layer}.bias": own["bias"]}
        if name == "cnn":
            layer += 3  # ReLU, pooling
            continue
        own = params[f"_GroupNorm_{number}"]
        found |= {f"{layer + 1}.weight": own["scale"], f"{layer + 1}.bias": own["bias"]}
        layer += 3 + number % 2  # norm, ReLU; pooling after two of them
    dense = np.asarray(params["Dense_0"]["kernel"])
    if name == "cnn":  # its inputs are flattened pixels first there, channels first here
        dense = dense.reshape(2, 2, 32, -1).transpose(2, 0, 1, 3).reshape(dense.shape)
    last = layer + 1 if name == "cnn" else layer + 2
    found |= {f"{last}.weight": dense.T, f"{last}.bias": params["Dense_0"]["bias"]}
    return {key: np.array(value, order="C") for key, value in found.items()}


def network(job: Job, device: str):
    """The PyTorch model with the job's weights, in evaluation mode."""
    import torch
    from torch import nn

    if job.name == "resnet18":
        from torchvision.models import resnet18

        model = resnet18(num_classes=job.target.shape[1])
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    else:
        model = peers.torch_model(job.name)
        for module in model.modules():
            if isinstance(module, nn.GroupNorm):
                module.eps = 1e-6
    weights = {name: torch.from_numpy(np.array(value)) for name, value in job.weights.items()}
    absent, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown and all(name.endswith("num_batches_tracked") for name in absent), (absent, unknown)
    return model.eval().to(device)


def _prepare(job: Job, threads: int, device: str):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = network(job, device)
    x = torch.from_numpy(job.x).permute(0, 3, 1, 2).contiguous().to(device)
    target = torch.from_numpy(job.target).to(device)
    with torch.no_grad():
        logits = model(x).cpu().numpy()
    return model, x, target, {"version": torch.__version__, "logits": logits}


def _in_attacks(run: Callable[[int], Any], device: str) -> Callable[[int], None]:
    """Steps in attacks of at most ``LONGEST`` of them; ``run(steps)`` is one."""

    def step(count: int) -> None:
        while count > 0:
            run(min(count, LONGEST))
            count -= LONGEST
        if device != "cpu":
            import torch

            torch.cuda.synchronize()

    return step


def with_torchattacks(job: Job, threads: int, device: str = "cpu"):
    """``torchattacks.PGD`` as its readme has it; its loss is the cross-entropy with a label."""
    import torchattacks

    model, x, target, facts = _prepare(job, threads, device)
    attack = torchattacks.PGD(model, eps=job.epsilon, alpha=job.step, random_start=True)
    labels = target.argmax(dim=1)

    def run(steps: int) -> None:
        attack.steps = steps
        attack(x, labels)

    return _in_attacks(run, device), len(x), facts


def with_foolbox(job: Job, threads: int, device: str = "cpu"):
    """``foolbox.attacks.LinfPGD``; its loss is the cross-entropy with a label."""
    import foolbox

    model, x, target, facts = _prepare(job, threads, device)
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=device)
    criterion = foolbox.criteria.Misclassification(target.argmax(dim=1))

    def run(steps: int) -> None:
        attack = foolbox.attacks.LinfPGD(abs_stepsize=job.step, steps=steps, random_start=True)
        attack.run(wrapped, x, criterion, epsilon=job.epsilon)

    return _in_attacks(run, device), len(x), facts


def with_loop(job: Job, threads: int, device: str = "cpu"):
    """What PyTorch can do: parameters frozen, channels last, the target's log-probabilities made once, the same KL."""
    import torch
    from torch.nn.functional import kl_div, log_softmax

    model, x, target, facts = _prepare(job, threads, device)
    model = model.requires_grad_(False).to(memory_format=torch.channels_last)
    x = x.contiguous(memory_format=torch.channels_last)
    log_p = log_softmax(target, dim=1)
    lowest, highest = (x - job.epsilon).clamp_(min=0), (x + job.epsilon).clamp_(max=1)

    def run(steps: int) -> None:
        at = torch.empty_like(x).uniform_(-job.epsilon, job.epsilon).add_(x)
        at = torch.minimum(torch.maximum(at, lowest), highest)
        for _ in range(steps):
            at.requires_grad_(True)
            left = kl_div(log_softmax(model(at), dim=1), log_p, reduction="sum", log_target=True)
            (slope,) = torch.autograd.grad(left, at)
            with torch.no_grad():
                at = torch.minimum(torch.maximum(at - job.step * slope.sign(), lowest), highest)
        with torch.no_grad():
            model(at)

    return _in_attacks(run, device), len(x), facts


PREPARE = {
    "torchattacks": with_torchattacks,
    "foolbox": with_foolbox,
    "loop": with_loop,
    "processes": with_loop,
}
