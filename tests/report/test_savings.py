"""What the report says was not computed again, by hand."""

from pathlib import Path
from types import SimpleNamespace

from jaxunlearn.report.load import RunDirectory
from jaxunlearn.report.savings import savings


def made(population=None, **fields):
    """A run directory with one method, "finetune"."""
    record = SimpleNamespace(
        **{
            "method": "finetune",
            "title": "digits",
            "sequential": None,
            "trajectory": {},
            "seconds": {"unlearn": 30.0, "score": 6.0},
            "calibration_runs": 4,
            "evaluation_runs": 2,
            **fields,
        }
    )
    manifest = {} if population is None else {"population": population}
    return RunDirectory(path=Path("x"), manifest=manifest, methods=[SimpleNamespace(record=record)])


def test_trainings_that_methods_share():
    facts = {"seconds": 12.0, "trained_runs": 60, "reused_runs": 0, "methods": 4}
    # Three of four methods did not train 60 models each, at 12 / 60 seconds a model.
    assert savings(made(facts)) == ["60 models trained once for 4 methods: 180 trainings, about 36 s, not done again."]
    facts |= {"trained_runs": 0, "reused_runs": 60, "methods": 1}
    assert savings(made(facts)) == [
        "60 models trained once for 1 method, 60 of them found from before: 60 trainings, about 12 s, not done again."
    ]


def test_nothing_saved_nothing_said():
    assert savings(made()) == []
    assert savings(made({"seconds": 12.0, "trained_runs": 60, "reused_runs": 0, "methods": 1})) == []
    assert savings(made({"seconds": 0.0, "trained_runs": 0, "reused_runs": 0, "methods": 2})) == []
    stopped = {"most_runs": 6, "warmup": 4, "path": [], "claim": None}
    assert savings(made(sequential=stopped)) == []


def test_runs_after_a_stop_and_models_on_the_way():
    stopped = {"most_runs": 60, "warmup": 4, "path": [], "claim": None}
    # 36 seconds for 6 runs: the other 54 would have taken 324.
    assert savings(made(sequential=stopped)) == [
        "finetune: stopped after 6 of 60 runs; the others would have taken about 324 s and their training."
    ]
    # 30 seconds for 100 steps: passes of 10 and 50 steps of their own would have taken 60% of it.
    assert savings(made(trajectory={"step": [0, 10, 50, 100]})) == [
        "finetune: 3 models of every run from one pass; passes of their own would have taken about 18 s more."
    ]
