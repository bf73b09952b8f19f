"""Synthetic run directories for the report's tests."""

import math

import numpy as np

from jaxunlearn.records import (
    CALIBRATION,
    EVALUATION,
    BoundEntry,
    BoundRecord,
    ScoreRecord,
    write_json,
    write_npz,
)

RUNS, L = 60, 10
GRID = [10, 20, 50, 100, 200, 300, 400]
PREREGISTERED = [100, 200]


def log_count(m):
    return math.lgamma(m + 1) - math.lgamma(m // 2 + 1) - math.lgamma(m - m // 2 + 1)


def balanced(rng, runs, m):
    row = np.where(np.arange(m) < m // 2, 1, -1).astype(np.int8)
    return rng.permuted(np.tile(row, (runs, 1)), axis=1)


def make_record(method, strength, *, m=400, predictor="batchwise", **changes):
    """A record whose numbers have the proportions of a real one; ``strength`` scales the leak."""
    rng = np.random.default_rng(7)
    top = log_count(m)
    log_p = -np.clip(rng.normal(strength * 35, 4 * strength, L), 0, top)
    epsilon = float(max(-log_p.mean() - 1.57, 0))
    overlap = [float(30 * strength * math.exp(-(((r - 180) / 160) ** 2))) for r in GRID]
    paper = [0.42 * v for v in overlap]
    best = max(overlap)
    bounds = [
        BoundEntry(name="evidence", epsilon=epsilon, ceiling=top - 1.6, zeta=0.0125, status="preregistered"),
        *(
            BoundEntry(
                name="overlap",
                epsilon=max(overlap[GRID.index(r)] - 0.4, 0),
                ceiling=69.0,
                zeta=0.0125,
                status="preregistered",
                r=r,
            )
            for r in PREREGISTERED
        ),
        BoundEntry(
            name="count",
            epsilon=min(epsilon, 5.1),
            ceiling=6.2,
            zeta=0.0125,
            status="preregistered",
            detail={"runs": 9},
        ),
        BoundEntry(
            name="paper_mean", epsilon=paper[GRID.index(100)], ceiling=34.4, zeta=0.05, status="reference", r=100
        ),
        BoundEntry(
            name="paper_median",
            epsilon=0.9 * paper[GRID.index(100)],
            ceiling=33.0,
            zeta=0.05,
            status="reference",
            r=100,
        ),
        BoundEntry(
            name="overlap", epsilon=best, ceiling=69.0, zeta=0.05, status="exploratory", r=GRID[overlap.index(best)]
        ),
    ]
    fields = {
        "method": method,
        "title": "digits",
        "epsilon": epsilon,
        "statistic": "evidence",
        "delta": 0.0,
        "zeta": 0.05,
        "ceiling": top - 1.6,
        "paper_mean": paper[GRID.index(100)],
        "paper_median": 0.9 * paper[GRID.index(100)],
        "predictor": predictor,
        "definition": "3.3",
        "m": m,
        "batch_size": 1,
        "calibration_runs": RUNS - L,
        "evaluation_runs": L,
        "bounds": bounds,
        "by_r": {"r": GRID, "overlap": overlap, "paper_mean": paper, "accuracy": [0.6] * len(GRID)},
        "log_p_values": log_p.tolist(),
        "accuracy": {
            "retain": {"mean": 0.998, "sd": 0.001},
            "forget": {"mean": 0.95 - 0.02 * strength, "sd": 0.008},
            "unseen": {"mean": 0.93, "sd": 0.009},
            "test": {"mean": 0.941, "sd": 0.004},
        },
        "seconds": {"train": 31.2, "unlearn": 12.34, "score": 1.2, "bound": 0.4},
    }
    return BoundRecord(**{**fields, **changes})


def write_method(directory, record, strength, *, batch=1, scores=True):
    rng = np.random.default_rng(len(record.method))
    m = record.m
    signs = balanced(rng, RUNS, m)
    roles = np.array([CALIBRATION] * (RUNS - L) + [EVALUATION] * L, np.int8)
    values = rng.normal(2, 1, (1, m, batch)) + rng.normal(0, 1, (RUNS, m, batch)) + strength * (signs == 1)[..., None]
    failed = np.zeros(RUNS, bool)
    for run in record.failed_runs:
        failed[RUNS - L + run] = True
        values[RUNS - L + run] = np.nan
    llr = np.nan_to_num(strength * (values.mean(-1) - 2 - strength / 2)[RUNS - L :])
    write_json(directory / "bound.json", record.to_json())
    joint = {"log_likelihoods": rng.normal(size=(L, 20))} if record.predictor == "joint" else {"llr": llr}
    write_npz(
        directory / "evaluation.npz",
        **joint,
        signs=signs[RUNS - L :],
        log_p=np.asarray(record.log_p_values),
        overlaps=np.full(L, 60),
    )
    if scores:
        ScoreRecord(
            signs=signs,
            roles=roles,
            indices=np.concatenate([np.arange(RUNS - L), np.arange(L)]),
            scores=values.astype(np.float32),
            accuracy={"test": np.full(RUNS, 0.94, np.float32)},
            failed=failed,
        ).save(directory / "scores.npz")


MANIFEST = {
    "title": "Six methods on handwritten digits",
    "created": "2025-11-30T12:00:00Z",
    "config": {
        "audit": {"m": 400, "evaluation_runs": 10, "zeta": 0.05},
        "model": {"name": "mlp", "widths": [128, 128]},
    },
    "versions": {"jaxunlearn": "0.1.0", "jax": "0.10.2", "numpy": "2.3"},
    "device": "CPU, 2 cores",
    "runs": {"calibration": 50, "evaluation": 10},
    "preregistration": {"bounds": ["evidence", "overlap r=100", "overlap r=200", "count"], "delta": 0.0, "zeta": 0.05},
    "population": {"seconds": 31.2, "trained_runs": 60, "reused_runs": 0},
    "wall_seconds": 88.1,
}

STRENGTHS = {
    "gradient ascent": 1.0,
    "finetune": 0.7,
    "noisy finetune": 0.16,
    "npo": 0.45,
    "retrain": 0.0,
    "rewind <b>&": 0.3,
}


def make_records():
    changes = {
        "noisy finetune": {
            "certificate": {"epsilon": 10.0, "delta": 1e-5, "source": "Koloskova et al., 2025, theorem 4.2"},
            "definition": "3.2",
        },
        "npo": {"failed_runs": [3, 7], "notes": ["Two runs diverged."]},
        "retrain": {"notes": ["The model does not depend on the candidates <at all>."], "statistic": "evidence"},
    }
    return {name: make_record(name, s, **changes.get(name, {})) for name, s in STRENGTHS.items()}


def write_six(path):
    """Six methods: one with failed runs, one with epsilon 0, one with a certificate, one with hostile text."""
    write_json(path / "manifest.json", MANIFEST)
    for i, (name, record) in enumerate(make_records().items()):
        write_method(path / f"method-{i}", record, STRENGTHS[name])
    return path


def write_joint(path):
    """One joint predictor with m = 6: no log-likelihood ratios, no curve over r."""
    bounds = [
        BoundEntry(name="lattice", epsilon=1.71, ceiling=2.696, zeta=0.025, status="preregistered"),
        BoundEntry(name="paper_mean", epsilon=0.8, ceiling=1.998, zeta=0.05, status="reference", r=6),
    ]
    record = make_record(
        "joint, six batches",
        0.06,
        m=6,
        predictor="joint",
        by_r={},
        bounds=bounds,
        epsilon=1.71,
        ceiling=2.696,
        paper_mean=0.8,
        paper_median=0.7,
        statistic="lattice",
        title="speech",
    )
    write_method(path / "joint", record, 1.0, batch=8)
    write_json(path / "manifest.json", {"title": "Joint", "config": {}})
    return path


def write_minimal(path):
    """What outsiders' scores leave: one bound.json, nothing else."""
    record = make_record(
        "outsider", 0.2, accuracy={}, seconds={}, by_r={}, log_p_values=[], bounds=[], paper_mean=0.0, paper_median=0.0
    )
    write_json(path / "outsider" / "bound.json", record.to_json())
    return path
