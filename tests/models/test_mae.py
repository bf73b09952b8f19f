"""The masked autoencoder against torch's values of a tiny random one, its masks by hand, and what it may look at."""

import functools
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxunlearn import patches
from jaxunlearn._validate import InputError
from jaxunlearn.models import mae, mae_weights
from jaxunlearn.models.base import parameter_count

GOLDENS = Path(__file__).parent / "goldens"
TINY = mae.Architecture(
    side=8,
    patch=2,
    channels=1,
    width=8,
    depth=1,
    heads=2,
    mlp=8,
    decoder_width=4,
    decoder_depth=1,
    decoder_heads=1,
    decoder_mlp=4,
)
MODEL = mae.autoencoder(TINY)
rng = np.random.default_rng(0)
SHAPES = jax.eval_shape(MODEL.init, jax.random.key(0))
PARAMS = jax.tree.map(lambda leaf: rng.normal(scale=0.5, size=leaf.shape).astype(np.float32), SHAPES)
X = rng.uniform(size=(2, 8, 8, 1)).astype(np.float32)
CENTRE = patches.centre(4)


@functools.cache
def golden():
    with np.load(GOLDENS / "mae.npz") as stored:
        return dict(stored)


def tensors():
    found = {}
    for key, value in golden().items():
        kind, _, name = key.partition("/")
        if kind == "weights":
            found[name] = (value.astype(np.uint32) << 16).view(np.float32)
        if kind == "positions":
            found[name] = value
    return found


def write(folder, named=None, **changes):
    folder.mkdir(exist_ok=True)
    save_file(tensors() if named is None else named, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(json.loads(str(golden()["config"])) | changes))
    return folder


@functools.cache
def reconstruct(visible):
    """``(params, x, order, weight) -> images, gradient of their weighted sum by x``, compiled once."""

    def weighted(x, params, order, weight):
        images = MODEL.reconstruct(params, x, order, visible)
        return jnp.sum(images * weight), images

    def program(params, x, order, weight):
        (_, images), gradient = jax.value_and_grad(weighted, has_aux=True)(x, params, order, weight)
        return images, gradient

    return jax.jit(program)


def close(ours, theirs, tolerance=1e-4):
    theirs = np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.slow
def test_outputs_losses_and_gradients_are_torchs(tmp_path):
    found = mae_weights.load_autoencoder(write(tmp_path))
    assert found.architecture.grid == 4 and found.mean is None
    model, wanted = mae.autoencoder(found.architecture), golden()
    order, visible, x = jnp.asarray(wanted["order"], jnp.int32), int(wanted["visible"]), wanted["x"]

    @jax.jit
    def program(params, x):
        def answers(params, x):
            latents = model.encode(params, x, order, visible)
            logits = model.decode(params, latents, order)
            return jnp.sum(logits * wanted["weight"]), (latents, logits)

        def losses(x):
            each = [m.losses(params, x, order, visible).mean() for m in (model, model._replace(normalised=True))]
            return jnp.stack(each)

        gradients, outputs = jax.grad(answers, argnums=(0, 1), has_aux=True)(params, x)
        values, back = jax.vjp(losses, x)
        return outputs, gradients, values, [back(jnp.eye(2)[i])[0] for i in range(2)]

    (latents, logits), (by_params, by_x), values, by_loss = program(found.params, x)
    close(latents, wanted["latents"])
    close(logits, wanted["logits"])
    close(by_x, wanted["gradient"])
    np.testing.assert_array_equal(patches.is_hidden(order, visible), wanted["mask"])
    for number, normalised in enumerate((False, True)):
        np.testing.assert_allclose(values[number], wanted[f"loss_{normalised}"], rtol=1e-5)
        close(by_loss[number], wanted[f"loss_gradient_{normalised}"])
    projection = wanted["gradients/vit.embeddings.patch_embeddings.projection.weight"]
    close(by_params["encoder"]["patch"]["kernel"], mae_weights._from_torch("projection.weight", projection))
    close(by_params["decoder"]["mask_token"], wanted["gradients/decoder.mask_token"])


