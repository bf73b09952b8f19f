"""One run of an audit as the audit paper's scripts do it: a process that trains one model, unlearns it and scores it.

Command: ``python benchmarks/reference_run.py DESIGN METHOD RUN OUT``, started by ``campaign.py``, which writes DESIGN.

The mathematics is the engine's: the same pure functions of model, loss and method, the same weights, order, sign vector and
keys; only around them is a Python loop over steps. It is kinder than the scripts: the step is jitted with its state donated,
rows are gathered on the host, nothing waits for a result before the end, all examples are scored in one call, and short
batches are padded so that there is one compilation.
"""

import json
import sys
import time
from pathlib import Path

began = time.perf_counter()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from jaxunlearn import presets  # noqa: E402
from jaxunlearn import types as protocols  # noqa: E402
from jaxunlearn.attack.signals import logit_score  # noqa: E402
from jaxunlearn.engine.train import Sizes  # noqa: E402
from jaxunlearn.pipeline import task as tasks  # noqa: E402

imported = time.perf_counter()


def epoch_batches(phase, order: np.ndarray, source: str, member: np.ndarray, retain: int):
    """Row numbers and weights of an epoch's batches."""
    is_retain = np.arange(member.size) < retain
    mask = {"train": member, "retain": is_retain, "forget": member & ~is_retain}[source]
    rows = order[mask[order]]
    padding = -rows.size % phase.batch_size
    weight = np.concatenate([np.ones(rows.size, np.float32), np.zeros(padding, np.float32)])
    rows = np.concatenate([rows, np.zeros(padding, rows.dtype)])
    return rows.reshape(-1, phase.batch_size), weight.reshape(-1, phase.batch_size)


def run_phase(phase, params, keys, orders: np.ndarray, x, y, member: np.ndarray, retain: int):
    """A Python loop over the phase's steps; ``keys`` are the three of start, steps and end."""
    init_key, step_key, final_key = keys

    def one(key, state, batch, t):
        return phase.update(jax.random.fold_in(key, t), state, batch, t)

    update, state, t = jax.jit(one, donate_argnums=1), jax.jit(phase.init)(init_key, params), 0
    for epoch in range(phase.epochs):
        batches = epoch_batches(phase, orders[epoch], phase.source, member, retain)
        others = phase.companion and epoch_batches(phase, orders[epoch], phase.companion, member, retain)
        for index in range(len(batches[0])):
            if t == phase.max_steps:
                break
            picked = [batches[0][index], batches[1][index]]
            own = protocols.Batch(x[picked[0]], y[picked[0]], picked[1])
            other = None
            if others:
                rows, weight = (part[index % len(others[0])] for part in others)
                other = protocols.Batch(x[rows], y[rows], weight)
            parts = (other, own) if phase.source == "forget" else (own, other)
            state = update(step_key, state, protocols.ForgetRetain(*parts), np.int32(t))
            t += 1
    return jax.jit(phase.finalize)(final_key, state), t


def main(design: str, method: str, run: int, out: str) -> None:
    config = presets.PRESETS["digits"][1]
    given = np.load(design)
    x, y, signs, retain = given["x"], given["y"], given["signs"][run], int(given["retain"])
    sizes = Sizes(retain=retain, pool=signs.size, forget=signs.size // 2)
    member = np.concatenate([np.ones(retain, bool), signs > 0])
    data = tasks.Prepared(
        x=x,
        y=y,
        x_test=given["x_test"],
        y_test=given["y_test"],
        retain=retain,
        batch_size=1,
        outputs=int(given["outputs"]),
    )
    info = tasks.make_info(config, data, "", sizes)
    model = info.model
    unlearner = getattr(config.method, method.replace("-", "_")).build(info)
    params = jax.jit(model.init)(jax.random.wrap_key_data(given["initial_key"]))
    phases = [] if unlearner.from_scratch else [("train", 0, info.train_phase("train"))]
    phases += [(method, number + 1, phase) for number, phase in enumerate(unlearner.phases)]
    steps = 0
    for stage, number, phase in phases:
        keys = jax.random.wrap_key_data(given[f"keys-{stage}-{number}"][:, run])
        params, count = run_phase(phase, params, keys, given[f"orders-{number}"], x, y, member, retain)
        steps += count
    score = jax.jit(lambda params, x, y: (logit_score(logits := model.apply(params, x), y), logits.argmax(-1) == y))
    scores, hits = (np.asarray(part) for part in score(params, x, y))
    test = np.asarray(score(params, data.x_test, data.y_test)[1])
    facts = {"import_seconds": imported - began, "rest_seconds": time.perf_counter() - imported, "steps": steps}
    np.savez(
        Path(out),
        scores=scores[retain:],
        accuracy_retain=hits[:retain].mean(),
        accuracy_test=test.mean(),
        facts=json.dumps(facts),
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
