"""The same numbers as jax_privacy 2.0.0 where the mathematics is the same; ``benchmarks/bounds.py`` makes the file."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from jaxunlearn.audit import bounds

GOLDENS = json.loads(Path(__file__).with_name("peer_goldens.json").read_text())


def named(case):
    return "-".join(str(value) for key, value in case.items() if key != "epsilon")


@pytest.mark.parametrize("case", GOLDENS["pairwise"], ids=named)
def test_pairwise_unhalved_equals_the_peer_at_a_fixed_threshold_in_both_directions(case):
    arguments = {key: value for key, value in case.items() if key != "epsilon"}
    assert bounds.clopper_pearson(**arguments, halve=False).epsilon == pytest.approx(case["epsilon"], abs=1e-9)


@pytest.mark.parametrize("case", GOLDENS["one_run"], ids=named)
def test_fair_labels_equal_the_peers_one_run_with_the_two_laws_compared(case):
    """The peer: e^epsilon / (1 + e^epsilon) = t, ours: 1 - e^-epsilon / 2 = t, with one binomial limit t."""
    right, r, zeta = case["right"], case["r"], case["zeta"]
    correct = np.arange(r) < right
    for bound in (
        bounds.overlap_count(2 * correct, m=2, r=2, v=2, zeta=zeta),
        bounds.overlap(2 * correct, m=2, r=2, zeta=zeta),
        bounds.lattice(2 - correct, support=2, zeta=zeta),
    ):
        # The peer solves for epsilon to 1e-6.
        assert math.log(2 * math.exp(bound.epsilon) - 1) == pytest.approx(case["epsilon"], abs=1e-6), bound.name


def test_most_goldens_are_not_zero():
    for cases in GOLDENS["pairwise"], GOLDENS["one_run"]:
        assert sum(case["epsilon"] > 0.1 for case in cases) > len(cases) / 2
