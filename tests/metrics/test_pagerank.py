import builtins

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.metrics.graph import personalised_pagerank

NODES = [f"person {i}" for i in range(12)]


def dense(weights, start, alpha):
    """(1 - alpha) (I - alpha P')^-1 start, where rows of P without an edge start again."""
    out = weights.sum(axis=1, keepdims=True)
    walk = np.where(out > 0, weights / np.where(out > 0, out, 1), start)
    return np.linalg.solve(np.eye(len(start)) - alpha * walk.T, (1 - alpha) * start)


def made(directed, seed=0):
    """Random weights among the first nine; the last three are isolated."""
    rng = np.random.default_rng(seed)
    weights = np.where(rng.random((12, 12)) < 0.3, rng.random((12, 12)), 0.0)
    weights[9:], weights[:, 9:] = 0, 0
    np.fill_diagonal(weights, 0)
    edges = [(NODES[i], NODES[j], weights[i, j]) for i, j in zip(*np.nonzero(weights))]
    return edges, weights if directed else weights + weights.T


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("alpha", [0.85, 0.5])
def test_against_a_dense_linear_solve(directed, alpha):
    pytest.importorskip("networkx")
    edges, weights = made(directed)
    known = [NODES[i] for i in (0, 4, 10)]  # one of them isolated
    start = np.isin(NODES, known) / 3
    found = personalised_pagerank(NODES, edges, known, alpha=alpha, directed=directed)
    np.testing.assert_allclose(found, dense(weights, start, alpha), atol=1e-10)
    assert found.sum() == pytest.approx(1) and found[9] == found[11] == 0 and found[10] > 0


def test_is_the_mean_over_known_nodes_one_by_one():
    pytest.importorskip("networkx")
    edges, _ = made(False)
    known = NODES[:3]
    alone = [personalised_pagerank(NODES, edges, [name]) for name in known]
    np.testing.assert_allclose(personalised_pagerank(NODES, edges, known), np.mean(alone, axis=0), atol=1e-10)


def test_two_people_by_hand_and_people_without_edges():
    pytest.importorskip("networkx")
    found = personalised_pagerank(["a", "b", "c"], [("a", "b")], ["a"])
    np.testing.assert_allclose(found, [1 / 1.85, 0.85 / 1.85, 0], atol=1e-10)  # p_a = .15 + .85 p_b, p_b = .85 p_a
    np.testing.assert_allclose(personalised_pagerank(NODES, [], NODES[:4]), [0.25] * 4 + [0] * 8)


def test_repeated_edges_add_up_and_loops_are_left_out():
    pytest.importorskip("networkx")
    thrice = [("a", "b"), ("b", "a"), ("a", "b"), ("a", "c"), ("a", "a")]
    summed = [("a", "b", 3.0), ("c", "a", 1.0)]
    names = ["a", "b", "c"]
    np.testing.assert_allclose(*(personalised_pagerank(names, edges, ["a"]) for edges in (thrice, summed)))


def test_refusals(monkeypatch):
    pytest.importorskip("networkx")
    for call, says in (
        (lambda: personalised_pagerank(["a", "a"], [], ["a"]), "once"),
        (lambda: personalised_pagerank(["a"], [("a", "b")], ["a"]), "'b'"),
        (lambda: personalised_pagerank(["a", "b"], [("a", "b", -1.0)], ["a"]), "weight"),
        (lambda: personalised_pagerank(["a"], [], []), "known"),
        (lambda: personalised_pagerank(["a"], [], ["b"]), "known"),
        (lambda: personalised_pagerank(["a"], [], ["a"], alpha=1.0), "alpha"),
    ):
        with pytest.raises(InputError, match=says):
            call()
    plain = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "networkx":
            raise ImportError(name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r"pip install 'jaxunlearn\[llm\]'"):
        personalised_pagerank(["a"], [], ["a"])
