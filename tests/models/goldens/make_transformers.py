"""Writes ``transformers_*.npz``: tiny random models of the transformers library, and what torch makes of them.

Needs torch and transformers; run from the root of the repository: ``python tests/models/goldens/make_transformers.py``. Made
with torch 2.14.1 and transformers 5.24.0. Weights are kept as the library saves them, under the prefix ``weights/``, beside
its own ``config.json``; they are rounded to bfloat16 and stored as 16 bits, which halves the files and loses nothing.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
VOCABULARY, NEW = 48, 6
LENGTHS = (9, 5, 7)
SEEDS = {"gpt2": 0, "llama": 0, "untied": 0}
"""Such that no two tokens are near each other in a greedy step, so that rounding decides nothing."""

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40)
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=24,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
        )
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            num_key_value_heads=2,
            max_position_embeddings=512,
            rope_parameters=LLAMA3,
            tie_word_embeddings=True,
        )
    ),
    "untied": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES, num_key_value_heads=4, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False
        )
    ),
}


def scattered(model):
    """Weights large enough that no part is nearly linear; also of norms and biases, which start at 1 and 0."""
    for name, value in model.named_parameters():
        spread = torch.randn_like(value) * (0.15 if value.ndim > 1 else 0.1)
        centre = 1.0 if name.endswith("weight") and value.ndim == 1 else 0.0
        value.data = (centre + spread).bfloat16().float()


def made(name):
    torch.manual_seed(SEEDS[name])
    model = MODELS[name]().eval()
    scattered(model)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    out = {"tokens": tokens.numpy(), "lengths": np.array(LENGTHS)}

    right = torch.arange(tokens.shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    left = right.flip(1)
    with torch.no_grad():
        states = []
        blocks = model.transformer.h if name == "gpt2" else model.model.layers
        hooks = [block.register_forward_pre_hook(lambda _, x, kw=None: states.append(x[0])) for block in blocks]
        hooks.append(
            blocks[-1].register_forward_hook(lambda _, x, y: states.append(y[0] if isinstance(y, tuple) else y))
        )
        out["logits"] = model(input_ids=tokens).logits.numpy()
        for hook in hooks:
            hook.remove()
        out["states"] = torch.stack(states).numpy()
        if name == "llama":
            out["long"] = torch.randint(0, VOCABULARY, (1, 512), generator=generator).numpy()
            out["long_logits"] = model(input_ids=torch.tensor(out["long"])).logits[:, -8:].numpy()
        out["right_logits"] = (model(input_ids=tokens, attention_mask=right.long()).logits * right[..., None]).numpy()
        greedily = model.generate(
            input_ids=tokens,
            attention_mask=left.long(),
            do_sample=False,
            max_new_tokens=NEW,
            eos_token_id=None,
            pad_token_id=0,
        )[:, -NEW:].numpy()
        one_by_one = np.stack([greedy(model, row[-n:]) for row, n in zip(tokens, LENGTHS)])
        assert (greedily == one_by_one).all()
        out["greedy"] = greedily

    # Answer-only loss: the first three tokens of each row are not scored, nor is padding.
    labels = torch.where(right & (torch.arange(tokens.shape[1])[None] >= 3), tokens, -100)
    out["labels"] = labels.numpy()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    out["loss"] = loss.detach().numpy()
    out |= {f"gradients/{n}": p.grad.numpy() for n, p in model.named_parameters()}

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        out["config"] = np.array(json.dumps(json.loads((Path(folder) / "config.json").read_text())))
    for tensor, value in tensors.items():
        bits = value.float().numpy().view(np.uint32)
        assert not (bits & 0xFFFF).any()
        out[f"weights/{tensor}"] = (bits >> 16).astype(np.uint16)
    return out


def greedy(model, tokens):
    """One sequence at a time, without padding and without a cache."""
    sequence = tokens[None]
    for _ in range(NEW):
        logits = model(input_ids=sequence).logits[:, -1]
        best, second = logits[0].topk(2).values
        assert best - second > 1e-3  # no tie that rounding could turn
        sequence = torch.cat([sequence, logits.argmax(-1, keepdim=True)], dim=1)
    return sequence[0, -NEW:].numpy()


if __name__ == "__main__":
    for name in MODELS:
        arrays = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in made(name).items()}
        np.savez_compressed(HERE / f"transformers_{name}.npz", **arrays)
