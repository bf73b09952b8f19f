"""The models of a finished run directory, for whoever wants to check its numbers or to attack them otherwise."""

from jaxunlearn import records
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import require
from jaxunlearn.config import method_directory_name
from jaxunlearn.models.base import normalised
from jaxunlearn.pipeline.seeds import load_population
from jaxunlearn.pipeline.task import make_model
from jaxunlearn.types import Model, Params


def load_models(directory: AnyPath | str, method: str | None = None) -> tuple[Model, Params]:
    """Loads the models of a directory of ``jaxunlearn robustness``.

    Args:
        directory: The run directory.
        method: The models that it unlearned; None means the original ones.

    Returns:
        The model, whose ``apply`` takes images in [0, 1] as ``targets.npz`` and ``attacked.npz`` have them; and parameters
        [S, ...] of all seeds (one, where all share an original).

    Raises:
        InputError: There are none, or a chunk is damaged.
    """
    directory = as_path(directory)
    config = records.read_json(directory / "manifest.json")["config"]
    require("epsilons" in config, f"Expected a directory of jaxunlearn robustness, got {directory}.")
    targets = records.read_npz(directory / "targets.npz", sealed=True)
    shape, classes = targets["images"].shape[1:], targets["logits"].shape[-1]
    plain = make_model(config["model"], shape, classes, precision=config["precision"], width=config.get("width"))
    model = normalised(plain, targets["mean"].tolist(), targets["std"].tolist())
    folder = directory / ("population" if method is None else f"{method_directory_name(method)}/models")
    return model, load_population(folder, model.init, directory)
