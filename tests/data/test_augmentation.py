from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from jaxunlearn._validate import InputError
from jaxunlearn.data import augment

PAD, SHAPE = 2, (7, 6, 3)
KEYS = jax.random.split(jax.random.key(3), 4000)
X = np.random.default_rng(0).random((4000, *SHAPE), np.float32) + 0.5  # no pixel is 0, and no two are alike
FORMS = {
    "crop": jax.jit(partial(augment.pad_crop, pad=PAD)),
    "flip": jax.jit(augment.flip),
    "both": jax.jit(partial(augment.crop_and_flip, pad=PAD)),
}


def oracle(images, up, left, mirrored):
    """Pads with zeros, cuts the same window out of every image and turns it round."""
    padded = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
    cut = padded[:, PAD + up : PAD + up + SHAPE[0], PAD + left : PAD + left + SHAPE[1]]
    return cut[:, :, ::-1] if mirrored else cut


def candidates(name):
    moves = range(-PAD, PAD + 1) if name != "flip" else (0,)
    return [(up, left, m) for up in moves for left in moves for m in ((False, True) if name != "crop" else (False,))]


@pytest.mark.parametrize("name", FORMS)
def test_every_image_is_one_of_the_oracles_and_all_are_equally_likely(name):
    out = np.asarray(FORMS[name](KEYS, X))
    assert out.dtype == np.float32
    # [candidate, image]: an image is exactly one of them.
    equal = np.stack([(out == oracle(X, *c)).all(axis=(1, 2, 3)) for c in candidates(name)])
    assert (equal.sum(axis=0) == 1).all()
    counts = dict(zip(candidates(name), equal.sum(axis=1).tolist()))
    assert min(counts.values()) > 0 and (0, 0, False) in counts
    assert chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.parametrize("name", FORMS)
def test_an_image_does_not_depend_on_its_batch(name):
    whole = FORMS[name](KEYS, X)
    order = np.random.default_rng(1).permutation(len(X))
    np.testing.assert_array_equal(FORMS[name](KEYS[order], X[order]), whole[order])


def test_an_image_does_not_depend_on_how_many_images_and_runs_there_are():
    runs = jax.jit(jax.vmap(FORMS["both"]))(KEYS[:8].reshape(2, 4), X[:8].reshape(2, 4, *SHAPE))
    np.testing.assert_array_equal(runs.reshape(8, *SHAPE), FORMS["both"](KEYS, X)[:8])


def test_both_together_are_the_flip_of_the_crop_with_the_same_keys():
    crop, both = (np.asarray(FORMS[name](KEYS, X)) for name in ("crop", "both"))
    np.testing.assert_array_equal(both, FORMS["flip"](KEYS, crop))


def test_refusals():
    with pytest.raises(InputError, match=r"\[b, height, width, channels\] to augment, got \(2, 3\)"):
        augment.flip(KEYS[:2], jnp.zeros((2, 3)))
    with pytest.raises(InputError, match="pad=0"):
        augment.pad_crop(KEYS[:2], jnp.asarray(X[:2]), 0)
