"""Base, target and retrained models of a study: trained once, kept on disk chunk by chunk."""

import time
from functools import cached_property
from typing import Any

import jax

from jaxunlearn import records
from jaxunlearn.engine import checkpoints, store
from jaxunlearn.engine.population import PhaseRunner
from jaxunlearn.pipeline.population import on_host, own_process
from jaxunlearn.pipeline.privacy import study as studies
from jaxunlearn.pipeline.privacy.config import model_identity
from jaxunlearn.pipeline.privacy.study import Study
from jaxunlearn.pipeline.progress import Bar
from jaxunlearn.types import Params

BASE, TARGET, RETRAIN = "base", "target", "retrain"


class Models:
    """The models around unlearning.

    base: before anything about people was learnt. target: base, taught everyone. retrain: base, taught those who stay.
    """

    def __init__(self, study: Study):
        self.study = study
        self._identity = model_identity(study.config, study.data)
        self._stores = {name: self.store(name) for name in (BASE, TARGET, RETRAIN)}

    def store(self, name: str) -> checkpoints.ParamsStore:
        """Where models of a name are."""
        folder = self.study.config.population_directory / name
        return checkpoints.ParamsStore(folder, identity=self._identity | {"models": name}, process=own_process())

    @property
    def _keeps_base(self) -> bool:
        """Whether base models are trained here; pretrained ones are read from their file again."""
        return self.study.config.decoder.weights is None

    def train(self, names: tuple[str, ...]) -> dict[str, float]:
        """Trains what is not on disk; the seconds that each kind took when it was."""
        for name in (BASE, *(n for n in names if n != BASE)):
            if name != BASE or self._keeps_base:
                self._train(name)
        return {name: self.seconds(name) for name in names if name != BASE or self._keeps_base}

    def seconds(self, name: str) -> float:
        """Wall time of training all models of a name."""
        chunks = range(len(self.study.chunks))
        return round(sum(float(self._stores[name].facts(number)["seconds"]) for number in chunks), 1)

    @cached_property
    def _training(self) -> tuple[Any, Any]:
        return self.study.training()

    def _runner(self, name: str) -> tuple[PhaseRunner, Any]:
        engine, info = self.study.pretraining() if name == BASE else self._training
        source = "train" if name == TARGET else "retain"
        member = jax.numpy.ones(engine.examples.y.shape[0], bool)
        return engine.phase_runner(info.train_phase(source), 0), member

    def _train(self, name: str) -> None:
        study, models = self.study, self._stores[name]
        chunks = study.chunks
        for number in range(len(chunks)):
            damage = models.damage(number, checksums=True)
            if damage is not None:
                store.notice(f"{damage}: its models are trained again.")
                models.discard(number)
        if all(map(models.done, range(len(chunks)))):
            return
        purpose = {BASE: studies.PRETRAINING, TARGET: studies.TARGET, RETRAIN: studies.RETRAINING}[name]
        runner, member = self._runner(name)
        passes = study.config.decoder.pretraining if name == BASE else 1
        bar = Bar(name, study.config.seeds, runner.total, study.config.quiet)
        for number, rows in enumerate(chunks):
            count = rows.stop - rows.start
            if models.done(number):
                bar.skip(count)
                continue
            began = time.perf_counter()
            params = study.initial(rows) if name == BASE else self.load(BASE, number, rows)
            if passes:
                params = runner(study.runs(rows, purpose, jax.device_get(member)), params, bar.chunk(count))
            seconds = time.perf_counter() - began
            models.save(number, on_host(params, rows), {"runs": list(range(rows.start, rows.stop)), "seconds": seconds})
        models.flush()
        bar.close()

    def load(self, name: str, number: int, rows: slice) -> Params:
        """[chunk, ...] the models of a chunk's seeds, damaged ones made again."""
        if name == BASE and not self._keeps_base:
            return self.study.initial(rows)
        try:
            return self._stores[name].load(number, self.study.like(rows.stop - rows.start))
        except records.Damaged as error:
            store.notice(f"{str(error).rstrip('.')}: its models are trained again.")
            self._stores[name].discard(number)
            self._train(name)
            return self._stores[name].load(number, self.study.like(rows.stop - rows.start))
