"""Published weights in every format that is read, and out again; what is refused."""

import json
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.models.language_weights import load_language_model, save_language_model
from jaxunlearn.models.transformer import Architecture, RopeScaling, initial, language_model

GPT2 = Architecture(family="gpt2", vocabulary=11, width=8, layers=2, heads=2, hidden=12, context=16)
LLAMA = Architecture(
    family="llama",
    vocabulary=11,
    width=32,
    layers=2,
    heads=4,
    kv_heads=2,
    hidden=12,
    context=64,
    rope_base=5e5,
    rope_scaling=RopeScaling(factor=8.0),
    tied=False,
)
BOTH = pytest.mark.parametrize("architecture", [GPT2, LLAMA], ids=["gpt2", "llama"])


def random(architecture, seed=0):
    """Parameters none of which is at its initial value."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda key: initial(architecture, key), jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)


def equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.fixture
def folder(tmp_path):
    params = random(LLAMA)
    save_language_model(tmp_path / "model", LLAMA, params)
    return tmp_path / "model"


def edited(folder, change):
    """The folder with another configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(change)
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))
    return folder


def with_tensors(folder, change):
    """The folder with other tensors: ``change(dict)`` moves it in place."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


@BOTH
def test_what_is_saved_comes_back(architecture, tmp_path):
    params = random(architecture)
    save_language_model(tmp_path / "new" / "model", architecture, params)
    read, found = load_language_model(tmp_path / "new" / "model")
    assert read == architecture
    equal(found, params)


def test_saving_beside_a_tokenizer_keeps_it(folder, tmp_path):
    (folder / "tokenizer.json").write_text("{}")
    edited(folder, {"eos_token_id": 7})
    save_language_model(tmp_path / "unlearned", LLAMA, random(LLAMA, 1), like=folder)
    assert (tmp_path / "unlearned" / "tokenizer.json").is_file()
    assert json.loads((tmp_path / "unlearned" / "config.json").read_text())["eos_token_id"] == 7
    equal(load_language_model(tmp_path / "unlearned")[1], random(LLAMA, 1))
    save_language_model(folder, LLAMA, random(LLAMA, 2), like=folder)  # over itself
    equal(load_language_model(folder)[1], random(LLAMA, 2))


def test_several_files_with_an_index_and_16_bits(folder):
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    named = {}
    for number, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2])):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({n: tensors[n].astype(ml_dtypes.bfloat16) for n in names}, folder / file)
        named |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    rounded = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(jnp.float32), random(LLAMA))
    equal(load_language_model(folder)[1], rounded)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="model-00002-of-00002.safetensors in"):
        load_language_model(folder)


def test_older_configurations_and_checkpoints(folder, tmp_path):
    """rope_scaling beside rope_theta, buffers among the tensors, a GPT-2 saved without its output layer."""
    assert load_language_model(edited(folder, {"rope_parameters": "absent"}))[0] == LLAMA
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    scaling["type"] = scaling.pop("rope_type")
    assert load_language_model(edited(folder, {"rope_scaling": scaling}))[0] == LLAMA
    plain = load_language_model(edited(folder, {"rope_scaling": None, "rope_theta": "absent"}))[0]
    assert plain.rope_scaling is None and plain.rope_base == 10000.0

    params = random(GPT2)
    save_language_model(tmp_path / "old", GPT2, params)

    def bare(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), np.float32))
        tensors["h.0.attn.masked_bias"] = np.array(-1e4, np.float32)

    equal(load_language_model(with_tensors(tmp_path / "old", bare))[1], params)


def test_a_tied_output_layer_may_be_written_twice(tmp_path):
    params = random(GPT2)
    save_language_model(tmp_path, GPT2, params)
    twice = with_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["transformer.wte.weight"].copy()}))
    equal(load_language_model(twice)[1], params)
    other = with_tensors(tmp_path, lambda t: t.update({"lm_head.weight": 2 * t["lm_head.weight"]}))
    with pytest.raises(InputError, match="lm_head.weight .* to equal transformer.wte.weight"):
        load_language_model(other)


def gguf_file(path, architecture, params):
    """As llama.cpp's converter writes it: rows of queries and keys with neighbouring pairs, all matrices (out, in)."""
    import gguf

    a, family = architecture, architecture.family
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(a.layers)
    writer.add_context_length(a.context)
    writer.add_embedding_length(a.width)
    writer.add_feed_forward_length(a.hidden)
    writer.add_head_count(a.heads)
    if family == "llama":
        writer.add_head_count_kv(a.kv_heads)
        writer.add_rope_freq_base(a.rope_base)
        writer.add_layer_norm_rms_eps(a.norm_epsilon)
        plain = 1 / a.rope_base ** (np.arange(0, a.head_size, 2) / a.head_size)
        divisors = []
        for frequency in plain:  # as the converter goes about it
            length = 2 * np.pi / frequency
            scaling = a.rope_scaling
            if length < scaling.context / scaling.high_frequency:
                divisors.append(1.0)
            elif length > scaling.context / scaling.low_frequency:
                divisors.append(scaling.factor)
            else:
                smooth = (scaling.context / length - scaling.low_frequency) / (
                    scaling.high_frequency - scaling.low_frequency
                )
                divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    else:
        writer.add_layer_norm_eps(a.norm_epsilon)
    names = {
        "attention_norm": "attn_norm",
        "query": "attn_q",
        "key": "attn_k",
        "value": "attn_v",
        "attention_out": "attn_output",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }

    def add(name, value):
        writer.add_tensor(name, np.ascontiguousarray(value, np.float32))

    add("token_embd.weight", params["embedding"])
    for kind, value in params["norm"].items():
        add(f"output_norm.{kind}", value)
    if family == "gpt2":
        add("position_embd.weight", params["positions"])
    if not a.tied:
        add("output.weight", np.asarray(params["output"]).T)
    for number in range(a.layers):
        block = {
            part: {k: np.asarray(v[number]) for k, v in leaves.items()} for part, leaves in params["blocks"].items()
        }
        if family == "gpt2":
            qkv = [block.pop(part) for part in ("query", "key", "value")]
            add(f"blk.{number}.attn_qkv.weight", np.concatenate([leaf["weight"] for leaf in qkv], axis=1).T)
            add(f"blk.{number}.attn_qkv.bias", np.concatenate([leaf["bias"] for leaf in qkv]))
        for part, leaves in block.items():
            for kind, value in leaves.items():
                if part in ("query", "key"):
                    heads = a.heads if part == "query" else a.kv_heads
                    value = value.T.reshape(heads, 2, a.head_size // 2, -1).swapaxes(1, 2).reshape(value.T.shape).T
                add(f"blk.{number}.{names[part]}.{kind}", value.T)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@BOTH
def test_gguf_files(architecture, tmp_path):
    pytest.importorskip("gguf")
    params = random(architecture)
    read, found = load_language_model(gguf_file(tmp_path / "model.gguf", architecture, params))
    assert read == architecture or read.norm_epsilon == pytest.approx(architecture.norm_epsilon)
    assert read.rope_scaling == architecture.rope_scaling
    equal(found, params)
    (tmp_path / "short.gguf").write_bytes((tmp_path / "model.gguf").read_bytes()[:50])
    with pytest.raises(InputError, match="to be a GGUF file"):
        load_language_model(tmp_path / "short.gguf")


@pytest.mark.slow
def test_llama2c_writes_a_known_story(data_dir):
    """A pretrained model of 260,032 parameters; the words are those that its documentation shows."""
    architecture, params = load_language_model(data_dir / "stories260K.bin")
    model = language_model(architecture)
    raw, pieces, at = (data_dir / "tok512.bin").read_bytes(), [], 4
    while at < len(raw):
        size = struct.unpack_from("<i", raw, at + 4)[0]
        pieces.append(raw[at + 8 : at + 8 + size])
        at += 8 + size
    program = jax.jit(model.generate, static_argnames=("new_tokens", "stop"))
    story = program(params, np.array([[1]]), np.array([1]), new_tokens=64, stop=(1, 2))[0]
    text = b"".join(pieces[token] for token in np.asarray(story)).decode().strip()
    assert text.startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )


