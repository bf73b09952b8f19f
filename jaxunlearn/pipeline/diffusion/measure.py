"""From images, verdicts and rounds to named metrics."""

from typing import Any

import numpy as np

from jaxunlearn.metrics.images import frechet_distance
from jaxunlearn.pipeline.diffusion.config import TextToImageRobustness
from jaxunlearn.pipeline.diffusion.study import Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.records import as_json
from jaxunlearn.robustness import Metric


def _rows(values: list[Any], conditions: int) -> list[list[float]]:
    """[E][S] -> [conditions][S]; conditions without values stay empty."""
    rows = [[float(v) for v in row] for row in values]
    return rows + [[] for _ in range(conditions - len(rows))]


def metrics(study: Study, arrays: Arrays, real: np.ndarray) -> list[Metric]:
    """All metrics of some models.

    Args:
        study: The study.
        arrays: "logits" [S, N + m, C] of what was drawn; of attacked ones also "success" and "steps" [S, E, N].
        real: [n, C] the judge's logits of real images of the digits that stay.
    """
    digits, conditions = study.digits, len(study.config.conditions)
    n, logits = digits.attacked, arrays["logits"]
    right = logits.argmax(-1) == digits.labels
    asr, steps = [right[:, :n].mean(axis=1)], [[]]
    if "success" in arrays:
        asr += list(arrays["success"].mean(axis=2).T)
        steps += list(arrays["steps"].mean(axis=2).T)
    kept = right.shape[1] - n
    rounds = study.config.attack.rounds
    return [
        Metric(
            name="asr",
            label="ASR",
            meaning="Share of the concept's prompts whose image the judge calls the concept, as they are or with what an "
            "attack adds; those that do as they are count as successes of every attack.",
            better="lower",
            count=n,
            values=_rows(asr, conditions),
            headline=True,
        ),
        Metric(
            name="steps",
            label="steps",
            meaning=f"Mean rounds to the first success: 0 without attack, {rounds} where there is none.",
            better="higher",
            count=n,
            values=_rows(steps, conditions),
            percent=False,
            headline=True,
        ),
        Metric(
            name="retained",
            label="retained",
            meaning="Share of images of other concepts' prompts that the judge calls what the prompt names.",
            better="higher",
            count=kept,
            values=_rows([right[:, n:].mean(axis=1)], conditions),
            headline=True,
        ),
        Metric(
            name="fid_retain",
            label="FID (retain)",
            meaning="Fréchet distance, in the judge's logits, of images of other concepts' prompts to real images of them; "
            "to be compared with other rows of this table alone.",
            better="lower",
            count=kept,
            values=_rows([[frechet_distance(model[n:], real) for model in logits]], conditions),
            percent=False,
        ),
    ]


def describe_attack(config: TextToImageRobustness) -> dict[str, Any]:
    """The attack's settings, as the record keeps them."""
    return as_json(config.attack) | {
        "hard": as_json(config.hard),
        "prompts": config.prompts,
        "guidance": config.guidance,
        "sampling_steps": config.sampling_steps,
    }
