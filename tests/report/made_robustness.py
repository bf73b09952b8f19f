"""Synthetic run directories of ``jaxunlearn robustness`` for the report's tests."""

import numpy as np

from jaxunlearn.records import write_json, write_npz
from jaxunlearn.robustness import Band, Metric, RobustnessRecord

CONDITIONS = ["clean", "8/255", "16/255"]
UA = {  # mean share of forgotten images recognised, under each condition
    "original": [0.999],
    "retrain": [0.0, 0.0, 0.004],
    "FT": [0.32, 0.81, 0.9993],
    "RL": [0.09, 0.31, 0.48],
    "IU": [0.17, 0.62, 0.80],
    "l1-sparse": [0.13, 0.55, 0.78],
    "SalUn": [0.08, 0.34, 0.61],
}
CLASSES = 10


def repeated(rng, means, seeds, per_seed=1, spread=0.06):
    """[conditions][repeats] around the means, inside [0, 1]; nothing where there is no mean."""
    rows = []
    for middle in means:
        noise = rng.normal(0, spread * (middle * (1 - middle)) ** 0.5, seeds)
        seed = np.clip(np.repeat(middle + noise, per_seed) + rng.normal(0, 0.004, seeds * per_seed), 0, 1)
        rows.append([round(float(v), 4) for v in seed] if 0 < middle < 1 else [float(middle)] * (seeds * per_seed))
    return rows


def make_record(method, *, seeds=5, conditions=CONDITIONS, **changes):
    """A record whose numbers have the proportions of a real one."""
    rng = np.random.default_rng(len(method))
    ua = UA.get(method, UA["FT"])
    absent = [[] for _ in conditions[len(ua) :]]
    members = [min(0.02 + 0.93 * v, 1.0) for v in ua]
    low = [0.03 + 0.25 * v for v in ua]
    clean = lambda value: [*repeated(rng, [value], seeds, spread=0.02), *([[]] * (len(conditions) - 1))]  # noqa: E731
    every = lambda means, per_seed=1: [*repeated(rng, means, seeds, per_seed), *absent][: len(conditions)]  # noqa: E731
    share = lambda name, label, meaning, better, count, values, **more: Metric(  # noqa: E731
        name=name, label=label, meaning=meaning, better=better, count=count, values=values, **more
    )
    head = {"headline": True}
    metrics = [
        share(
            "ta_retain_classes",
            "TA (retain classes)",
            "Accuracy on test images of the classes that are kept.",
            "higher",
            405,
            clean(0.98),
            **head,
        ),
        share("ta_all", "TA (all classes)", "Accuracy on all test images.", "higher", 450, clean(0.883), **head),
        share("ua", "UA", "Share of the forgotten images given their true class.", "lower", 142, every(ua), **head),
        share(
            "mia",
            "MIA",
            "Share of the forgotten images called members.",
            "lower",
            142,
            every(members, 3),
            per_seed=3,
            **head,
        ),
        share("retain_accuracy", "RA", "Accuracy on the data that is kept.", "higher", 1205, clean(0.997)),
        share(
            "mia_control", "MIA, unseen", "Share of unseen images called members.", "", 36, every(low, 3), per_seed=3
        ),
        share(
            "mia_auc", "MIA AUC", "Area under the ROC.", "lower", 142, every([0.5 + 0.3 * v for v in ua], 3), per_seed=3
        ),
        share(
            "ua_control",
            "UA, unseen",
            "Share of unseen images of the class recognised.",
            "",
            36,
            every([0.97 * v for v in ua]),
        ),
    ]
    curves = {}
    if method in ("SalUn", "retrain"):
        top = ua[-1]
        curves = {
            "steps": {
                "x": [1, 5, 10, 25, 50, 100],
                "values": repeated(rng, [top * (1 - 0.9 * 0.93**s) for s in (1, 5, 10, 25, 50, 100)], seeds),
                "label": "steps of the attack",
            },
            "step_size": {
                "x": [0.1, 0.3, 0.7, 1.0, 2.0, 4.0],
                "values": repeated(rng, [top * v for v in (0.4, 0.8, 1.0, 0.99, 0.93, 0.8)], seeds),
                "label": "step size, 255ths of the range",
            },
        }
    fields = {
        "method": method,
        "title": "digits",
        "task": "classification",
        "scenario": "class 0, 142 images",
        "conditions": list(conditions),
        "seeds": seeds,
        "metrics": metrics,
        "curves": curves,
        "attack": {} if method == "original" else {"steps": 100, "step_size": "1/255", "objective": "kl"},
        "settings": {} if method == "original" else {"epochs": 10, "lr": 0.013},
        "seconds": {"unlearn": 12.3, "attack": 31.0},
        "throughput": {} if method == "original" else {"images": 2345.6},
        "bands": [Band(method="RL", metric="ua", condition="16/255", low=0.6, high=0.9)] if method == "RL" else [],
    }
    return RobustnessRecord(**{**fields, **changes})


