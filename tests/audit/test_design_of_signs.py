import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit import design
from jaxunlearn.audit import least_favourable as lf


@pytest.mark.parametrize("m", [2, 3, 5, 6, 9, 12])
def test_enumeration_is_complete_balanced_and_indexed(m):
    vectors = design.sign_vectors(m)
    assert len(vectors) == design.support(m) == len(np.unique(vectors, axis=0))
    assert ((vectors > 0).sum(axis=1) == m // 2).all()
    np.testing.assert_array_equal(design.sign_index(vectors), np.arange(len(vectors)))
    assert design.log_support(m) == pytest.approx(np.log(len(vectors)))


def test_guess_breaks_ties_by_index_and_treats_broken_values_as_zero():
    assert design.guess(np.zeros(6), 2).tolist() == [1, 0, 0, 0, 0, -1]
    assert design.guess(np.array([np.nan, 1.0, -np.inf, -1.0, np.inf, 0.0]), 4).tolist() == [1, 1, 0, -1, 0, -1]
    rng = np.random.default_rng(0)
    guesses = design.guess(rng.normal(size=(50, 20)), 12)
    assert ((guesses > 0).sum(axis=1) == 6).all() and ((guesses < 0).sum(axis=1) == 6).all()


def test_overlaps_count_right_guesses():
    signs = np.array([[1, -1, 1, -1]])
    assert design.overlaps(np.array([[1, 0, -1, -1]]), signs).tolist() == [2]
    with pytest.raises(InputError, match="shape"):
        design.overlaps(np.zeros((2, 4)), signs)


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ([[1, -1, 1, -1], [1, 1, 1, -1]], r"signs\[1\] to be balanced"),
        ([[1, -1, 1, -1], [1, 0, -1, -1]], r"signs\[1\] to hold only"),
        ([[1, 1, -1]], r"signs\[0\] to be balanced"),  # odd m: the odd one out is -1
        ([1, -1], "shape"),
        (np.zeros((0, 4)), "shape"),
    ],
)
def test_sign_vectors_are_checked(signs, words):
    with pytest.raises(InputError, match=words):
        design.check_signs(np.array(signs))
    design.check_signs(np.array([[1, -1, -1]]))


def test_drawn_signs_are_uniform():
    signs = lf.draw_signs(np.random.default_rng(0), 20_000, 5)
    counts = np.bincount(design.sign_index(signs), minlength=10)
    assert np.abs(counts - 2000).max() < 200
