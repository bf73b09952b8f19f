"""The peer of ``unlearning.py``, in worker processes (``peers.Peer``): transformers and PyTorch on the same weights."""

from typing import NamedTuple

import numpy as np


class Job(NamedTuple):
    """What is unlearned.

    Attributes:
        folder: A Hugging Face folder of the model.
        forget: [b, T] ids of a batch of the forget set, all scored.
        retain: [b, T] of the retain set.
        rate: AdamW's.
    """

    folder: str
    forget: np.ndarray
    retain: np.ndarray
    rate: float


def loop(job: Job, threads: int, device: str = "cpu"):
    """GA with GDR as in the public code: two forward passes, one backward, clipping, AdamW."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32).to(device).train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.rate, weight_decay=0.0, eps=1e-8)
    forget, retain = (torch.from_numpy(ids.astype(np.int64)).to(device) for ids in (job.forget, job.retain))
    said = []

    def step(count: int) -> None:
        for _ in range(count):
            loss = model(input_ids=retain, labels=retain).loss - model(input_ids=forget, labels=forget).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            said.append(loss.item())

    step(2)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return step, 1, {"losses": said[:2], "version": versions}