def test_the_small_model_has_the_size_that_is_stated():
    shapes = jax.eval_shape(mae.autoencoder(mae.ARCHITECTURES["digits"]).init, jax.random.key(0))
    assert parameter_count(shapes) == 305_028
    base = jax.eval_shape(mae.autoencoder(mae.ARCHITECTURES["vit-mae-base"]).init, jax.random.key(0))
    fixed = 197 * 768 + 197 * 512  # positions, which torch counts as parameters: 111,907,840 in all
    assert parameter_count(base) == 111_907_840 - fixed


def test_initial_weights_differ_by_key_and_tokens_are_small():
    init = jax.jit(MODEL.init)
    a, b = init(jax.random.key(0)), init(jax.random.key(1))
    kernel = a["encoder"]["block_0"]["up"]["kernel"]
    assert not np.array_equal(kernel, b["encoder"]["block_0"]["up"]["kernel"])
    limit = np.sqrt(6 / 16)  # Xavier's
    assert 0.8 * limit < np.abs(kernel).max() <= limit and abs(kernel.mean()) < 0.25 * limit
    assert 0 < np.abs(a["decoder"]["mask_token"]).max() < 0.1
    assert (a["encoder"]["norm"]["scale"] == 1).all() and not a["encoder"]["patch"]["bias"].any()


@pytest.mark.parametrize(
    ("grid", "sixteenths", "hidden"),
    [(4, 8, [5, 6, 9, 10]), (4, 4, [5]), (14, 4, None), (16, 8, None)],
)
def test_centre_masks_by_hand(grid, sixteenths, hidden):
    mask = patches.centre(grid, sixteenths)
    found = np.flatnonzero(mask.hidden)
    side = {14: 4, 16: 8}.get(grid)
    if hidden is None:
        first = (grid - side) // 2
        hidden = [grid * i + j for i in range(first, first + side) for j in range(first, first + side)]
    assert found.tolist() == hidden and mask.visible == grid**2 - len(hidden)
    assert sorted(mask.order) == list(range(grid**2))
    np.testing.assert_array_equal(patches.is_hidden(mask.of(2), mask.visible), np.stack([mask.hidden] * 2))


def test_a_mask_must_hide_some_and_leave_some():
    with pytest.raises(InputError, match="sixteenths=2 of 4"):
        patches.centre(4, 2)
    with pytest.raises(InputError, match="sixteenths=16 of 4"):
        patches.centre(4, 16)


def test_random_orders_are_uniform_permutations():
    orders = np.asarray(patches.random_orders(jax.random.key(0), 4000, 4))
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    counts = np.array([[(orders[:, place] == patch).sum() for patch in range(4)] for place in range(4)])
    assert np.abs(counts - 1000).max() < 150  # five standard deviations
    np.testing.assert_array_equal(np.take_along_axis(orders, np.asarray(patches.inverse(orders)), 1), [range(4)] * 4000)


def test_patches_go_row_by_row_and_back():
    x = np.arange(2 * 6 * 6 * 2, dtype=np.float32).reshape(2, 6, 6, 2)
    found = patches.patchify(x, 3)
    np.testing.assert_array_equal(found[1, 1], x[1, :3, 3:].ravel())
    np.testing.assert_array_equal(found[1, 2], x[1, 3:, :3].ravel())
    np.testing.assert_array_equal(patches.unpatchify(found, 3), x)


def test_positions_by_hand():
    table = mae.positions(8, 3)
    assert table.shape == (10, 8) and not table[0].any()
    row, column = 1, 2
    expected = [np.sin(column), np.sin(column / 100), np.cos(column), np.cos(column / 100)]
    expected += [np.sin(row), np.sin(row / 100), np.cos(row), np.cos(row / 100)]
    np.testing.assert_allclose(table[1 + 3 * row + column], expected, rtol=1e-6)


