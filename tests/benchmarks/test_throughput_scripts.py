"""The benchmark scripts run, tiny and without PyTorch; FLOP formulas and the turn-about helpers have hand values."""

import json
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def ours():
    import ours

    return ours


def test_population_without_torch_reports_a_rate_and_says_what_it_does_not_run(tmp_path, capsys, monkeypatch):
    import peers
    import population

    no_spec = types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(peers, "importlib", no_spec)
    population.main(
        ["--models", "mlp", "--stages", "finetune", "score", "--runs", "2", "100000000", "--rounds", "1"]
        + ["--peers", "loop", "processes", "ensemble", "--slice", "0.001", "--json", str(tmp_path / "rows.json")]
    )
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["stage"], row["runs"]) for row in rows] == [
        (stage, runs) for stage in ("finetune", "score") for runs in (2, 100000000)
    ]
    for measured, refused in (rows[:2], rows[2:]):
        assert measured["ours"] > 0 and measured["gflops"] == pytest.approx(measured["ours"] * measured["gflop"])
        assert 0 < measured["temporaries_per_device"] < measured["megabytes_per_device"]
        assert refused["note"].startswith("not run: would take about") and "ours" not in refused
    said = capsys.readouterr().out
    assert "not run: would take about" in said and peers.TORCH in said and "torch, all threads" not in said


@pytest.mark.parametrize("name", ["mlp", "cnn", "tinynet"])
def test_flop_formula_agrees_with_the_compiler(name, ours):
    from cases import CASES

    case = CASES[name]
    model = ours.build_model(name, form="patches")  # convolutions as matrix products, no loop
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((case.batch, *case.shape), jnp.float32)
    step = jax.value_and_grad(lambda params, x: jnp.sum(model.apply(params, x) ** 2))
    counted = jax.jit(step).lower(params, x).cost_analysis()["flops"]
    # The compiler also counts elementwise work, of which small convolutions have a lot.
    assert case.step_flop < counted < 1.3 * case.step_flop


def test_bfloat16_model_differs_by_its_rounding_and_keeps_float32_outside(ours):
    exact, rounded = ours.build_model("mlp"), ours.build_model("mlp", dtype="bfloat16")
    params, x = exact.init(jax.random.key(0)), jnp.asarray(np.random.default_rng(0).random((4, 8, 8, 1)), jnp.float32)
    a, b = exact.apply(params, x), rounded.apply(params, x)
    assert b.dtype == jnp.float32 and params["Dense_0"]["kernel"].dtype == jnp.float32
    assert 0 < float(jnp.abs(a - b).max()) < 0.02 * float(jnp.abs(a).max())


def test_medians_of_ratios_and_tables():
    from cases import median_ratio, render

    assert median_ratio([2.0, 30.0, 4.0], [1.0, 10.0, 4.0]) == 2.0
    table = render([{"a": 1234.5, "note": "derived"}, {"b": "x"}], {"a": "A", "b": "B"}).splitlines()
    assert table[2:] == ["| 1,234 | - | derived", "|     - | x |"]


@pytest.mark.parametrize("script", ["attack", "bounds", "campaign", "memory", "population", "scaling"])
def test_every_script_explains_itself(script):
    if script == "bounds":
        pytest.importorskip("jax_privacy")
    words = [sys.executable, str(FOLDER / f"{script}.py"), "--help"]
    assert "Command: ``python benchmarks/" in subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_attack_reports_rates_with_and_without_early_exit_and_says_what_it_does_not_run(tmp_path, monkeypatch):
    import attack
    import attack_peers

    no_spec = types.SimpleNamespace(util=types.SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(attack_peers, "importlib", no_spec)
    attack.main(
        ["--models", "cnn", "--batch", "8", "--steps", "30", "--rounds", "1", "--slice", "0.01"]
        + ["--peers", "torchattacks", "loop", "--json", str(tmp_path / "rows.json")]
    )
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["ours"] > 0 and row["early"] > 0 and 0 < row["early_gradients"] <= 30
    assert row["note"] == "torchattacks not run: pip install torch torchattacks; loop not run: pip install torch"
    assert "torchattacks" not in row


@pytest.mark.parametrize("name", ["cnn", "tinynet"])
def test_attacked_network_is_the_same_one_in_torch(name):
    torch = pytest.importorskip("torch")
    import attack
    import attack_peers

    model = attack.build(name)
    params = attack.weights(name, model, 3)
    params = jax.tree.map(
        lambda a: a + 0.1 * jax.random.normal(jax.random.key(a.size), a.shape), params
    )  # no bias is 0
    x = np.random.default_rng(0).random((3, *attack.CASES[name].shape)).astype(np.float32)
    logits = np.asarray(model.apply(params, x))
    job = attack_peers.Job(name, attack_peers.torch_weights(name, params), x, logits, 0.1, 0.01)
    with torch.no_grad():
        theirs = attack_peers.network(job, "cpu")(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
    np.testing.assert_allclose(theirs, logits, atol=1e-4 * np.abs(logits).max())


def test_one_process_per_run_gathers_the_batches_of_the_engine():
    import reference_run

    from jaxunlearn.types import Phase

    member = np.array([True, True, True, True, False])
    phase = Phase("train", 1, 3, lambda *a: a, lambda *a: a, lambda *a: a)
    rows, weight = reference_run.epoch_batches(phase, np.array([4, 2, 0, 3, 1]), "train", member, retain=2)
    np.testing.assert_array_equal(rows, [[2, 0, 3], [1, 0, 0]])
    np.testing.assert_array_equal(weight, [[1, 1, 1], [1, 0, 0]])
    rows, _ = reference_run.epoch_batches(phase, np.array([4, 2, 0, 3, 1]), "forget", member, retain=2)
    np.testing.assert_array_equal(rows, [[2, 3, 0]])
