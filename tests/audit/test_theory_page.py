"""docs/theory.md: its code runs and prints what stands there, and the tests that it names exist."""

import doctest
import re

from rejections import THEORY

TEXT = THEORY.read_text()


def test_the_code_of_the_page_prints_what_it_says():
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.S | re.M)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "theory.md", str(THEORY), 0)
    assert len(blocks) >= 10 and len(examples.examples) > 40
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(examples)
    assert result.failed == 0


def test_named_tests_exist():
    sources = "\n".join(path.read_text() for path in THEORY.parents[1].joinpath("tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 25
    assert {name for name in named if f"def {name}(" not in sources} == set()


def test_every_trap_is_on_the_page():
    traps = THEORY.parents[1].joinpath("tests", "audit", "test_rules_and_traps.py").read_text()
    measured = re.findall(r"^def (test_\w+)\(request", traps, re.M)
    assert len(measured) > 20
    assert [name for name in measured if f"`{name}`" not in TEXT] == []
