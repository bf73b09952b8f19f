"""The engine's side of the benchmarks: everything that they take from jaxunlearn's engine is in this file.

A measurement is what an audit does with a chunk of runs: one call of a compiled phase, or of the compiled scoring.
"""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from cases import CASES, DECAY, LEARNING_RATE, SOURCES, arrays, counts, epoch_size
from jax.sharding import NamedSharding, PartitionSpec

from jaxunlearn.attack.signals import batched, logit_score, sequence_score
from jaxunlearn.engine import plan as planning
from jaxunlearn.engine.population import Engine, Runs, members
from jaxunlearn.engine.train import Examples, Sizes
from jaxunlearn.pipeline.task import forms_of, make_model
from jaxunlearn.types import Model, Phase
from jaxunlearn.unlearn import base

_COMPILING = ("jaxpr_to_mlir_module_duration", "backend_compile_duration")
_compiled = {"seconds": 0.0}


def _listen(event: str, seconds: float, **_) -> None:
    if event.endswith(_COMPILING):
        _compiled["seconds"] += seconds


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds() -> float:
    """Seconds spent so far on lowering and compiling in this process; tracing, tenths of a second, is not counted."""
    return _compiled["seconds"]


def build_model(name: str, *, form: str = "", dtype: str = "float32") -> Model:
    """The audit's model."""
    return make_model(name, CASES[name].shape, CASES[name].classes, form=form, precision=dtype)


def products(dtype: str) -> str:
    """Precision of float32 products: as asked for, where accelerators would take fewer bits by themselves."""
    return dtype if dtype == "tensorfloat32" else "float32"


