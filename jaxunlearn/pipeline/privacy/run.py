"""Teach, unlearn with every method and seed, attack, measure: the command ``jaxunlearn privacy``."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxunlearn import config as configuration
from jaxunlearn import records
from jaxunlearn._paths import AnyPath, is_local, remove_tree
from jaxunlearn._validate import InputError, require
from jaxunlearn.engine import store
from jaxunlearn.pipeline import measured
from jaxunlearn.pipeline.audit import open_method
from jaxunlearn.pipeline.privacy import measure
from jaxunlearn.pipeline.privacy.config import Privacy, identity, model_identity
from jaxunlearn.pipeline.privacy.measurements import Arrays, Measurements
from jaxunlearn.pipeline.privacy.models import BASE, RETRAIN, TARGET, Models
from jaxunlearn.pipeline.privacy.study import Study, build
from jaxunlearn.pipeline.privacy.unlearning import CURVE_EVERY, Relearning, Unlearning, asked, relearning_draws
from jaxunlearn.pipeline.task import make_unlearner
from jaxunlearn.pipeline.unlearning import Method
from jaxunlearn.privacy import ANSWERS, FILE, PREDICTORS, PrivacyRecord
from jaxunlearn.records import as_json
from jaxunlearn.unlearn.coreset import core_set

TOKENIZER = "tokenizer"


def run(config: Privacy, devices: Sequence[Any] | None = None) -> AnyPath:
    """Runs or resumes the command.

    Args:
        config: The settings.
        devices: JAX devices; None means all.

    Returns:
        The run directory.

    Raises:
        InputError: Anything the user can mend; what was finished before stays on disk and is reused.
    """
    config.check()
    names = method_names(config)
    resolved = {name: configuration.resolve_method(name, config.method) for name in names}
    begun = measured.chunks_begun(config.population_directory / "manifest.json", "config")
    study = build(config, devices, runs_per_chunk=begun)
    _try(study)
    directory = config.directory
    with store.exclusive(directory):
        _open(study)
        models = Models(study)
        with store.exclusive(config.population_directory):
            _open_population(study)
            seconds = models.train((TARGET, *((RETRAIN,) if RETRAIN in names else ())))
        whole = _whole(directory, (TARGET, BASE, *names))
        if _complete(study, whole, resolved):
            return directory
        measurements = Measurements(study)
        known, associations = _known(study, models, measurements)
        work = _Work(study, models, measurements, known, whole)
        target = work.around(TARGET, seconds)
        lost = np.flatnonzero(~_finite(target))
        require(
            lost.size == 0,
            f"The target models of seeds {', '.join(map(str, lost))} diverged: what they say is not finite. Train with a "
            f"smaller target.descent.peak={config.target.descent.peak} in another --out directory.",
        )
        work.around(BASE, seconds, target)
        sets = measure.sets_of(study, known)
        found = measure.predictors(study, sets, target, associations)
        _write_predictors(study, sets, found)
        for name in names:
            if name == RETRAIN:
                work.around(RETRAIN, seconds, target)
            else:
                work.method(name, *resolved[name], target, found)
    return directory


def method_names(config: Privacy) -> list[str]:
    """The methods that were asked for; "all" are the paper's and RAU."""
    names = list(configuration.PRIVUN_METHODS) if config.methods == ("all",) else list(config.methods)
    require("all" not in names, f"Expected methods=all alone, or names, got {' '.join(config.methods)}.")
    for name in config.curves:
        if config.curves != Privacy.curves:
            require(name in names, f"Expected curves of methods that are attacked, got {name!r}; add it to methods.")
    return names


def _try(study: Study) -> None:
    """Draws everything once, before anything is trained: what does not fit is said at once."""
    known = study.random_known()
    if study.config.shots:
        study.shown(known)
    relearning_draws(study, known)
    study.unlearning(known)
    if study.config.choices is not None:
        _ = study.choices


def _open_population(study: Study) -> None:
    """Says what the models in a population depend on, and in which chunks they are."""
    terms = model_identity(study.config, study.data) | {"runs_per_chunk": study.plan.runs_per_chunk}
    store.open_manifest(study.config.population_directory, "manifest.json", terms)


def _open(study: Study) -> None:
    config = study.config
    manifest = measured.open_run(
        config.directory,
        identity(config, study.data | study.asked),
        command="privacy",
        mark="stop_below",
        file=FILE,
        title=config.dataset,
        population_directory=str(config.population_directory),
    )
    asked = list(dict.fromkeys([*manifest.get("asked", []), *method_names(config)]))
    if asked != manifest.get("asked"):
        with store.disk_errors(config.directory):
            records.write_json(config.directory / "manifest.json", manifest | {"asked": asked})


def _whole(directory: AnyPath, names: Sequence[str]) -> set[str]:
    """Those whose results are whole on disk; damage is named on standard error."""
    return {
        name
        for name in names
        if measured.whole(_folder(directory, name) / FILE, _folder(directory, name) / ANSWERS, PrivacyRecord.from_json)
    }


