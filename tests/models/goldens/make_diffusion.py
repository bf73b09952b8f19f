"""Makes ``diffusion_*.npz``: tiny random parts of text-to-image models, and what torch makes of them.

Needs torch, transformers and diffusers; run from the root of the repository:
``python tests/models/goldens/make_diffusion.py``. Made with torch 2.14.1, transformers 5.24.0 and
diffusers 0.42.1. Weights are kept by the libraries' names, under the prefix ``weights/``, beside their
own ``config.json``; they are rounded to bfloat16 and stored as 16 bits.
"""

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, LMSDiscreteScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import Attention, AttnProcessor
from transformers import CLIPTextConfig, CLIPTextModel

HERE = Path(__file__).parent
WIDTH, LENGTH, VOCABULARY = 8, 5, 20
NAMES = {"start": 18, "end": 19, "pad": 19}


def text(activation):
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
            hidden_act=activation,
            bos_token_id=NAMES["start"],
            eos_token_id=NAMES["end"],
            pad_token_id=NAMES["pad"],
        )
    )


SHARED = dict(sample_size=8, norm_num_groups=4, layers_per_block=1, cross_attention_dim=WIDTH)
UNETS = {
    "unet": lambda: UNet2DConditionModel(
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=2,
        **SHARED,
    ),
    "unet_linear": lambda: UNet2DConditionModel(
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 12),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        mid_block_type=None,
        attention_head_dim=[2, 3],
        use_linear_projection=True,
        **SHARED,
    ),
}


def scattered(model):
    """Weights large enough that no part is nearly linear; also of norms and biases, which start at 1 and 0."""
    for name, value in model.named_parameters():
        spread = torch.randn_like(value) * (1.2 / value[0].numel() ** 0.5 if value.ndim > 1 else 0.2)
        centre = 1.0 if name.endswith("weight") and value.ndim == 1 else 0.0
        value.data = (centre + spread).bfloat16().float()
    return model.eval()


def stored(model):
    out = {"config": np.array(json.dumps(json.loads(config_of(model))))}
    for name, value in model.state_dict().items():
        if value.dtype != torch.float32:
            continue  # positions' numbers
        bits = value.numpy().view(np.uint32)
        assert not (bits & 0xFFFF).any()
        out[f"weights/{name}"] = (bits >> 16).astype(np.uint16)
    return out


def config_of(model):
    return model.to_json_string() if hasattr(model, "to_json_string") else model.config.to_json_string()


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def last(values):
    """Channels last, as ours are."""
    return values.detach().permute(0, 2, 3, 1).contiguous().numpy()


def of_text(activation):
    torch.manual_seed(0)
    model = scattered(text(activation))
    tokens = torch.tensor([[18, 3, 7, 19, 19], [18, 1, 2, 3, 19], [18, 19, 19, 19, 19]])
    return stored(model) | {
        "tokens": tokens.numpy(),
        "states": model(input_ids=tokens).last_hidden_state.detach().numpy(),
    }


def of_unet(name):
    torch.manual_seed(0)
    model = scattered(UNETS[name]())
    model.set_attn_processor(AttnProcessor())
    seen, scores = [], Attention.get_attention_scores

    def recorded(self, query, key, mask=None):
        found = scores(self, query, key, mask)
        if key.shape[1] == LENGTH:
            seen.append(found.detach().reshape(3, -1, *found.shape[1:]).numpy())
        return found

    channels = model.config.in_channels
    x, context = normal(1, 3, channels, 8, 8).requires_grad_(), normal(2, 3, LENGTH, WIDTH).requires_grad_()
    times, towards = torch.tensor([0, 37, 999]), normal(3, 3, channels, 8, 8)
    Attention.get_attention_scores = recorded
    noise = model(x, times, context).sample
    Attention.get_attention_scores = scores
    (noise * towards).sum().backward()
    found = {f"probabilities/{i}": values for i, values in enumerate(seen)}
    return (
        stored(model)
        | found
        | {
            "x": last(x),
            "times": times.numpy(),
            "context": context.detach().numpy(),
            "towards": last(towards),
            "noise": last(noise),
            "gradient_x": last(x.grad),
            "gradient_context": context.grad.numpy(),
        }
    )


def of_vae():
    torch.manual_seed(0)
    model = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8),
        layers_per_block=1,
        latent_channels=2,
        norm_num_groups=2,
        sample_size=8,
    )
    model = scattered(model)
    images, latents = normal(1, 2, 3, 8, 8), normal(2, 2, 2, 4, 4)
    posterior = model.encode(images).latent_dist
    return stored(model) | {
        "images": last(images),
        "mean": last(posterior.mean),
        "logvar": last(posterior.logvar),
        "latents": last(latents),
        "decoded": last(model.decode(latents).sample),
    }


def predicted(x, time):
    """A noise that depends on both."""
    return torch.tanh(x) * np.cos(float(time) / 200) + 0.1 * x


def of_samplers():
    betas = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", num_train_timesteps=1000)
    samplers = {
        "ddim": DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1, **betas),
        "ddim_one": DDIMScheduler(clip_sample=False, set_alpha_to_one=True, timestep_spacing="trailing", **betas),
        "lms": LMSDiscreteScheduler(**betas),
        "lms_leading": LMSDiscreteScheduler(timestep_spacing="leading", steps_offset=1, **betas),
    }
    start = normal(0, 2, 3, 3, 1)
    out = {"start": start.numpy()}
    for name, sampler in samplers.items():
        sampler.set_timesteps(7)
        x, path = start * sampler.init_noise_sigma, []
        for time in sampler.timesteps:
            noise = predicted(sampler.scale_model_input(x, time), time)
            x = sampler.step(noise, time, x).prev_sample
            path.append(x.numpy())
        out |= {f"{name}/path": np.stack(path), f"{name}/times": sampler.timesteps.numpy()}
    noisy = samplers["ddim"].add_noise(start, normal(1, 2, 3, 3, 1), torch.tensor([3, 700]))
    return out | {"noise": normal(1, 2, 3, 3, 1).numpy(), "noisy": noisy.numpy()}


if __name__ == "__main__":
    made = {"text": lambda: of_text("quick_gelu"), "text_gelu": lambda: of_text("gelu"), "vae": of_vae}
    made |= {name: (lambda name=name: of_unet(name)) for name in UNETS} | {"samplers": of_samplers}
    for name, arrays in made.items():
        arrays = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in arrays().items()}
        np.savez_compressed(HERE / f"diffusion_{name}.npz", **arrays)
