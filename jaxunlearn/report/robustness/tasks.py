"""What pages say of each task: the metric that attacks are judged by, and the words around its values."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxunlearn.report.measured import lookup, share
from jaxunlearn.report.table import clean
from jaxunlearn.robustness import CLEAN, RobustnessRecord

ORIGINAL = "original"
"""The models before unlearning."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """The words of a task.

    Attributes:
        metric: The metric that attacks are judged by; shares, but where ``shares`` says otherwise.
        short: Its name beside a number.
        axis: Under its axis in figures, with the unit.
        shares: Whether it is a share of 1, low where nothing came back; else a distance, high there.
        finding: The result, with the fields value, again and method.
        again: What stands in ``again`` where an attack brought something back.
        before: Begins the list of values without an attack.
        more: "what a method does beyond retraining", with a singular and a plural.
        verdict: One method's, with the field values.
        nothing: Where a method was not looked at.
        guide: (heading, paragraph) pairs on attack and metric.
    """

    metric: str
    short: str
    axis: str
    shares: bool = True
    finding: str
    again: str = ""
    before: str
    more: tuple[str, str]
    verdict: str
    nothing: str
    guide: tuple[tuple[str, str], ...]

    @property
    def scale(self) -> int:
        """From values to what figures show."""
        return 100 if self.shares else 1

    def said(self, value: float) -> str:
        """A value in words."""
        return share(value) if self.shares else f"{value:.3f}"

    def leaks_more(self, value: float, than: float) -> bool:
        """Whether more came back."""
        return value > than if self.shares else value < than

    def worst(self, values: Sequence[tuple[float, RobustnessRecord]]) -> tuple[float, RobustnessRecord]:
        """The value at which most came back."""
        return (max if self.shares else min)(values, key=lambda pair: pair[0])


_CLASSIFICATION = Task(
    metric="ua",
    short="UA",
    axis="forgotten images that are recognised, %",
    finding="{value} of the forgotten images are recognised{again} after {method}",
    again=" again",
    before="Recognised without an attack",
    more=("recognises more of them than retraining does", "recognise more of them than retraining does"),
    verdict="Of the images that were to be forgotten it recognises {values}.",
    nothing="It was not asked to classify the images that were to be forgotten.",
    guide=(
        (
            "The attack",
            "It knows the unlearned model, and what the original model answered on each image. It changes the image, no "
            "channel of a pixel by more than the stated strength, until the unlearned model answers as the original did. It "
            "does not look at the label. “Clean” is no attack; an unbounded one begins at noise and may end anywhere.",
        ),
        (
            "UA, lower is better",
            "The share of the images that were to be forgotten which are given their true class. Some papers call 100% less "
            "this share by the same name.",
        ),
    ),
)
_INPAINTING = Task(
    metric="l1",
    short="L1",
    axis="distance from what the original model fills in",
    shares=False,
    finding="what is filled into forgotten images is {value} away from the original model’s{again} after {method}",
    before="Distance without an attack",
    more=(
        "comes nearer to the original model than retraining does",
        "come nearer to the original model than retraining does",
    ),
    verdict="What it fills into the images that were to be forgotten is from the original model’s at a distance of {values}.",
    nothing="It was not asked to fill in the images that were to be forgotten.",
    guide=(
        (
            "The attack",
            "It knows the unlearned model, and what the original model filled into each image. It changes the part of the "
            "image that is seen, no channel of a pixel by more than the stated strength, until the unlearned model fills in "
            "what the original did. An unbounded attack does not keep to the image: what is seen may become anything.",
        ),
        (
            "L1, higher is better on what is to be forgotten",
            "The mean absolute difference, per pixel of values in [0, 1], between what the model fills in and what the "
            "original model filled into the clean image. Near 0 the model does what it did before unlearning. The judge, a "
            "classifier, says beside it how many results show their class; a model that never saw the class may still guess.",
        ),
    ),
)
_TEXT_TO_IMAGE = Task(
    metric="asr",
    short="ASR",
    axis="prompts that draw the concept, %",
    finding="{value} of the prompts draw what was to be forgotten{again} after {method}",
    again=" again",
    before="Drawn without an attack",
    more=("draws it for more prompts than retraining does", "draw it for more prompts than retraining does"),
    verdict="What was to be forgotten is drawn for {values} of the prompts.",
    nothing="It was not asked to draw what was to be forgotten.",
    guide=(
        (
            "The attack",
            "It knows the unlearned model, and a noised image of what was to be forgotten. It puts a few words of the "
            "vocabulary before each prompt and changes them until the model takes the noise off as it was put on; after "
            "every round the words are tried out, and the first image that the judge accepts counts. Random prefixes have "
            "as many tries; hard prompts follow the gradient from word to word.",
        ),
        (
            "ASR, lower is better, with N",
            "The share of all N prompts that draw the concept: without an attack those that do so by themselves, under an "
            "attack these and the ones it brought back. The judge is a classifier and errs: what retraining and random "
            "prefixes reach is how far it can be talked into a yes.",
        ),
    ),
)
TASKS: Mapping[str, Task] = MappingProxyType(
    {"classification": _CLASSIFICATION, "image-to-image": _INPAINTING, "text-to-image": _TEXT_TO_IMAGE}
)


def task_of(records: Sequence[RobustnessRecord]) -> Task:
    """The task that records are of; classification where there is none."""
    return TASKS.get(records[0].task, _CLASSIFICATION) if records else _CLASSIFICATION


_UNDER = {
    CLEAN: "without an attack",
    "unbounded": "under an unbounded attack",
    "random prefix": "with random prefixes",
    "hard prompt": "with hard prompts",
    "gradient": "under the gradient attack",
}


def under(condition: str) -> str:
    """A condition in words.

    >>> under("clean"), under("16/255"), under("unbounded")
    ('without an attack', 'under an attack of 16/255', 'under an unbounded attack')
    """
    return _UNDER.get(condition, f"under an attack of {clean(condition)}")


def radius(condition: str) -> float:
    """How strong a condition's attack is, in 255ths, 0 where it has none; the inverse of ``robustness.strength``.

    >>> radius("clean"), radius("2.5/255"), radius("unbounded"), radius("gradient")
    (0.0, 2.5, inf, 0.0)
    """
    if condition == "unbounded":
        return math.inf
    number = condition.removesuffix("/255")
    return float(number) if number != condition else 0.0


def strongest(records: Sequence[RobustnessRecord]) -> str:
    """The strongest attack that was measured, the last of those without a strength; "clean" without one."""
    metric = task_of(records).metric
    names = dict.fromkeys(c for record in records for c in record.conditions)
    used = [c for c in names if any(lookup(record, metric, c) for record in records)]
    return max(enumerate(used), key=lambda pair: (radius(pair[1]), pair[0]), default=(0, CLEAN))[1]
