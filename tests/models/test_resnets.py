"""Residual networks against torch's (``goldens/make_resnet.py``), their layers in all forms, and their weights on disk."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.models import layers, pretrained
from jaxunlearn.models.base import in_bfloat16, normalised, parameter_count
from jaxunlearn.models.resnet import groups_of, resnet18, resnet50
from jaxunlearn.types import Variables
from jaxunlearn.unlearn.base import gradient_of

pytestmark = pytest.mark.slow

GOLDENS = dict(np.load(Path(__file__).parent / "goldens" / "resnet.npz"))
MAKERS = {"resnet18": resnet18, "resnet50": resnet50}
KEY = jax.random.key(0)


def small(name, norm="batch", stages=(1, 1), **kwargs):
    return MAKERS[name]((8, 8, 3), 3, norm=norm, width=4, stages=stages, **kwargs)


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def under(prefix):
    return {key.removeprefix(prefix): value for key, value in GOLDENS.items() if key.startswith(prefix)}


def close_to(ours, expected, error=1e-4):
    """Within ``error`` of the largest entry, leaf by leaf."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(np.abs(b).max()))


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_both_modes_equal_torchs(name):
    model = small(name, form="winograd")
    loaded = pretrained.from_torch(under(f"{name}/state/"), model)
    model = normalised(model, loaded.mean, loaded.std)
    x, weight, real = GOLDENS["x"], GOLDENS["weight"], len(GOLDENS["x"])
    padded = np.concatenate([x, 7 + x[:1]])  # an example of weight 0, which torch never saw

    def in_evaluation(x):
        logits = model.apply(loaded.variables, x)
        return jnp.sum(logits[:real] * weight), logits

    def in_training(x):
        logits, moved = model.train(loaded.variables, x, (np.arange(len(x)) < real).astype(np.float32))
        return jnp.sum(logits[:real] * weight), (logits, moved)

    evaluated = jax.jit(jax.grad(in_evaluation, has_aux=True))
    gradient, logits = evaluated(padded)
    close_to((logits[:real], gradient[:real]), (GOLDENS[f"{name}/eval/logits"], GOLDENS[f"{name}/eval/gradient"]))
    # Nothing else in a batch matters in evaluation mode.
    changed = np.concatenate([x[:1], np.full_like(x, 0.5)])
    np.testing.assert_allclose(evaluated(changed)[1][0], logits[0], rtol=1e-4, atol=1e-5)

    gradient, (logits, moved) = jax.jit(jax.grad(in_training, has_aux=True))(padded)
    close_to((logits[:real], gradient[:real]), (GOLDENS[f"{name}/train/logits"], GOLDENS[f"{name}/train/gradient"]))
    assert not gradient[real:].any()
    close_to(moved.statistics, under(f"{name}/moved/"))
    jax.tree.map(np.testing.assert_array_equal, moved.params, loaded.variables.params)


