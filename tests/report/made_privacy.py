"""Synthetic run directories of ``jaxunlearn privacy`` for the report's tests."""

import numpy as np

from jaxunlearn.privacy import ANSWERS, FILE, PREDICTORS, PrivacyRecord
from jaxunlearn.records import write_json, write_npz
from jaxunlearn.robustness import Metric

CONDITIONS = ["P1", "P2", "P3, 3 epochs", "P3, 10 epochs", "4 bits"]
SHARES = {  # mean shares of the unknown set under each condition, text nll, QA
    "base": ([0.0, 0.0, 0.0, 0.0, 0.0], 3.9, 0.02),
    "target": ([0.98, 0.95, 0.9, 0.86, 0.95], 3.62, 0.97),
    "retrain": ([0.01, 0.01, 0.05, 0.05, 0.01], 3.64, 0.96),
    "ga": ([0.008, 0.0, 0.6, 0.82, 0.1], 3.7, 0.6),
    "npo-gdr": ([0.006, 0.02, 0.5, 0.71, 0.09], 3.66, 0.8),
    "idk": ([0.004, 0.05, 0.55, 0.67, 0.06], 3.67, 0.7),
    "rmu": ([0.0, 0.0, 0.2, 0.21, 0.0], 3.63, 0.3),
    "task-vector": ([0.03, 0.0, 0.1, 0.005, 0.02], 4.79, 0.1),
    "rau": ([0.0, 0.0, 0.15, 0.21, 0.0], 3.75, 0.4),
}
KINDS = ("email address", "phone number", "birth date", "birthplace")
PERSONS = {"known": 10, "unknown": 10, "retained": 6, "control": 3}
LAYERS = 5
CORRELATED = {"ga": 0.5, "npo-gdr": 0.4, "idk": 0.3, "rmu": 0.1, "task-vector": 0.6, "rau": 0.0}


def around(rng, middle, seeds, spread=0.03):
    """A share for each seed, inside [0, 1]; without spread at the ends."""
    if not 0 < middle < 1:
        return [float(middle)] * seeds
    return [round(float(v), 5) for v in np.clip(rng.normal(middle, spread * middle**0.5, seeds), 0, 1)]


def estimate(rng, value):
    """Both coefficients with an interval, as ``dataclasses.asdict`` gives them."""
    both = [float(np.clip(value + shift, -1, 1)) for shift in (0.0, -0.03 + 0.01 * rng.random())]
    named = zip(("pearson", "spearman"), both)
    return {"count": 40} | {name: {"value": v, "low": v - 0.15, "high": v + 0.15} for name, v in named}


def comparison(rng, value):
    """What ``metrics.correlation`` finds."""
    return {
        "level": 0.95,
        "pooled": estimate(rng, value),
        "within": estimate(rng, value / 3),
        "by_group": {kind: estimate(rng, value / 3) for kind in KINDS[:3]},
        "baseline": estimate(rng, 0.65),
        "partial": estimate(rng, value / 4),
        "gain": estimate(rng, value - 0.65),
    }


