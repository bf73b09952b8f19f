import pytest
from made_runs import make_records, write_joint, write_minimal, write_six


@pytest.fixture(scope="session")
def six(tmp_path_factory):
    return write_six(tmp_path_factory.mktemp("six"))


@pytest.fixture
def joint(tmp_path):
    return write_joint(tmp_path / "joint")


@pytest.fixture
def minimal(tmp_path):
    return write_minimal(tmp_path / "minimal")


@pytest.fixture
def records():
    return list(make_records().values())