@pytest.mark.parametrize(("shape", "kernel_size"), [((8, 4), 3), ((5, 7), 3), ((6, 4), 1)])
def test_forms_agree_at_stride_2(shape, kernel_size, monkeypatch):
    monkeypatch.setattr(layers.blocks, "BLOCK_PIXELS", 2 * 8 * 4)  # an image is left over
    x = drawn(0, 3, *shape, 6)
    kernel, bias = drawn(1, kernel_size, kernel_size, 6, 5), drawn(2, 5)

    def of(form):
        def loss(*arguments):
            y = layers.convolve(*arguments, stride=2, form=form)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, kernel, bias)

    expected = of("plain")
    assert expected[1].shape == (3, -(-shape[0] // 2), -(-shape[1] // 2), 5)
    for form in ("winograd", "patches"):  # canonical is winograd but for the blocks
        close_to(of(form), expected)


@pytest.mark.parametrize("with_around", [True, False])
def test_convolution_with_relu_equals_one_after_the_other(with_around, monkeypatch):
    monkeypatch.setattr(layers.blocks, "BLOCK_PIXELS", 2 * 4 * 4)  # an image is left over
    x, kernel = drawn(0, 3, 4, 4, 6), drawn(1, 3, 3, 6, 5)
    bias, around = drawn(2, 5), 5 * drawn(3, 3, 4, 4, 5)

    def of(form):
        def loss(x, kernel, bias, around):
            y = layers.convolve_relu(x, kernel, bias, around if with_around else None, form=form)
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(loss, (0, 1, 2, 3)[: 3 + with_around], has_aux=True))(x, kernel, bias, around)

    close_to(of("winograd"), of("plain"))


def test_convolution_at_stride_2_by_hand():
    x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[0, 1].set(1.0)  # what is above the pixels (0, 0), (0, 2), (2, 0), (2, 2)
    for form in layers.CONV_FORMS:
        assert layers.convolve(x, kernel, stride=2, form=form)[0, :, :, 0].tolist() == [[0, 0], [4, 6]]
        assert layers.convolve(x, kernel[:1, 1:2], stride=2, form=form)[0, :, :, 0].tolist() == [[0, 2], [8, 10]]


def test_group_norm_networks_run_side_by_side_as_one_by_one():
    assert [groups_of(channels) for channels in (4, 64, 80, 512)] == [2, 32, 8, 32]
    model, other = (small("resnet18", "group", (1,), form=form) for form in ("patches", "winograd"))
    assert model.train is None
    shapes = jax.eval_shape(model.init, KEY)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda a: rng.normal(size=(2, *a.shape)).astype(np.float32), shapes)
    x = rng.normal(size=(3, 8, 8, 3)).astype(np.float32)
    together = jax.jit(jax.vmap(model.apply, (0, None)))(params, x)
    apply = jax.jit(other.apply)
    first, second = ({name: value[run] for name, value in params.items()} for run in range(2))
    close_to((apply(first, x), apply(second, x)), tuple(together), 1e-3)
    assert np.abs(together[0] - together[1]).max() > 0.01
    changed = np.concatenate([x[:1], np.full_like(x[1:], 2.0)])
    np.testing.assert_allclose(apply(first, changed)[0], apply(first, x)[0], rtol=1e-4, atol=1e-5)


def test_gradient_by_the_input_alone_does_no_work_for_the_weights():
    x, kernel = jnp.ones((2, 8, 8, 16)), jnp.ones((3, 3, 16, 16))

    def loss(x, kernel):
        for stride in (1, 2):
            x = layers.convolve(jax.nn.relu(x), kernel, stride=stride, form="winograd")
        return jnp.sum(x**2)

    def flops(fn):
        return jax.jit(fn).lower(x, kernel).compile().cost_analysis()["flops"]

    assert flops(jax.grad(loss)) < 0.85 * flops(jax.grad(loss, (0, 1)))


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count", "tensors"),
    [
        ("resnet18", (32, 32, 3), 10, 11_173_962, 62),
        ("resnet50", (64, 64, 3), 10, 23_520_842, 161),
        ("resnet50", (32, 32, 3), 100, 23_705_252, 161),
    ],
)
def test_parameters_are_torchvisions_but_for_the_first_convolution(name, shape, classes, count, tensors):
    variables = jax.eval_shape(MAKERS[name](shape, classes).init, KEY)
    assert parameter_count(variables.params) == count and len(variables.params) == tensors
    assert len(variables.statistics) == 2 * (tensors - 2) // 3
    assert variables.params["layer2.0.downsample.0.weight"].shape[:2] == (1, 1)
    group = jax.eval_shape(MAKERS[name](shape, classes, norm="group").init, KEY)
    assert group == variables.params


