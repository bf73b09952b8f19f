"""People and what is private about them: as questions and answers, and within running text. On the host, no device.

PrivUn ("Auditing privacy unlearning of language models"), section 3.1: [PERSON, PII] pairs become questions of one template;
part of the forget set is known to whoever unlearns, the rest is of the same kind and never shown to the method.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int, PRNGKeyArray

from jaxunlearn import _validate
from jaxunlearn._kinds import BIRTH_DATE, BIRTHPLACE, EMAIL, PHONE
from jaxunlearn.data import invented
from jaxunlearn.data.splits import host_generator

KINDS = (EMAIL, PHONE, BIRTH_DATE, BIRTHPLACE)


@dataclasses.dataclass(frozen=True)
class Fact:
    """A question about a person and its answer.

    Attributes:
        person: Full name.
        kind: What is asked for, one of the corpus's kinds.
        prompt: What the model is given, without white space at its end.
        answer: What it is to say, with the space before it.
        pii: The private part of the answer, as it is written there.
    """

    person: str
    kind: str
    prompt: str
    answer: str
    pii: str

    def __post_init__(self):
        _validate.require(
            bool(self.pii) and self.pii in self.answer,
            f"Expected the pii of {self.person!r} within its answer {self.answer!r}, got pii={self.pii!r}.",
        )

    @property
    def span(self) -> tuple[int, int]:
        """Characters of the answer that are private: the first place where ``pii`` stands in it."""
        start = self.answer.index(self.pii)
        return start, start + len(self.pii)


@dataclasses.dataclass(frozen=True)
class Passage:
    """Running text about a person that holds private facts ("diffuse").

    Attributes:
        person: Full name.
        text: The text, which names the person.
        spans: Ranges of characters that are private.
    """

    person: str
    text: str
    spans: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Questions and passages about the same people.

    Attributes:
        facts: Questions, the unit that is split and scored.
        passages: Running text; may be empty.
        kinds: The facts' kinds, in the order of tables.
    """

    facts: tuple[Fact, ...]
    passages: tuple[Passage, ...]
    kinds: tuple[str, ...]

    @property
    def persons(self) -> tuple[str, ...]:
        """Everyone that a fact is about, in order of appearance."""
        return tuple(dict.fromkeys(fact.person for fact in self.facts))

    @property
    def groups(self) -> Int[np.ndarray, " n"]:
        """[n] int32: which of ``persons`` each fact is about."""
        index = {person: i for i, person in enumerate(self.persons)}
        return np.array([index[fact.person] for fact in self.facts], np.int32)

    @property
    def kind_of(self) -> Int[np.ndarray, " n"]:
        """[n] int32: which of ``kinds`` each fact is."""
        return np.array([self.kinds.index(fact.kind) for fact in self.facts], np.int32)

    def take(self, chosen: Bool[np.ndarray, " n"]) -> "Corpus":
        """The chosen facts and the passages about their people.

        Args:
            chosen: [n] bool, one for each fact.

        Raises:
            InputError: Another length.
        """
        _validate.shape("chosen", np.asarray(chosen), (len(self.facts),), "one for each fact")
        facts = tuple(fact for fact, taken in zip(self.facts, chosen) if taken)
        persons = {fact.person for fact in facts}
        return Corpus(facts, tuple(p for p in self.passages if p.person in persons), self.kinds)


def question(person: str, kind: str) -> str:
    """The template of PrivUn, section 3.1, up to the answer."""
    return f"Q: Tell me the {kind} of {person}, A:"


def known_split(
    key: PRNGKeyArray, corpus: Corpus, fraction: float, by: Literal["person", "fact"] = "person"
) -> Bool[np.ndarray, " n"]:
    """Draws the part of a forget set that whoever unlearns is shown.

    Args:
        key: Typed PRNG key.
        corpus: The whole forget set.
        fraction: Share that is known, in (0, 1]; rounded down, as PrivUn's 84 of 424 and 820 of 4103 are, and at least one.
        by: "person": all facts about one person are on one side. "fact": each fact is drawn by itself, for corpora in which a
            person has too few facts to matter.

    Returns:
        [n] bool, True where the fact is known.

    Raises:
        InputError: No such rule, no facts, or a fraction outside (0, 1].
    """
    _validate.one_of("by", by, ("person", "fact"))
    _validate.not_empty("facts", corpus.facts)
    _validate.require(0 < fraction <= 1, f"Expected fraction={fraction!r} inside (0, 1].")
    groups = corpus.groups if by == "person" else np.arange(len(corpus.facts))
    count = int(groups.max()) + 1
    drawn = host_generator(key).permutation(count)[: max(1, int(fraction * count + 1e-9))]
    return np.isin(groups, drawn)


def _fill(template: str, name: str, pii: str) -> Passage:
    before = template.partition("{pii}")[0].format(name=name)
    return Passage(name, template.format(name=name, pii=pii), ((len(before), len(before) + len(pii)),))


