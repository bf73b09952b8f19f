import jax
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
    assert plan.width == min(share, width or 1, -(-plan.runs_per_chunk // devices))
    assert chunks * plan.runs_per_chunk >= runs > (chunks - 1) * plan.runs_per_chunk
    if wanted is not None:  # a kill loses no more than was asked for, and any number of devices takes the same chunks
        assert plan.runs_per_chunk == wanted
        return
    assert plan.runs_per_chunk == runs or plan.runs_per_chunk % unit == 0
    # Padding is less than one unit for every chunk there is.
    assert planning.padded(mesh, plan.runs_per_chunk, plan.width) * chunks - runs < unit * (chunks + 1)


@pytest.mark.parametrize("runs", [8, 60, 61, 1000])
@pytest.mark.parametrize("processes", [2, 3, 8])
def test_processes_get_chunks_evenly(runs, processes):
    plan = planning.choose(planning.make_mesh(jax.devices()[:2]), runs, processes=processes)
    chunks = -(-runs // plan.runs_per_chunk)
    mine = [len(range(process, chunks, processes)) for process in range(processes)]
    assert max(mine) - min(mine) <= 1 and max(mine) * plan.runs_per_chunk <= 2 * -(-runs // processes)


@pytest.mark.parametrize("changes", [{"runs": 0}, {"width": 0}, {"width": -1}, {"runs_per_chunk": 0}])
def test_errors_name_the_argument(changes):
    arguments = {"runs": 8} | changes
    with pytest.raises(InputError, match=next(iter(changes))):
        planning.choose(planning.make_mesh(), **arguments)


def test_mesh_over_all_or_the_given_devices():
    assert planning.make_mesh().devices.size == jax.local_device_count()
    mesh = planning.make_mesh(jax.devices()[:2])
    assert mesh.axis_names == (planning.AXIS, planning.PARAMETERS) and list(mesh.devices.flat) == jax.devices()[:2]
    assert planning.make_mesh(runs=1).devices.tolist() == [jax.local_devices()[:1]]
    assert dict(planning.make_mesh(parameter_shards=2, runs=1).shape) == {planning.AXIS: 1, planning.PARAMETERS: 2}
    assert planning.make_mesh(runs=99).devices.size == jax.local_device_count()
    assert dict(planning.make_mesh(parameter_shards=2).shape) == {planning.AXIS: 2, planning.PARAMETERS: 2}
    with pytest.raises(InputError, match="parameter_shards=3 to divide the 4 devices"):
        planning.make_mesh(parameter_shards=3)
    with pytest.raises(InputError, match="runs=0"):
        planning.make_mesh(runs=0)


@pytest.mark.parametrize(
    ("devices", "width", "wanted", "expected"),
    [(1, None, None, (1, 1)), (2, None, None, (1, 2)), (2, 3, None, (3, 6)), (4, 1, 5, (1, 5)), (2, 2, 1, (1, 1))],
)
def test_open_plans_do_not_depend_on_how_many_runs_there_will_be(devices, width, wanted, expected):
    mesh = planning.make_mesh(jax.devices()[:devices])
    plan = planning.choose_open(mesh, width=width, runs_per_chunk=wanted)
    assert (plan.width, plan.runs_per_chunk) == expected


@pytest.mark.parametrize("changes", [{"width": 0}, {"runs_per_chunk": 0}])
def test_errors_of_open_plans_name_the_argument(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        planning.choose_open(planning.make_mesh(), **changes)
