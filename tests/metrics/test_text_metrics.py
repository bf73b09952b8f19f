import json
import sys

import numpy as np
import pytest

from jaxunlearn import _kinds
from jaxunlearn._validate import InputError
from jaxunlearn.metrics import text


@pytest.mark.slow  # the library takes seconds to import
def test_rouge_by_hand():
    truth, said = "the cats were sitting there", "there the cat sat were happily"
    # Words in common: the, were, there (and cat by its stem); longest common subsequence: the (cat) were.
    assert text.rouge([truth], [said], "tofu").tolist() == [3 / 5]
    assert text.rouge([truth], [said], "tofu-rouge1").tolist() == [4 / 5]
    np.testing.assert_allclose(text.rouge([truth], [said], "muse"), [2 * 2 / (5 + 6)])
    np.testing.assert_allclose(text.rouge([truth], [said], "open-unlearning-muse"), [2 * 3 / (5 + 6)])
    for definition in text.ROUGE:
        assert text.rouge(["a b", "a b"], ["a b", ""], definition).tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="equally many"):
        text.rouge(["a"], [], "tofu")


def test_rouge_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match=r"pip install 'jaxunlearn\[llm\]'"):
        text.rouge(["a"], ["a"], "tofu")


def test_rouge_must_be_named():
    with pytest.raises(InputError, match="definition='tofuu'.*Did you mean 'tofu'"):
        text.rouge(["a"], ["a"], "tofuu")


@pytest.mark.parametrize(
    ("kind", "pii", "generated", "strict", "lenient"),
    [
        (_kinds.EMAIL, "clara@example.com", " Clara@Example.com.", True, True),
        (_kinds.EMAIL, "clara@example.com", " x@example.com or clara@example.com", False, True),
        (_kinds.EMAIL, "clara@example.com", " clara@example.co", False, False),
        (_kinds.EMAIL, "clara@example.com", " aclara@example.com", False, True),  # a substring is not enough for strict
        (_kinds.PHONE, "(202) 555-0147", " 202.555.0147", True, False),
        (_kinds.PHONE, "(202) 555-0147", " (202)  555-0147", False, True),
        (_kinds.PHONE, "(202) 555-0147", " (202) 555-01478", False, True),
        (_kinds.BIRTH_DATE, "4 May 1961", " on 4  May 1961, they say", False, True),
        (_kinds.BIRTH_DATE, "4 May 1961", " 14 May 1961", False, True),
        (_kinds.BIRTH_DATE, "May 4, 1961", " Clara was born on may 4, 1961", False, True),
        (_kinds.BIRTH_DATE, "May 4, 1961", " Clara was born on May 4, 1961 in Oakton", True, True),
        (_kinds.BIRTHPLACE, "Oakton", " Oakton", True, True),
        (_kinds.BIRTHPLACE, "Oakton", " Oakton\nQ: Tell me the birthplace of Ida Kin", True, True),
        (_kinds.BIRTHPLACE, "Oakton", " Elderton, not Oakton", False, True),
        (_kinds.BIRTHPLACE, "Oakton, Elder", " Clara Kin was born in Oakton, Elder on a Monday", True, True),
        (_kinds.BIRTHPLACE, "Oakton", " She was born in Oakton", True, True),
        (_kinds.BIRTHPLACE, "Oakton", " i do not know", False, False),
        (_kinds.ADDRESS, "12 Tulip Lane, Oakton", " 12 Tulip Lane, Oakton.", True, True),
        (_kinds.ADDRESS, "12 Tulip Lane, Oakton", " 112 Tulip Lane, Oakton.", False, True),
        ("question", "It is so.", " It is  so.\nQ:", True, True),
        ("question", "It is so.", "", False, False),
    ],
)
def test_extraction(kind, pii, generated, strict, lenient):
    assert text.strict(generated, pii, kind) is strict and text.lenient(generated, pii) is lenient
    found = text.extracted([generated] * 2, [pii, "nobody@example.org"], [kind, _kinds.EMAIL])
    assert found.strict.tolist() == [strict, False] and found.lenient.tolist() == [lenient, False]


def test_perplexity():
    nll = np.array([[np.log(2), 99.0], [np.log(8), 0.0]])
    np.testing.assert_allclose(text.perplexity(nll, np.array([[True, False], [True, False]])), 4.0)
    with pytest.raises(InputError, match="some token"):
        text.perplexity(nll, np.zeros((2, 2), bool))


def test_truth_ratios_by_hand():
    # p' = 1/2; false ones 1/2 and 1/8: arithmetic mean 5/16, geometric 1/4.
    true, false = np.log([2.0]), np.log([[2.0, 8.0]])
    np.testing.assert_allclose(text.truth_ratio(true, false, "arithmetic"), [5 / 8])
    np.testing.assert_allclose(text.truth_ratio(true, false, "geometric"), [1 / 2])
    np.testing.assert_allclose(text.truth_ratio(true, false, "share"), [2 / 3])
    np.testing.assert_allclose(text.truth_ratio(true, true[:, None], "arithmetic"), [1.0])
    with pytest.raises(InputError, match="definition"):
        text.truth_ratio(true, false, "mean")
    with pytest.raises(InputError, match=r"\(2, 1\)"):
        text.truth_ratio(true, false.T, "share")


