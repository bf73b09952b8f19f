"""From the name of a method to what makes it."""

import dataclasses
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from jaxunlearn import _validate
from jaxunlearn._validate import InputError
from jaxunlearn.config.audit import Audit
from jaxunlearn.config.autoencoder_methods import AutoencoderMethods
from jaxunlearn.config.diffusion_methods import DiffusionMethods
from jaxunlearn.config.language_methods import LANGUAGE_METHOD_NAMES, LanguageMethods
from jaxunlearn.config.methods import METHOD_NAMES, Methods
from jaxunlearn.records import as_json
from jaxunlearn.types import TaskInfo, Unlearner


def resolve(config: Audit, name: str) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    """Finds a method of an audit by name; of people, those for language models come first. See ``resolve_method``."""
    if config.dataset == "people" and name in LANGUAGE_METHOD_NAMES:
        return resolve_method(name, config.language_method)
    if config.dataset == "people" and name not in METHOD_NAMES and ":" not in name:
        _validate.one_of("method", name, (*LANGUAGE_METHOD_NAMES, *METHOD_NAMES))
    return resolve_method(name, config.method)


def resolve_method(
    name: str, methods: Methods | LanguageMethods | AutoencoderMethods | DiffusionMethods
) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    """Finds a method by name.

    Args:
        name: A built-in name, or ``package.module:attribute`` (the current folder is on the path).
        methods: Hyperparameters of the built-in ones.

    Returns:
        The factory, and what its results depend on: the hyperparameters, or the hash of the module's source.

    Raises:
        InputError: Unknown name (with a suggestion), module or attribute.
    """
    if ":" in name:
        return _import_method(name)
    _validate.one_of("method", name, [field.name.replace("_", "-") for field in dataclasses.fields(methods)])
    config = getattr(methods, name.replace("-", "_"))
    return config.build, as_json(config)


def _import_method(name: str) -> tuple[Callable[[TaskInfo], Unlearner], dict[str, Any]]:
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # an installed script does not look in the current folder
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InputError(
            f"Cannot import method={name!r} ({error}); is {module_name} installed or in this folder?"
        ) from error
    except Exception as error:  # a module can fail in any way while it is imported
        text = " ".join(str(error).split())
        raise InputError(f"Cannot import method={name!r} ({type(error).__name__}: {text}); mend the module.") from error
    if not hasattr(module, attribute):
        callables = [n for n, v in vars(module).items() if callable(v) and v.__module__ == module_name]
        _validate.one_of(f"function of {module_name}", attribute, callables)
    factory = getattr(module, attribute)
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError) as error:
        raise InputError(f"Expected method={name!r} in a module with Python source, got {module_name}.") from error
    return factory, {"source": name, "sha256": hashlib.sha256(source.encode()).hexdigest()}


def method_directory_name(name: str) -> str:
    """The folder of a method inside the run directory."""
    return name.replace(":", ".").replace("/", ".")
