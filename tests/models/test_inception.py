"""InceptionV3 for FID against pytorch-fid's values, with weights that both sides draw by one rule."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inception_rule import drawn, images
from safetensors.numpy import save_file

from jaxunlearn._validate import InputError
from jaxunlearn.models import inception

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.slow
def test_features_and_logits_are_pytorch_fids(tmp_path):
    save_file(drawn(inception.shapes()), tmp_path / "inception.safetensors")
    params = inception.load_inception(tmp_path / "inception.safetensors")
    looked = jax.jit(inception.inception)(params, images())
    with np.load(GOLDENS / "inception.npz") as wanted:
        for ours, name in zip(looked, ("features", "logits")):
            theirs = wanted[name]
            assert np.abs(theirs[0] - theirs[1]).max() > 1e-2 * np.abs(theirs).max()  # images do differ
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_the_network_has_the_size_of_the_published_file():
    sizes = [int(np.prod(shape)) for shape in inception.shapes().values()]
    trained = sum(size for name, size in zip(inception.shapes(), sizes) if "running" not in name)
    usual = 23_834_568  # of torchvision's InceptionV3 without its auxiliary classifier, which has 1,000 outputs
    assert trained == usual + 8 * 2049 and len(sizes) == 94 * 5 + 2


def test_averages_leave_out_the_zeros_around_a_map():
    x = jnp.arange(9.0).reshape(1, 3, 3, 1)
    pooled = np.asarray(inception._pool(x, "mean"))[0, :, :, 0]
    assert pooled[0, 0] == (0 + 1 + 3 + 4) / 4 and pooled[1, 1] == 4 and pooled[0, 1] == (0 + 1 + 2 + 3 + 4 + 5) / 6
    assert np.asarray(inception._pool(-1 - x, "max"))[0, 2, 2, 0] == -5.0
    assert inception._pool(x, "max", 2).tolist() == [[[[8.0]]]]


def test_other_files_are_refused(tmp_path):
    tensors = {name: np.zeros(shape, np.float32) for name, shape in inception.shapes().items()}
    without = {name: value for name, value in tensors.items() if name != "fc.bias"}
    with pytest.raises(InputError, match="missing are fc.bias; convert pt_inception"):
        inception.from_torch(without)
    with pytest.raises(InputError, match="unexpected are AuxLogits.fc.bias"):
        inception.from_torch(tensors | {"AuxLogits.fc.bias": np.zeros(1)})
    with pytest.raises(InputError, match=r"got fc.bias \(1000,\) for \(1008,\)"):
        inception.from_torch(tensors | {"fc.bias": np.zeros(1000)})
    with pytest.raises(InputError, match="found none at"):
        inception.load_inception(tmp_path / "absent.safetensors")
    with pytest.raises(InputError, match="1 or 3 channels, got 4"):
        inception.inception({}, jnp.zeros((1, 8, 8, 4)))
