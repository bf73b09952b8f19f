"""A small audit of the character model on real Shakespeare."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxunlearn import presets, records
from jaxunlearn._validate import InputError
from jaxunlearn.models.base import parameter_count
from jaxunlearn.pipeline import audit, task
from jaxunlearn.presets import PRESETS
from jaxunlearn.unlearn.hessian import Hessian

SMALL = PRESETS["shakespeare-small"][1]
TINY = dataclasses.replace(
    SMALL,
    calibration_runs=10,
    evaluation_runs=2,
    pool_size=40,
    quiet=True,
    text=dataclasses.replace(SMALL.text, source="tiny", roles=12, length=20, stride=20, hidden=8, embedding=4),
    training=dataclasses.replace(SMALL.training, epochs=1, batch_size=128),
    method=presets._text_methods(
        epochs=3, descent=SMALL.training.descent, hessian=Hessian(samples=1, depth=3, scale=100.0)
    ),
)


@pytest.mark.slow  # most of it compiles
def test_all_methods_end_to_end(tmp_path, data_dir):
    config = dataclasses.replace(TINY, out=tmp_path / "run")
    folders = audit.run(config)
    assert [folder.name for folder in folders] == list(presets._TEXT_METHODS)
    data = task.build(config).data
    for folder in folders:
        record = records.BoundRecord.from_json(records.read_json(folder / "bound.json"))
        scores = records.ScoreRecord.load(folder / "scores.npz")
        assert record.m == 40 and record.batch_size == data.batch_size > 1
        assert scores.scores.shape == (12, 40, data.batch_size) and np.isfinite(scores.scores).all()
        assert (scores.scores < 0).all()  # log-likelihoods of characters
        assert all(0 < record.accuracy[name]["mean"] < 1 for name in ("retain", "forget", "unseen", "test"))
        if folder.name == "retrain":
            assert record.epsilon == 0 and np.ptp(scores.scores, axis=0).max() == 0


def test_the_paper_preset_is_the_papers_model_and_data(data_dir):
    config = PRESETS["shakespeare"][1]
    # The model by its shapes only: a stride of 1 makes a million windows.
    model = task.make_model("lstm", (80,), 100, text=config.text)
    assert parameter_count(jax.eval_shape(model.init, jax.random.key(0))) == 825_220
    assert config.m == 400 and config.r == 100 and config.training.batch_size == 256 and config.training.epochs == 15
    descent = config.training.descent
    assert (descent.peak, descent.schedule, descent.clip_norm, descent.weight_decay) == (0.1, "constant", 1.0, 0.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "mlp"}, "model='lstm' with dataset='shakespeare'"),
        ({"dataset": "digits"}, "'lstm' with 'digits'"),
        ({"split": "adversarial"}, "split='uniform'"),
        ({"candidate_batch_size": 2}, "candidate_batch_size=1"),
        ({"signals": ("loss",)}, "log-likelihood"),
    ],
)
def test_what_makes_no_sense_for_text_is_refused(change, text):
    with pytest.raises(InputError, match=text):
        dataclasses.replace(TINY, **change)


@pytest.mark.slow
def test_run_by_run(tmp_path, data_dir):
    config = dataclasses.replace(TINY, out=tmp_path / "run", methods=("retrain",), calibration_runs=4, sequential=True)
    record = records.BoundRecord.from_json(records.read_json(audit.run(config)[0] / "bound.json"))
    assert record.epsilon == 0 and record.sequential["warmup"] == 4 and record.batch_size > 1
