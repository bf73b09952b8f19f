"""Makes ``resnet.npz``: logits, input gradients and moved statistics of small torch ResNets with torchvision's blocks.

Needs torch and torchvision, which the tests do not: ``python tests/models/goldens/make_resnet.py``.
"""

from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import nn

WIDTH, CLASSES, STAGES = 4, 3, (1, 1)
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)


class ResNet(nn.Module):
    """Two stages of torchvision's blocks behind a first convolution of 3 x 3, as in the public unlearning code."""

    def __init__(self, block):
        super().__init__()
        self.normalize = nn.Module()
        self.normalize.register_buffer("mean", torch.tensor(MEAN))
        self.normalize.register_buffer("std", torch.tensor(STD))
        self.conv1, self.bn1 = nn.Conv2d(3, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH)
        inputs = WIDTH
        for stage, count in enumerate(STAGES):
            channels, stride, blocks = WIDTH * 2**stage, 2 if stage else 1, []
            outputs = channels * block.expansion
            for number in range(count):
                stride = 1 if number else stride
                down = None
                if stride != 1 or inputs != outputs:
                    down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
                blocks.append(block(inputs, channels, stride, down))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        x = (x - self.normalize.mean[None, :, None, None]) / self.normalize.std[None, :, None, None]
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


def input_gradient(model, x, weight):
    x = x.clone().requires_grad_(True)
    logits = model(x)
    return logits, torch.autograd.grad((logits * weight).sum(), x)[0]


def main():
    goldens, rng = {}, np.random.default_rng(0)
    x = torch.from_numpy(rng.uniform(size=(3, 3, 8, 8)).astype(np.float32))
    weight = torch.from_numpy(rng.normal(size=(3, CLASSES)).astype(np.float32))
    goldens |= {"x": x.permute(0, 2, 3, 1), "weight": weight}
    blocks = {"resnet18": torchvision.models.resnet.BasicBlock, "resnet50": torchvision.models.resnet.Bottleneck}
    for name, block in blocks.items():
        torch.manual_seed(0)
        model = ResNet(block)
        with torch.no_grad():
            for key, value in model.state_dict().items():
                if "bn" in key or "downsample.1" in key:  # away from 0 and 1
                    if "tracked" not in key:
                        value.copy_(torch.rand_like(value) + 0.5)
        state = {f"{name}/state/{key}": value.clone() for key, value in model.state_dict().items()}
        goldens |= state
        for mode in ("eval", "train"):
            getattr(model, mode)()
            logits, gradient = input_gradient(model, x, weight)
            goldens |= {f"{name}/{mode}/logits": logits, f"{name}/{mode}/gradient": gradient.permute(0, 2, 3, 1)}
        goldens |= {f"{name}/moved/{k}": v for k, v in model.state_dict().items() if "running" in k}
    arrays = {key: value.detach().numpy() for key, value in goldens.items()}
    np.savez_compressed(Path(__file__).with_name("resnet.npz"), **arrays)


if __name__ == "__main__":
    main()
