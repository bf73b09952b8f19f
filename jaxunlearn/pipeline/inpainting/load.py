"""The models of a finished run directory, for whoever wants to check its numbers or to attack them otherwise."""

from jaxunlearn import records
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import require
from jaxunlearn.config import method_directory_name
from jaxunlearn.models.mae import Architecture, autoencoder
from jaxunlearn.patches import Autoencoder, Mask, centre
from jaxunlearn.pipeline.seeds import load_population
from jaxunlearn.types import Params


def load_models(directory: AnyPath | str, method: str | None = None) -> tuple[Autoencoder, Mask, Params]:
    """Loads the models of a directory of ``jaxunlearn robustness digits-inpainting``.

    Args:
        directory: The run directory.
        method: The models that it unlearned; None means the original ones.

    Returns:
        The autoencoder, the mask under which it was attacked, and parameters [S, ...] of all seeds.

    Raises:
        InputError: There are none, or a chunk is damaged.
    """
    directory = as_path(directory)
    config = records.read_json(directory / "manifest.json")["config"]
    require(
        "hidden_side" in config,
        f"Expected a directory of jaxunlearn robustness digits-inpainting, got {directory}.",
    )
    model = autoencoder(Architecture(**config["model"]))
    folder = directory / ("population" if method is None else f"{method_directory_name(method)}/models")
    return model, centre(model.grid, config["hidden_side"]), load_population(folder, model.init, directory)
