"""The stages of ``jaxunlearn robustness`` beside training: shadow models, and what is measured and attacked."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn._validate import require
from jaxunlearn.attack import mapping
from jaxunlearn.attack.signals import batched
from jaxunlearn.data.forget import shadow_members
from jaxunlearn.engine import store
from jaxunlearn.engine.population import Runs
from jaxunlearn.engine.train import Sizes
from jaxunlearn.metrics.accuracy import correct
from jaxunlearn.pipeline import seeds
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.robustness import study as studies
from jaxunlearn.pipeline.robustness.study import Study
from jaxunlearn.pipeline.seeds import Arrays
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params

BLOCK = 1024
"""Images attacked by one call of the compiled program: between two of them an interrupt is answered."""


class Measurements:
    """Compiled programs that look at models: their logits, and what an attack makes of them; one for all methods.

    Attributes:
        labels: [n] true classes of the probes.
        attacked: Images that calls of compiled programs have attacked, each seed and condition counting as one.
        seconds: How long these calls took.
    """

    def __init__(self, study: Study):
        self.study = study
        x, self.labels = study.images.probes, study.images.probe_labels
        self._ids = study.images.probe_ids
        self.attacked, self.seconds = 0, 0.0
        self._warm: set[Any] = set()
        apply = study.info.model.apply
        width = study.engine.plan.width

        def look(examples, shared, params):
            x_test, x_probes = shared
            logits = partial(batched, partial(apply, params))
            retain = study.images.retain
            hits = batched(lambda x, y: correct(apply(params, x), y), examples.x[:retain], examples.y[:retain])
            return {"test": logits(x_test), "probes": logits(x_probes), "retain_accuracy": jnp.mean(hits)}

        self._look = study.engine.map(look, (study.images.x_test, x), width=width)
        self.block = -(-len(x) // -(-len(x) // BLOCK))

        def attack(options, bounded, examples, shared, params, key, target, start, epsilon, step_size, steps):
            images, ids = (lax.dynamic_slice_in_dim(part, start, self.block) for part in shared)
            found = mapping.attack(
                key,
                target,
                partial(apply, params),
                images,
                distance=study.config.distance,
                constraint=mapping.Constraint(epsilon if bounded else None),
                options=options,
                ids=ids,
                steps=None if options.algorithm == "apgd" else steps,
                step_size=step_size,
            )
            return found._asdict()

        @cache
        def program(algorithm, bounded):
            iterate = "best" if algorithm == "apgd" else study.config.attack.iterate
            options = dataclasses.replace(study.config.attack, algorithm=algorithm, iterate=iterate, relative_step=None)
            return study.engine.map(partial(attack, options, bounded), (x, self._ids), width=width)

        self._program = program

    def throughput(self) -> dict[str, float]:
        """How many "images" calls of compiled programs attacked in a second since this was last asked."""
        found = {"images": round(self.attacked / self.seconds, 1)} if self.seconds else {}
        self.attacked, self.seconds = 0, 0.0
        return found

    def look(self, params: Params, count: int) -> Arrays:
        """Logits on test images [r, k, C] and probes [r, n, C], accuracy on the retain set [r], of ``count`` models."""
        return {name: np.asarray(value)[:count] for name, value in self._look(params).items()}

    def attack(
        self,
        params: Params,
        target: np.ndarray,
        rows: slice,
        *,
        epsilon: float,
        salt: int,
        algorithm: str | None = None,
        steps: int | None = None,
        step_size: float | None = None,
        probes: int | None = None,
        saved: int = 0,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Arrays:
        """Attacks the probes of a chunk of models.

        Args:
            params: [R, ...] models.
            target: [r, n, C] what the originals say of the clean probes.
            rows: The chunk's seeds.
            epsilon: Radius in [0, 1], infinite if unbounded.
            salt: Of the method and condition, for the random start.
            algorithm: Another one than the configuration's.
            steps: Another number of steps.
            step_size: Another step size, in [0, 1].
            probes: Only the first so many.
            saved: Attacked images are wanted of so many seeds.
            progress: Told of the share of the work just done.

        Returns:
            Arrays [r, n, ...] by name, as of ``mapping.Attacked``; "inputs" [saved, n, ...].
        """
        config = self.study.config
        program = self._program(algorithm or config.attack.algorithm, math.isfinite(epsilon))
        is_usual = steps is None and step_size is None and algorithm in (None, config.attack.algorithm)
        numbers, count = self.study.numbers(rows), rows.stop - rows.start
        target = target[np.minimum(np.arange(len(numbers)), len(target) - 1)]
        keys = self.study.keys(seeds.ATTACK, numbers, salt)
        most = len(self.labels)
        total = most if probes is None else probes
        steps = config.attack.steps if steps is None else steps
        step_size = config.step_size(epsilon) if step_size is None else step_size
        each = np.ones(len(numbers), np.float32)
        joined: Arrays = {}
        starts = range(0, total, self.block)
        for start in starts:
            start, began = min(start, most - self.block), time.perf_counter()  # the last one may do some images again
            found = program(
                params,
                keys,
                target[:, start : start + self.block],
                np.full(len(numbers), start, np.int32),
                each * np.float32(epsilon),
                each * np.float32(step_size),
                np.full(len(numbers), steps, np.int32),
            )
            if is_usual and program in self._warm:
                self.attacked += count * self.block
                self.seconds += time.perf_counter() - began
            self._warm.add(program)
            for name, value in found.items():
                part = np.asarray(value)[: saved if name == "inputs" else count]
                whole = joined.setdefault(name, np.zeros((len(part), most, *part.shape[2:]), part.dtype))
                whole[:, start : start + self.block] = part
            progress(1 / len(starts))
        return {name: value[:, :total] for name, value in joined.items()}


class Unlearning(seeds.Unlearning):
    """A method at work in its folder: unlearns, looks, attacks, chunk by chunk of seeds."""

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
        self._attacks = list(_attacks(study))
        self.stages = len(self._attacks)

    def measure(self, params: Params, rows: slice, progress: Callable[[float], None]) -> Arrays:
        """Those of ``Measurements.look``, and of the attacks [r, E, n, ...]; "inputs" are of the seeds that are saved."""
        study, count = self.study, rows.stop - rows.start
        began = time.perf_counter()
        found = self.measurements.look(params, count)
        looking = time.perf_counter() - began
        target, seconds = self._targets_of(rows), 0.0
        saved = max(0, study.config.images_saved - rows.start)
        for prefix, algorithm in self._attacks:
            made = []
            for place, epsilon in enumerate(study.config.epsilons):
                began = time.perf_counter()
                made.append(
                    self.measurements.attack(
                        params,
                        target,
                        rows,
                        epsilon=epsilon / 255,
                        salt=self.salt ^ (place + 1),
                        algorithm=algorithm,
                        saved=0 if prefix else min(saved, count),
                        progress=lambda share: progress(share / len(study.config.epsilons)),
                    )
                )
                seconds += (time.perf_counter() - began) * (not prefix)
            kept = ("outputs", "iterations", "inputs") if not prefix else ("outputs",)
            found |= {prefix + name: np.stack([part[name] for part in made], axis=1) for name in kept}
        return found | {"seconds": np.array([looking, seconds])}

    def _targets_of(self, rows: slice) -> np.ndarray:
        """[r, n, C] what the originals of a chunk's seeds say."""
        return self.targets[rows] if len(self.targets) > 1 else np.repeat(self.targets, rows.stop - rows.start, axis=0)

    def curves(self, originals: seeds.Originals, whole: np.ndarray) -> dict[str, dict[str, Any]]:
        """Accuracy on the forget set over numbers of steps and step sizes, at the largest radius (Figures 4 and 5).

        Auto-PGD, which chooses its steps itself, has none. ``whole`` [S] says which seeds count.
        """
        study, config = self.study, self.study.config
        if not config.epsilons or config.attack.algorithm == "apgd":
            return {}
        radius, forget = config.strongest / 255, len(study.images.forgotten)
        base = config.step_size(radius)
        axes = {
            "steps": ("steps", [s for s in STEPS if s <= 2 * config.attack.steps]),
            "step_size": ("step size, in 255ths", [round(factor * base * 255, 6) for factor in STEP_SIZES]),
        }
        strongest = config.epsilons.index(config.strongest)
        found = {
            axis: {"label": label, "x": points, "values": [[] for _ in points]}
            for axis, (label, points) in axes.items()
        }
        total = sum(len(points) for _, points in axes.values())
        bar = Bar(f"{self.name}, curves", config.seeds, total, config.quiet)
        for number, rows in enumerate(study.chunks()):
            params, _ = self.unlearned(number, rows, originals)
            target, progress = self._targets_of(rows), bar.chunk(rows.stop - rows.start, total)
            for axis, (_, points) in axes.items():
                for place, point in enumerate(points):
                    made = self.measurements.attack(
                        params,
                        target,
                        rows,
                        epsilon=radius,
                        salt=self.salt ^ (strongest + 1),
                        probes=forget,
                        steps=int(point) if axis == "steps" else None,
                        step_size=point / 255 if axis == "step_size" else None,
                        progress=progress,
                    )
                    hits = made["outputs"].argmax(-1) == self.measurements.labels[:forget]
                    found[axis]["values"][place] += hits.mean(axis=1)[whole[rows]].tolist()
        bar.close()
        return found


