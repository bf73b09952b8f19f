"""The stages beside training: what text-to-image models draw, and attacks on their prompts."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxunlearn._paths import AnyPath
from jaxunlearn.attack import prompts
from jaxunlearn.attack.signals import batched
from jaxunlearn.diffusion import ddim, guided, plain, sample
from jaxunlearn.pipeline import seeds
from jaxunlearn.pipeline.diffusion.study import Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params

NOTHING = -1
"""What the judge calls an image that is not finite: a diverged model must not pass for one that draws some class."""


def verdicts(logits: Any) -> Any:
    """[b, classes] -> [b] the judge's labels."""
    return jnp.where(jnp.isfinite(logits).all(axis=-1), jnp.argmax(logits, axis=-1), NOTHING)


class Measurements:
    """Compiled programs that draw and attack; one set for all methods.

    Attributes:
        block: Prompts that a call of the compiled attack takes.
        attacked: Prompts that calls of the gradient attack have attacked, each seed counting as one, but for the first call,
            which is compiled.
        seconds: How long these calls took.
    """

    def __init__(self, study: Study):
        self.study, config = study, study.config
        self.attacked, self.seconds, self._warm = 0, 0.0, False
        model, digits = study.diffusion.model, study.digits
        sampler = ddim(model.schedule, config.sampling_steps)
        judging = study.fixed["judge"]

        def draw(params, tokens, starts):
            context = model.embed_text(params, tokens)
            if config.guidance == 1:
                predict = plain(model, params, context)
            else:
                predict = guided(model, params, context, model.without_words(params, len(tokens)), config.guidance)
            return model.decode(params, sample(predict, sampler, starts))

        def look(examples, shared, params):
            judge, tokens, starts = shared
            images = batched(partial(draw, params), tokens, starts, batch_size=256)
            return {"drawn": images, "logits": study.judge.apply(judge, images)}

        self._look = study.engine.map(look, (judging, digits.prompts, digits.starts))
        n = digits.attacked
        self.block = min(n, config.at_once or n)

        def attack(options, examples, shared, params, key, goals, start):
            judge, tokens, starts = shared
            tokens, starts, goals = (
                lax.dynamic_slice_in_dim(part, start, self.block) for part in (tokens, starts, goals)
            )
            return prompts.attack(
                key,
                model,
                params,
                lambda images: verdicts(study.judge.apply(judge, images)),
                tokens,
                model.encode(params, goals),
                starts,
                jnp.full(self.block, digits.concept),
                sampler=sampler,
                guidance=config.guidance,
                options=options,
                ids=start + jnp.arange(self.block),
            )._asdict()

        shared = judging, digits.prompts[:n], digits.starts[:n]
        self._attacks = {
            name: study.engine.map(partial(attack, options), shared) for name, options in config.attacks.items()
        }

    def throughput(self) -> dict[str, float]:
        """How many "prompts" the gradient attack took on in an hour since this was last asked."""
        found = {"prompts_per_hour": round(3600 * self.attacked / self.seconds, 1)} if self.seconds else {}
        self.attacked, self.seconds = 0, 0.0
        return found

    def look(self, params: Params, count: int) -> Arrays:
        """Images "drawn" [r, N + m, h, w, c] of all prompts and the judge's "logits" [r, N + m, C], of ``count`` models."""
        return {name: np.asarray(value)[:count] for name, value in self._look(params).items()}

    def judged(self, images: np.ndarray) -> np.ndarray:
        """[n, C] the judge's logits of images."""
        return np.asarray(self.study.judge.apply(self.study.fixed["judge"], jnp.asarray(images)))

    def attack(self, params: Params, goals: np.ndarray, rows: slice, condition: str, salt: int) -> Arrays:
        """Attacks the concept's prompts with a chunk of models.

        Args:
            params: [R, ...] models.
            goals: [r, N, h, w, c] what the originals draw.
            rows: The chunk's seeds.
            condition: Name of the attack.
            salt: Of method and attack.

        Returns:
            Arrays [r, N, ...] by name, as of ``prompts.Found``.
        """
        numbers, count = self.study.numbers(rows), rows.stop - rows.start
        keys = self.study.keys(seeds.ATTACK, numbers, salt)
        n = self.study.digits.attacked
        joined: Arrays = {}
        for start in range(0, n, self.block):
            start, began = min(start, n - self.block), time.perf_counter()  # the last may do some prompts again
            found = self._attacks[condition](params, keys, goals, np.full(len(numbers), start, np.int32))
            if condition == "gradient":
                self.attacked += self._warm * count * self.block
                self.seconds += self._warm * (time.perf_counter() - began)
                self._warm = True
            for name, value in found.items():
                part = np.asarray(value)[:count]
                whole = joined.setdefault(name, np.zeros((count, n, *part.shape[2:]), part.dtype))
                whole[:, start : start + self.block] = part
        return joined


class Unlearning(seeds.Unlearning):
    """A method at work in its folder: unlearns, draws, attacks, chunk by chunk of seeds."""

    def __init__(
        self,
        study: Study,
        name: str,
        method: Method,
        folder: AnyPath,
        targets: np.ndarray,
        measurements: Measurements,
    ):
        super().__init__(study, name, method, folder)
        self.targets, self.measurements = targets, measurements
        self.stages = len(study.config.attacks)

    def measure(self, params: Params, rows: slice, progress: Callable[[float], None]) -> Arrays:
        """Those of ``Measurements.look``, and of the attacks [r, E, N, ...]."""
        attacks, count = self.study.config.attacks, rows.stop - rows.start
        began = time.perf_counter()
        found = self.measurements.look(params, count)
        seconds, made = [time.perf_counter() - began], []
        for number, condition in enumerate(attacks):
            began = time.perf_counter()
            made.append(self.measurements.attack(params, self.targets[rows], rows, condition, self.salt ^ (number + 1)))
            seconds.append(time.perf_counter() - began)
            progress(1.0)
        found |= {name: np.stack([part[name] for part in made], axis=1) for name in made[0]}
        return found | {"seconds": np.array(seconds)}
