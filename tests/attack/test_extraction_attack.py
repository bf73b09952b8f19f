"""Demonstrations, fine-tuning samples and rounded weights of the attacks on language models."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.attack import extraction
from jaxunlearn.attack.quantisation import quantise

GROUPS = ["ann", "ann", "bob", "bob", "cy", "cy", "dee"]


def test_no_demonstration_names_who_is_asked_about():
    chosen = extraction.demonstrations(np.random.default_rng(0), GROUPS, range(7), np.arange(5), shots=3)
    names = np.array(GROUPS)
    for asked, shown in enumerate(chosen):
        assert len(set(shown)) == 3 and names[asked] not in names[shown] and set(shown) <= {0, 1, 2, 3, 4}


def test_too_few_others_to_show_are_an_error():
    with pytest.raises(InputError, match="shots=2 pairs of other people than ann"):
        extraction.demonstrations(np.random.default_rng(0), GROUPS, [0], np.arange(3), shots=2)


def test_samples_are_whole_people_and_none_of_theirs_is_scored():
    drawn = extraction.relearning_samples(np.random.default_rng(1), GROUPS, np.arange(7), samples=4, draws=5)
    assert (drawn.sum(axis=1) == 4).all() and len({row.tobytes() for row in drawn}) > 1
    scored = extraction.scored_after(GROUPS, drawn)
    names = np.array(GROUPS)
    for row, left in zip(drawn, scored):
        assert not set(names[row]) & set(names[left]) and left.any()
    with pytest.raises(InputError, match="samples=8 <= 7"):
        extraction.relearning_samples(np.random.default_rng(1), GROUPS, np.arange(7), samples=8, draws=1)


def test_rounding_keeps_the_largest_weight_and_moves_none_by_more_than_half_a_step():
    weights = np.random.default_rng(2).normal(size=(3, 16, 5)).astype(np.float32)
    params = {
        "matrix": jnp.asarray(weights),
        "norm": jnp.linspace(0, 1, 7),
        "norms": jnp.linspace(0, 1, 21).reshape(3, 7),
    }
    blocks = {"matrix": np.arange(3).reshape(3, 1, 1), "norm": 4, "norms": np.arange(3).reshape(3, 1)}
    for bits in (2, 4, 8):
        found = quantise(params, bits, blocks)
        step = np.abs(weights).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
        moved = np.abs(np.asarray(found["matrix"]) - weights)
        assert (moved <= step / 2 * 1.0001).all() and all((found[k] == params[k]).all() for k in ("norm", "norms"))
        points = np.asarray(found["matrix"]) / step
        assert np.allclose(points, np.round(points), atol=1e-4) and len(np.unique(np.round(points))) <= 2**bits - 1
        assert np.allclose(np.abs(np.asarray(found["matrix"])).max(axis=1), np.abs(weights).max(axis=1), rtol=1e-6)
    assert not np.asarray(quantise({"zero": jnp.zeros((2, 2))}, 4, {"zero": 0})["zero"]).any()
    with pytest.raises(InputError, match="bits=1"):
        quantise(params, 1, blocks)
