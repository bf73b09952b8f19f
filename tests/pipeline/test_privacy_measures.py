"""Shares of what was recovered, and traces of chunks that stopped at different epochs."""

import numpy as np

from jaxunlearn.pipeline.privacy.measure import _share
from jaxunlearn.pipeline.privacy.unlearning import _as_long


def test_a_share_is_over_the_facts_that_count_in_each_draw():
    hits = np.array([[[1, 1, 0, 0], [0, 1, 1, 0]]], bool)  # [seeds, draws, facts]
    counts = np.array([[1, 0, 1, 1], [0, 1, 1, 1]], bool)
    assert _share(hits, counts, np.ones(4, bool)) == [(1 / 3 + 2 / 3) / 2]
    assert _share(hits, counts, np.array([1, 0, 0, 0], bool)) == [1.0]  # the second draw fine-tuned on it


def test_where_nothing_counts_there_is_no_share():
    hits = np.ones((2, 1, 3), bool)
    assert _share(hits, np.zeros((1, 3), bool), np.ones(3, bool)) == []


def test_traces_of_chunks_go_on_with_their_last_value():
    parts = [np.array([[3.0, 2.0, 1.0]]), np.array([[5.0, 4.0]])]
    assert np.concatenate(_as_long(parts, "trace_p1_known")).tolist() == [[3, 2, 1], [5, 4, 4]]
    chosen = [np.array([2]), np.array([1])]
    assert _as_long(chosen, "trace_chosen") is chosen
