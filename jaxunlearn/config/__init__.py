"""Typed configurations; the fields of ``Methods``, ``LanguageMethods``, ``AutoencoderMethods`` and ``DiffusionMethods`` are
the registries of methods.
"""

from jaxunlearn.config.audit import (
    AUDIT_FIELDS,
    TRAINING_FIELDS,
    Audit,
    attack_terms,
    audit_identity,
    training_identity,
)
from jaxunlearn.config.autoencoder_methods import AUTOENCODER_METHOD_NAMES, AutoencoderMethods
from jaxunlearn.config.diffusion_methods import RUB_PROMPTED, DiffusionMethods, diffusion_methods
from jaxunlearn.config.language_methods import LANGUAGE_METHOD_NAMES, PRIVUN_METHODS, LanguageMethods
from jaxunlearn.config.methods import AUDITED, METHOD_NAMES, Methods
from jaxunlearn.config.resolve import method_directory_name, resolve, resolve_method
from jaxunlearn.config.training import Decoder, Text, Training

__all__ = [
    "AUDITED",
    "AUDIT_FIELDS",
    "AUTOENCODER_METHOD_NAMES",
    "LANGUAGE_METHOD_NAMES",
    "METHOD_NAMES",
    "PRIVUN_METHODS",
    "RUB_PROMPTED",
    "TRAINING_FIELDS",
    "Audit",
    "AutoencoderMethods",
    "Decoder",
    "DiffusionMethods",
    "LanguageMethods",
    "Methods",
    "Text",
    "Training",
    "attack_terms",
    "audit_identity",
    "diffusion_methods",
    "method_directory_name",
    "resolve",
    "resolve_method",
    "training_identity",
]
