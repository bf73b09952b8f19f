"""The data of a study: whose they are, as questions and running text."""

import dataclasses
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxunlearn._validate import InputError, require
from jaxunlearn.data import enron, files, invented, pii, tofu
from jaxunlearn.data.pii import Corpus, Fact
from jaxunlearn.data.splits import host_generator
from jaxunlearn.pipeline.privacy.config import Privacy

TEXT = "grimm_tales.txt"

# Numbers folded into the key of the data, one per purpose.
_FORGOTTEN, _RETAINED, _CONTROL, _SENTENCES, _CONTACTS, _AUTHORS = range(6)


class Graph(NamedTuple):
    """Who is in touch with whom.

    Attributes:
        nodes: Names, each once.
        edges: [e, 2] places in ``nodes``.
        weights: [e] > 0.
        node_of: [nf] the node of whom each fact to be forgotten is about, -1 where there is none.
    """

    nodes: tuple[str, ...]
    edges: np.ndarray
    weights: np.ndarray
    node_of: np.ndarray


def _isolated(corpus: Corpus) -> Graph:
    """Everyone by themselves."""
    return Graph(corpus.persons, np.zeros((0, 2), int), np.zeros(0), corpus.groups)


@dataclasses.dataclass(frozen=True)
class Material:
    """Whose data a study is about.

    Attributes:
        retained: People (or questions) that stay.
        forgotten: Those that are to be forgotten, known and unknown.
        control: Those that no model has seen.
        text: Running text to train on.
        held_out: Running text that no model sees.
        refusals: Sentences that decline to answer.
        graph: Who is in touch with whom.
        title: In words.
    """

    retained: Corpus
    forgotten: Corpus
    control: Corpus
    text: str
    held_out: str
    refusals: tuple[str, ...]
    graph: Graph
    title: str

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All questions: those to be forgotten, the retained ones, the control's."""
        return self.forgotten.facts + self.retained.facts + self.control.facts

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What tells these data from others."""
        words = [dataclasses.astuple(fact) for fact in self.facts]
        text = [self.text, self.held_out, [p.text for p in (*self.forgotten.passages, *self.retained.passages)]]
        digest = hashlib.sha256(json.dumps([words, text, self.graph.edges.tolist()]).encode()).hexdigest()
        return {"facts": len(words), "sha256": digest[:16]}


def _key(root: PRNGKeyArray, purpose: int) -> PRNGKeyArray:
    return jax.random.fold_in(root, purpose)


def _read_text(config: Privacy) -> tuple[str, str]:
    """Text to train on and text to hold out, the latter from the end."""
    wanted = config.people.characters
    path = files.data_dir() / TEXT if config.people.text is None else config.people.text
    if not path.is_file():
        if config.people.text is not None:
            raise InputError(f"Found no file people.text={path}; name one of plain text.")
        raise files.missing(
            "text",
            files.data_dir(),
            f"any plain English text of {wanted:,} characters as {TEXT}",
            "name it by --people.text",
        )
    try:
        text = Path(str(path)).read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise files.unreadable("UTF-8 text", Path(str(path)), error) from error
    require(
        len(text) >= wanted, f"Expected at least people.characters={wanted:,} characters in {path}, got {len(text):,}."
    )
    cut = round(wanted * 0.9)
    return text[:cut], text[cut:wanted]


def _people(config: Privacy, root: PRNGKeyArray) -> Material:
    sizes = config.people
    everyone = pii.people(_key(root, _FORGOTTEN), sizes.forgotten + sizes.retained)
    is_forgotten = everyone.groups < sizes.forgotten
    control = pii.people(_key(root, _CONTROL), sizes.control, avoid=everyone)
    rng = host_generator(_key(root, _SENTENCES))

    def told(corpus: Corpus) -> Corpus:
        """With so many sentences about each person, drawn at random."""
        by_person: dict[str, list] = {}
        for passage in corpus.passages:
            by_person.setdefault(passage.person, []).append(passage)
        kept = [p for own in by_person.values() for p in (own[i] for i in rng.permutation(len(own))[: sizes.sentences])]
        return dataclasses.replace(corpus, passages=tuple(kept))

    # Nobody writes to anybody here: contacts drawn at random are the null of association along a graph.
    corpus = told(everyone.take(is_forgotten))
    drawn = host_generator(_key(root, _CONTACTS)).integers(0, sizes.forgotten, (3 * sizes.forgotten, 2))
    contacts = drawn[drawn[:, 0] != drawn[:, 1]]
    text, held_out = _read_text(config)
    return Material(
        retained=told(everyone.take(~is_forgotten)),
        forgotten=corpus,
        control=control,
        text=text,
        held_out=held_out,
        refusals=invented.REFUSALS,
        graph=Graph(corpus.persons, contacts, np.ones(len(contacts)), corpus.groups),
        title=f"{sizes.forgotten} of {sizes.forgotten + sizes.retained} invented people, {len(everyone.kinds)} facts each",
    )


def _tofu(config: Privacy, root: PRNGKeyArray) -> Material:
    limit = config.tofu.longest

    def short(corpus: Corpus) -> Corpus:
        """Without what is too long."""
        taken = np.array([limit is None or len(fact.prompt + fact.answer) <= limit for fact in corpus.facts])
        require(
            taken.sum() > 1,
            f"Expected two questions of at most tofu.longest={limit} characters with their answers; allow more.",
        )
        return corpus.take(taken)

    corpus, others = short(tofu.births(config.tofu.strict)), short(tofu.others())
    order = host_generator(_key(root, _AUTHORS)).permutation(len(corpus.persons))
    corpus = corpus.take(np.isin(corpus.groups, order[: config.tofu.authors]))
    chosen = np.zeros(len(others.facts), bool)
    chosen[host_generator(_key(root, _RETAINED)).permutation(len(chosen))[: config.tofu.retained]] = True
    _, held_out = _read_text(config)
    return Material(
        retained=others.take(chosen),
        forgotten=corpus,
        control=short(tofu.births(config.tofu.strict, holdout=True)),
        text="",
        held_out=held_out,
        refusals=tofu.refusals(),
        graph=_isolated(corpus),
        title=f"{len(corpus.facts)} questions about the births of TOFU's authors",
    )


def _enron(config: Privacy, root: PRNGKeyArray) -> Material:
    assert config.maildir is not None
    mail = enron.read_maildir(Path(str(config.maildir)), exclude=config.exclude)
    corpus, persons = mail.corpus, mail.corpus.persons
    require(
        len(persons) > config.people.retained + 1,
        f"Expected more than people.retained={config.people.retained} people in {config.maildir}, found {len(persons)}; "
        "retain fewer.",
    )
    order = host_generator(_key(root, _RETAINED)).permutation(len(persons))
    stays = np.isin(corpus.groups, order[: config.people.retained])
    forgotten = corpus.take(~stays)
    text, held_out = _read_text(config)
    return Material(
        retained=corpus.take(stays),
        forgotten=forgotten,
        control=pii.people(_key(root, _CONTROL), config.people.control, kinds=corpus.kinds, avoid=corpus),
        text=text,
        held_out=held_out,
        refusals=invented.REFUSALS,
        graph=Graph(mail.nodes, mail.edges, mail.weights, mail.node_of[~stays]),
        title=f"{len(forgotten.persons)} of {len(persons)} people of a maildir",
    )


def load(config: Privacy, root: PRNGKeyArray) -> Material:
    """Loads or invents the data of a study."""
    return {"people": _people, "tofu": _tofu, "enron": _enron}[config.dataset](config, root)
