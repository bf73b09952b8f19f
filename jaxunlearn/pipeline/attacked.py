"""The tasks of ``jaxunlearn robustness``: the presets of all, and what runs a configuration."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from jaxunlearn._paths import AnyPath
from jaxunlearn.pipeline.diffusion import presets as drawing
from jaxunlearn.pipeline.diffusion import published
from jaxunlearn.pipeline.diffusion import run as draw
from jaxunlearn.pipeline.diffusion.config import TextToImageRobustness
from jaxunlearn.pipeline.diffusion.published_config import PublishedRobustness
from jaxunlearn.pipeline.inpainting import presets as inpainting
from jaxunlearn.pipeline.inpainting import run as inpaint
from jaxunlearn.pipeline.inpainting.config import Inpainting
from jaxunlearn.pipeline.robustness import presets as classification
from jaxunlearn.pipeline.robustness import run as classify
from jaxunlearn.pipeline.robustness.config import Robustness

PRESETS: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {**classification.PRESETS, **inpainting.PRESETS, **drawing.PRESETS}
)
_RUNS: Mapping[type, Callable[[Any], AnyPath]] = MappingProxyType(
    {
        Robustness: classify.run,
        Inpainting: inpaint.run,
        TextToImageRobustness: draw.run,
        PublishedRobustness: published.run,
    }
)


def run(config: Robustness | Inpainting | TextToImageRobustness | PublishedRobustness) -> AnyPath:
    """Runs or resumes the command of a configuration.

    Returns:
        The run directory.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    return _RUNS[type(config)](config)


def is_large(config: Any) -> bool:
    """Whether one model uses all cores by itself."""
    return isinstance(config, PublishedRobustness)
