"""The stages of ``jaxunlearn robustness``: train originals and shadows, unlearn, evaluate, attack."""

import dataclasses
import math
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxunlearn import records
from jaxunlearn._paths import AnyPath
from jaxunlearn.attack import mapping
from jaxunlearn.attack.signals import batched
from jaxunlearn.data.forget import shadow_members
from jaxunlearn.engine import checkpoints, store
from jaxunlearn.engine.population import PhaseRunner, Runs
from jaxunlearn.engine.train import Sizes, total_steps
from jaxunlearn.metrics.accuracy import correct
from jaxunlearn.pipeline.population import on_host, own_process
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.pipeline.robustness import study as studies
from jaxunlearn.pipeline.robustness.config import original_identity
from jaxunlearn.pipeline.robustness.study import Study
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.types import Params

BLOCK = 1024
"""Images attacked by one call of the compiled program: between two of them an interrupt is answered."""

Arrays = dict[str, np.ndarray]


class Originals:
    """The original models, trained once and kept on disk chunk by chunk."""

    def __init__(self, study: Study):
        self.study = study
        self.store = checkpoints.ParamsStore(
            study.config.directory / "population", identity=original_identity(study.config), process=own_process()
        )
        self.seconds = 0.0

    def train(self) -> None:
        """Trains what is not on disk."""
        study = self.study
        phase = study.info.train_phase("train")
        runner = study.engine.phase_runner(phase, 0)
        bar = Bar("train", study.originals, runner.total, study.config.quiet)
        for number, rows in enumerate(study.chunks(study.originals)):
            damage = self.store.damage(number, checksums=True)
            if damage is not None:
                store.notice(f"{damage}: its models are trained again.")
                self.store.discard(number)
            count = rows.stop - rows.start
            if self.store.done(number):
                bar.skip(count)
                continue
            began = time.perf_counter()
            params = runner(study.runs(rows, stage=studies.TRAINING), study.initial(rows), bar.chunk(count))
            seconds = time.perf_counter() - began
            self.store.save(
                number, on_host(params, rows), {"runs": list(range(rows.start, rows.stop)), "seconds": seconds}
            )
        self.store.flush()
        bar.close()
        self.seconds = sum(self.store.facts(n)["seconds"] for n in range(len(study.chunks(study.originals))))

    def load(self, number: int, rows: slice) -> Params:
        """[chunk, ...] the originals of a chunk's seeds."""
        study = self.study
        number = 0 if study.config.shared_original else number
        count = 1 if study.config.shared_original else rows.stop - rows.start
        like = jax.tree.map(lambda s: jax.ShapeDtypeStruct((count, *s.shape), s.dtype), study.parameter_shapes)
        found = self.store.load(number, like)
        if not study.config.shared_original:
            return found
        return jax.tree.map(lambda a: np.repeat(a, rows.stop - rows.start, axis=0), found)


