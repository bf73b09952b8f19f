"""Every option is described, and light modules stay light."""

import os
import re
import subprocess
import sys

import pytest

from jaxunlearn.cli import COMMANDS, main
from jaxunlearn.config import METHOD_NAMES


@pytest.mark.parametrize(
    "words",
    [
        *([c] for c in COMMANDS if c not in ("audit", "robustness", "privacy")),
        *(["audit", d] for d in ("digits", "cifar100")),
        ["robustness", "digits"],
        ["privacy", "people"],
    ],
)
def test_every_option_has_a_description(capsys, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as stop:
        main([*words, "--help"])
    said = capsys.readouterr()
    assert stop.value.code == 0 and said.err == ""
    options, name = {}, ""
    for line in said.out.partition("--help")[2].splitlines():
        line = line.strip("│| ")
        found = re.match(r"(-h, )?(--[a-z][\w.-]*)", line)
        if found:
            name = found.group(2)
        elif re.search(r"──|----| options$", line):  # the frame of the next group
            name = ""
        if name:
            text = re.sub(r"^(-h, )?--\S+(, --\S+)?( (\[.*?\]+|\{\S*\}(\|\w+)?|\w+))?", "", line) if found else line
            options[name] = f"{options.get(name, '')} {text}".strip()
    assert options
    if words[0] == "audit":
        assert all(name in options["--methods"] for name in METHOD_NAMES)
    for name, text in options.items():
        described = re.sub(r"\((default: .*|required)\)", "", text)
        assert len(re.findall(r"[A-Za-z]{2,}", described)) >= 1, (name, text)


@pytest.mark.parametrize("command", ["bound", "design"])
def test_no_option_shows_none_as_its_default(capsys, command):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert "default: None" not in said and "(default: )" not in said


def test_the_commands_are_listed(capsys):
    for words in ([], ["--help"], ["help"]):
        assert main(words) == 0
        said = capsys.readouterr().out
        assert all(f"jaxunlearn {command}" in said for command in COMMANDS)


LIGHT = ["jaxunlearn.audit", "jaxunlearn.audit.headline", "jaxunlearn.report", "jaxunlearn.records", "jaxunlearn.cli"]
LIGHT += ["jaxunlearn.attack.likelihood", "jaxunlearn.engine.store", "jaxunlearn.pipeline.outside"]
LIGHT += ["jaxunlearn.pipeline.design_runs", "jaxunlearn.pipeline.outlook"]


def test_what_works_without_jax_does_not_load_it():
    code = f"import importlib, sys; [importlib.import_module(n) for n in {LIGHT!r}]; "
    code += "assert not {'jax', 'flax', 'optax', 'orbax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_loads_tensorflow_or_transformers():
    code = """
import importlib, pkgutil, sys
import jaxunlearn
for module in pkgutil.walk_packages(jaxunlearn.__path__, "jaxunlearn."):
    importlib.import_module(module.name)
assert not {"tensorflow", "tensorflow_datasets", "datasets", "transformers", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_program_that_uses_jax_already_may_call_the_command_line():
    code = "import jax; jax.devices(); from jaxunlearn import cli; cli.use_all_cores(); cli.use_all_cores()"
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_reader_that_has_gone_is_no_error(tmp_path):
    (tmp_path / "signs.csv").write_text("1,-1\n-1,1\n")
    (tmp_path / "llr.csv").write_text("1,0\n0,1\n")
    command = f"'{sys.executable}' -m jaxunlearn.cli bound --signs signs.csv --llr llr.csv --json | true"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == ""


def test_an_interrupt_that_a_destructor_swallows_comes_again():
    program = """
import os, signal, sys, time
from jaxunlearn import cli

class Swallows:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

def command(words):
    swallows = Swallows()
    del swallows
    print("swallowed", flush=True)
    time.sleep(20)

cli.INSIST_SECONDS = 0.3
cli.COMMANDS["status"] = command
sys.argv = ["jaxunlearn", "status"]
sys.exit(cli.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=15)
    assert done.returncode == 130 and done.stdout == "swallowed\n", done
    assert done.stderr == "jaxunlearn: interrupted.\n"