def test_initial_weights_are_kaiming_normal_by_fan_out():
    params, statistics = jax.jit(resnet18((8, 8, 3), 50, width=64, stages=(1,)).init)(KEY)
    for name in ("conv1", "layer1.0.conv1"):  # with 3 and 64 inputs
        kernel = np.asarray(params[f"{name}.weight"])
        assert abs(kernel.std() / np.sqrt(2 / (9 * 64)) - 1) < 4 / np.sqrt(2 * kernel.size)
    assert np.abs(params["fc.weight"]).max() <= 1 / 8 and abs(np.std(params["fc.weight"]) * 8 * np.sqrt(3) - 1) < 0.05
    assert set(map(float, statistics["layer1.0.bn2.running_var"])) == {1.0}
    assert not np.any(params["bn1.bias"])


def test_bfloat16_keeps_statistics_and_what_is_trained_in_float32():
    model = in_bfloat16(small("resnet18"))
    variables = jax.eval_shape(model.init, KEY)
    x, weight = jax.ShapeDtypeStruct((2, 8, 8, 3), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32)
    assert "bf16" in str(jax.make_jaxpr(model.train)(variables, x, weight))
    logits, moved = jax.eval_shape(model.train, variables, x, weight)
    assert logits.dtype == jnp.float32 and moved == variables


def test_the_gradient_has_no_statistics():
    model = small("resnet18")
    variables = jax.eval_shape(model.init, KEY)

    def loss(variables):
        logits, moved = model.train(variables, jnp.ones((2, 8, 8, 3)), jnp.ones(2))
        return jnp.sum(logits), moved

    gradient, moved = jax.eval_shape(lambda v: gradient_of(loss, v), variables)
    assert gradient == variables.params and moved == variables


def test_weights_go_to_a_file_and_come_back(tmp_path):
    state, path = under("resnet50/state/"), tmp_path / "model.safetensors"
    model = small("resnet50")
    variables, mean, std = pretrained.from_torch({f"module.{k}": v for k, v in state.items()}, model)
    np.testing.assert_allclose(mean + std, (0.5, 0.4, 0.3, 0.2, 0.3, 0.25), rtol=1e-6)
    pretrained.save_resnet(path, variables, mean=mean, std=std)
    from safetensors.numpy import load_file

    written = load_file(path)
    assert {k: v.shape for k, v in written.items()} == {k: v.shape for k, v in state.items()}
    for name in state:
        if "tracked" not in name:
            np.testing.assert_array_equal(written[name], state[name])
    again = pretrained.load_resnet(path, model)
    assert isinstance(again.variables, Variables) and (again.mean, again.std) == (mean, std)
    jax.tree.map(np.testing.assert_array_equal, again.variables, variables)


def test_checkpoints_that_do_not_fit_are_refused(tmp_path):
    state, model = under("resnet18/state/"), small("resnet18")
    lacking = {name: value for name, value in state.items() if name != "bn1.running_var"}
    cases = [
        (
            lacking | {"classifier.weight": state["fc.weight"]},
            "missing are bn1.running_var, unexpected are classifier.w",
        ),
        (state | {"fc.weight": state["fc.weight"][:2]}, r"fc.weight \(2, 8\) for \(3, 8\)"),
        (under("resnet50/state/"), "unexpected are layer1.0.bn3.bias"),
    ]
    for tensors, message in cases:
        with pytest.raises(InputError, match=message):
            pretrained.from_torch(tensors, model)
    with pytest.raises(InputError, match="norm='batch'"):
        pretrained.from_torch(state, small("resnet18", "group"))
    path = tmp_path / "weights.pt"
    with pytest.raises(InputError, match="found none at .*weights.pt"):
        pretrained.load_resnet(path, model)
    path.write_bytes(b"PK no safetensors file")
    with pytest.raises(InputError, match="to be a safetensors file"):
        pretrained.load_resnet(path, model)


def test_sizes_out_of_range_are_refused():
    for wrong, message in (
        ({"norm": "layer"}, "norm='layer'"),
        ({"width": 5}, "width=5"),
        ({"stages": (1, 0)}, r"stages\[1\]=0"),
        ({"mean": (0.5,)}, "both or neither"),
        ({"mean": (0.5,), "std": (0.0,)}, r"std\[0\]=0"),
    ):
        with pytest.raises(InputError, match=message):
            resnet18((8, 8, 1), 2, **wrong)
