"""Plans of an audit: shown, fixed, remembered, kept with the results; chunks that do not depend on the machine."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_audits import CONFIG, audit, read, results

from jaxunlearn import _cache, records
from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine import population
from jaxunlearn.models.base import in_bfloat16
from jaxunlearn.models.convolutional import digits_cnn, tinynet
from jaxunlearn.models.linear import mlp
from jaxunlearn.pipeline import plans, task


def kept(folder):
    return {key: value for key, value in records.read_json(folder / "plan.json").items() if key in ("width", "form")}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans.json"


@pytest.mark.slow
def test_shown_plans_are_measured_and_nothing_else_is_done(tmp_path, capsys, cache):
    assert audit(tmp_path / "run", "--methods", "finetune", "--plan", "show", "--runs-per-chunk", "16") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["stage", "plan"] and not (tmp_path / "run").exists()
    for stage in ("train", "finetune"):
        first = next(i for i, line in enumerate(lines) if line.startswith(stage))
        assert "width 1" in lines[first] and "width 4" in lines[first + 1]
    assert sum(line.endswith("taken") for line in lines) == 2 and "MiB" in lines[1]


@pytest.mark.slow
def test_a_measured_plan_is_remembered_by_the_next_audit(tmp_path, capsys, cache, monkeypatch):
    chunk = ("--runs-per-chunk", "16", "--methods", "finetune")
    assert audit(tmp_path / "one", *chunk, "--plan", "measure") == 0
    entries = json.loads(cache.read_text())
    stages = {entry["for"]["stage"]: entry for key, entry in entries.items() if key != "checksum"}
    assert set(stages) == {"train", "finetune"} and "a run-step" in stages["train"]["why"]
    monkeypatch.setattr(plans, "measure", lambda *a, **k: pytest.fail("measured again"))
    assert audit(tmp_path / "two", *chunk) == 0
    for folder in ("population", "finetune"):
        assert kept(tmp_path / "one" / folder) == kept(tmp_path / "two" / folder)
    assert results(tmp_path / "one", "finetune") == results(tmp_path / "two", "finetune")


def test_a_short_audit_measures_nothing_but_its_first_guess(tmp_path, cache):
    assert audit(tmp_path / "run", "--methods", "finetune", "--runs-per-chunk", "16") == 0
    assert kept(tmp_path / "run" / "population") == {"width": 1, "form": ""} and not cache.exists()


def test_whoever_goes_on_takes_the_plan_that_results_were_begun_with(finished, copy, cache, monkeypatch):
    for folder in ("population", "finetune"):
        records.write_json(copy / folder / "plan.json", {"width": 2, "form": ""})
    shutil.rmtree(copy / "population" / "chunk-00000")
    (copy / "finetune" / "scores.npz").unlink()
    widths, make = [], population.PhaseRunner.__init__

    def noting(self, engine, phase, number, width):
        widths.append(width)
        make(self, engine, phase, number, width)

    monkeypatch.setattr(population.PhaseRunner, "__init__", noting)
    assert audit(copy, "--methods", "finetune") == 0
    assert set(widths) == {2}
    scores = [records.read_npz(out / "finetune" / "scores.npz")["scores"] for out in (copy, finished)]
    np.testing.assert_allclose(*scores, rtol=1e-3, atol=1e-4)


def test_a_plan_of_other_devices_is_fitted_or_chosen_anew(copy, cache):
    made = task.build(CONFIG)
    for stored, expected in (
        ({"width": 99, "form": ""}, -(-made.engine.plan.runs_per_chunk // 4)),
        ({"width": 0, "form": ""}, None),
        ({"width": 1, "form": "winograd"}, None),
    ):
        records.write_json(copy / "plan.json", stored)
        found = plans._read(copy / "plan.json", made)
        assert (None if found is None else found.width) == expected


def test_a_fixed_plan_is_taken(tmp_path, cache):
    assert audit(tmp_path / "run", "--methods", "finetune", "--plan", "2") == 0
    assert kept(tmp_path / "run" / "population") == kept(tmp_path / "run" / "finetune") == {"width": 2, "form": ""}


@pytest.mark.slow
def test_chunks_stay_as_they_were_begun_on_another_number_of_devices(tmp_path, monkeypatch):
    def on(devices):
        mesh = planning.make_mesh
        monkeypatch.setattr(planning, "make_mesh", lambda found=None, **o: mesh(jax.devices()[:devices], **o))
        return audit(tmp_path / "run", "--methods", *(["finetune"] if devices == 1 else ["finetune", "retrain"]))

    assert on(1) == 0
    begun = records.read_json(tmp_path / "run" / "population" / "manifest.json")["config"]["runs_per_chunk"]
    monkeypatch.undo()
    assert begun != planning.choose(planning.make_mesh(), 20).runs_per_chunk
    assert on(4) == 0
    assert read(tmp_path / "run", "retrain")["epsilon"] == 0
    manifest = records.read_json(tmp_path / "run" / "manifest.json")
    assert manifest["population"]["reused_runs"] == 20


def test_forms_of_a_model_reach_its_methods():
    made = task.build(CONFIG)
    assert made.info_in("") is made.info
    config = task.configuration.Audit(dataset="digits", model="cnn", plan="1:patches", pool_size=40)
    other = task.build(config)
    assert other.engine.plan.form == "patches" and other.info_in("canonical") is not other.info


def test_bfloat16_computes_in_it_and_keeps_float32_outside():
    model = mlp((8,), 3, widths=(16,))
    low = in_bfloat16(model)
    params, x = model.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (5, 8))
    exact, rounded = model.apply(params, x), low.apply(params, x)
    assert rounded.dtype == jnp.float32
    gap = float(jnp.max(jnp.abs(exact - rounded)))
    assert 1e-5 < gap < 0.05
    assert "bf16" in str(jax.make_jaxpr(low.apply)(params, x))
    grads = jax.grad(lambda p: low.apply(p, x).sum())(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    ids = in_bfloat16(model._replace(apply=lambda params, x: params["Dense_0"]["kernel"][x]))
    assert ids.apply(params, jnp.arange(3)).shape == (3, 16)  # integer inputs stay


def test_residual_networks_by_name_and_an_audit_refuses_batch_norm():
    x = jax.ShapeDtypeStruct((2, 8, 8, 1), jnp.float32)
    for form in task.forms_of("resnet18-gn", "cpu"):
        model = task.make_model("resnet18-gn", (8, 8, 1), 10, form=form)
        assert model.train is None
        assert jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), x).shape == (2, 10)
    data = task.Prepared(*(np.zeros((4, 8, 8, 1)), np.zeros(4, int)) * 2, retain=2, batch_size=1, outputs=10)
    for name in ("resnet18", "resnet50"):
        assert task.make_model(name, (8, 8, 1), 10).train is not None
        config = task.configuration.Audit(dataset="digits", model=name)
        with pytest.raises(InputError, match=f"model='{name}' with BatchNorm; use '{name}-gn'"):
            task.make_info(config, data, "", task.Sizes(retain=2, pool=2, forget=1))


@pytest.mark.parametrize("make", [digits_cnn, pytest.param(tinynet, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_convolutions_in_bfloat16(make):
    forms = task.forms_of("cnn", "cpu", "bfloat16")
    assert "winograd" not in forms and "winograd" in task.forms_of("cnn", "cpu")
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
    for form in forms:
        model = make((8, 8, 3), 5, form=form)
        low, params = in_bfloat16(model), jax.jit(model.init)(jax.random.key(0))
        np.testing.assert_allclose(low.apply(params, x), model.apply(params, x), rtol=0.1, atol=0.1)
        grads = jax.jit(jax.grad(lambda p, low=low: low.apply(p, x).sum()))(params)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("tensorfloat32", marks=pytest.mark.slow)])
def test_an_audit_in_another_precision_is_another_audit(finished, copy, tmp_path, capsys, precision):
    assert audit(copy, "--methods", "finetune", "--precision", precision) == 2
    assert f"precision: float32 -> {precision}" in capsys.readouterr().err
    assert audit(tmp_path / "new", "--methods", "finetune", "--precision", precision) == 0
    scores = [records.read_npz(out / "finetune" / "scores.npz")["scores"] for out in (tmp_path / "new", finished)]
    gap = np.abs(scores[0] - scores[1]).max()
    assert (gap == 0) == (precision == "tensorfloat32") and gap < 0.5  # a CPU has no fewer bits than float32
