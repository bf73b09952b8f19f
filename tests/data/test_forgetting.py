import jax
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import forget

KEY = jax.random.key(0)
LABELS = np.random.default_rng(0).integers(0, 10, 500)


@pytest.mark.parametrize("classes", [(0,), (3, 7), (9, 0, 4)])
def test_whole_classes(classes):
    split = forget.forget_split(KEY, LABELS, classes=classes)
    assert split.forget.tolist() == [i for i in range(500) if LABELS[i] in classes]
    assert split.retain.tolist() == [i for i in range(500) if LABELS[i] not in classes]
    assert split.forget.dtype == split.retain.dtype == np.int32


@pytest.mark.parametrize(("share", "size"), [(0.1, 50), (0.0021, 1), (0.5, 250), (0.998, 499)])
def test_a_share_of_all_rows(share, size):
    split = forget.forget_split(KEY, LABELS, share=share)
    assert split.forget.shape == (size,) and (np.diff(split.forget) > 0).all() and (np.diff(split.retain) > 0).all()
    np.testing.assert_array_equal(np.sort(np.concatenate([split.forget, split.retain])), np.arange(500))
    again, other = (forget.forget_split(jax.random.key(s), LABELS, share=share).forget for s in (0, 1))
    assert np.array_equal(again, split.forget) and not np.array_equal(other, split.forget)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either classes or share"),
        ({"classes": (1,), "share": 0.1}, "either classes or share"),
        ({"classes": ()}, "classes to hold at least one"),
        ({"classes": (2, 10)}, r"the 10 labels 0\.\.9, got \[10\]"),
        ({"classes": (-1,)}, r"got \[-1\]"),
        ({"classes": (2, 2)}, "every class once"),
        ({"classes": tuple(range(10))}, "all 10 are to be forgotten"),
        ({"share": 0.0}, "share=0.0 inside"),
        ({"share": 1.0}, "share=1.0 inside"),
        ({"share": float("nan")}, "share=nan inside"),
        ({"share": 0.0009}, "to leave some on either side, got 0"),
        ({"share": 0.9999}, "to leave some on either side, got 500"),
    ],
)
def test_refusals_of_splits(arguments, message):
    with pytest.raises(InputError, match=message):
        forget.forget_split(KEY, LABELS, **arguments)


def test_the_papers_classes_are_a_tenth_of_all():
    for name, classes in (("digits", 10), ("mnist", 10), ("cifar10", 10), ("cifar100", 100), ("tiny-imagenet", 200)):
        chosen = forget.preset_classes(name, classes)
        assert chosen == forget.CLASSES[name] and len(set(chosen)) == classes // 10 and max(chosen) < classes
    assert forget.preset_classes("tiny-imagenet", 20) == (3, 11, 17)
    with pytest.raises(InputError, match="Did you mean 'tiny-imagenet'"):
        forget.preset_classes("tinyimagenet", 200)
    with pytest.raises(InputError, match="Expected tiny-imagenet to have class 3, but it has 2 classes"):
        forget.preset_classes("tiny-imagenet", 2)


def test_shadow_models_see_equally_many_examples_each_its_own():
    members = forget.shadow_members(KEY, 1234, models=7, share=0.1)
    assert members.shape == (7, 1234) and members.dtype == bool and members.sum(axis=1).tolist() == [123] * 7
    assert len({row.tobytes() for row in members}) == 7
    np.testing.assert_array_equal(forget.shadow_members(KEY, 1234, models=3, share=0.1), members[:3])
    assert forget.shadow_members(KEY, 50).shape == (10, 50)
    # Independent draws: each row is chosen Binomial(200, 0.3) times; 5 standard deviations over 100 rows.
    counts = forget.shadow_members(KEY, 100, models=200, share=0.3).sum(axis=0)
    assert np.abs(counts - 60).max() < 5 * np.sqrt(200 * 0.3 * 0.7)
    with pytest.raises(InputError, match="models=0"):
        forget.shadow_members(KEY, 50, models=0)
    with pytest.raises(InputError, match="got 0"):
        forget.shadow_members(KEY, 4)
