"""Shared by all tests: four host devices, strict shapes, fresh trace counts, and the folder of real data."""

import os
import tempfile
from functools import partial
from pathlib import Path

os.environ["JAX_NUM_CPU_DEVICES"] = "4"  # also tells the command line, run in-process, not to choose a number itself

import chex  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

NAMED_DATA = os.environ.get("JAXUNLEARN_DATA")  # as the session was started: tests set it to empty folders

# Before any back end is up: device-count invariance is tested in-process, on meshes over the first 1, 2 and 4 of these.
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tests build the same small programs again and again; within a session each is compiled once.
_CACHE = tempfile.TemporaryDirectory(prefix="jaxunlearn-tests-")
os.environ["JAXUNLEARN_CACHE"] = _CACHE.name  # plans that a test measures are no business of the user's
jax.config.update("jax_compilation_cache_dir", _CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


# Where small programs are many, compiling is what costs: XLA takes the least trouble over them, in a fifth of the time.
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


def pytest_make_parametrize_id(val):
    """Bytes name no test: they may hold a time stamp, and then two workers would not collect the same tests."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None


@pytest.fixture(autouse=True)
def _fresh_trace_counts():
    chex.clear_trace_counter()


@pytest.fixture(scope="module")
def quickly_compiled():
    """Whatever a module's tests compile from here on is hardly optimised; what it computes is the same to float rounding.

    A module that jits its own functions has to be imported before: inside another program they take no options.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", partial(jax.jit, compiler_options=UNOPTIMISED))
        yield


@pytest.fixture
def data_dir():
    """The folder with the real data files; absent, the test is skipped on a desk and fails in CI."""
    named = NAMED_DATA
    if named and Path(named).is_dir():
        return Path(named)
    problem = f"JAXUNLEARN_DATA={named} is no folder" if named else "JAXUNLEARN_DATA is not set"
    files = (
        "cifar10_train*.npz, cifar10_test*.npz, MNIST's t10k files, tiny_imagenet*.tar, shakespeare_speeches.jsonl.gz, "
        "tinyshakespeare.txt"
    )
    fix = f"set it to the folder with {files}"
    if os.environ.get("CI"):
        pytest.fail(f"{problem}; {fix}")
    pytest.skip(f"{problem}; {fix}")


@pytest.fixture
def bucket():
    """A bucket of an object store without a network: ``s3://`` through etils and fsspec, its objects in memory."""
    import fsspec
    from etils.epath import backend
    from fsspec.implementations.memory import MemoryFileSystem

    from jaxunlearn._paths import as_path

    class Bucket(MemoryFileSystem):
        protocol = "s3"
        store = {}
        pseudo_dirs = [""]

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + str(path).removeprefix("s3:").strip("/")

    fsspec.register_implementation("s3", Bucket, clobber=True)
    backend.fsspec_backend._get_filesystem.cache_clear()
    return as_path("s3://bucket")
