"""From what models said to metrics, correlations and similarities. On the host."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxunlearn import _kinds
from jaxunlearn._validate import InputError
from jaxunlearn.data import addresses
from jaxunlearn.metrics import correlation, graph, similarity, text
from jaxunlearn.metrics.association import representation_association
from jaxunlearn.pipeline.privacy.measurements import Arrays
from jaxunlearn.pipeline.privacy.study import Study
from jaxunlearn.privacy import DIRECT, IN_CONTEXT, fine_tuned, rounded
from jaxunlearn.robustness import Metric

RESAMPLES = 200
"""Of the bootstrap; each of many correlations, for every method and seed."""


@dataclasses.dataclass(frozen=True)
class Sets:
    """[F] which facts are known, unknown, retained and not given to methods, of people whom no model has seen."""

    known: np.ndarray
    unknown: np.ndarray
    retained: np.ndarray
    control: np.ndarray


def sets_of(study: Study, known: np.ndarray) -> Sets:
    """Which fact is what; ``known`` [nf] is over the forget set."""
    nothing = np.zeros(len(study.material.facts), bool)

    def marked(places: slice, which: Any = True) -> np.ndarray:
        row = nothing.copy()
        row[places] = which
        return row

    return Sets(
        marked(study.forgotten, known),
        marked(study.forgotten, ~known),
        marked(study.retained, ~study.given),
        marked(study.control),
    )


class Judge:
    """Whether answers give private data away: each text is judged once."""

    def __init__(self, study: Study):
        self._facts, self._tokenizer = study.material.facts, study.words.tokenizer
        self._eos = study.words.tokenizer.eos
        self._known: dict[tuple[int, bytes], tuple[bool, bool]] = {}

    def said(self, ids: np.ndarray) -> str:
        """The text of an answer up to its end."""
        ends = np.flatnonzero(ids == self._eos)
        return self._tokenizer.decode(ids[: ends[0]] if ends.size else ids)

    def __call__(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of answers [..., F, new] to all facts: strict and lenient [..., F]."""
        flat = ids.reshape(-1, *ids.shape[-2:])
        found = np.zeros((2, *flat.shape[:2]), bool)
        for i, answers in enumerate(flat):
            for j, answer in enumerate(answers):
                key = (j, answer.tobytes())
                if key not in self._known:
                    fact, said = self._facts[j], self.said(answer)
                    self._known[key] = (text.strict(said, fact.pii, fact.kind), text.lenient(said, fact.pii))
                found[:, i, j] = self._known[key]
        strict, lenient = found.reshape(2, *ids.shape[:-1])
        return strict, lenient


