"""The seven methods for text-to-image models by name, with the settings of the public code and those of small digits.

"objects" and "nudity" are for Stable Diffusion 1.4, as the code behind the published checkpoints has them. Those of "digits"
aim at a digit that is forgotten and others that are kept (experiments/rub-diffusion): there SalUn and EraseDiff weigh the
other digits five times as much as the concept, FMN looks at the ends of prompts too, where a causal text encoder gathers what
it has read, and ScissorHands goes to the anchor, as its code does for nudity, since its ascent takes other digits with it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from jaxunlearn._validate import one_of
from jaxunlearn.unlearn.concept import ConceptDescent
from jaxunlearn.unlearn.erasing import ESD, SPM, AdvUnlearn
from jaxunlearn.unlearn.relearning import EraseDiff, ForgetMeNot, SalUnDiffusion, ScissorHands

Settings = Mapping[str, ConceptDescent]

_TRIMMED = tuple(f"up_blocks.{block}.attentions.1.transformer_blocks.0.attn1" for block in (1, 2))

_SHARED: Settings = {
    "esd-x": ESD(),
    "esd-u": ESD(subset="noxattn"),
    "fmn": ForgetMeNot(),
    "spm": SPM(),
    "advunlearn": AdvUnlearn(),
}
_SMALL = {"sampling_steps": 25, "batch_size": 16}

SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "objects": MappingProxyType(
            dict(_SHARED)
            | {
                "salun": SalUnDiffusion(),
                "erasediff": EraseDiff(),
                "scissorhands": ScissorHands(reinitialised=_TRIMMED),
            }
        ),
        "nudity": MappingProxyType(
            dict(_SHARED)
            | {
                "salun": SalUnDiffusion(alpha=0.1),
                "erasediff": EraseDiff(subset="noxattn", weight=1.0, inner="moments", inner_steps=2),
                "scissorhands": ScissorHands(
                    share=0.005,
                    reinitialised=_TRIMMED,
                    fresh="relu",
                    away="anchor",
                    rate=1e-5,
                    batch_size=16,
                ),
            }
        ),
        "digits": MappingProxyType(
            {
                "esd-x": ESD(steps=160, rate=1e-4, **_SMALL),
                "esd-u": ESD(steps=40, rate=1e-4, subset="noxattn", **_SMALL),
                "salun": SalUnDiffusion(steps=70, rate=1e-4, batch_size=64, alpha=5.0),
                "erasediff": EraseDiff(steps=60, rate=1e-4, batch_size=64, weight=0.2),
                "fmn": ForgetMeNot(steps=60, rate=5e-4, batch_size=64, subset="xattn", pooled=True),
                "scissorhands": ScissorHands(
                    steps=200, rate=2e-4, batch_size=64, share=0.002, away="anchor", weight=0.3
                ),
                "spm": SPM(steps=150, rate=1e-3, warmup=10, cycles=1, anchor_weight=1.0, **_SMALL),
                "advunlearn": AdvUnlearn(steps=40, rate=1e-4, warmup=20, attack_steps=5, attack_rate=0.05, **_SMALL),
            }
        ),
    }
)
"""Settings by their name, then methods by theirs."""


def settings(name: str) -> Settings:
    """All methods with the settings of a name.

    Raises:
        InputError: No such settings (with a suggestion).
    """
    one_of("settings", name, SETTINGS)
    return SETTINGS[name]