def make_records(**changes):
    return [make_record(method, **changes) for method in UA]


def logits_for(rng, labels, share):
    """[n, CLASSES] that are right for about a share of the labels."""
    out = rng.normal(0, 1, (len(labels), CLASSES)).astype(np.float32)
    right = rng.random(len(labels)) < share
    out[np.arange(len(labels)), labels] = np.where(right, 6, -6)
    return out


def write_run(path, *, seeds=5, conditions=CONDITIONS, methods=tuple(UA), side=8, channels=1, **changes):
    """A whole run directory; the forgotten images first, then unseen ones."""
    rng = np.random.default_rng(0)
    forgotten, unseen = 12, 4
    count = forgotten + unseen
    labels = np.zeros(count, np.int32)
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    ring = np.exp(-(((np.hypot(x - 0.5, y - 0.5) - 0.32) / 0.12) ** 2))[..., None]
    images = np.clip(
        ring * rng.uniform(0.7, 1.1, (count, 1, 1, channels)) + rng.normal(0, 0.06, (count, side, side, channels)), 0, 1
    )
    images = images.astype(np.float32)
    write_npz(
        path / "targets.npz",
        images=images,
        labels=labels,
        rows=np.arange(count) * 7,
        is_member=np.arange(count) < forgotten,
        logits=np.stack([logits_for(rng, labels, 0.99) for _ in range(seeds)]),
        class_names=np.array([]),
    )
    for method in methods:
        record = make_record(method, seeds=seeds, conditions=conditions, **changes)
        write_json(path / method / "robustness.json", record.to_json())
        if method == "original":
            continue
        shares = (UA[method] * 2)[: len(conditions)]
        saved = np.array([*range(8), 12, 13, 14])
        attacked = [np.zeros((1, 0, len(saved), side, side, channels))]
        for condition in conditions[1:]:
            radius = 1.0 if condition == "unbounded" else float(condition.split("/")[0]) / 255
            steps = radius * rng.choice([-1, 1], (1, len(saved), side, side, channels))
            attacked.append(np.clip(images[saved] + steps, 0, 1)[:, None])
        write_npz(
            path / method / "attacked.npz",
            conditions=np.array(conditions),
            logits=np.stack([[logits_for(rng, labels, s) for s in shares] for _ in range(seeds)]),
            images=np.concatenate(attacked, axis=1).astype(np.float32),
            saved=saved,
            iterations=np.full((seeds, len(conditions) - 1, count), 20),
        )
    manifest = {
        "asked": [m for m in methods if m != "original"],
        "created": "2025-11-30T12:00:00Z",
        "config": {"attack": {"steps": 100}, "seeds": seeds},
        "versions": {"jaxunlearn": "0.1.0"},
        "device": "CPU, 2 cores",
    }
    write_json(path / "manifest.json", manifest)
    return path
