"""The models of a run directory of ``jaxunlearn privacy``, for whoever wants to ask them something else."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import require
from jaxunlearn.config import method_directory_name
from jaxunlearn.data import tokens
from jaxunlearn.data.tokens import Tokenizer
from jaxunlearn.engine import checkpoints
from jaxunlearn.models import language_weights, transformer
from jaxunlearn.pipeline.population import own_process
from jaxunlearn.pipeline.privacy.models import BASE, RETRAIN, TARGET
from jaxunlearn.pipeline.privacy.run import TOKENIZER
from jaxunlearn.pipeline.task import decoder_architecture
from jaxunlearn.sequences import LanguageModel
from jaxunlearn.types import Params


class Loaded(NamedTuple):
    """Models of all seeds.

    Attributes:
        architecture: What they are made of.
        language: The decoder as pure functions.
        params: [S, ...] parameters.
        tokenizer: Theirs.
    """

    architecture: transformer.Architecture
    language: LanguageModel
    params: Params
    tokenizer: Tokenizer


def load_models(directory: AnyPath | str, name: str = TARGET) -> Loaded:
    """Loads the models of a directory of ``jaxunlearn privacy``.

    Args:
        directory: The run directory.
        name: A method that it ran, "base", "target" or "retrain".

    Raises:
        InputError: It is a directory of another command, there are no such models, or a chunk is damaged.
    """
    directory = as_path(directory)
    manifest = records.read_json(directory / "manifest.json")
    config = manifest["config"]
    require("stop_below" in config, f"Expected a directory of jaxunlearn privacy, got {directory}.")
    decoder = config["decoder"]
    if decoder["weights"] is None:
        tokenizer = tokens.load(str(directory / TOKENIZER))
        sizes = configuration.Decoder(
            **{key: value for key, value in decoder.items() if hasattr(configuration.Decoder, key)}
        )
        architecture = decoder_architecture(sizes, tokenizer.vocabulary)
    else:
        tokenizer = tokens.load(decoder["tokenizer"] or decoder["weights"])
        architecture, pretrained = language_weights.load_language_model(decoder["weights"])
        if name == BASE:
            language = transformer.language_model(architecture, dtype=decoder["precision"])
            return Loaded(architecture, language, jax.tree.map(lambda a: np.asarray(a)[None], pretrained), tokenizer)
    language = transformer.language_model(architecture, dtype=decoder["precision"])
    around = name in (BASE, TARGET, RETRAIN)
    folder = (
        as_path(manifest["population_directory"]) / name
        if around
        else directory / method_directory_name(name) / "models"
    )
    chunks = checkpoints.ParamsStore(folder, process=own_process())
    numbers = chunks.chunks()
    require(
        len(numbers) > 0, f"Expected models in {folder}, found none; give the command that wrote {directory} again."
    )
    shapes = jax.eval_shape(language.init, jax.random.key(0))

    def like(number: int) -> Params:
        count = len(chunks.facts(number)["runs"])
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), shapes)

    loaded = [chunks.load(number, like(number)) for number in numbers]
    return Loaded(architecture, language, jax.tree.map(lambda *parts: np.concatenate(parts), *loaded), tokenizer)


def export(loaded: Loaded, folder: Path | str, seed: int = 0) -> None:
    """Writes one seed's model and the tokenizer as a folder that transformers reads.

    Args:
        loaded: From ``load_models``.
        folder: Made if absent.
        seed: Which of the models.

    Raises:
        InputError: There is no such seed.
    """
    seeds = jax.tree.leaves(loaded.params)[0].shape[0]
    require(0 <= seed < seeds, f"Expected seed={seed} in 0..{seeds - 1}.")
    params = jax.tree.map(lambda a: a[seed], loaded.params)
    language_weights.save_language_model(folder, loaded.architecture, params)
    loaded.tokenizer.save(Path(folder))
