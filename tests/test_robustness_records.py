import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from jaxunlearn._validate import InputError
from jaxunlearn.robustness import Band, Metric, RobustnessRecord, strength


def metric(values, **more):
    return Metric(
        **{"name": "ua", "label": "UA", "meaning": ".", "better": "lower", "count": 3, "values": values} | more
    )


def record(metrics, **more):
    given = {"method": "rl", "title": "digits", "task": "classification", "scenario": "class 0"}
    return RobustnessRecord(**given | {"conditions": ["clean", "8/255"], "seeds": 2, "metrics": metrics} | more)


def test_summaries_by_hand():
    found = metric([[0.0, 1.0, 0.5], []])
    assert found.mean(0) == 0.5 and found.sd(0) == 0.5
    assert found.mean(1) is found.sd(1) is found.interval(1) is None
    low, high = found.interval(0)
    half = stats.t.ppf(0.975, 2) * 0.5 / math.sqrt(3)
    np.testing.assert_allclose([low, high], [0.5 - half, 0.5 + half])


def test_the_interval_is_over_seeds_of_unlearning_not_over_repeats_of_the_measurement():
    twice = metric([[0.2, 0.2, 0.6, 0.6]], per_seed=2)
    assert twice.by_seed(0) == [0.2, 0.6]
    assert twice.interval(0) == metric([[0.2, 0.6]]).interval(0) != metric([[0.2, 0.2, 0.6, 0.6]]).interval(0)


def test_one_seed_has_a_mean_and_nothing_else():
    found = metric([[0.3]])
    assert found.mean(0) == 0.3 and found.sd(0) is None and found.interval(0) is None


def test_records_survive_json_and_refuse_what_does_not_fit():
    made = record(
        [metric([[0.0, 0.1], [0.9, 1.0]])], bands=[Band(method="rl", metric="ua", condition="8/255", low=0, high=1)]
    )
    assert RobustnessRecord.from_json(made.to_json()) == made
    data = made.to_json()
    with pytest.raises(InputError, match="schema=1"):
        RobustnessRecord.from_json(data | {"schema": 0})
    with pytest.raises(InputError, match="lacks a field"):
        RobustnessRecord.from_json({k: v for k, v in data.items() if k != "seeds"})
    for values in ([[0.0, 0.1]], [[0.0], [math.nan]]):
        with pytest.raises(InputError, match="metric ua .*finite values for 2 conditions"):
            RobustnessRecord.from_json(record([metric(values)]).to_json())


def test_means_outside_their_bands_are_said():
    def bands(low, high, condition="8/255"):
        return [Band(method="rl", metric="ua", condition=condition, low=low, high=high)]

    metrics = [metric([[0.0, 0.1], [0.5, 0.7]])]
    assert record(metrics, bands=bands(0.5, 0.7)).surprises() == []
    assert record(metrics, bands=bands(0.9, 1, "64/255")).surprises() == []  # not attacked that hard
    assert record(metrics, bands=bands(0.9, 1.0)).surprises() == [
        "rl: UA 8/255 is 60.0, expected between 90 and 100 with this preset."
    ]
    distances = [dataclasses.replace(metrics[0], percent=False)]
    assert record(distances, bands=bands(0.75, 1.0)).surprises() == [
        "rl: UA 8/255 is 0.60, expected between 0.75 and 1.00 with this preset."
    ]


def test_names():
    assert strength(0.5) == "0.5/255"
    with pytest.raises(InputError, match="metric='mia'.*ua"):
        record([metric([[], []])]).metric("mia")
