import re
from collections import Counter

import jax
import numpy as np
import pytest

from jaxunlearn import _kinds
from jaxunlearn._validate import InputError
from jaxunlearn.data import addresses, invented, pii

KEY, OTHER_KEY = jax.random.key(0), jax.random.key(1)
ALL = (*pii.KINDS, _kinds.ADDRESS)


def made(persons=6, kinds=("a", "b")):
    facts = [pii.Fact(f"P{i}", k, f"Q: {k} of P{i}, A:", f" {k}{i}", f"{k}{i}") for i in range(persons) for k in kinds]
    return pii.Corpus(tuple(facts), (), tuple(kinds))


@pytest.fixture(scope="module")
def corpus():
    return pii.people(KEY, 300, kinds=ALL)


def test_each_person_has_a_fact_of_each_kind(corpus):
    assert len(corpus.persons) == 300 and corpus.kinds == ALL and len(corpus.facts) == 1500
    assert corpus.groups.tolist() == [i // 5 for i in range(1500)] and corpus.kind_of.tolist() == list(range(5)) * 300
    fact = corpus.facts[1]
    assert fact.prompt == f"Q: Tell me the phone number of {fact.person}, A:" and fact.answer == f" {fact.pii}"
    assert fact.answer[slice(*fact.span)] == fact.pii


def test_everything_is_fictitious(corpus):
    forms = {
        _kinds.EMAIL: r"[a-z0-9._]+@example\.(com|org|net)",
        _kinds.PHONE: r"\([2-9]\d\d\) 555-01\d\d",
        _kinds.BIRTH_DATE: rf"([1-9]|1\d|2[0-8]) ({'|'.join(invented.MONTHS)}) (19[3-9]\d|200[0-5])",
        _kinds.BIRTHPLACE: "|".join(invented.TOWNS),
        _kinds.ADDRESS: rf"[1-9]\d{{0,2}} ({'|'.join(invented.STREETS)}), ({'|'.join(invented.TOWNS)})",
    }
    for fact in corpus.facts:
        assert re.fullmatch(forms[fact.kind], fact.pii), fact
        assert _kinds.first(fact.answer, fact.kind) == fact.pii  # the attack's way of looking finds it


def test_what_is_ones_own_is_nobody_elses(corpus):
    for kind in (_kinds.EMAIL, _kinds.PHONE, _kinds.ADDRESS):
        own = [fact.pii for fact in corpus.facts if fact.kind == kind]
        assert len(set(own)) == len(own) == 300
    assert (
        len(set(invented.LAST)) == 252
        and len(set(invented.TOWNS)) == 352
        and len(set(invented.FIRST)) == len(invented.FIRST) == 77
    )


def test_passages_name_the_person_and_mark_what_is_private(corpus):
    assert len(corpus.passages) == len(corpus.facts)
    for fact, passage in zip(corpus.facts, corpus.passages):
        assert passage.person == fact.person and passage.person in passage.text
        assert [passage.text[a:b] for a, b in passage.spans] == [fact.pii]


def test_a_span_is_marked_where_the_fact_stands_not_where_the_name_has_it():
    passage = pii._fill("{name} grew up in {pii}.", "Rosdane Dane", "dane")
    assert passage.spans == ((24, 28),) and passage.text[24:28] == "dane"


def test_the_key_decides(corpus):
    assert pii.people(KEY, 300, kinds=ALL) == corpus
    other = pii.people(OTHER_KEY, 300, kinds=ALL)
    assert len(set(other.persons) & set(corpus.persons)) < 30


def test_a_control_shares_nobody_and_nothing_of_ones_own(corpus):
    control = pii.people(OTHER_KEY, 1000, avoid=corpus)
    assert not set(control.persons) & set(corpus.persons)
    for kind in (_kinds.EMAIL, _kinds.PHONE):
        assert not {f.pii for f in control.facts if f.kind == kind} & {f.pii for f in corpus.facts}


def test_people_run_out():
    with pytest.raises(InputError, match="count=19405.*19404 are left"):
        pii.people(KEY, 77 * 252 + 1)
    with pytest.raises(InputError, match="kind='shoe size'"):
        pii.people(KEY, 1, kinds=("shoe size",))
    with pytest.raises(InputError, match="count=0"):
        pii.people(KEY, 0)


def test_unique_facts_run_out():
    everything = {f"({area}) 555-01{n:02d}" for area in range(200, 1000) for n in range(100)}
    with pytest.raises(InputError, match="phone number that is not taken, but 80000 are"):
        invented.invent(np.random.default_rng(0), _kinds.PHONE, "Clara Vanmont", everything)


@pytest.mark.parametrize(
    ("name", "address", "rule"),
    [
        ("Clara Vanmont", "Clara.Vanmont@example.com", "first.last"),
        ("Clara Vanmont", "clara_vanmont@example.com", "first_last"),
        ("Clara Vanmont", "cvanmont@example.com", "flast"),
        ("Clara Vanmont", "claravanmont@x.example.org", "firstlast"),
        ("Clara Vanmont", "vanmont.clara@example.com", "last.first"),
        ("Clara Vanmont", "cv@example.com", "fl"),
        ("Clara Vanmont", "clara@example.com", "first"),
        ("Clara Vanmont", "vanmont@example.com", "last"),
        ("Clara J. Vanmont", "clara.j.vanmont@example.com", "first.m.last"),
        ("Clara J. Vanmont", "cjvanmont@example.com", "fmlast"),
        ("Clara J. Vanmont", "clara.vanmont@example.com", "first.last"),
        ("José O'Núñez", "jose.onunez@example.com", "first.last"),
        ("Clara", "clara@example.com", "first"),
        ("Clara Vanmont", "clara.vanmont2@example.com", "z"),
        ("Clara Vanmont", "kite7@example.com", "z"),
        ("Clara", "-@example.com", "z"),
        ("", "@example.com", "z"),
    ],
)
def test_patterns_of_addresses(name, address, rule):
    assert addresses.pattern(name, address) == rule


def test_every_rule_is_recognised_and_no_handle_is(corpus):
    for rule in addresses.RULES:
        assert (
            addresses.pattern("Clara Jane Vanmont", f"{addresses.derived('Clara Jane Vanmont', rule)}@example.com")
            == rule
        )
    handles = {a + b for a in invented.HANDLES for b in invented.HANDLES}
    emails = [fact for fact in corpus.facts if fact.kind == _kinds.EMAIL]
    classes = Counter(addresses.pattern(fact.person, fact.pii) for fact in emails)
    assert set(classes) == {*invented._COMMON, "z"}
    by_handle = sum(fact.pii.partition("@")[0][:-2] in handles for fact in emails)
    assert classes["z"] == by_handle
    assert abs(1 - by_handle / 300 - invented.DERIVABLE) < 4 * (0.62 * 0.38 / 300) ** 0.5


def test_known_people_are_known_entirely():
    corpus = made(10)
    for seed in range(5):
        known = pii.known_split(jax.random.key(seed), corpus, 0.35)
        assert known.dtype == bool and known.sum() == 2 * 3  # rounded down
        assert (known[::2] == known[1::2]).all()
    drawn = {pii.known_split(jax.random.key(seed), corpus, 0.1).tobytes() for seed in range(20)}
    assert len(drawn) > 4


@pytest.mark.parametrize(("fraction", "count"), [(0.2, 84), (0.5, 212), (1.0, 424), (0.001, 1)])
def test_known_facts_as_the_paper_counts_them(fraction, count):
    known = pii.known_split(KEY, made(212), fraction, by="fact")
    assert known.sum() == count
    if count == 84:
        assert (known[::2] != known[1::2]).any()


@pytest.mark.parametrize("fraction", [0.0, 1.01, -1])
def test_fractions(fraction):
    with pytest.raises(InputError, match="fraction"):
        pii.known_split(KEY, made(), fraction)
    with pytest.raises(InputError, match="by='people'"):
        pii.known_split(KEY, made(), 0.5, by="people")  # pyrefly: ignore


def test_taking_a_part(corpus):
    known = pii.known_split(KEY, corpus, 0.1)
    part = corpus.take(known)
    assert len(part.facts) == len(part.passages) == 150 and set(part.persons) == {p.person for p in part.passages}
    assert not set(part.persons) & set(corpus.take(~known).persons)
    with pytest.raises(InputError, match="chosen"):
        corpus.take(known[:-1])


def test_a_fact_holds_what_is_private():
    with pytest.raises(InputError, match="Clara"):
        pii.Fact("Clara Vanmont", "email address", "Q:", " a@example.com", "b@example.com")


def test_substitutes(corpus):
    known = pii.known_split(KEY, corpus, 0.3)
    staying = pii.people(OTHER_KEY, 60, kinds=ALL, avoid=corpus)

    def drawn(key):
        return pii.substitutes(key, corpus.facts, known, outside=staying.facts)

    answers = drawn(OTHER_KEY)
    assert answers == drawn(OTHER_KEY) != drawn(KEY)
    refusals, mapped, random = (np.array(column) for column in zip(*answers))
    true = np.array([fact.answer for fact in corpus.facts])
    assert {r[1:] for r in refusals} == set(invented.REFUSALS) and all(r.startswith(" ") for r in refusals)
    assert not (mapped == true).any() and not (random == true).any()
    for kind in range(len(ALL)):
        of_kind = corpus.kind_of == kind
        inside = of_kind & known
        assert sorted(mapped[inside]) == sorted(true[inside])  # a permutation
        # Never what an unknown person's is: that would teach what is to be forgotten.
        assert set(random[of_kind]) <= {fact.answer for fact in staying.facts if fact.kind == ALL[kind]}
    assert (mapped[~known] == random[~known]).all()


def test_where_nobody_stays_the_random_answer_is_invented(corpus):
    everything = np.ones(len(corpus.facts), bool)
    answers = pii.substitutes(KEY, corpus.facts, everything)
    assert all(random != fact.answer for fact, (_, _, random) in zip(corpus.facts, answers))
    assert all(_kinds.first(random, fact.kind) == random[1:] for fact, (_, _, random) in zip(corpus.facts, answers))
    emails = {fact.answer for fact in corpus.facts if fact.kind == _kinds.EMAIL}
    invented_ones = [random for fact, (_, _, random) in zip(corpus.facts, answers) if fact.kind == _kinds.EMAIL]
    assert not emails & set(invented_ones) and len(set(invented_ones)) == 300
    with pytest.raises(InputError, match="'a', which cannot be invented"):
        pii.substitutes(KEY, made(2).facts, np.ones(4, bool))


def test_a_mapping_never_gives_back_an_equal_answer():
    values = ["x"] * 5 + ["y"] * 3 + ["z", "w"]
    seen = set()
    for seed in range(50):
        mapped = pii._derangement(np.random.default_rng(seed), values, "a")
        assert sorted(mapped) == list(range(10)) and all(values[i] != values[j] for i, j in enumerate(mapped))
        seen.add(tuple(mapped))
    assert len(seen) > 40
    with pytest.raises(InputError, match="at most half of the 3 known answers of kind 'a'.*got 2"):
        pii._derangement(np.random.default_rng(0), ["x", "x", "y"], "a")
    facts = made(2, kinds=("a",)).facts
    with pytest.raises(InputError, match="at most half"):
        staying = tuple(pii.Fact("Mona Kin", "a", "Q:", f" {pii_}", pii_) for pii_ in ("one", "two"))
        known = np.array([True, False, False, False, False])
        pii.substitutes(KEY, facts + made(3, kinds=("a",)).facts, known, outside=staying)
