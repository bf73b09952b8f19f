"""Writes ``mae.npz``: tiny random ViT-MAEs of the transformers library, what torch makes of them, and input gradients.

Needs torch and transformers; run from the root of the repository: ``python tests/models/goldens/make_mae.py``. Made with
torch 2.14.1 and transformers 5.24.0. Weights are rounded to bfloat16 and stored as 16 bits.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import ViTMAEConfig, ViTMAEForPreTraining

HERE = Path(__file__).parent
SIZES = dict(
    image_size=12,
    patch_size=3,
    num_channels=2,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=40,
    decoder_hidden_size=16,
    decoder_num_hidden_layers=2,
    decoder_num_attention_heads=2,
    decoder_intermediate_size=36,
    mask_ratio=0.625,
    layer_norm_eps=1e-6,
)


def main():
    torch.manual_seed(0)
    model = ViTMAEForPreTraining(ViTMAEConfig(**SIZES)).eval()
    # This release of the library starts from an encoder or a decoder without positions; published weights have them.
    model.vit.embeddings.patch_embeddings.projection._is_hf_initialized = False
    model.vit.embeddings.initialize_weights()
    model.decoder.initialize_weights(model.vit.embeddings.position_embeddings.shape[1] - 1)
    for name, value in model.named_parameters():
        if value.requires_grad:
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            value.data = (centre + 0.15 * torch.randn_like(value)).bfloat16().float()
    for table in (model.decoder.decoder_pos_embed, model.vit.embeddings.position_embeddings):
        assert table.abs().max() > 0.9

    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(3, 16, generator=generator)
    x = torch.rand(3, 2, 12, 12, generator=generator)
    out = {"x": x.permute(0, 2, 3, 1), "order": torch.argsort(noise, dim=1), "visible": torch.tensor(6)}
    for normalised in (False, True):
        model.config.norm_pix_loss = normalised
        inputs = x.clone().requires_grad_(True)
        found = model(pixel_values=inputs, noise=noise)
        gradient = torch.autograd.grad(found.loss, inputs, retain_graph=True)[0]
        out |= {f"loss_{normalised}": found.loss, f"loss_gradient_{normalised}": gradient.permute(0, 2, 3, 1)}
    weight = torch.randn(found.logits.shape, generator=generator)
    latents = model.vit(pixel_values=inputs, noise=noise).last_hidden_state
    out |= {"latents": latents, "logits": found.logits, "weight": weight, "mask": found.mask}
    out["gradient"] = torch.autograd.grad((found.logits * weight).sum(), inputs, retain_graph=True)[0].permute(
        0, 2, 3, 1
    )
    (found.logits * weight).sum().backward()
    names = ("vit.embeddings.patch_embeddings.projection.weight", "decoder.mask_token")
    out |= {f"gradients/{name}": dict(model.named_parameters())[name].grad for name in names}

    with tempfile.TemporaryDirectory() as folder:
        model.config.norm_pix_loss = False
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
        arrays = {"config": np.array((Path(folder) / "config.json").read_text())}
    for name, value in tensors.items():
        if "pos" in name:
            arrays[f"positions/{name}"] = value.numpy()
            continue
        bits = value.float().numpy().view(np.uint32)
        assert not (bits & 0xFFFF).any()
        arrays[f"weights/{name}"] = (bits >> 16).astype(np.uint16)
    arrays["module_names"] = np.array(json.dumps(sorted(model.state_dict())))
    np.savez_compressed(HERE / "mae.npz", **arrays, **{k: v.detach().numpy() for k, v in out.items()})


if __name__ == "__main__":
    main()