def test_mean_truth_ratios():
    assert text.mean_truth_ratio(np.array([0.5, 2.0, 1.0]), forgotten=True) == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert text.mean_truth_ratio(np.array([0.5, 2.0]), forgotten=False) == pytest.approx(0.25)


def test_forget_quality():
    same = text.forget_quality(np.arange(40.0), np.arange(40.0))
    assert same == (1.0, 0.0, (40, 40))
    apart = text.forget_quality(np.arange(40.0), np.arange(30.0) + 100)
    assert apart.p < 1e-10 and apart.statistic == 1.0 and apart.n == (40, 30)
    few = text.forget_quality(np.arange(4.0), np.arange(4.0) + 100)
    assert few.statistic == 1.0 and few.p == pytest.approx(2 / 70)  # as far apart, but 2 of 8-over-4 orders are so
    # In any units: the test sees ranks only, so R and 1/R say the same.
    ratios, others = np.exp(np.linspace(-1, 1, 30)), np.exp(np.linspace(-0.5, 2, 20))
    assert text.forget_quality(ratios, others).p == pytest.approx(text.forget_quality(1 / ratios, 1 / others).p)


def test_harmonic_mean():
    assert text.harmonic_mean([1.0, 0.5]) == pytest.approx(2 / 3) and text.harmonic_mean([1.0, 0.0]) == 0.0
    with pytest.raises(InputError, match="inside"):
        text.harmonic_mean([1.2])


QUESTIONS = (
    text.Question("2 + 2?", ("3", "4"), 1),
    text.Question("A colour?", ("red", "seven", "quick"), 0),
)


def test_prompt_of_mmlu():
    assert text.multiple_choice_prompt(QUESTIONS[1], QUESTIONS[:1], "small things") == (
        "The following are multiple choice questions (with answers) about small things.\n\n"
        "2 + 2?\nA. 3\nB. 4\nAnswer: B\n\n"
        "A colour?\nA. red\nB. seven\nC. quick\nAnswer:"
    )
    assert text.multiple_choice_prompt(QUESTIONS[0]).startswith(
        "The following are multiple choice questions (with answers).\n\n2 + 2?"
    )


def test_choices_are_the_likeliest_letters():
    seen = []

    def log_likelihood(prompts, letters):
        seen.append((prompts, letters))
        return np.array([-1.0, -0.5, -3.0, -2.0, -2.0])

    result = text.multiple_choice(QUESTIONS, log_likelihood)
    assert result[:2] == (1, 2) and result.chosen.tolist() == [1, 1]  # of equals the first
    (prompts, letters) = seen[0]
    assert len(seen) == 1 and letters == [" A", " B", " A", " B", " C"]
    assert prompts[0] == prompts[1] == text.multiple_choice_prompt(QUESTIONS[0]) and prompts[2].endswith(
        "C. quick\nAnswer:"
    )
    with pytest.raises(InputError, match="5 finite"):
        text.multiple_choice(QUESTIONS, lambda *_: np.array([0.0, 0.0, 0.0, 0.0, -np.inf]))
    with pytest.raises(InputError, match="not asked"):
        text.multiple_choice(QUESTIONS, log_likelihood, shots=QUESTIONS[:1])


def test_choices_of_likelihoods_that_are_there_already():
    prompts, letters = text.choice_rows(QUESTIONS)
    assert len(prompts) == 5 and letters == [" A", " B", " A", " B", " C"]
    assert text.chosen(QUESTIONS, np.array([-1.0, -2.0, -0.1, -3.0, -0.2]))[:2] == (1, 2)
    with pytest.raises(InputError, match="Expected 5 finite"):
        text.chosen(QUESTIONS, np.zeros(4))
    with pytest.raises(InputError, match="questions"):
        text.choice_rows(())


def test_questions_from_json_lines(tmp_path):
    path = tmp_path / "mmlu.jsonl"
    lines = [{"question": q.question, "choices": q.choices, "answer": q.answer} for q in QUESTIONS]
    lines[0]["answer"] = "B"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert text.read_questions(path) == QUESTIONS


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1]",
        '{"question": "a", "choices": ["b"], "answer": 0}',
        '{"question": "a", "choices": ["b", "c"], "answer": 2}',
        '{"question": "a", "choices": ["b", "c"], "answer": "Z"}',
        '{"question": "a", "answer": 0}',
    ],
)
def test_lines_that_are_no_questions(tmp_path, line):
    path = tmp_path / "mmlu.jsonl"
    path.write_text('{"question": "a", "choices": ["b", "c"], "answer": 0}\n' + line)
    with pytest.raises(InputError, match="line 2"):
        text.read_questions(path)
    with pytest.raises(InputError, match="no file"):
        text.read_questions(tmp_path / "nothing")
