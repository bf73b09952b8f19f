"""The stages of ``jaxunlearn robustness digits-inpainting`` beside training: what models fill in, unattacked and attacked."""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
from jax import lax

from jaxunlearn._paths import AnyPath
from jaxunlearn.attack import mapping
from jaxunlearn.attack.signals import batched
from jaxunlearn.pipeline import seeds
from jaxunlearn.pipeline.inpainting.study import Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params

BLOCK = 512
"""Images attacked by one call of the compiled program: between two of them an interrupt is answered."""


class Measurements:
    """Compiled programs that look at models: what they fill in, and what an attack makes of that; one for all methods.

    Attributes:
        attacked: Images that calls of compiled programs have attacked, each seed and condition counting as one.
        seconds: How long these calls took.
    """

    def __init__(self, study: Study):
        self.study, self.attacked, self.seconds = study, 0, 0.0
        self._warm: set[bool] = set()
        visible, masked, width = study.masked.visible(study.images.probes), study.masked, study.engine.plan.width
        self._fill = study.engine.map(
            lambda examples, visible, params: batched(partial(masked.fill, params), visible), visible, width=width
        )
        self.block = -(-len(visible) // -(-len(visible) // BLOCK))
        options = dataclasses.replace(study.config.attack, relative_step=None)

        def attack(bounded, examples, shared, params, key, target, start, epsilon, step_size):
            x, ids = (lax.dynamic_slice_in_dim(part, start, self.block) for part in shared)
            found = mapping.attack(
                key,
                target,
                partial(masked.fill, params),
                x,
                distance="mse",
                constraint=mapping.Constraint(epsilon if bounded else None),
                options=options,
                ids=ids,
                step_size=step_size,
            )
            return {"inputs": found.inputs, "filled": found.outputs, "iterations": found.iterations}

        @cache
        def program(bounded):
            return study.engine.map(partial(attack, bounded), (visible, study.images.ids), width=width)

        self._program = program

    def throughput(self) -> dict[str, float]:
        """How many "images" calls of compiled programs attacked in a second since this was last asked."""
        found = {"images": round(self.attacked / self.seconds, 1)} if self.seconds else {}
        self.attacked, self.seconds = 0, 0.0
        return found

    def fill(self, params: Params, count: int) -> np.ndarray:
        """[r, p, H, q] what ``count`` models fill in on the probes."""
        return np.asarray(self._fill(params))[:count]

    def attack(
        self,
        params: Params,
        target: np.ndarray,
        rows: slice,
        *,
        epsilon: float,
        salt: int,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Arrays:
        """Attacks the visible part of the probes of a chunk of models.

        Args:
            params: [r, ...] models.
            target: [r, p, H, q] what the originals fill in on the clean probes.
            rows: The chunk's seeds.
            epsilon: Radius in [0, 1], infinite if unbounded.
            salt: Of the method and condition, for the random start.
            progress: Told of the share of the work just done.

        Returns:
            "inputs" [r, p, V, q], attacked visible patches; "filled" [r, p, H, q]; "iterations" [r, p].
        """
        numbers, count = self.study.numbers(rows), rows.stop - rows.start
        target = target[np.minimum(np.arange(len(numbers)), count - 1)]
        keys = self.study.keys(seeds.ATTACK, numbers, salt)
        each, bounded = np.ones(len(numbers), np.float32), math.isfinite(epsilon)
        step_size, total = self.study.config.step_size(epsilon), target.shape[1]
        program = self._program(bounded)
        joined: Arrays = {}
        starts = range(0, total, self.block)
        for start in starts:
            start, began = min(start, total - self.block), time.perf_counter()  # the last one may do some images again
            found = program(
                params,
                keys,
                target[:, start : start + self.block],
                np.full(len(numbers), start, np.int32),
                each * np.float32(epsilon if bounded else 0.0),
                each * np.float32(step_size),
            )
            if bounded in self._warm:
                self.attacked += count * self.block
                self.seconds += time.perf_counter() - began
            self._warm.add(bounded)
            for name, value in found.items():
                part = np.asarray(value)[:count]
                whole = joined.setdefault(name, np.zeros((count, total, *part.shape[2:]), part.dtype))
                whole[:, start : start + self.block] = part
            progress(1 / len(starts))
        return joined


class Unlearning(seeds.Unlearning):
    """A method at work in its folder: unlearns, fills in, attacks, chunk by chunk of seeds."""

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

    def measure(self, params: Params, rows: slice, progress: Callable[[float], None]) -> Arrays:
        """What is filled in, and the attacked visible patches of the seeds that are saved.

        Returns:
            "filled" [r, E + 1, p, H, q], unattacked first; "iterations" [r, E, p]; "inputs" [saved, E, p, V, q].
        """
        count, epsilons = rows.stop - rows.start, self.study.config.epsilons
        began = time.perf_counter()
        clean = self.measurements.fill(params, count)
        looking, began = time.perf_counter() - began, time.perf_counter()
        made = [
            self.measurements.attack(
                params,
                self.targets[rows],
                rows,
                epsilon=epsilon / 255,
                salt=self.salt ^ (place + 1),
                progress=lambda share: progress(share / len(epsilons)),
            )
            for place, epsilon in enumerate(epsilons)
        ]
        found: Arrays = {"filled": np.stack([clean, *(part["filled"] for part in made)], axis=1)}
        if made:
            saved = max(0, min(count, self.study.config.images_saved - rows.start))
            found["iterations"] = np.stack([part["iterations"] for part in made], axis=1)
            found["inputs"] = np.stack([part["inputs"] for part in made], axis=1)[:saved]
        else:
            progress(1.0)
        return found | {"seconds": np.array([looking, time.perf_counter() - began])}
