"""Association by who writes to whom: personalised PageRank on a graph of people. On the host, no JAX.

A walk on the graph goes on along an edge with probability alpha and starts again at one of the known nodes otherwise; a
node's score is how often the walk is there ("Unveiling Ripple Effects and Shallow Forgetting in Privacy Unlearning",
arXiv:2604.22076, section 3.2, which gives no constants; Page et al., 1999). Where every walk can go on, the score is the mean
of the scores with each known node alone.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from jaxunlearn._validate import InputError, not_empty, open_unit, require

TOLERANCE, MAX_ITERATIONS = 1e-12, 10_000
"""Power iteration stops when the scores move by less than this a node."""


def personalised_pagerank(
    nodes: Sequence[str],
    edges: Iterable[tuple[str, str] | tuple[str, str, float]],
    known: Collection[str],
    *,
    alpha: float = 0.85,
    directed: bool = False,
) -> np.ndarray:
    """How near each node is to the known ones.

    Args:
        nodes: [n] all names, each once; those without an edge are isolated.
        edges: (sender, recipient) or (sender, recipient, weight > 0); weights of repeated edges add up (1 if not given).
            Edges from a node to itself are left out.
        known: Names where the walk starts, each equally often.
        alpha: Chance to walk on, in (0, 1).
        directed: Walk from sender to recipient only; otherwise both ways.

    Returns:
        [n] scores >= 0 in the order of ``nodes``, of sum 1. Where the walk can go nowhere it starts again; a node that no
        walk reaches has 0, as every isolated node but the known ones.

    Raises:
        InputError: Names are repeated or unknown, there are no known nodes, a weight or alpha is out of range, or networkx
            is not installed.
    """
    try:
        import networkx
    except ImportError as error:
        raise InputError(
            "Expected networkx for PageRank, but it is not installed; pip install 'jaxunlearn[llm]'."
        ) from error
    open_unit(alpha=alpha)
    not_empty("known", known)
    graph = networkx.DiGraph() if directed else networkx.Graph()
    graph.add_nodes_from(nodes)
    require(len(graph) == len(nodes), f"Expected every node once, got {len(nodes) - len(graph)} repeated.")
    for first, second, *rest in edges:
        weight = float(rest[0]) if rest else 1.0
        for name in (first, second):
            require(name in graph, f"Expected edges between nodes, got {name!r}, which is none of them.")
        require(0 < weight < np.inf, f"Expected weight={weight!r} > 0 of the edge {first!r}, {second!r}.")
        if first != second:
            before = graph.get_edge_data(first, second, {"weight": 0.0})["weight"]
            graph.add_edge(first, second, weight=before + weight)
    absent = sorted(set(known) - set(nodes))
    require(not absent, f"Expected known nodes among the nodes, got {absent[:3]}.")
    start = dict.fromkeys(known, 1.0)
    scores = networkx.pagerank(graph, alpha, personalization=start, tol=TOLERANCE, max_iter=MAX_ITERATIONS)
    return np.array([scores[name] for name in nodes])
