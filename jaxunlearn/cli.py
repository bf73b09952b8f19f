"""The command line: ``jaxunlearn audit | robustness | privacy | design | bound | convex | status | report``."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import tyro

from jaxunlearn._options import UNSAID, PathOption, Refused
from jaxunlearn._paths import AnyPath, as_path
from jaxunlearn._validate import InputError
from jaxunlearn._version import __version__

USAGE = """\
jaxunlearn {version}: find out whether a model has really forgotten.

  jaxunlearn audit DATASET [options]   train, unlearn and bound epsilon, for several methods
  jaxunlearn robustness DATASET [opts] unlearn, then attack the inputs to bring back what was forgotten
  jaxunlearn privacy DATASET [opts]    unlearn personal data in a language model, then ask for it again
  jaxunlearn design [options]          write down which data are in which run, for runs in any framework
  jaxunlearn bound [options]           bound epsilon from scores that you have already
  jaxunlearn convex [options]          audit certified unlearning on convex losses, beside certificate and truth
  jaxunlearn status DIR                how far an audit is, how fast it goes, and whether its files are whole
  jaxunlearn report DIR...             table, figures and one HTML page of finished run directories

Each takes --help.
"""

EXIT_INPUT, EXIT_INTERRUPT = 2, 130

T = TypeVar("T")


def _parse(parse: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Calls tyro; what a configuration refuses is raised as one line, where tyro would draw a box around it."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse(*arguments, **options)
    except Refused as error:
        raise InputError(str(error)) from None
    except SystemExit as stop:
        place, cause = "", stop.__context__
        while cause is not None and not isinstance(cause, InputError):
            place = str(getattr(cause, "arg", "")).partition("__tyro-dummy-inner__.")[2]
            cause = cause.__context__
        if cause is None:
            sys.stderr.write(said.getvalue())
            raise
        raise InputError(f"--{place}: {cause}" if place else str(cause)) from None


def use_all_cores() -> None:
    """One JAX device per CPU core, unless the user chose; it has to be said before JAX starts its back end."""
    if "JAX_NUM_CPU_DEVICES" not in os.environ and "xla_force_host_platform_device_count" not in os.environ.get(
        "XLA_FLAGS", ""
    ):
        import jax

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        with contextlib.suppress(RuntimeError):  # the back end is up already: called from a program that uses JAX
            jax.config.update("jax_num_cpu_devices", cores)


def keep_programs() -> None:
    """Keeps compiled programs for the next command, unless the user chose a place for them."""
    import jax

    from jaxunlearn import _cache

    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = _cache.cache_dir() / f"programs-{_cache.processor()}"
        with contextlib.suppress(OSError):  # a home that cannot be written: they are compiled again every time
            folder.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(folder))
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.02)


def _show_report(directories: Sequence[AnyPath], out: AnyPath | None = None) -> None:
    from jaxunlearn.engine import store
    from jaxunlearn.report import write_report

    with store.disk_errors(directories[0] if out is None and directories else out or as_path(".")):
        table, page = write_report(directories, out=out)
    print(table)
    print(f"\nPage with figures: {page}")


def audit(arguments: Sequence[str]) -> None:
    """``jaxunlearn audit``."""
    from jaxunlearn import presets
    from jaxunlearn.engine import processes
    from jaxunlearn.pipeline import audit as pipeline
    from jaxunlearn.pipeline import plans

    chosen = _parse(tyro.extras.overridable_config_cli, presets.PRESETS, prog="jaxunlearn audit", args=arguments)
    use_all_cores()
    keep_programs()
    if chosen.plan == "show":
        print(plans.show(chosen))
        return
    group = processes.join(
        distributed=chosen.distributed,
        coordinator=chosen.coordinator,
        num_processes=chosen.num_processes,
        process_id=chosen.process_id,
    )
    pipeline.run(chosen, group)
    if group.first:
        _show_report([chosen.directory])


def robustness(arguments: Sequence[str]) -> None:
    """``jaxunlearn robustness``."""
    from jaxunlearn.pipeline import attacked

    presets = dict(attacked.PRESETS)
    chosen = _parse(tyro.extras.overridable_config_cli, presets, prog="jaxunlearn robustness", args=arguments)
    if not attacked.is_large(chosen):
        use_all_cores()
    keep_programs()
    _show_report([attacked.run(chosen)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Print the table and write the figures and the page of finished run directories."""

    directories: tyro.conf.Positional[tuple[PathOption, ...]]
    """Run directories, as given to --out."""
    out: Annotated[PathOption | None, UNSAID] = None
    """The page's file. Default: report.html in the directory; of several, report-together.html in the first."""


