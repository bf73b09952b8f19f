from itertools import permutations

import jax
import numpy as np
import pytest
from scipy.stats import chisquare

from jaxunlearn._validate import InputError
from jaxunlearn.audit import design
from jaxunlearn.data import signs


@pytest.mark.parametrize("m", [2, 3, 4, 7, 400, 401])
def test_balanced_with_one_more_minus_if_m_is_odd(m):
    drawn = np.asarray(signs.balanced_signs(jax.random.key(0), m))
    assert drawn.shape == (m,) and drawn.dtype == np.int8
    assert np.sum(drawn == 1) == m // 2 and np.sum(drawn == -1) == m - m // 2


@pytest.mark.parametrize("m", [5, 6])
def test_uniform_over_all_balanced_vectors(m):
    keys = jax.random.split(jax.random.key(1), 20_000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: signs.balanced_signs(key, m)))(keys))
    counts = np.bincount(design.sign_index(drawn), minlength=len(design.sign_vectors(m)))
    assert counts.size == {5: 10, 6: 20}[m]
    assert chisquare(counts).pvalue > 1e-4


def test_same_key_same_vector_and_other_key_another():
    first, again = (np.asarray(signs.balanced_signs(jax.random.key(3), 50)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != np.asarray(signs.balanced_signs(jax.random.key(4), 50)))


@pytest.mark.parametrize("m", [0, 1])
def test_too_few_batches_are_refused(m):
    with pytest.raises(InputError, match=f"m={m}"):
        signs.balanced_signs(jax.random.key(0), m)


@pytest.mark.parametrize("m", [2, 3, 4, 5, 7])
def test_all_signs_are_the_audits_in_the_audits_order(m):
    np.testing.assert_array_equal(signs.all_signs(m), design.sign_vectors(m))
    naive = sorted(set(permutations([1] * (m // 2) + [-1] * (m - m // 2))), reverse=True)
    assert signs.all_signs(m).tolist() == [list(v) for v in naive]


def test_designed_signs_hold_every_vector_equally_often():
    table = signs.designed_signs(5, 3)
    assert table.shape == (30, 5) and table.dtype == np.int8
    np.testing.assert_array_equal(design.sign_index(table), np.tile(np.arange(10), 3))


def test_designed_signs_need_a_repeat():
    with pytest.raises(InputError, match="repeats=0"):
        signs.designed_signs(4, 0)


@pytest.mark.parametrize("m", [2, 5, 6, 31])
def test_spread_signs_use_every_batch_equally_often(m):
    table = signs.spread_signs(jax.random.key(3), m, 9)
    assert table.dtype == np.int8 and (design.check_signs(table) == table).all()
    for runs in range(1, 10):
        assert np.ptp((table[:runs] > 0).sum(axis=0)) <= 1
    if m % 2 == 0:
        np.testing.assert_array_equal(table[1::2], -table[:8:2])
    both = (table[: 2 + m % 2] > 0).any(axis=0) & (table[: 2 + m % 2] < 0).any(axis=0)
    assert both.all()


def test_spread_signs_begin_alike_whatever_their_number_and_differ_by_key():
    few, many = (signs.spread_signs(jax.random.key(0), 40, runs) for runs in (3, 8))
    np.testing.assert_array_equal(few, many[:3])
    assert (few != signs.spread_signs(jax.random.key(1), 40, 3)).any()
    assert len({row.tobytes() for row in many}) == 8