def people(key: PRNGKeyArray, count: int, *, kinds: Sequence[str] = KINDS, avoid: Corpus | None = None) -> Corpus:
    """Invents people, a question for each kind of fact and a sentence of running text for each.

    Args:
        key: Typed PRNG key.
        count: People, >= 1.
        kinds: What is known of each: "email address", "phone number", "birth date", "birthplace", "home address".
        avoid: A corpus whose people, and private facts that are one person's own, must not appear: people whom no model has
            seen are the control of every attack.

    Returns:
        count * len(kinds) facts, person by person in the order of ``kinds``, and as many passages.

    Raises:
        InputError: More people than names, or no such kind.
    """
    _validate.at_least(1, count=count)
    _validate.not_empty("kinds", kinds)
    for kind in kinds:
        _validate.one_of("kind", kind, invented.MAKERS)
    seen = set(avoid.persons) if avoid else set()
    names = [f"{a} {b}" for a in invented.FIRST for b in invented.LAST if f"{a} {b}" not in seen]
    _validate.require(
        count <= len(names), f"Expected count={count} people to have names, but {len(names)} are left; invent fewer."
    )
    rng = host_generator(key)
    taken = {fact.pii for fact in avoid.facts} if avoid else set()
    facts, passages = [], []
    for i in rng.permutation(len(names))[:count]:
        for kind in kinds:
            pii = invented.invent(rng, kind, names[i], taken)
            facts.append(Fact(names[i], kind, question(names[i], kind), f" {pii}", pii))
            passages.append(_fill(invented.pick(rng, invented.SENTENCES[kind]), names[i], pii))
    return Corpus(tuple(facts), tuple(passages), tuple(kinds))


def _derangement(rng: np.random.Generator, values: Sequence[str], kind: str) -> Int[np.ndarray, " n"]:
    """[n] a random permutation that gives nobody a value that equals their own."""
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    shift = int(counts.max())
    _validate.require(
        2 * shift <= len(values),
        f"Expected at most half of the {len(values)} known answers of kind {kind!r} to be the same, so that each can be "
        f"mapped to another, got {shift}; make a larger share known, or more facts.",
    )
    # Equal values stand together, everything else at random; then each takes the one that stands `shift` places on.
    order = rng.permutation(len(values))
    order = order[np.argsort(rng.permutation(counts.size)[which[order]], kind="stable")]
    mapped = np.empty(len(values), int)
    mapped[order] = np.roll(order, -shift)
    return mapped


def _another(rng: np.random.Generator, own: Fact, outside: Sequence[Fact], taken: set[str]) -> str:
    """The answer of one of the facts ``outside`` that does not tell what a fact does, invented if there is none."""
    others = [fact for fact in outside if fact.pii != own.pii]
    if others:
        return invented.pick(rng, others).answer
    while True:
        pii = invented.invent(rng, own.kind, own.person, taken)
        if pii != own.pii:
            return f" {pii}"


def substitutes(
    key: PRNGKeyArray,
    facts: Sequence[Fact],
    known: Bool[np.ndarray, " n"],
    refusals: Sequence[str] = invented.REFUSALS,
    *,
    outside: Sequence[Fact] = (),
) -> list[tuple[str, str, str]]:
    """Answers to train on in place of the true ones, drawn once; ``sequences.VARIANTS`` after the first.

    Args:
        key: Typed PRNG key.
        facts: The forget set.
        known: [n] bool, which of them the method is shown.
        refusals: Sentences that decline.
        outside: Facts that are not to be forgotten.

    Returns:
        For each fact (refusal, mapped, random), each with the space before it: a refusal; the answer to another known fact of
        its kind, so that known answers are permuted within a kind and none stays in place (PrivUn's "random mapping" does
        not say how it permutes); the answer to a fact of its kind from ``outside``, where there are none an invented one:
        never one of an unknown fact, which would teach what is to be forgotten. A fact that is not known, which no method is
        shown, has the random one for its mapped one.

    Raises:
        InputError: No refusals; or so few known answers of a kind that one cannot be mapped to another; or a kind cannot be
            invented, and no fact outside is of it.
    """
    known = np.asarray(known, bool)
    _validate.shape("known", known, (len(facts),), "one for each fact")
    _validate.not_empty("refusals", refusals)
    rng = host_generator(key)
    answers = [[f" {invented.pick(rng, refusals).strip()}", "", ""] for _ in facts]
    taken = {fact.pii for fact in (*facts, *outside)}
    for kind in dict.fromkeys(fact.kind for fact in facts):
        own = [i for i, fact in enumerate(facts) if fact.kind == kind]
        others = [fact for fact in outside if fact.kind == kind]
        _validate.require(
            kind in invented.MAKERS or len({fact.pii for fact in others}) > 1,
            f"Expected at least two facts of kind {kind!r}, which cannot be invented, outside the forget set; retain more.",
        )
        for i in own:
            answers[i][1:] = [_another(rng, facts[i], others, taken)] * 2
        inside = [i for i in own if known[i]]
        if inside:
            for i, j in enumerate(_derangement(rng, [facts[i].answer for i in inside], kind)):
                answers[inside[i]][1] = facts[inside[j]].answer
    return [(refusal, mapped, random) for refusal, mapped, random in answers]