class Measurements:
    """Compiled programs that look at models: their logits, and what an attack makes of them; one for all methods."""

    def __init__(self, study: Study):
        self.study = study
        x, y = study.images.probes
        self.probes, self.labels = x, y
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
            found = mapping.attack(
                key,
                target,
                partial(apply, params),
                lax.dynamic_slice_in_dim(shared, start, self.block),
                distance=study.config.distance,
                constraint=mapping.Constraint(epsilon if bounded else None),
                options=options,
                ids=start + jnp.arange(self.block),
                steps=None if options.algorithm == "apgd" else steps,
                step_size=step_size,
            )
            return found._asdict()

        @cache
        def program(algorithm, bounded):
            iterate = "best" if algorithm == "apgd" else study.config.attack.iterate
            options = dataclasses.replace(study.config.attack, algorithm=algorithm, iterate=iterate, relative_step=None)
            return study.engine.map(partial(attack, options, bounded), x, width=width)

        self._program = program

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
            progress: Told of the share of the work just done.

        Returns:
            Arrays [r, n, ...] by name, as of ``mapping.Attacked``.
        """
        config = self.study.config
        program = self._program(algorithm or config.attack.algorithm, math.isfinite(epsilon))
        numbers = self.study.numbers(rows)
        target = target[np.minimum(np.arange(len(numbers)), len(target) - 1)]
        keys = self.study.keys(studies.ATTACK, numbers, salt)
        total = len(self.probes) if probes is None else probes
        steps = config.attack.steps if steps is None else steps
        step_size = config.step_size(epsilon) if step_size is None else step_size
        each = np.ones(len(numbers), np.float32)
        parts = []
        starts = range(0, total, self.block)
        for start in starts:
            start = min(start, len(self.probes) - self.block)  # the last block may do some images again
            found = program(
                params,
                keys,
                target[:, start : start + self.block],
                np.full(len(numbers), start, np.int32),
                each * np.float32(epsilon),
                each * np.float32(step_size),
                np.full(len(numbers), steps, np.int32),
            )
            parts.append((start, {name: np.asarray(value)[: rows.stop - rows.start] for name, value in found.items()}))
            progress(1 / len(starts))
        shapes = {name: value.shape[2:] for name, value in parts[0][1].items()}
        joined = {
            name: np.zeros((rows.stop - rows.start, len(self.probes), *shape), parts[0][1][name].dtype)
            for name, shape in shapes.items()
        }
        for start, part in parts:
            for name, value in part.items():
                joined[name][:, start : start + self.block] = value
        return {name: value[:, :total] for name, value in joined.items()}


class Unlearning:
    """A method at work in its folder: unlearns, looks, attacks, chunk by chunk of seeds."""

    def __init__(self, study: Study, name: str, method: Method, folder: AnyPath, targets: np.ndarray):
        self.study, self.name, self.method, self.folder, self.targets = study, name, method, folder, targets
        self.salt = zlib.crc32(name.encode())
        identity = {"originals": original_identity(study.config), "method": method.identity}
        self.models = checkpoints.ParamsStore(folder / "models", identity=identity, process=own_process())

    @cached_property
    def _runners(self) -> list[PhaseRunner]:
        phases = self.method.unlearner.phases
        return [self.study.engine.phase_runner(phase, 1 + number) for number, phase in enumerate(phases)]

    @property
    def steps(self) -> int:
        """Steps of a run."""
        return sum(total_steps(phase, self.study.engine.sizes) for phase in self.method.unlearner.phases)

    def all(self, originals: Originals, measurements: Measurements) -> Arrays:
        """The arrays of all seeds: those of ``Measurements.look``, of the attacks [S, E, n, ...], and seconds by stage.

        "inputs" are those of the seeds that are saved.
        """
        study = self.study
        chunks = study.chunks(study.config.seeds)
        bar = Bar(self.name, study.config.seeds, self.steps, study.config.quiet)
        parts = []
        for number, rows in enumerate(chunks):
            path = self.folder / "chunks" / f"chunk-{number:05d}.npz"
            part = store.read_chunk(path)
            if part is None or not np.array_equal(part.get("rows", ()), (rows.start, rows.stop)):
                part = self._chunk(number, rows, originals, measurements, bar)
                with store.disk_errors(self.folder):
                    records.write_npz(path, **part, rows=np.array([rows.start, rows.stop]))
            else:
                bar.skip(rows.stop - rows.start)
            parts.append(part)
        bar.close()
        self.models.flush()
        seconds = np.sum([part.pop("seconds") for part in parts], axis=0)
        names = [name for name in parts[0] if name != "rows"]
        return {name: np.concatenate([part[name] for part in parts]) for name in names} | {"seconds": seconds}

    def unlearned(self, number: int, rows: slice, originals: Originals, progress=None) -> tuple[Params, float]:
        """[chunk, ...] unlearned models, from disk or computed, and the seconds that this took."""
        study, unlearner = self.study, self.method.unlearner
        if self.models.done(number):
            like = jax.tree.map(
                lambda s: jax.ShapeDtypeStruct((rows.stop - rows.start, *s.shape), s.dtype), study.parameter_shapes
            )
            try:
                return self.models.load(number, like), float(self.models.facts(number)["seconds"])
            except records.Damaged as error:
                store.notice(f"{str(error).rstrip('.')}: its seeds are unlearned again.")
        began = time.perf_counter()
        runs = study.runs(rows, stage=studies.UNLEARNING, salt=self.salt)
        params = study.initial(rows) if unlearner.from_scratch else originals.load(number, rows)
        for runner in self._runners:
            params = runner(runs, params, progress)
        params = on_host(params, rows)
        seconds = time.perf_counter() - began
        self.models.save(number, params, {"runs": list(range(rows.start, rows.stop)), "seconds": seconds})
        return params, seconds

    def _chunk(self, number: int, rows: slice, originals: Originals, measurements: Measurements, bar: Bar) -> Arrays:
        study, count = self.study, rows.stop - rows.start
        attacks = list(_attacks(study))
        parts = len(self.method.unlearner.phases) + len(attacks)
        progress = bar.chunk(count, max(1, parts))
        params, unlearning = self.unlearned(number, rows, originals, progress)
        began = time.perf_counter()
        found = measurements.look(params, count)
        looking = time.perf_counter() - began
        target, seconds = self.targets[rows] if len(self.targets) > 1 else np.repeat(self.targets, count, 0), 0.0
        for prefix, algorithm in attacks:
            made = []
            for place, epsilon in enumerate(study.config.epsilons):
                began = time.perf_counter()
                made.append(
                    measurements.attack(
                        params,
                        target,
                        rows,
                        epsilon=epsilon / 255,
                        salt=self.salt ^ (place + 1),
                        algorithm=algorithm,
                        progress=lambda share: progress(share / len(study.config.epsilons)),
                    )
                )
                seconds += (time.perf_counter() - began) * (not prefix)
            kept = ("outputs", "iterations") if not prefix else ("outputs",)
            found |= {prefix + name: np.stack([part[name] for part in made], axis=1) for name in kept}
            if not prefix:
                saved = max(0, study.config.images_saved - rows.start)
                found["inputs"] = np.stack([part["inputs"][:saved] for part in made], axis=1)
        found["seconds"] = np.array([unlearning, looking, seconds])
        return found

    def curves(self, originals: Originals, measurements: Measurements) -> dict[str, dict[str, Any]]:
        """Accuracy on the forget set over numbers of steps and step sizes, at the largest radius (Figures 4 and 5)."""
        study, config = self.study, self.study.config
        if not config.epsilons:
            return {}
        radius, forget = config.strongest / 255, len(study.images.forgotten)
        base = config.step_size(radius)
        axes = {
            "steps": ("steps", [s for s in STEPS if s <= 2 * config.attack.steps]),
            "step_size": ("step size, in 255ths", [round(factor * base * 255, 6) for factor in STEP_SIZES]),
        }
        found = {}
        for axis, (label, points) in axes.items():
            values = [[] for _ in points]
            for number, rows in enumerate(study.chunks(config.seeds)):
                params, _ = self.unlearned(number, rows, originals)
                target = self.targets[rows] if len(self.targets) > 1 else np.repeat(self.targets, config.seeds, 0)[rows]
                for place, point in enumerate(points):
                    made = measurements.attack(
                        params,
                        target,
                        rows,
                        epsilon=radius,
                        salt=self.salt ^ len(config.epsilons),
                        probes=forget,
                        steps=int(point) if axis == "steps" else None,
                        step_size=point / 255 if axis == "step_size" else None,
                    )
                    hits = made["outputs"].argmax(-1) == measurements.labels[:forget]
                    values[place] += hits.mean(axis=1).tolist()
            found[axis] = {"label": label, "x": points, "values": values}
        return found


STEPS = (1, 2, 5, 10, 20, 50, 100, 200)
STEP_SIZES = (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
"""Times the step size that is configured; at the paper's 1/255 its own ablation."""