def test_visible_pixels_are_copied_and_hidden_ones_neither_seen_nor_differentiated():
    order, weight = CENTRE.of(2), rng.normal(size=X.shape).astype(np.float32)
    hidden = patches.unpatchify(jnp.broadcast_to(CENTRE.hidden[None, :, None], (2, 16, 4)), 2)
    hidden = np.asarray(hidden)
    images, gradient = reconstruct(CENTRE.visible)(PARAMS, X, order, weight)
    np.testing.assert_array_equal(np.asarray(images)[~hidden], X[~hidden])
    assert np.abs(np.asarray(images) - X)[hidden].min() > 0
    assert not np.asarray(gradient)[hidden].any() and (np.asarray(gradient)[~hidden] != 0).all()
    other = np.where(hidden, 0.5, X)
    np.testing.assert_array_equal(reconstruct(CENTRE.visible)(PARAMS, other, order, weight)[0], images)


def test_the_order_within_visible_and_within_hidden_patches_changes_nothing():
    visible, weight = CENTRE.visible, np.ones_like(X)
    images, _ = reconstruct(visible)(PARAMS, X, CENTRE.of(2), weight)
    shuffled = [
        np.concatenate([rng.permutation(CENTRE.order[:visible]), rng.permutation(CENTRE.order[visible:])]) for _ in X
    ]
    again, _ = reconstruct(visible)(PARAMS, X, jnp.asarray(np.stack(shuffled)), weight)
    np.testing.assert_allclose(again, images, atol=2e-5)


def test_images_of_a_batch_have_masks_of_their_own():
    weight, visible = np.ones_like(X), CENTRE.visible
    orders = patches.random_orders(jax.random.key(3), 2, 16)
    images, _ = reconstruct(visible)(PARAMS, X, orders, weight)
    turned, _ = reconstruct(visible)(PARAMS, X[::-1], orders[::-1], weight)
    np.testing.assert_allclose(turned[::-1], images, atol=2e-5)


def test_an_error_is_over_hidden_patches_alone():
    predicted, target = np.zeros((1, 4, 2), np.float32), np.zeros((1, 4, 2), np.float32)
    predicted[0, 1], predicted[0, 3] = (1, 3), (10, 10)
    order = jnp.asarray([[3, 0, 1, 2]])
    assert float(patches.hidden_error(predicted, target, order, 2)[0]) == pytest.approx((1 + 9) / 2 / 2)


def test_normalised_targets_by_hand():
    model = MODEL._replace(normalised=True, patch=2, side=2)
    x = np.array([1.0, 2.0, 4.0, 5.0], np.float32).reshape(1, 2, 2, 1)
    np.testing.assert_allclose(model.targets(x)[0, 0], (x.ravel() - 3) / np.sqrt(10 / 3), rtol=1e-5)


def test_normalised_predictions_make_no_image():
    with pytest.raises(InputError, match="norm_pix_loss false"):
        MODEL._replace(normalised=True).reconstruct(PARAMS, X, CENTRE.of(2), CENTRE.visible)


@pytest.mark.slow
def test_channels_are_normalised_inside_alone():
    mean, std = (0.4,), (0.2,)
    inside = mae.autoencoder(TINY, mean=mean, std=std)
    order, visible = CENTRE.of(2), CENTRE.visible
    ours = jax.jit(lambda p, x: inside.predict(p, x, order, visible))(PARAMS, X)
    theirs = jax.jit(lambda p, x: MODEL.predict(p, x, order, visible))(PARAMS, (X - 0.4) / 0.2)
    np.testing.assert_allclose(ours, np.asarray(theirs) * 0.2 + 0.4, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="std of 1 channels or neither"):
        mae.autoencoder(TINY, mean=(0.5, 0.5), std=(1.0, 1.0))
    with pytest.raises(InputError, match=r"std\[0\]=0.0"):
        mae.autoencoder(TINY, mean=(0.5,), std=(0.0,))


@pytest.mark.slow
def test_many_models_at_once_are_each_one():
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, 0.5 * leaf]), PARAMS)
    order, visible = CENTRE.of(2), CENTRE.visible
    together = jax.jit(jax.vmap(lambda p: MODEL.losses(p, X, order, visible)))(stacked)
    one = jax.jit(lambda p: MODEL.losses(p, X, order, visible))
    for number, factor in enumerate((1.0, 0.5)):
        np.testing.assert_allclose(
            together[number], one(jax.tree.map(partial(np.multiply, np.float32(factor)), PARAMS)), rtol=2e-5
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch": 3}, "patch=3 to divide side=224"),
        ({"heads": 7}, "heads=7 to divide width=768"),
        ({"decoder_heads": 3}, "decoder_heads=3 to divide decoder_width=512"),
        ({"width": 66, "heads": 6}, "width=66 to be divisible by 4"),
        ({"depth": 0}, "depth=0"),
        ({"epsilon": 0.0}, "epsilon=0.0 > 0"),
    ],
)
def test_sizes_must_fit(change, message):
    with pytest.raises(InputError, match=message):
        mae.Architecture(**change)


