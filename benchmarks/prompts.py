"""UnlearnDiffAtk on all prompts at once beside the same attack on one prompt at a time: same model, same device, one run.

Command: ``python benchmarks/prompts.py [--json FILE] [--prompts 24] [--attack-rounds 2] [--rounds 3]``

The model is the small twin for digits with random weights, on one device; the judge never agrees, so that every prompt takes
all its rounds. Both sides go through the same compiled function, with 24 prompts or with 1, turn about; medians, and the
median of the rounds' ratios. Printed are prompts an hour of attacks of ``--of-rounds`` rounds, of which none succeeds. On
hardware that a single prompt leaves idle the ratio is larger.
"""

import argparse
import statistics
import sys
import time

from cases import machine, median_ratio, processor, render, save

HEADS = {
    "prompts": "prompts at once",
    "batched": "all at once, prompts/h",
    "single": "one at a time, prompts/h",
    "ratio": "ratio",
    "compile_seconds": "first calls, s",
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--singles", type=int, default=4, help="prompts that the other side attacks in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attack-rounds", type=int, default=2, help="of the attacks that are timed")
    parser.add_argument("--inner-steps", type=int, default=40)
    parser.add_argument("--sampling-steps", type=int, default=25)
    parser.add_argument("--of-rounds", type=int, default=30, help="of the attacks whose prompts an hour are told")
    parser.add_argument("--json", default=None, help="also write the row to this file")
    return parser.parse_args(arguments)


def attacker(options: argparse.Namespace):
    """(a compiled attack as a function of rows of prompts, number of prompts)."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from jaxunlearn.attack.prompts import Options, attack
    from jaxunlearn.data import captions
    from jaxunlearn.diffusion import ddim, draw
    from jaxunlearn.models.diffusion.model import digits, text_to_image

    model = text_to_image(digits(captions.SIZE, captions.LENGTH), form="patches")
    params = jax.jit(model.init)(jax.random.key(0))
    tokens = jnp.asarray(captions.digit_prompts(0).concept[: options.prompts])
    goals, starts = (draw(jax.random.key(seed), model, options.prompts) for seed in (1, 2))
    searching = Options(rounds=options.attack_rounds, inner_steps=options.inner_steps)
    sampler = ddim(model.schedule, options.sampling_steps)

    @jax.jit
    def run(params, tokens, goals, starts, ids):
        return attack(
            jax.random.key(3),
            model,
            params,
            lambda images: jnp.zeros(len(images), jnp.int32),
            tokens,
            goals,
            starts,
            jnp.ones(len(tokens), jnp.int32),
            sampler=sampler,
            guidance=2.5,
            options=searching,
            ids=ids,
        )

    def call(rows):
        rows = np.asarray(rows)
        jax.block_until_ready(run(params, tokens[rows], goals[rows], starts[rows], rows))

    return call


def main(arguments: list[str] | None = None) -> None:
    options = options_of(arguments)
    about = machine()
    print(
        f"{processor()}, {about['devices']}, jax {about['jax']}, {options.rounds} rounds, load {about['load']}",
        flush=True,
    )
    call = attacker(options)
    every, singles = list(range(options.prompts)), [[n] for n in range(min(options.singles, options.prompts))]
    began = time.perf_counter()
    call(every)
    call(singles[0])
    compiling = time.perf_counter() - began
    hour = 3600 * options.attack_rounds / options.of_rounds
    samples: dict[str, list[float]] = {"batched": [], "single": []}
    for _ in range(options.rounds):
        for side, groups in (("batched", [every]), ("single", singles)):
            began = time.perf_counter()
            for rows in groups:
                call(rows)
            samples[side].append(hour * sum(map(len, groups)) / (time.perf_counter() - began))
    row = {"prompts": options.prompts} | {side: statistics.median(found) for side, found in samples.items()}
    row |= {"ratio": median_ratio(samples["batched"], samples["single"]), "compile_seconds": compiling}
    row |= {"samples": samples, "settings": vars(options)} | about
    save(options.json, [row])
    print(f"\nattacks of {options.of_rounds} rounds without success, medians\n\n{render([row], HEADS)}")


if __name__ == "__main__":
    sys.exit(main())