def _folder(directory: AnyPath, name: str) -> AnyPath:
    return directory / configuration.method_directory_name(name)


def _open_method(config: Privacy, name: str, settings: dict[str, Any]) -> AnyPath:
    """The method's folder, held to what its results were computed with."""
    return open_method(config.directory, name, settings | {"curve": name in config.curves})


def _complete(study: Study, whole: set[str], resolved: dict[str, tuple[Any, dict[str, Any]]]) -> bool:
    """Whether nothing is left to compute."""
    config, directory = study.config, study.config.directory
    if not whole.issuperset((TARGET, BASE, *resolved)):
        return False
    try:
        records.read_npz(directory / PREDICTORS, sealed=True)
    except InputError:
        return False
    for name, (_, settings) in resolved.items():
        if name != RETRAIN:
            _open_method(config, name, settings)
    _write_corpus(study, records.read_npz(directory / TARGET / ANSWERS, sealed=True)["known"])
    return True


def _known(study: Study, models: Models, measurements: Measurements) -> tuple[np.ndarray, Arrays]:
    """[nf] which facts methods are shown, and all facts' associations with those (and with all) under the target models."""
    drawn = study.random_known()

    def associate(known: np.ndarray) -> Arrays:
        parts = []
        for number, rows in enumerate(study.chunks):
            target = models.load(TARGET, number, rows)
            parts.append(measurements.associate(target, known, rows.stop - rows.start))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    found = associate(drawn)
    if study.config.selection == "core-set":
        drawn = _core(study, found["all"].mean(axis=0))
        found = associate(drawn)
    _write_corpus(study, drawn)
    return drawn, found


def _core(study: Study, scores: np.ndarray) -> np.ndarray:
    """[nf] the facts with the highest association; of people the persons with the highest mean."""
    if not study.by_person:
        return np.isin(np.arange(len(scores)), core_set(scores, study.config.known))
    groups = study.material.forgotten.groups
    means = np.bincount(groups, scores) / np.bincount(groups)
    return np.isin(groups, core_set(means, study.config.known))


def _write_corpus(study: Study, known: np.ndarray) -> None:
    """corpus.json and the tokenizer: whoever looks at answers knows what was asked."""
    material, directory = study.material, study.config.directory
    kinds = ["known" if k else "unknown" for k in known]
    kinds += ["retained"] * len(material.retained.facts) + ["control"] * len(material.control.facts)
    rows = [
        {
            "set": kind,
            "person": fact.person,
            "kind": fact.kind,
            "prompt": fact.prompt,
            "answer": fact.answer,
            "pii": fact.pii,
        }
        for kind, fact in zip(kinds, material.facts)
    ]
    corpus, path = {"title": material.title, "facts": rows}, directory / "corpus.json"
    if path.exists() and _readable(path) == corpus:
        return
    with store.disk_errors(directory):
        if study.config.decoder.weights is None and is_local(directory):
            study.words.tokenizer.save(Path(str(directory)) / TOKENIZER)
        records.write_json(path, corpus)


def _write_predictors(study: Study, sets: measure.Sets, found: measure.Predictors) -> None:
    """predictors.npz: whoever looks at forgetting scores can plot them against what might predict them."""
    scores = {f"score_{name}": values for name, values in found.scores.items()}
    path = study.config.directory / PREDICTORS
    with store.disk_errors(study.config.directory):
        records.write_npz(path, unknown=np.flatnonzero(sets.unknown), loss=found.loss, **scores)


def _readable(path: AnyPath) -> Any:
    """A JSON file's contents, None if it is damaged."""
    try:
        return records.read_json(path)
    except InputError:
        return None


