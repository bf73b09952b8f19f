"""Writes ``inception.npz``: features and logits of pytorch-fid's InceptionV3 with weights by a rule (``inception_rule.py``).

Needs torch, torchvision and pytorch-fid: ``PYTHONPATH=tests/models python tests/models/goldens/make_inception.py``. Made with
torch 2.14.1 and pytorch-fid 0.3.0.
"""

from pathlib import Path

import numpy as np
import torch
from inception_rule import drawn, images
from pytorch_fid import inception


def main():
    names = inception._inception_v3(num_classes=1008, aux_logits=False, weights=None)
    for number, block in {"5b": (192, 32), "5c": (256, 64), "5d": (288, 64)}.items():
        setattr(names, f"Mixed_{number}", inception.FIDInceptionA(block[0], pool_features=block[1]))
    state = names.state_dict()
    shapes = {name: tuple(value.shape) for name, value in state.items() if not name.endswith("num_batches_tracked")}
    weights = {name: torch.from_numpy(value) for name, value in drawn(shapes).items()}
    weights |= {name: value for name, value in state.items() if name.endswith("num_batches_tracked")}

    inception.load_state_dict_from_url = lambda *_, **__: weights  # in place of a download
    model = inception.fid_inception_v3().eval()
    looking = inception.InceptionV3().eval()
    x = torch.from_numpy(images()).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = looking(x)[0][:, :, 0, 0]
        logits = model.fc(features)
    np.savez_compressed(Path(__file__).with_name("inception.npz"), features=features.numpy(), logits=logits.numpy())


if __name__ == "__main__":
    main()
