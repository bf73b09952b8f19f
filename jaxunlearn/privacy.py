"""What ``jaxunlearn privacy`` finds out about an unlearned language model, over several seeds.

Host side, without jax. A *condition* is how the model was asked: directly (P1), after other people's answers (P2), after it
was fine-tuned on some people's answers (P3), or with its weights rounded. Metrics and bands are those of ``robustness``.

Layout of a run directory::

    DIR/manifest.json             configuration and versions
    DIR/corpus.json               the questions, answers and persons, which of them are known, and the tokenizer's file
    DIR/predictors.npz            of the unknown facts: their places, their loss under the target models [seeds, u], and what
                                  might predict their forgetting, score_NAME [seeds, u]
    DIR/population/               base, target and retrained models of all seeds (orbax, with checksums)
    DIR/{base,target,retrain}/    what they were asked, as of a method
    DIR/<method>/privacy.json     PrivacyRecord
    DIR/<method>/answers.npz      what the models said under each condition, and log-probabilities of the personal data
    DIR/<method>/models/          the unlearned models
    DIR/report.html               one self-contained page
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxunlearn.robustness import Band, Metric, RobustnessRecord, read_record

SCHEMA = 1
FILE, ANSWERS, PREDICTORS = "privacy.json", "answers.npz", "predictors.npz"

DIRECT, IN_CONTEXT = "P1", "P2"


def fine_tuned(epochs: int) -> str:
    """The name of P3 after so many epochs.

    >>> fine_tuned(3)
    'P3, 3 epochs'
    """
    return f"P3, {epochs} epoch{'' if epochs == 1 else 's'}"


def rounded(bits: int) -> str:
    """The name of direct questions to weights of so many bits.

    >>> rounded(4)
    '4 bits'
    """
    return f"{bits} bits"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyRecord:
    """Everything that DIR/<method>/privacy.json holds.

    Attributes:
        method: The unlearning algorithm; "base", "target" and "retrain" are the models around it.
        title: The data, for headings ("people").
        scenario: What was to be forgotten, in words.
        conditions: Names of the conditions, "P1" first.
        seeds: Seeds that the metrics are over.
        failed: Numbers of those that are left out, since what their models say is not finite.
        metrics: The metrics [conditions][repeats]; those of the short table first.
        bands: Where the preset expects means of this method.
        correlations: Of the forgetting score with what might predict it, over the unknown facts: name of the predictor
            ("gradient", "representation_LAYER", "graph") -> for each seed a ``metrics.correlation.Comparison`` as a
            dictionary, whose groups are the kinds of facts and whose baseline is the facts' loss before unlearning.
        cka: "layers" [L + 1], and "known", "unknown", "retained" [seeds][L + 1]: debiased similarity to the target model.
        trace: By epoch of unlearning: "epochs", "p1_known" [epochs][seeds], "text_nll" [epochs][seeds], "chosen" [seeds].
        curve: Name of a quantity -> points along unlearning ("epochs", "p3", "text_nll"), [epochs][seeds]; may be empty.
        attack: The attacks' settings.
        settings: The method's settings.
        seconds: Wall time by stage.
        notes: Sentences for the reader.
    """

    method: str
    title: str
    scenario: str
    conditions: list[str]
    seeds: int
    metrics: list[Metric]
    failed: list[int] = dataclasses.field(default_factory=list)
    bands: list[Band] = dataclasses.field(default_factory=list)
    correlations: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    cka: dict[str, Any] = dataclasses.field(default_factory=dict)
    trace: dict[str, Any] = dataclasses.field(default_factory=dict)
    curve: dict[str, Any] = dataclasses.field(default_factory=dict)
    attack: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA

    metric = RobustnessRecord.metric
    surprises = RobustnessRecord.surprises

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, ready for json.dumps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PrivacyRecord":
        """The inverse of ``to_json``.

        Raises:
            InputError: The file was written by another schema, lacks a field, or its numbers do not fit its conditions.
        """
        return read_record(cls, data, FILE, SCHEMA)