class _Work:
    """What is asked of all models, each in its folder; finished results are read back."""

    def __init__(self, study: Study, models: Models, measurements: Measurements, known: np.ndarray, whole: set[str]):
        self.study, self.models, self.measurements, self.known, self.whole = study, models, measurements, known, whole
        self.sets = measure.sets_of(study, known)
        self.judge = measure.Judge(study)
        self.relearning = Relearning(study, known, measurements)
        if study.config.shots:
            measurements.show(study.shown(known))
        self._unlearning: Any = None

    @property
    def unlearning(self) -> tuple[Any, Any, np.ndarray]:
        """Engine, task and rows of methods."""
        if self._unlearning is None:
            self._unlearning = self.study.unlearning(self.known)
        return self._unlearning

    def around(self, name: str, seconds: dict[str, float], target: Arrays | None = None) -> Arrays:
        """Asks the models around unlearning; returns their arrays."""
        folder = _folder(self.study.config.directory, name)
        if name in self.whole:
            return records.read_npz(folder / ANSWERS, sealed=True)
        parts = []
        began = time.perf_counter()
        for number, rows in enumerate(self.study.chunks):
            params = self.models.load(name, number, rows)
            parts.append(asked(self.study, params, rows, self.measurements, self.relearning))
        arrays = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        spent = {"train": seconds[name]} if name in seconds else {}
        spent |= {"ask": round(time.perf_counter() - began, 1)}
        record = self._record(name, arrays, target if name != TARGET else None, {}, spent)
        self._save(folder, record, arrays)
        return arrays

    def method(
        self, name: str, factory: Any, settings: dict[str, Any], target: Arrays, predictors: measure.Predictors
    ) -> None:
        """Unlearns with one method, and asks."""
        engine, info, member = self.unlearning
        method = Method(factory, settings, make_unlearner(info, name, factory))
        require(
            not method.unlearner.from_scratch and method.unlearner.rewind == 0,
            f"Expected methods that start from the trained model, but {name} does not; only retrain is known otherwise.",
        )
        folder = _open_method(self.study.config, name, settings)
        if name in self.whole:
            return
        work = Unlearning(self.study, engine, member, self.known, name, method, folder)
        arrays = work.all(self.models, self.measurements, self.relearning)
        unlearning, asking = (round(float(value), 1) for value in arrays.pop("seconds")[0])
        record = self._record(
            name,
            arrays,
            target,
            settings,
            {"unlearn": unlearning, "ask": asking},
            predictors=predictors,
            notes=list(method.unlearner.notes),
        )
        self._save(folder, record, arrays)
        remove_tree(folder / "chunks")

    def _record(
        self,
        name: str,
        arrays: Arrays,
        target: Arrays | None,
        settings: dict[str, Any],
        seconds: dict[str, float],
        *,
        predictors: measure.Predictors | None = None,
        notes: list[str] | None = None,
    ) -> PrivacyRecord:
        study, config, sets = self.study, self.study.config, self.sets
        good = _finite(arrays)
        whole = {key: value[good] for key, value in arrays.items()}
        base = None if target is None else {key: target[key][good] for key in ("log_p", "states")}
        metrics = measure.recovery(study, sets, whole, self.judge, self.relearning.scored)
        metrics += measure.others(study, sets, whole, base, self.judge)
        found: dict[str, Any] = {}
        if predictors is not None and base is not None:
            some = measure.Predictors({k: v[good] for k, v in predictors.scores.items()}, predictors.loss[good])
            found = measure.correlations(study, sets, some, measure.forgetting(whole, base))
        return PrivacyRecord(
            method=name,
            title=config.dataset,
            scenario=f"{study.material.title}; {int(self.known.sum())} of {len(self.known)} facts known",
            conditions=config.conditions,
            seeds=int(good.sum()),
            failed=np.flatnonzero(~good).tolist(),
            metrics=metrics,
            correlations=found,
            cka=measure.cka(study, sets, whole, base) if base is not None else {},
            trace=_trace(whole),
            curve=self._curve(whole),
            attack={"shots": config.shots, "recovery": as_json(config.recovery), "bits": list(config.bits)},
            settings=settings,
            seconds=seconds,
            notes=notes or [],
        )

    def _curve(self, arrays: Arrays) -> dict[str, Any]:
        """P3 on the unknown set after every epoch, beside the text's loss."""
        if "curve" not in arrays:
            return {}
        strict, _ = self.judge(arrays["curve"])  # [S, epochs, draws, F]
        which = self.sets.unknown if self.sets.unknown.any() else self.sets.known
        rows = self.relearning.scored & which
        rows, strict = rows[rows.any(axis=1)], strict[:, :, rows.any(axis=1)]
        if not len(rows):
            return {}
        share = (strict & rows).sum(axis=3) / rows.sum(axis=1)
        return {
            "epochs": list(range(0, CURVE_EVERY * strict.shape[1], CURVE_EVERY)),
            "p3": share.mean(axis=2).T.tolist(),
            "text_nll": arrays["trace_text_nll"][:, ::CURVE_EVERY].T.tolist(),
        }

    def _save(self, folder: AnyPath, record: PrivacyRecord, arrays: Arrays) -> None:
        with store.disk_errors(folder):
            records.write_npz(folder / ANSWERS, **arrays, scored=self.relearning.scored, known=self.known)
            records.write_json(folder / FILE, record.to_json())


def _finite(arrays: Arrays) -> np.ndarray:
    """[S] whether what a seed's model says is finite."""
    finite = np.isfinite(arrays["log_p"]).all(axis=1) & np.isfinite(arrays["text_nll"])
    return finite & np.isfinite(arrays["choices"]).all(axis=1) if "choices" in arrays else finite


def _trace(arrays: Arrays) -> dict[str, Any]:
    """What models were after each epoch [epochs][seeds]."""
    if "trace_text_nll" not in arrays:
        return {}
    names = [name for name in arrays if name.startswith("trace_") and name != "trace_chosen"]
    found = {name.removeprefix("trace_"): arrays[name].T.tolist() for name in names}
    return {"epochs": list(range(arrays[names[0]].shape[1])), **found, "chosen": arrays["trace_chosen"].tolist()}
