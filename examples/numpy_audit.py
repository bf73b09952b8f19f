"""An audit without JAX: two ways of unlearning, in scikit-learn, on handwritten digits. Ten seconds of one CPU core.

    jaxunlearn design --pool-size 200 --calibration-runs 20 --evaluation-runs 10 --out numpy-audit
    python examples/numpy_audit.py numpy-audit

The first command decides which examples are in which run, before anything is trained. This program trains and unlearns
a small network for every run and scores every candidate; ``jaxunlearn bound`` then says what that proves. Replace
``train``, ``finetune`` and ``score`` by your own, in any framework.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from jaxunlearn.cli import main as jaxunlearn

RETAIN = 300  # examples that every run trains on and keeps
EPOCHS, FINETUNE_EPOCHS = 30, 3


def train(x: np.ndarray, y: np.ndarray, seed: int) -> MLPClassifier:
    """A network with one hidden layer; initial weights and shuffling come from the seed, so they differ in every run."""
    model = MLPClassifier((64,), alpha=0.0, learning_rate_init=0.01, batch_size=100, random_state=seed)
    # One partial_fit is one epoch; unlike fit it never stops early.
    for _ in range(EPOCHS):
        model.partial_fit(x, y, classes=np.arange(10))
    return model


def finetune(model: MLPClassifier, x: np.ndarray, y: np.ndarray) -> MLPClassifier:
    """The heuristic to be audited: go on training on what is kept and hope that the rest fades."""
    for _ in range(FINETUNE_EPOCHS):
        model.partial_fit(x, y)
    return model


def score(model: MLPClassifier, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[n] logit of the right label's probability, z_y - logsumexp(the others): higher = more likely still in the model.

    From the logits rather than from predict_proba, which rounds confident predictions to 1.
    """
    hidden = np.maximum(x @ model.coefs_[0] + model.intercepts_[0], 0.0)
    logits = hidden @ model.coefs_[1] + model.intercepts_[1]
    is_label = np.arange(logits.shape[1]) == y[:, None]
    return logits[is_label] - logsumexp(np.where(is_label, -np.inf, logits), axis=1)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main(design: Path) -> None:
    """Does every run of the design and bounds both methods."""
    signs = np.load(design / "signs.npy")  # [runs, m]: +1 = the batch is trained on and unlearned
    runs = read_csv(design / "runs.csv")  # run, role, seed; the signs once more
    candidates = read_csv(design / "candidates.csv")  # example, batch
    example = np.array([int(row["example"]) for row in candidates])
    batch = np.array([int(row["batch"]) for row in candidates])

    # Examples are numbered in an order of our own, fixed for all runs: candidates first, then what is kept.
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order] / 16.0, digits.target[order]
    retain = np.arange(example.max() + 1, example.max() + 1 + RETAIN)

    scores: dict[str, list[np.ndarray]] = {"finetune": [], "retrain": []}
    for number, run in enumerate(runs):
        seed = int(run["seed"]) % 2**32  # scikit-learn takes 32 bits
        forget = example[signs[number, batch] > 0]
        trained = train(x[np.r_[retain, forget]], y[np.r_[retain, forget]], seed)
        unlearned = {
            "finetune": finetune(trained, x[retain], y[retain]),
            "retrain": train(x[retain], y[retain], seed),  # never saw the forget set: the exact reference
        }
        for method, model in unlearned.items():
            scores[method].append(score(model, x[example], y[example]))  # all candidates, whether they were in or not
        print(f"\r{number + 1} of {len(runs)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)

    for method, rows in scores.items():
        file = design / f"{method}.npz"
        np.savez(file, scores=np.stack(rows))
        # Definition 3.2, since every run drew its own initial weights and shuffling order.
        status = jaxunlearn(
            ["bound", "--design", str(design), "--scores", str(file), "--name", method, "--definition", "3.2"]
        )
        if status:
            sys.exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
