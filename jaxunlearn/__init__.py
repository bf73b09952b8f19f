"""Find out whether a model has really forgotten.

Import the subpackage you need (``from jaxunlearn import audit``): the auditor then works without loading JAX.
"""

from jaxunlearn._version import __version__

__all__ = ["__version__"]