def privacy(arguments: Sequence[str]) -> None:
    """``jaxunlearn privacy``."""
    from jaxunlearn.pipeline.privacy import presets, run

    chosen = _parse(tyro.extras.overridable_config_cli, presets.PRESETS, prog="jaxunlearn privacy", args=arguments)
    if chosen.decoder.weights is None:  # a large model uses all cores by itself
        use_all_cores()
    keep_programs()
    _show_report([run.run(chosen)])


def report(arguments: Sequence[str]) -> None:
    """``jaxunlearn report``."""
    chosen = _parse(tyro.cli, Report, prog="jaxunlearn report", args=arguments)
    _show_report(chosen.directories, chosen.out)


def design(arguments: Sequence[str]) -> None:
    """``jaxunlearn design``."""
    from jaxunlearn.pipeline import design_runs

    print(design_runs.run(_parse(tyro.cli, design_runs.Design, prog="jaxunlearn design", args=arguments)))


def bound(arguments: Sequence[str]) -> None:
    """``jaxunlearn bound``."""
    from jaxunlearn.pipeline import outside

    chosen = _parse(tyro.cli, outside.Bound, prog="jaxunlearn bound", args=arguments)
    record = outside.run(chosen)
    if chosen.json:
        print(json.dumps(record.to_json(), indent=2))
        return
    if chosen.directory is not None:
        _show_report([chosen.directory])
        return
    from jaxunlearn.report import table

    print(table.render([record]))
    print(*record.notes, sep="\n")


def convex(arguments: Sequence[str]) -> None:
    """``jaxunlearn convex``."""
    from jaxunlearn.pipeline import convex as pipeline
    from jaxunlearn.report import convex as tables

    chosen = _parse(tyro.cli, pipeline.Convex, prog="jaxunlearn convex", args=arguments)
    if chosen.sweep:
        found = {name: pipeline.rho_sweep(problem, seed=chosen.seed) for name, problem in chosen.sweepable().items()}
        if chosen.json:
            print(
                json.dumps({name: [dataclasses.asdict(p) for p in points] for name, points in found.items()}, indent=2)
            )
        else:
            print("\n\n".join(tables.render_sweep(name, points) for name, points in found.items()))
        return
    found = pipeline.run(chosen)
    if chosen.json:
        print(json.dumps([record.to_json() for record in found], indent=2))
    else:
        print("\n\n".join(map(tables.render, found)))


def status(arguments: Sequence[str]) -> None:
    """``jaxunlearn status``."""
    from jaxunlearn.pipeline import status as pipeline

    chosen = _parse(tyro.cli, pipeline.Status, prog="jaxunlearn status", args=arguments)
    found = pipeline.run(chosen)
    print(json.dumps(found.to_json(), indent=2) if chosen.json else pipeline.render(found))
    if found.damaged:
        raise SystemExit(1)


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "audit": audit,
    "robustness": robustness,
    "privacy": privacy,
    "design": design,
    "bound": bound,
    "convex": convex,
    "status": status,
    "report": report,
}


INSIST_SECONDS = 2.0


def _insist_on_interrupts() -> None:
    """Lets an interrupt come again until it is answered: one that falls into a destructor or a callback of the garbage
    collector is swallowed there, with a traceback that nobody needs.
    """

    def interrupt(number: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, INSIST_SECONDS)
        raise KeyboardInterrupt

    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: None if found.exc_type is KeyboardInterrupt else hook(found)
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, interrupt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: Words after the program's name; default: ``sys.argv``.

    Returns:
        0; 2 after bad input, with one line on standard error; 130 after an interrupt.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(version=__version__))
        return 0
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    insist = arguments is None and hasattr(signal, "setitimer")
    if insist:
        _insist_on_interrupts()
    try:
        from jaxunlearn import _validate

        _validate.one_of("command", words[0], COMMANDS)
        COMMANDS[words[0]](words[1:])
        sys.stdout.flush()
    except InputError as error:
        print(f"jaxunlearn: {error}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        if insist:
            signal.setitimer(signal.ITIMER_REAL, 0)
        bar = "\n" if sys.stderr.isatty() else ""  # a progress bar may stand on the line
        kept = (
            "; finished chunks are kept, the same command goes on"
            if words[0] in ("audit", "robustness", "privacy")
            else ""
        )
        print(f"{bar}jaxunlearn: interrupted{kept}.", file=sys.stderr, flush=True)
        if arguments is None:  # the program itself: taking down the interpreter under a running computation may crash
            sys.stdout.flush()
            os._exit(EXIT_INTERRUPT)
        return EXIT_INTERRUPT
    except BrokenPipeError:  # the reader has gone, as with `jaxunlearn report DIR | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
