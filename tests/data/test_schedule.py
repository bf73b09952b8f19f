import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn.data import schedule


def test_orders_are_permutations_that_do_not_depend_on_the_number_of_epochs():
    few, many = (np.asarray(schedule.orders(jax.random.key(0), epochs, 30)) for epochs in (3, 50))
    np.testing.assert_array_equal(few, many[:3])
    assert np.all(np.sort(many, axis=1) == np.arange(30)) and many.dtype == np.int32
    assert len({tuple(row) for row in many.tolist()}) == 50


@pytest.mark.parametrize("seed", range(5))
def test_compact_against_a_numpy_filter(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    order, present = rng.permutation(n).astype(np.int32), rng.random(n) < 0.5
    compacted = schedule.compact(jnp.asarray(order), jnp.asarray(present), int(present.sum()))
    np.testing.assert_array_equal(compacted, order[present[order]])
    assert compacted.dtype == jnp.int32


def test_compact_under_vmap_over_runs():
    rng = np.random.default_rng(0)
    order = rng.permutation(20).astype(np.int32)
    present = np.stack([rng.permutation(np.arange(20) < 12) for _ in range(6)])
    compacted = jax.vmap(lambda p: schedule.compact(jnp.asarray(order), p, 12))(jnp.asarray(present))
    np.testing.assert_array_equal(compacted, [order[p[order]] for p in present])


@pytest.mark.parametrize(("size", "batch_size", "tail"), [(12, 4, 4), (13, 4, 1), (3, 8, 3), (8, 8, 8), (1, 1, 1)])
def test_batches_keep_every_row_once_and_weigh_only_the_real_ones(size, batch_size, tail):
    rows, weight = schedule.batches(jnp.arange(100, 100 + size), batch_size)
    assert rows.shape == weight.shape == (-(-size // batch_size), batch_size)
    np.testing.assert_array_equal(rows.reshape(-1)[:size], np.arange(100, 100 + size))
    np.testing.assert_array_equal(weight.reshape(-1), np.arange(weight.size) < size)
    assert np.sum(weight[-1]) == tail and np.all(rows.reshape(-1)[size:] == 0)
