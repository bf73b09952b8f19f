import jax
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import digits, splits

LABELS = np.random.default_rng(0).integers(0, 10, 500)


@pytest.mark.parametrize("kind", ["uniform", "adversarial"])
@pytest.mark.parametrize(("m", "batch_size"), [(2, 1), (7, 3), (100, 2), (2, 249)])
def test_partition_of_the_training_rows(kind, m, batch_size):
    split = splits.make_split(jax.random.key(0), LABELS, m=m, batch_size=batch_size, kind=kind)
    assert split.candidates.shape == (m, batch_size) and split.retain.shape == (500 - m * batch_size,)
    assert split.candidates.dtype == split.retain.dtype == np.int32
    np.testing.assert_array_equal(np.sort(np.concatenate([split.retain, split.pool])), np.arange(500))
    np.testing.assert_array_equal(split.pool[:batch_size], split.candidates[0])


@pytest.mark.parametrize("size", [40, 60, 250, 430])
def test_adversarial_split_shares_at_most_one_class(size):
    for seed in range(10):
        split = splits.make_split(jax.random.key(seed), LABELS, m=size, batch_size=1, kind="adversarial")
        assert len(set(LABELS[split.pool]) & set(LABELS[split.retain])) <= 1


def test_adversarial_split_draws_the_classes():
    firsts = set()
    for seed in range(20):
        split = splits.make_split(jax.random.key(seed), LABELS, m=20, batch_size=1, kind="adversarial")
        firsts |= set(LABELS[split.pool].tolist())
    assert len(firsts) >= 5


def test_uniform_split_has_no_favourite_rows():
    chosen = np.zeros(500)
    for seed in range(200):
        chosen[splits.make_split(jax.random.key(seed), LABELS, m=125, batch_size=2).pool] += 1
    # Each count is Binomial(200, 1/2); 5 standard deviations over 500 rows.
    assert np.abs(chosen - 100).max() < 5 * np.sqrt(50)


def test_split_depends_on_the_key_only():
    first, again, other = (
        splits.make_split(jax.random.key(seed), LABELS, m=10, batch_size=5).candidates for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 1}, "m=1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"kind": "adverserial"}, "Did you mean 'adversarial'"),
        ({"m": 500}, "use at most m=499"),
        ({"m": 100, "batch_size": 7}, "use at most m=71"),
    ],
)
def test_errors_name_the_argument_and_the_fix(changes, message):
    arguments = {"m": 10, "batch_size": 1} | changes
    with pytest.raises(InputError, match=message):
        splits.make_split(jax.random.key(0), LABELS, **arguments)


def test_data_set_checks_its_labels():
    x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 2], np.int32)
    with pytest.raises(InputError, match="as many labels as examples in toy: 3 and 2"):
        splits.Dataset(name="toy", x=x, y=y[:2], x_test=x, y_test=y, classes=3)
    with pytest.raises(InputError, match=r"labels of toy in 0\.\.1, got 0\.\.2"):
        splits.Dataset(name="toy", x=x, y=y, x_test=x, y_test=y, classes=2)


def test_digits_are_all_there():
    data = digits.load()
    assert data.x.shape == (1500, 8, 8, 1) and data.x_test.shape == (297, 8, 8, 1)
    assert data.x.dtype == np.float32 and data.y.dtype == np.int32
    assert data.x.min() == 0 and data.x.max() == 1 and data.classes == 10
    assert set(data.y.tolist()) == set(data.y_test.tolist()) == set(range(10))
    assert not np.any([np.array_equal(data.x_test[0], image) for image in data.x])


def test_statistics_are_applied_once():
    x, y = np.array([[0.5, 1.0]], np.float32), np.zeros(1, np.int32)
    data = splits.Dataset(
        name="toy", x=x, y=y, x_test=x * 0, y_test=y, classes=1, class_names=("a",), mean=(0.5, 0.25), std=(0.5, 0.25)
    )
    scaled = data.standardised()
    assert scaled.x.tolist() == [[0, 3]] and scaled.x_test.tolist() == [[-1, -1]] and scaled.x.dtype == np.float32
    assert data.x.tolist() == [[0.5, 1]] and (scaled.mean, scaled.std, scaled.class_names) == (None, None, ("a",))
    with pytest.raises(InputError, match="toy to say mean and std"):
        scaled.standardised()
    with pytest.raises(InputError, match="as many class names as classes=1 in toy, got 2"):
        splits.Dataset(name="toy", x=x, y=y, x_test=x, y_test=y, classes=1, class_names=("a", "b"))