def _attacks(study: Study) -> Iterator[tuple[str, str]]:
    """Prefix of the arrays -> algorithm."""
    if study.config.epsilons:
        yield "", study.config.attack.algorithm
        if study.config.second_attack not in ("none", study.config.attack.algorithm):
            yield "second_", study.config.second_attack


def shadow_logits(study: Study) -> Arrays | None:
    """Trains the shadow models; their logits [K, n, C] on all training images, and which of them each has seen [K, n].

    From disk if they are there. None where no shadow models are asked for.
    """
    config, path = study.config, study.config.directory / "shadows.npz"
    if config.shadows.models == 0:
        return None
    found = store.read_chunk(path)
    if found is not None:
        return found
    count, n = config.shadows.models, len(study.images.y)
    member = shadow_members(
        jax.random.fold_in(study.root, studies.MEMBERSHIP), n, models=count, share=config.shadows.share
    )
    sizes = Sizes(retain=0, pool=n, forget=int(member[0].sum()))
    training = dataclasses.replace(config.training, epochs=config.shadows.epochs)
    info = study.info_for(sizes, training)
    engine = studies.make_engine(
        config, study.engine.mesh, study.engine.plan, study.images, sizes, jax.random.fold_in(study.root, studies.ORDER)
    )
    runner = engine.phase_runner(info.train_phase("train"), 0)
    look = engine.map(lambda examples, shared, params: batched(partial(info.model.apply, params), examples.x))
    bar = Bar("shadow models", count, runner.total, config.quiet)
    began, logits = time.perf_counter(), []
    for rows in study.chunks(count):
        numbers = study.numbers(rows)
        keys = (study.keys(studies.SHADOWS, numbers, salt) for salt in range(2))
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
