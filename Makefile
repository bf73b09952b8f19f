PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: audit test fast lint format clean

audit: $(VENV)/installed          ## audit eight unlearning algorithms on real digits (minutes); runs/digits/report.html shows it
	$(BIN)/jaxunlearn audit digits --out runs/digits

test: $(VENV)/installed-test      ## all tests
	$(BIN)/python -m pytest -n 2

fast: $(VENV)/installed-test      ## without the slow ones
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/installed-dev       ## format, lint, types, layer rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say which with: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
