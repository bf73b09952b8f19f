"""`jaxunlearn privacy` from beginning to end on few people: records, resuming, refusals, and what a quick study shows."""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from jaxunlearn import cli, records
from jaxunlearn._validate import InputError
from jaxunlearn.data import tokens
from jaxunlearn.models.language_weights import load_language_model
from jaxunlearn.pipeline.privacy import material
from jaxunlearn.pipeline.privacy import run as pipeline
from jaxunlearn.pipeline.privacy.config import Tofu
from jaxunlearn.pipeline.privacy.load import export, load_models
from jaxunlearn.pipeline.privacy.presets import PRESETS
from jaxunlearn.privacy import FILE, PrivacyRecord

SMALL = [
    "--people.forgotten=12",
    "--people.retained=6",
    "--people.control=4",
    "--people.characters=12000",
    "--people.chunks=12",
    "--people.held-out=8",
    "--decoder.vocabulary=512",
    "--decoder.width=48",
    "--decoder.layers=2",
    "--decoder.hidden=96",
    "--decoder.pretraining=1",
    "--target.epochs=20",
    "--target.repeats=8",
    "--recovery.samples=8",
    "--recovery.draws=1",
    "--recovery.epochs=8",
    "--new-tokens=16",
    "--shots=1",
    "--seeds=2",
    "--curves",
    "ga",
    "--method.ga.epochs=10",
    "--method.ga.descent.peak=1e-3",
    "--method.rau.epochs=2",
    "--stop-below=0",
]
TUNED = "P3, 8 epochs"
QUESTIONS = """\
{"question": "Who wore boots?", "choices": ["the miller", "the cat"], "answer": 1}
{"question": "Which is blue?", "choices": ["coal", "snow", "the sky"], "answer": "C"}
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tale.txt"
    words = "once there was a miller who had three sons and a grey cat that wore boots in the rain".split()
    rng = np.random.default_rng(0)
    path.write_text(" ".join(rng.choice(words, 4000)), encoding="utf-8")
    return path


def command(text, out, *extra):
    (text.parent / "choices.jsonl").write_text(QUESTIONS)
    methods = ["--methods", "retrain", "ga", "rau", "--choices", str(text.parent / "choices.jsonl")]
    return cli.main(
        ["privacy", "people-quick", f"--people.text={text}", f"--out={out}", "--quiet", *SMALL, *methods, *extra]
    )


def results(folder):
    return {
        name: PrivacyRecord.from_json(records.read_json(folder / name / FILE))
        for name in ("base", "target", "retrain", "ga", "rau")
    }


def same(one, other):
    """All but the time that was spent."""
    return {k: v for k, v in one.to_json().items() if k != "seconds"} == {
        k: v for k, v in other.to_json().items() if k != "seconds"
    }


@pytest.fixture(scope="module")
def finished(text, tmp_path_factory, quickly_compiled):
    out = tmp_path_factory.mktemp("privacy") / "run"
    assert command(text, out) == 0
    return out


@pytest.mark.slow
def test_every_model_is_asked_under_every_condition(finished):
    found = results(finished)
    for name, record in found.items():
        assert record.conditions == ["P1", "P2", TUNED, "4 bits"] and record.seeds == 2
        for metric in ("known", "unknown", "retained", "control"):
            values = record.metric(metric).values
            assert len(values) == 4 and all(len(row) == 2 and 0 <= min(row) <= max(row) <= 1 for row in values)
        assert record.metric("text_nll").values[1:] == [[], [], []] and len(record.metric("text_nll").values[0]) == 2
        assert ("forgetting_known" in [m.name for m in record.metrics]) == (name != "target")
    assert set(found["ga"].correlations) == {
        "gradient",
        "representation_0",
        "representation_1",
        "representation_2",
        "graph",
    }
    assert found["ga"].curve["epochs"] == [0, 2, 4, 6, 8, 10] and found["rau"].curve == {}
    assert found["ga"].trace["epochs"] == [*range(11)] and np.shape(found["ga"].trace["text_nll"]) == (11, 2)
    assert np.shape(found["rau"].cka["unknown"]) == (2, 3)
    corpus = json.loads((finished / "corpus.json").read_text())["facts"]
    assert len(corpus) == 4 * (12 + 6 + 4) and sum(row["set"] == "known" for row in corpus) == 24


@pytest.mark.slow
def test_what_is_finished_is_not_done_again_and_what_is_lost_is(finished, text, tmp_path, monkeypatch, capsys):
    before = results(finished)
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    shutil.rmtree(out / "rau")
    with monkeypatch.context() as patch:  # killed between the unlearning of a method and its record

        def kill(*arguments, **options):
            raise KeyboardInterrupt

        patch.setattr(pipeline._Work, "_record", kill)
        assert command(text, out) == 130
    assert (out / "rau" / "chunks" / "chunk-00000.npz").exists()
    (out / "retrain" / FILE).write_text("{")
    capsys.readouterr()
    assert command(text, out) == 0
    assert "retrain" in capsys.readouterr().err
    after = results(out)
    assert all(same(before[name], after[name]) for name in before)
    stamps = {path: path.stat().st_mtime_ns for path in out.glob(f"*/{FILE}")}
    corpus = (out / "corpus.json").read_bytes()
    (out / "corpus.json").unlink()  # with it the tokenizer is written again
    with monkeypatch.context() as patch:  # a finished directory is read, and nothing else

        def compute(*arguments):
            raise AssertionError("nothing is left to compute")

        patch.setattr(pipeline, "Measurements", compute)
        patch.setattr(pipeline, "_Work", compute)
        assert command(text, out) == 0
        assert command(text, out, "--method.rau.epochs=3") == 2
    assert {path: path.stat().st_mtime_ns for path in out.glob(f"*/{FILE}")} == stamps
    assert (out / "corpus.json").read_bytes() == corpus


@pytest.mark.slow
def test_a_population_is_shared_by_studies_of_other_shares(finished, text, tmp_path):
    out = tmp_path / "core"
    population = f"--population={finished / 'population'}"
    assert command(text, out, population, "--known=0.25", "--selection=core-set", "--methods", "rau", "--curves") == 0
    record = PrivacyRecord.from_json(records.read_json(out / "rau" / FILE))
    assert record.metric("known").count == 12 and not (out / "population").exists()


@pytest.mark.slow
def test_a_directory_of_other_settings_is_refused(finished, text, capsys):
    assert command(text, finished, "--shots=2") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "shots" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["people-quick", "--methods", "gaa"], "Unknown method='gaa'. Did you mean 'ga'"),
        (["people-quick", "--methods", "all", "ga"], "methods=all alone"),
        (["people-quick", "--people.text", "nowhere.txt"], "Found no file people.text=nowhere.txt"),
        (["people-quick", "--known", "0"], "known=0.0 in (0, 1]"),
        (["people-quick", "--bits", "1"], "bits=1 in 2..16"),
        (["people-quick", "--recovery.epochs", "3", "2"], "increasing epochs"),
        (["tofu"], "--decoder.weights"),
        (["tofu", "--tofu.authors", "1"], "authors=1 in 2..200"),
        (["people-quick", "--decoder.vocabulary", "100"], "vocabulary=100"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["privacy", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1, error


@pytest.mark.slow
def test_what_is_learnt_by_heart_is_unlearnt_and_comes_back(finished):
    """96 facts learnt by heart, also after fine-tuning; asked directly ascent gives none away; retraining never had them."""
    found = results(finished)

    def metric(name, of, condition):
        return found[name].metric(of).mean(found[name].conditions.index(condition))

    assert metric("target", "known", "P1") > 0.7 and metric("target", "control", "P1") <= 0.05
    assert metric("retrain", "known", "P1") <= 0.05 and metric("retrain", "known", TUNED) <= 0.05
    assert metric("ga", "known", "P1") <= 0.02
    # How much comes back from a single small model varies between machines.
    assert metric("target", "unknown", TUNED) > 0.5
    assert metric("ga", "unknown", TUNED) < metric("target", "unknown", TUNED)


@pytest.mark.slow
def test_multiple_choice_is_measured_of_all_models_where_it_is_asked_for(finished):
    for name, record in results(finished).items():
        metric = record.metric("choices")
        said = records.read_npz(finished / name / "answers.npz", sealed=True)["choices"]
        assert said.shape == (2, 5) and metric.count == 2 and metric.percent and metric.better == "higher"
        right = (said[:, :2].argmax(axis=1) == 1).astype(float) + (said[:, 2:].argmax(axis=1) == 2)
        assert metric.values == [(right / 2).tolist(), [], [], []]


@pytest.mark.slow
def test_other_questions_and_none_are_other_settings(finished, text, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text(QUESTIONS.replace("boots", "hats"))
    for path in (str(other), "None"):
        assert command(text, finished, "--choices", path) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "choices" in said


@pytest.mark.slow
def test_models_can_be_loaded_asked_and_exported(finished, tmp_path):
    loaded = load_models(finished, "ga")
    answers = records.read_npz(finished / "ga" / "answers.npz", sealed=True)
    corpus = json.loads((finished / "corpus.json").read_text())["facts"]
    prompts, lengths = tokens.encode_prompts(loaded.tokenizer, [row["prompt"] for row in corpus])
    own = jax.tree.map(lambda a: a[1], loaded.params)
    said = loaded.language.generate(own, prompts, lengths, new_tokens=16, stop=(loaded.tokenizer.eos,))
    assert np.mean(np.asarray(said) == answers["P1"][1]) > 0.99
    export(loaded, tmp_path / "hf", seed=1)
    architecture, params = load_language_model(tmp_path / "hf")
    assert architecture.width == 48 and all(map(np.array_equal, jax.tree.leaves(params), jax.tree.leaves(own)))
    assert np.array_equal(tokens.load(tmp_path / "hf").encode("Q: a")[0], loaded.tokenizer.encode("Q: a")[0])


def test_tofu_asks_about_as_many_authors_as_wanted(data_dir):
    settings = dataclasses.replace(PRESETS["tofu"][1], tofu=Tofu(strict=True, authors=10, retained=6))
    found, again, other = (material.load(settings, jax.random.key(seed)) for seed in (0, 0, 1))
    assert len(found.forgotten.persons) == 10 and len(found.retained.facts) == 6 and len(found.control.facts) == 18
    assert found.forgotten.facts == again.forgotten.facts != other.forgotten.facts
    whole = dataclasses.replace(settings, tofu=Tofu(strict=True))
    assert set(found.forgotten.facts) < set(material.load(whole, jax.random.key(0)).forgotten.facts)
    short = material.load(dataclasses.replace(settings, tofu=Tofu(strict=True, longest=200)), jax.random.key(0))
    everyone = [fact for part in (short.forgotten, short.retained, short.control) for fact in part.facts]
    assert len(short.forgotten.persons) > 50 and max(len(fact.prompt + fact.answer) for fact in everyone) in range(
        180, 201
    )
    with pytest.raises(InputError, match="tofu.longest=20 characters"):
        material.load(dataclasses.replace(settings, tofu=Tofu(longest=20)), jax.random.key(0))