def make_record(method, *, seeds=2, conditions=CONDITIONS, **changes):
    """A record whose numbers have the proportions of a real one."""
    rng = np.random.default_rng(len(method))
    shares, text, qa = SHARES.get(method, SHARES["ga"])
    unknown = [shares[CONDITIONS.index(c)] if c in CONDITIONS else 0.3 for c in conditions]

    def metric(name, label, better, factor, count, headline=False):
        values = [around(rng, min(factor * share, 1.0), seeds) for share in unknown]
        meaning = f"share of private data of the {name} set that the model says when it is asked"
        return Metric(
            name=name, label=label, meaning=meaning, better=better, count=count, values=values, headline=headline
        )

    def once(name, label, better, values, percent=False, headline=False):
        rest = [[] for _ in conditions[1:]]
        meaning = f"what {label} is"
        return Metric(
            name=name,
            label=label,
            meaning=meaning,
            better=better,
            count=40,
            values=[values, *rest],
            percent=percent,
            headline=headline,
        )

    trained = method in ("base", "target", "retrain")
    metrics = [
        metric("known", "known", "lower", 0.97, 40, True),
        metric("unknown", "unknown", "lower", 1.0, 40, True),
        metric("retained", "retained", "higher", 1.02, 24, True),
        metric("control", "control", "", 0.01, 12),
        metric("known_lenient", "known (lenient)", "lower", 1.0, 40),
        metric("unknown_lenient", "unknown (lenient)", "lower", 1.03, 40),
        *(
            metric(f"unknown_{kind.replace(' ', '_')}", f"unknown: {kind}", "lower", f, 10)
            for kind, f in zip(KINDS, (0.8, 0.9, 1.1, 1.2))
        ),
        metric("unknown_derivable", "unknown: e-mail that follows from the name", "lower", 0.9, 6),
        metric("unknown_underivable", "unknown: e-mail that does not", "lower", 0.6, 4),
        once("text_nll", "text nll", "lower", [round(text + 0.01 * i, 4) for i in range(seeds)], headline=True),
        once("rouge", "QA", "higher", around(rng, qa, seeds), True, True),
        once("told_known", "told (known)", "lower", around(rng, unknown[0], seeds), True),
    ]
    if method != "target":
        metrics.append(once("forgetting_unknown", "FS (unknown)", "higher", [20.0 * (1 - unknown[0])] * seeds))
    epochs = list(range(6))
    falling = np.array([0.98, 0.7, 0.3, 0.1, 0.02, 0.0])
    curve = {}
    if method in ("ga", "rmu", "rau"):
        low = SHARES[method][0][3]
        curve = {
            "epochs": epochs,
            "p3": [around(rng, 0.86 - (0.86 - low) * e / 5, seeds) for e in epochs],
            "text_nll": [[3.62 + (text - 3.62) * e / 5] * seeds for e in epochs],
        }
    steep = 0.02 if method == "ga" else 0.1
    fields = {
        "method": method,
        "title": "people",
        "scenario": "20 of 26 invented people, 4 facts each; 40 of 80 facts known",
        "conditions": list(conditions),
        "seeds": seeds,
        "metrics": metrics,
        "correlations": {}
        if trained
        else {
            name: [comparison(rng, CORRELATED.get(method, 0.4) * f) for _ in range(seeds)]
            for name, f in (("gradient", 1.0), ("representation_0", 0.1), ("representation_4", 0.5), ("graph", 0.0))
        },
        "cka": {}
        if method == "target"
        else {"layers": list(range(LAYERS)), "n_known": 40, "n_unknown": 40, "n_retained": 24}
        | {
            name: [[1 - steep * layer + s * 0.01 for layer in range(LAYERS)] for s in range(seeds)]
            for name in ("known", "unknown", "retained")
        },
        "trace": {}
        if trained
        else {
            "epochs": epochs,
            "p1_known": [[float(v)] * seeds for v in falling],
            "p1_unknown": [[float(min(v * 1.1, 1))] * seeds for v in falling],
            "text_nll": [[3.62 + (text - 3.62) * e / 5] * seeds for e in epochs],
            "chosen": [4 + i % 2 for i in range(seeds)],
        },
        "curve": curve,
        "attack": {
            "shots": 4,
            "recovery": {"samples": 20, "draws": 2, "source": "known", "epochs": [3, 10]},
            "bits": [4],
        },
        "settings": {} if trained else {"epochs": 8, "descent": {"peak": 1e-4}},
        "seconds": {"train": 120.0, "ask": 9.5} if trained else {"unlearn": 12.3, "ask": 31.0},
    }
    return PrivacyRecord(**{**fields, **changes})


def make_records(**changes):
    return [make_record(method, **changes) for method in SHARES]


def facts():
    """corpus.json's rows."""
    return [
        {"set": kind, "person": f"{kind} {i}", "kind": what, "prompt": "Q", "answer": "A", "pii": "A"}
        for kind, count in PERSONS.items()
        for i in range(count)
        for what in KINDS
    ]


def write_run(path, *, seeds=2, methods=tuple(SHARES), known=0.5, selection="random", **changes):
    """A whole run directory but for models and what they said."""
    rng = np.random.default_rng(0)
    rows = facts()
    unknown = np.array([i for i, row in enumerate(rows) if row["set"] == "unknown"])
    kind_of = np.array([KINDS.index(rows[i]["kind"]) for i in unknown])
    loss = rng.gamma(2.0, 1.0, (seeds, len(unknown))) + kind_of
    gradient = loss * 0.4 + rng.normal(0, 1, loss.shape)
    log_p = -rng.gamma(2.0, 1.0, (seeds, len(rows)))
    write_npz(
        path / PREDICTORS,
        unknown=unknown,
        loss=loss,
        score_gradient=gradient,
        score_representation_0=rng.random(loss.shape),
        score_representation_4=rng.random(loss.shape),
        score_graph=rng.random(loss.shape),
    )
    write_json(path / "corpus.json", {"title": "invented", "facts": rows})
    for method in methods:
        record = make_record(method, seeds=seeds, **changes)
        write_json(path / method / FILE, record.to_json())
        after = log_p.copy()
        after[:, unknown] = -loss - 12 - 2 * kind_of - CORRELATED.get(method, 0.0) * 3 * gradient
        write_npz(path / method / ANSWERS, log_p=after.astype(np.float32), P1=np.zeros((seeds, len(rows), 4), int))
    manifest = {
        "title": "people",
        "asked": [m for m in methods if m not in ("base", "target")],
        "created": "2025-11-30T12:00:00Z",
        "config": {
            "dataset": "people",
            "seeds": seeds,
            "known": known,
            "selection": selection,
            "stop_below": 0.01,
            "decoder": {"weights": None},
            "data": {"sha256": "12ab"},
        },
        "versions": {"jaxunlearn": "0.1.0"},
    }
    write_json(path / "manifest.json", manifest)
    return path