STEPS = (1, 2, 5, 10, 20, 50, 100, 200)
STEP_SIZES = (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
"""Times the step size that is configured; at the paper's 1/255 its own ablation."""


def _attacks(study: Study) -> Iterator[tuple[str, str]]:
    """Prefix of the arrays -> algorithm."""
    if study.config.epsilons:
        yield "", study.config.attack.algorithm
        if study.config.second != "none":
            yield "second_", study.config.second


def shadow_membership(study: Study) -> np.ndarray | None:
    """[K, n] which training images each shadow model sees; None where there is to be no shadow model.

    Raises:
        InputError: Of some class that is to be attacked no shadow model sees an image, or all see all.
    """
    shadows, labels = study.config.shadows, study.images.y
    if shadows.models == 0:
        return None
    key = jax.random.fold_in(study.root, studies.MEMBERSHIP)
    member = shadow_members(key, len(labels), models=shadows.models, share=shadows.share)
    for c in np.unique(study.images.probe_labels):
        seen = member[:, labels == c]
        require(
            bool(seen.any() and not seen.all()),
            f"Expected shadow models that saw some images of class {c} and others not, but {int(seen.sum())} of {seen.size} "
            f"were drawn; use more shadows.models={shadows.models}, or another shadows.share={shadows.share}.",
        )
    return member


def shadow_logits(study: Study, member: np.ndarray | None) -> Arrays | None:
    """Trains the shadow models; their logits [K, n, C] on all training images, beside ``member`` [K, n].

    From disk if they are there. None where no shadow models are asked for.
    """
    config, path = study.config, study.config.directory / "shadows.npz"
    if member is None:
        return None
    found = store.read_chunk(path)
    if found is not None:
        return found
    count, n = member.shape
    sizes = Sizes(retain=0, pool=n, forget=int(member[0].sum()))
    training = dataclasses.replace(config.training, epochs=config.shadows.epochs)
    info = study.info_for(sizes, training)
    order_key = jax.random.fold_in(study.root, seeds.ORDER)
    engine = studies.make_engine(config, study.engine.mesh, study.engine.plan, study.engine.examples, sizes, order_key)
    runner = engine.phase_runner(info.train_phase("train"), 0)
    look = engine.map(lambda examples, shared, params: batched(partial(info.model.apply, params), examples.x))
    bar = Bar("shadow models", count, runner.total, config.quiet)
    began, logits = time.perf_counter(), []
    for rows in study.chunks(count):
        numbers = study.numbers(rows)
        keys = (study.keys(studies.SHADOWS, numbers, salt) for salt in (1, 2))  # 0 is that of the initial weights
        params = runner(
            Runs(member[numbers], *keys), study.initial(rows, studies.SHADOWS), bar.chunk(rows.stop - rows.start)
        )
        logits.append(np.asarray(look(params))[: rows.stop - rows.start])
    bar.close()
    seconds = np.array(time.perf_counter() - began)
    made = {"logits": np.concatenate(logits), "member": member, "rows": study.images.rows, "seconds": seconds}
    with store.disk_errors(config.directory):
        records.write_npz(path, **made)
    return made