def test_llama2c_files_with_their_own_output_layer(tmp_path):
    """Every number of the file lands in its place: a file whose tensors are written from known parameters."""
    a = Architecture(
        family="llama", vocabulary=7, width=8, layers=2, heads=2, kv_heads=1, hidden=6, context=5, tied=False
    )
    params = random(a)
    blocks = {name: np.asarray(leaf["weight"]) for name, leaf in params["blocks"].items()}

    def turned(name, heads):
        rows = blocks[name].swapaxes(1, 2)  # (layer, out, in)
        return rows.reshape(a.layers, heads, 2, 2, -1).swapaxes(2, 3)

    parts = [
        params["embedding"],
        blocks["attention_norm"],
        turned("query", 2),
        turned("key", 1),
        blocks["value"].swapaxes(1, 2),
        blocks["attention_out"].swapaxes(1, 2),
        blocks["mlp_norm"],
        blocks["gate"].swapaxes(1, 2),
        blocks["down"].swapaxes(1, 2),
        blocks["up"].swapaxes(1, 2),
        params["norm"]["weight"],
        np.zeros(2 * 5 * 2),
        np.asarray(params["output"]).T,
    ]
    numbers = b"".join(np.ascontiguousarray(part, np.float32).tobytes() for part in parts)
    path = tmp_path / "model.bin"
    path.write_bytes(struct.pack("<7i", 8, 6, 2, 2, 1, -7, 5) + numbers)
    read, found = load_language_model(path)
    assert read == a
    equal(found, params)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InputError, match="numbers after its header"):
        load_language_model(path)
    path.write_bytes(bytes(40))
    with pytest.raises(InputError, match="to be a file of llama2.c"):
        load_language_model(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mistral"}, "'gpt2' or 'llama', got 'mistral'"),
        ({"hidden_act": "gelu"}, "hidden_act .* 'silu', got 'gelu'"),
        ({"attention_bias": True}, "attention_bias .* False, got True"),
        ({"head_dim": 4}, "head_dim .* 8 or None, got 4"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'default' or 'llama3', got 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "to hold low_freq_factor"),
        ({"vocab_size": "absent"}, "to hold vocab_size"),
        ({"vocab_size": 12}, r"model.embed_tokens.weight .* of shape \(12, 32\), got \(11, 32\)"),
        ({"num_hidden_layers": 3}, "missing are model.layers.2.*and . more"),
        ({"num_hidden_layers": 1}, "unexpected are model.layers.1.*and . more"),
    ],
)
def test_configurations_that_are_refused(folder, change, message):
    with pytest.raises(InputError, match=message):
        load_language_model(edited(folder, change))


def test_refusals_of_paths_and_files(folder, tmp_path):
    with pytest.raises(InputError, match="found nothing; check the path"):
        load_language_model(tmp_path / "nothing")
    with pytest.raises(InputError, match="give the folder rather than one of its files"):
        load_language_model(folder / "model.safetensors")
    with pytest.raises(InputError, match="of this architecture"):
        save_language_model(tmp_path / "x", GPT2, random(LLAMA))
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="to be a safetensors file"):
        load_language_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="Expected model.safetensors in"):
        load_language_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="to be JSON"):
        load_language_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="Expected config.json in"):
        load_language_model(Path(folder))


@BOTH
@pytest.mark.slow
def test_torch_takes_what_is_saved(architecture, tmp_path):
    """An unlearned model goes back to users of transformers: same logits, no weight missing or left over."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    params = jax.tree.map(lambda leaf: 0.3 * leaf, random(architecture))
    save_language_model(tmp_path, architecture, params)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens = np.random.default_rng(0).integers(0, architecture.vocabulary, (2, 16))
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor(tokens)).logits.numpy()
    ours = jax.jit(language_model(architecture).logits)(params, tokens)
    np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())
