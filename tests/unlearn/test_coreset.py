import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.unlearn.coreset import core_set, core_size, random_set


@pytest.mark.parametrize(
    "n, share, size",
    [(4103, 0.2, 820), (4103, 0.5, 2051), (424, 0.2, 84), (10, 0.3, 3), (10, 0.01, 1), (7, 1.0, 7), (100, 0.29, 29)],
)
def test_sizes_round_down_as_in_the_paper_and_against_binary_fractions(n, share, size):
    assert core_size(n, share) == size


def test_highest_and_lowest_scores():
    scores = np.array([0.1, 5.0, -2.0, 3.0, 4.0])
    assert core_set(scores, 0.4).tolist() == [1, 4]
    assert core_set(scores, 0.4, order="lowest").tolist() == [0, 2]
    assert core_set(scores, 1.0).tolist() == [0, 1, 2, 3, 4]


def test_of_equal_scores_the_smaller_row_goes_first():
    scores = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 0.0])
    assert core_set(scores, 0.5).tolist() == [0, 1, 3]
    assert core_set(-scores, 0.5, order="lowest").tolist() == [0, 1, 3]
    assert core_set(np.zeros(1000), 0.1).tolist() == list(range(100))


def test_leaving_the_own_part_out_changes_the_choice():
    gradients = np.array([[0.0, 9.0], [1.0, 0.0], [1.0, 0.1], [1.0, -0.1]])  # one large gradient of its own kind
    scores = gradients @ gradients.mean(axis=0)
    assert core_set(scores, 0.25).tolist() == [0]
    others = (4 * scores - (gradients**2).sum(axis=1)) / 3
    assert core_set(others, 0.25).tolist() == [2]


def test_random_sets_are_of_the_same_size_uniform_and_seeded():
    first, again = (random_set(np.random.default_rng(3), 50, 0.2) for _ in range(2))
    assert first.tolist() == again.tolist() == sorted(set(first.tolist())) and len(first) == 10
    rng, counts = np.random.default_rng(0), np.zeros(50)
    for _ in range(2000):
        counts[random_set(rng, 50, 0.2)] += 1
    assert (np.abs(counts / 2000 - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 2000)).all()


def test_refusals():
    for call, says in (
        (lambda: core_set([], 0.5), "scores"),
        (lambda: core_set([1.0, np.nan], 0.5), "finite"),
        (lambda: core_set([1.0], 0.0), "share"),
        (lambda: core_set([1.0], 1.5), "share"),
        (lambda: core_set([1.0], 0.5, order="top"), "order"),
        (lambda: random_set(np.random.default_rng(0), 0, 0.5), "n=0"),
    ):
        with pytest.raises(InputError, match=says):
            call()