def test_weights_go_out_and_in_again(tmp_path):
    stored = mae_weights.Pretrained(TINY, PARAMS, (0.4,), (0.2,))
    mae_weights.save_autoencoder(tmp_path, stored)
    found = mae_weights.load_autoencoder(tmp_path)
    assert (found.architecture, found.mean, found.std) == (TINY, (0.4,), (0.2,))
    jax.tree.map(np.testing.assert_array_equal, found.params, PARAMS)
    with pytest.raises(InputError, match="params of this architecture"):
        mae_weights.save_autoencoder(tmp_path, stored._replace(params=PARAMS["encoder"]))


def test_names_of_checkpoints_and_of_modules_are_read_alike(tmp_path):
    published = mae_weights.load_autoencoder(write(tmp_path))
    mae_weights.save_autoencoder(tmp_path / "again", published)
    names = load_file(tmp_path / "again" / "model.safetensors")
    assert "decoder.decoder_layers.1.attention.attention.query.weight" in names  # as published
    theirs = tensors()
    for name, value in names.items():
        saved = name.replace("decoder.decoder_layers.", "decoder.decoder_encoder.layer.")
        np.testing.assert_allclose(value, theirs[saved], rtol=1e-6, atol=1e-6)
    modules = json.loads(str(golden()["module_names"]))
    as_modules = {}
    for name, value in names.items():
        for old, new in {
            "vit.encoder.layer.": "vit.layers.",
            "attention.attention.query": "attention.q_proj",
            "attention.attention.key": "attention.k_proj",
            "attention.attention.value": "attention.v_proj",
            "attention.output.dense": "attention.o_proj",
            "intermediate.dense": "mlp.fc1",
            "output.dense": "mlp.fc2",
        }.items():
            name = name.replace(old, new)
        as_modules[name] = value
    assert sorted(as_modules) == modules
    again = mae_weights.from_torch(as_modules, published.architecture)
    jax.tree.map(np.testing.assert_array_equal, again, published.params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "vit"}, "model_type in .* to be 'vit_mae', got 'vit'"),
        ({"hidden_act": "relu"}, "hidden_act in .* to be 'gelu', got 'relu'"),
        ({"qkv_bias": False}, "qkv_bias in .* to be True"),
        ({"image_size": [12, 24]}, r"image_size in .* square, got \[12, 24\]"),
        ({"num_hidden_layers": 3}, "masked autoencoder of 3 and 2 blocks, missing are vit.encoder.layer.2"),
        ({"intermediate_size": 44}, "shapes, got .*for"),
        ({"hidden_size": None}, "to hold hidden_size"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        mae_weights.load_autoencoder(write(tmp_path, **changes))


def test_learnt_positions_extra_tensors_and_missing_files_are_refused(tmp_path):
    learnt = tensors()
    name = "vit.embeddings.position_embeddings"
    learnt[name] = learnt[name] + 0.01
    with pytest.raises(InputError, match=f"Expected {name} .* sines and cosines"):
        mae_weights.load_autoencoder(write(tmp_path, learnt))
    with pytest.raises(InputError, match="unexpected are head.weight"):
        mae_weights.load_autoencoder(write(tmp_path, tensors() | {"head.weight": np.zeros(1, np.float32)}))
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="to be a safetensors file"):
        mae_weights.load_autoencoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="Expected a safetensors file, found none"):
        mae_weights.load_autoencoder(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InputError, match="Expected config.json in"):
        mae_weights.load_autoencoder(tmp_path)
    with pytest.raises(InputError, match="found none; check the path"):
        mae_weights.load_autoencoder(tmp_path / "absent")