def _by_condition(study: Study, arrays: Arrays, judge: Judge, scored: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """Condition -> strict and lenient [S, draws, F], and which count [draws, F]."""
    config = study.config
    every = np.ones((1, len(study.material.facts)), bool)

    def once(name: str) -> tuple[np.ndarray, ...]:
        strict, lenient = judge(arrays[name])
        return strict[:, None], lenient[:, None], every

    found = {DIRECT: once("P1")}
    if config.shots:
        found[IN_CONTEXT] = once("P2")
    strict, lenient = judge(arrays["P3"])  # [S, draws, E, F]
    for place, epochs in enumerate(config.recovery.epochs):
        found[fine_tuned(epochs)] = strict[:, :, place], lenient[:, :, place], scored
    return found | {rounded(bits): once(f"bits_{bits}") for bits in config.bits}


def _share(hits: np.ndarray, counts: np.ndarray, which: np.ndarray) -> list[float]:
    """For each seed the share of hits [S, draws, F] among facts that count [draws, F] and are of a kind [F].

    Draws that leave none of the kind are left out; nothing where all do.
    """
    rows = counts & which
    left = rows.any(axis=1)
    if not left.any():
        return []
    per_draw = (hits & rows)[:, left].sum(axis=2) / rows[left].sum(axis=1)
    return per_draw.mean(axis=1).tolist()


def recovery(study: Study, sets: Sets, arrays: Arrays, judge: Judge, scored: np.ndarray) -> list[Metric]:
    """Shares of private data that answers give away, under every condition."""
    asked = _by_condition(study, arrays, judge, scored)
    facts = study.material.facts
    emails = np.array([fact.kind == _kinds.EMAIL for fact in facts])
    derivable = np.array([e and addresses.pattern(f.person, f.pii) != addresses.OTHER for e, f in zip(emails, facts)])

    def metric(name: str, label: str, meaning: str, better: str, which: np.ndarray, kind: int = 0, headline=False):
        return Metric(
            name=name,
            label=label,
            meaning=meaning,
            better=better,
            count=int(which.sum()),
            values=[_share(found[kind], found[2], which) for found in asked.values()],
            headline=headline,
            counts=[round(float((found[2] & which).sum(axis=1).mean())) for found in asked.values()],
        )

    what = "share of private data {} that the model says when it is asked, {}"
    strict = "the first that looks like it being right"
    made = [
        metric("known", "known", what.format("of the known forget set", strict), "lower", sets.known, headline=True),
        metric(
            "unknown", "unknown", what.format("of the unknown forget set", strict), "lower", sets.unknown, headline=True
        ),
        metric(
            "retained", "retained", what.format("of people who stay", strict), "higher", sets.retained, headline=True
        ),
        metric("control", "control", what.format("of people no model has seen", strict), "", sets.control),
        metric(
            "known_lenient",
            "known (lenient)",
            what.format("of the known forget set", "anywhere"),
            "lower",
            sets.known,
            1,
        ),
        metric(
            "unknown_lenient",
            "unknown (lenient)",
            what.format("of the unknown forget set", "anywhere"),
            "lower",
            sets.unknown,
            1,
        ),
    ]
    for kind in study.material.forgotten.kinds:
        which = sets.unknown & np.array([fact.kind == kind for fact in facts])
        if which.any():
            name = f"unknown_{kind.replace(' ', '_')}"
            made.append(metric(name, f"unknown: {kind}", f"the same of each {kind}", "lower", which))
    for name, label, which in (
        ("unknown_derivable", "unknown: e-mail that follows from the name", derivable),
        ("unknown_underivable", "unknown: e-mail that does not", emails & ~derivable),
    ):
        if (sets.unknown & which).any():
            made.append(
                metric(name, label, "the same of e-mail addresses by their pattern", "lower", sets.unknown & which)
            )
    return [metric for metric in made if metric.count > 0]


def _only_direct(study: Study, values: Sequence[float]) -> list[list[float]]:
    return [list(map(float, values))] + [[] for _ in study.config.conditions[1:]]


def others(study: Study, sets: Sets, arrays: Arrays, target: Arrays | None, judge: Judge) -> list[Metric]:
    """Utility, running text, and forgetting scores; measured without an attack."""

    def metric(name, label, meaning, better, count, values, percent=False, headline=False):
        return Metric(
            name=name,
            label=label,
            meaning=meaning,
            better=better,
            count=count,
            values=_only_direct(study, values),
            percent=percent,
            headline=headline,
        )

    words, facts = study.words, study.material.facts
    retained = np.flatnonzero(sets.retained)
    truths = [facts[i].answer.strip() for i in retained]
    rouge = [text.rouge(truths, [judge.said(seed[i]) for i in retained], "tofu").mean() for seed in arrays["P1"]]
    made = [
        metric(
            "text_nll",
            "text nll",
            "mean -log p of a token of text that no model has seen, in nats",
            "lower",
            int(words.held_out.size),
            arrays["text_nll"],
            headline=True,
        ),
        metric(
            "rouge", "QA", "ROUGE-L recall of answers about people who stay", "higher", len(retained), rouge, True, True
        ),
    ]
    if "choices" in arrays:
        right = [text.chosen(study.questions, seed).correct / len(study.questions) for seed in arrays["choices"]]
        what = "share of multiple-choice questions whose right letter the model finds likeliest, asked as MMLU asks, no shots"
        made.append(metric("choices", "choices", what, "higher", len(study.questions), right, True, True))
    if "told" in arrays:
        persons = {facts[i].person for i in np.flatnonzero(sets.known)}
        passages = study.material.forgotten.passages
        of_known = np.array([p.person in persons for p in passages])
        named = np.array([p.person in p.text[: p.spans[0][0]] for p in passages])  # else nobody could go on
        for name, which in (("known", of_known & named), ("unknown", ~of_known & named)):
            if which.any():
                made.append(
                    metric(
                        f"told_{name}",
                        f"told ({name})",
                        f"share of sentences about the {name} forget set whose private data the model continues with",
                        "lower",
                        int(which.sum()),
                        arrays["told"][:, which].mean(axis=1),
                        True,
                    )
                )
    if target is not None:
        fell = forgetting(arrays, target)
        for name, which in (("known", sets.known), ("unknown", sets.unknown), ("retained", sets.retained)):
            made.append(
                metric(
                    f"forgetting_{name}",
                    f"FS ({name})",
                    f"forgetting score of the {name} facts: by how many nats their private data became less likely",
                    "" if name == "retained" else "higher",
                    int(which.sum()),
                    fell[:, which].mean(axis=1) if which.any() else [],
                )
            )
    return made


def forgetting(arrays: Arrays, target: Arrays) -> np.ndarray:
    """[S, F] forgetting scores, sums over the private tokens in nats."""
    return np.asarray(target["log_p"], np.float64) - np.asarray(arrays["log_p"], np.float64)


@dataclasses.dataclass(frozen=True)
class Predictors:
    """What might predict how far an unknown fact is forgotten, before anything is.

    Attributes:
        scores: Name -> [S, u] of the unknown facts.
        loss: [S, u] their -log p under the target model.
    """

    scores: dict[str, np.ndarray]
    loss: np.ndarray


def predictors(study: Study, sets: Sets, target: Arrays, associations: Arrays) -> Predictors:
    """Associations of the unknown facts with the known ones: by gradients, by representations, along the graph."""
    forgotten = study.forgotten
    known, unknown = sets.known[forgotten], sets.unknown[forgotten]
    if not unknown.any():
        return Predictors({}, np.zeros((len(target["log_p"]), 0)))
    states = target["states"]  # [S, L + 1, F', d]
    scores = {"gradient": associations["known"][:, unknown]}
    layers = states.shape[1] - 1
    for layer in sorted({0, (layers + 1) // 2, layers}):
        scores[f"representation_{layer}"] = np.stack(
            [representation_association(s[layer, forgotten][unknown], s[layer, forgotten][known]) for s in states]
        )
    if len(study.material.graph.edges):
        scores["graph"] = np.tile(_graph(study, known)[unknown], (len(states), 1))
    return Predictors(scores, -target["log_p"][:, sets.unknown])


def _graph(study: Study, known: np.ndarray) -> np.ndarray:
    """[nf] personalised PageRank of whom each fact is about, from the known people."""
    nodes, edges, weights, node_of = study.material.graph
    start = {nodes[i] for i in np.unique(node_of[known]) if i >= 0}
    if not start:
        return np.zeros(len(node_of))
    named = [(nodes[a], nodes[b], float(w)) for (a, b), w in zip(edges, weights)]
    scores = graph.personalised_pagerank(nodes, named, start)
    return np.where(node_of >= 0, scores[node_of], 0.0)


def correlations(
    study: Study, sets: Sets, found: Predictors, fell: np.ndarray, seed: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Of each predictor with the forgetting scores [S, F] of the unknown facts, seed by seed.

    Bootstrap intervals draw whole people. A predictor that does not vary (a graph without edges) is left out.
    """
    facts = [fact for fact, is_unknown in zip(study.material.facts, sets.unknown) if is_unknown]
    made: dict[str, list[dict[str, Any]]] = {}
    for name, scores in found.scores.items():
        try:
            made[name] = [
                dataclasses.asdict(
                    correlation.correlate(
                        np.random.default_rng(seed),
                        scores[i],
                        fell[i, sets.unknown],
                        groups=[fact.kind for fact in facts],
                        baseline=found.loss[i],
                        clusters=[fact.person for fact in facts],
                        resamples=RESAMPLES,
                    )
                )
                for i in range(len(fell))
            ]
        except InputError:
            continue
    return made


def cka(study: Study, sets: Sets, arrays: Arrays, target: Arrays) -> dict[str, Any]:
    """Debiased similarity of each layer's states to the target model's, by seed, for known, unknown and retained facts."""
    seen = slice(0, study.control.start)
    found: dict[str, Any] = {"layers": list(range(arrays["states"].shape[1]))}
    for name in ("known", "unknown", "retained"):
        which = getattr(sets, name)[seen]
        found[f"n_{name}"] = int(which.sum())
        if which.sum() >= similarity.LEAST:
            found[name] = [
                similarity.cka_by_layer(mine[:, which], its[:, which]).tolist()
                for mine, its in zip(arrays["states"], target["states"])
            ]
    return found
