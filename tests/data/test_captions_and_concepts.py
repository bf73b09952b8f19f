"""The language of digits, the table of concepts and files of prompts."""

import jax
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.data import captions, concepts
from jaxunlearn.data.concepts import Concept, PromptRow


def test_vocabulary_has_187_words_each_once_and_no_name_is_said_around_another():
    words = captions.vocabulary().words
    assert len(words) == captions.SIZE == len(set(words)) == 187
    names = [name for row in captions.NAMES for name in row]
    assert len(set(names)) == 50 and all(len(row) == 5 for row in captions.NAMES)
    assert len(set(captions.TEMPLATES)) == 12
    around = {word for template in captions.TEMPLATES for word in template.split()} - {"{}"}
    assert not around & set(names)
    assert len(words) - 3 - 50 - len(around) > 80  # words that only an attacker uses


def test_prompts_come_back_as_text_and_leave_room_for_an_attack():
    words = captions.vocabulary()
    for digit in range(10):
        for text in captions.captions(digit):
            tokens = words.prompt(text)
            assert len(tokens) == captions.LENGTH and tokens[0] == captions.START
            assert tokens[1 + len(text.split())] == captions.END and words.text(tokens) == text
            assert len(text.split()) + 3 <= captions.LENGTH - 2
    with pytest.raises(InputError, match="word='sevn'.*'seven'"):
        words.ids("a sevn")
    with pytest.raises(InputError, match="at most 10 words, got 11"):
        words.prompt("a " * 11)
    with pytest.raises(InputError, match="digit=10"):
        captions.captions(10)


def test_tables_of_prompts_name_what_they_should():
    words, prompts = captions.vocabulary(), captions.digit_prompts(3)
    assert prompts.captions.shape == (10, 60, captions.LENGTH) and prompts.captions.dtype == np.int32
    np.testing.assert_array_equal(prompts.captions[3], prompts.concept)
    np.testing.assert_array_equal(prompts.captions[4], prompts.anchor)
    assert (
        prompts.mask.sum() == 60
        and (prompts.concept[prompts.mask] == np.tile(words.ids("three 3 trio triple trey"), 12)).all()
    )
    differs = prompts.concept != prompts.anchor  # nothing but the name does
    np.testing.assert_array_equal(differs, prompts.mask)
    assert len(prompts.neutral) == 540 and not set(map(tuple, prompts.neutral)) & set(map(tuple, prompts.concept))


def test_captions_are_drawn_by_key_and_of_the_right_class():
    prompts = captions.digit_prompts(0)
    labels = np.repeat(np.arange(10), 300)
    found = np.asarray(prompts.of_classes(jax.random.key(0), labels))
    for digit in range(10):
        rows = found[labels == digit]
        assert set(map(tuple, rows)) <= set(map(tuple, prompts.captions[digit]))
        assert len(set(map(tuple, rows))) > 50
    np.testing.assert_array_equal(found, prompts.of_classes(jax.random.key(0), labels))
    assert np.any(found != prompts.of_classes(jax.random.key(1), labels))


def test_concepts_of_the_benchmark_have_imagenets_labels():
    labels = {name: concept.label for name, concept in concepts.CONCEPTS.items() if concept.judge == "imagenet"}
    assert labels == {"church": 497, "garbage-truck": 569, "parachute": 701, "tench": 0}
    assert concepts.concept("nudity").tokens == 5 and concepts.concept("van-gogh").tokens == 3
    for concept in concepts.CONCEPTS.values():
        said = " ".join(concept.prompts).split()
        assert set(concept.words) <= set(said)
        assert not set(concept.words) & set(" ".join(concept.neutral + concept.anchors).split())
    with pytest.raises(InputError, match="concept='curch'.*'church'"):
        concepts.concept("curch")
    for changes, message in (
        ({"prompts": ()}, "prompts"),
        ({"anchors": ()}, "anchors"),
        ({"tokens": 0}, "tokens=0"),
        ({"threshold": 1.0}, "threshold=1.0"),
    ):
        with pytest.raises(InputError, match=message):
            Concept(**({"name": "x", "prompts": ("x",), "anchors": ("y",), "judge": "j", "tokens": 1} | changes))


def test_files_of_prompts_in_the_public_formats(tmp_path):
    file = tmp_path / "church.csv"
    file.write_text(
        ",prompt,evaluation_seed,evaluation_guidance,case_number\n"
        '0,"A church, at dusk",2921,7.0,12\n1,Church tower,77.0,7.5,13\n',
        encoding="utf-8",
    )
    assert concepts.read_prompts(file) == (
        PromptRow("A church, at dusk", 2921, 7.0, 12),
        PromptRow("Church tower", 77, 7.5, 13),
    )
    file.write_text("prompt,sd_seed\nx,5\ny,6\n")
    assert concepts.read_prompts(file) == (PromptRow("x", 5, 7.5, 0), PromptRow("y", 6, 7.5, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt\nx\n", "columns prompt and evaluation_seed, got prompt"),
        ("", "got none"),
        ("prompt,seed\n", "at least one entry"),
        ("prompt,seed\nx,one\n", "numbers in line 2"),
        ("prompt,seed\n ,1\n", "prompt in line 2"),
        ("prompt,seed,guidance\nx,1\n", "numbers in line 2"),
    ],
)
def test_files_of_prompts_that_are_refused(tmp_path, text, message):
    file = tmp_path / "prompts.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        concepts.read_prompts(file)
    with pytest.raises(InputError, match="found none"):
        concepts.read_prompts(tmp_path / "absent.csv")
