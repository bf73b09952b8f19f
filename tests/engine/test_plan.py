import jax
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.engine import plan as planning


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("runs", [1, 2, 3, 7, 8, 60, 61, 333])
@pytest.mark.parametrize("width", [None, 1, 3, 32])
@pytest.mark.parametrize("wanted", [None, 1, 10, 1000])
def test_chunks_are_equal_multiples_that_cover_all_runs(devices, runs, width, wanted):
    mesh = planning.make_mesh(jax.devices()[:devices])
    plan = planning.choose(mesh, runs, width=width, runs_per_chunk=wanted)
    share = -(-runs // devices)
    unit, chunks = devices * plan.width, -(-runs // plan.runs_per_chunk)
    assert plan.width == min(share, width or 1)
    assert plan.runs_per_chunk % unit == 0
    assert chunks * plan.runs_per_chunk >= runs > (chunks - 1) * plan.runs_per_chunk
    if wanted is not None:  # a kill loses no more than was asked for, rounded up to a whole unit
        assert plan.runs_per_chunk <= max(unit, -(-wanted // unit) * unit)
    # Padding is less than one unit for every chunk there is.
    assert chunks * plan.runs_per_chunk - runs < unit * chunks


@pytest.mark.parametrize("changes", [{"runs": 0}, {"width": 0}, {"width": -1}, {"runs_per_chunk": 0}])
def test_errors_name_the_argument(changes):
    arguments = {"runs": 8} | changes
    with pytest.raises(InputError, match=next(iter(changes))):
        planning.choose(planning.make_mesh(), **arguments)


def test_mesh_over_all_or_the_given_devices():
    assert planning.make_mesh().devices.size == jax.local_device_count()
    mesh = planning.make_mesh(jax.devices()[:2])
    assert mesh.axis_names == (planning.AXIS,) and list(mesh.devices) == jax.devices()[:2]
    assert isinstance(mesh.devices, np.ndarray)


@pytest.mark.parametrize(
    ("devices", "width", "wanted", "expected"),
    [(1, None, None, (1, 1)), (2, None, None, (1, 2)), (2, 3, None, (3, 6)), (4, 1, 5, (1, 8)), (2, 2, 1, (2, 4))],
)
def test_open_plans_do_not_depend_on_how_many_runs_there_will_be(devices, width, wanted, expected):
    mesh = planning.make_mesh(jax.devices()[:devices])
    plan = planning.choose_open(mesh, width=width, runs_per_chunk=wanted)
    assert (plan.width, plan.runs_per_chunk) == expected


@pytest.mark.parametrize("changes", [{"width": 0}, {"runs_per_chunk": 0}])
def test_errors_of_open_plans_name_the_argument(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        planning.choose_open(planning.make_mesh(), **changes)
