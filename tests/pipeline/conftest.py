"""Audits in these tests compile the same programs again and again: compiled once, they come from a cache."""

import shutil

import jax
import pytest
from small_audits import audit

CACHE = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(scope="package", autouse=True)
def compilation_cache(tmp_path_factory):
    from jax.experimental.compilation_cache import compilation_cache

    folder = str(tmp_path_factory.mktemp("compiled"))
    before = {name: getattr(jax.config, name) for name in CACHE}
    for name, value in {**CACHE, "jax_compilation_cache_dir": folder}.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield folder
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def cached_environment(compilation_cache, monkeypatch):
    """The same cache for programs that a test starts."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", compilation_cache)
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(scope="package")
def finished(tmp_path_factory, compilation_cache):
    """A finished run directory, not to be written to."""
    out = tmp_path_factory.mktemp("an älteres Verzeichnis 🎲") / "run"
    assert audit(out, "--methods", "retrain", "finetune") == 0
    return out


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "copy")