def build_phase(name: str, stage: str, model: Model, steps: int) -> Phase:
    """``steps`` steps of a stage: descent on D(S) or on the retain set, or ascent on the forget set."""
    case, size, loss = CASES[name], epoch_size(name, stage), base.cross_entropy(model)
    epochs = max(1, -(-steps * case.batch // size))
    if stage == "ascent":
        phase = base.from_loss(
            lambda params, batch: -loss(params, batch.forget),
            base.sgd(LEARNING_RATE / 100, weight_decay=DECAY),
            source=SOURCES[stage],
            epochs=epochs,
            batch_size=min(case.batch, size),
        )
    else:
        descent = base.SGD(peak=LEARNING_RATE, weight_decay=DECAY)
        phase = descent.phase(loss, source=SOURCES[stage], size=size, epochs=epochs, batch_size=case.batch)
    return phase._replace(max_steps=steps)


class Ours:
    """One stage over R runs on all devices of this process.

    Args:
        name: The model.
        stage: One of ``cases.STAGES``.
        runs: R; runs that only pad the last share of a device are computed and not counted.
        width: Runs per device under vmap; None is the engine's choice.
        rate: Guess of the run-steps (run-examples) a second, to size the work.
        seconds: How long a measurement should take.
        dtype: Of the model's arithmetic.
        devices: How many devices of this process; None is all.

    Attributes:
        work: Run-steps, or examples scored over all runs, in a measurement.
        compile_seconds: Lowering and compiling of all programs.
        memory: Bytes per device of the largest program: arguments + outputs - aliases + temporaries, and temporaries.
    """

    def __init__(
        self,
        name: str,
        stage: str,
        runs: int,
        *,
        width: int | None,
        rate: float,
        seconds: float,
        dtype: str = "float32",
        devices: int | None = None,
    ):
        x, y = arrays(name)
        retain, pool, forget = counts(name)
        sizes = Sizes(retain=retain, pool=pool, forget=forget)
        mesh = planning.make_mesh(jax.local_devices()[:devices])
        plan = planning.choose(mesh, runs, width=width, runs_per_chunk=runs)
        padded, self.width, self.devices = planning.padded(mesh, runs, plan.width), plan.width, mesh.devices.size
        forms = forms_of(name, mesh.devices.flat[0].platform, dtype)
        model = build_model(name, form=forms[0] if plan.width == 1 else forms[-1], dtype=dtype)
        examples = Examples(jnp.asarray(x), jnp.asarray(y))
        engine = Engine(mesh, plan, examples, sizes, jax.random.key(0), precision=products(dtype))
        rng = np.random.default_rng(0)
        signs = np.stack([rng.permutation(np.repeat([1, -1], forget)) for _ in range(padded)])
        first = model.init(jax.random.key(2))
        params = jax.tree.map(lambda a: jnp.broadcast_to(a, (padded, *a.shape)), first)
        if stage == "score":
            score, calls = self._scoring(name, engine, model), max(1, round(seconds * rate / (runs * len(y))))
            params = jax.device_put(params, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
            self._calls = [lambda: score(params)] * calls
            self.work = calls * runs * len(y)
        else:
            steps = measured_steps(name, runs, rate=rate, seconds=seconds)
            run = engine.phase_runner(build_phase(name, stage, model, steps), 0)
            chunk = Runs(members(signs, sizes), jax.random.split(jax.random.key(1), padded))
            self._calls = [lambda: run(chunk, params, None)]
            self.work = steps * runs
        before = {id(program) for program in self._programs()}
        compiled = compile_seconds()
        jax.block_until_ready(self._calls[0]())
        self.compile_seconds = compile_seconds() - compiled
        self.memory = max((_bytes(program) for program in self._programs() if id(program) not in before), default=None)

    @staticmethod
    def _scoring(name: str, engine: Engine, model: Model):
        def score(examples, _, params):
            measure = sequence_score if examples.y.ndim > 1 else logit_score

            def scored(x, y):
                return measure(model.apply(params, x), y)

            return batched(scored, examples.x, examples.y, batch_size=CASES[name].score_batch)

        return engine.map(score)

    @staticmethod
    def _programs():
        return jax.devices()[0].client.live_executables()

    def measure(self) -> float:
        """Run-steps (run-examples) per second."""
        began = time.perf_counter()
        for call in self._calls:
            jax.block_until_ready(call())
        return self.work / (time.perf_counter() - began)


def _bytes(program) -> tuple[int, int]:
    stats = program.get_compiled_memory_stats()
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return kept + stats.temp_size_in_bytes, stats.temp_size_in_bytes


def measured_steps(name: str, runs: int, *, rate: float, seconds: float) -> int:
    """Steps of every run in a measurement of about ``seconds``, within what makes sense for the model."""
    least, most = CASES[name].steps
    return int(np.clip(round(seconds * rate / runs), least, most))


def expected_seconds(name: str, stage: str, runs: int, *, rate: float, seconds: float) -> float:
    """How long one measurement of R runs would take at ``rate``."""
    if stage == "score":
        return max(seconds, runs * CASES[name].examples / rate)
    return runs * measured_steps(name, runs, rate=rate, seconds=seconds) / rate


class Peak:
    """A large matrix product on every device at once: the FLOP/s that a program can reach here.

    Its precision is that of the models.
    """

    def __init__(self, dtype: str = "float32"):
        devices = jax.local_devices()
        on_cpu = devices[0].platform == "cpu"
        self.n, self._repeats = (1024, 3) if on_cpu else (8192, 10)
        a = np.random.default_rng(0).normal(size=(self.n, self.n)) / math.sqrt(self.n)
        kind = "bfloat16" if dtype == "bfloat16" else "float32"
        self._arrays = [jax.device_put(jnp.asarray(a, kind), device) for device in devices]
        self._product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=products(dtype)))
        self.measure()

    def measure(self) -> float:
        """FLOP per second over all devices."""
        began = time.perf_counter()
        outputs = self._arrays
        for _ in range(self._repeats):
            outputs = [self._product(a, b) for a, b in zip(self._arrays, outputs)]
        jax.block_until_ready(outputs)
        return 2 * self.n**3 * self._repeats * len(self._arrays) / (time.perf_counter() - began)
