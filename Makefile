# Every target needs Python 3.11 or newer and nothing else: what it uses is installed into .venv first.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP_INSTALL := pip install --quiet --constraint constraints.txt
# Three processes on two CPUs: half of a test that uses Ray is waiting.
PROCESSES ?= 3
PARALLEL := --numprocesses $(PROCESSES) --dist loadgroup --no-loadscope-reorder

.PHONY: setup demo test test-source test-statistical wheel test-wheel lint types bench-env

demo: setup
	$(BIN)/python jobs/train_digits.py

# If Debian's package `prometheus` is installed, a test checks the configuration in infra/ with it.
test: setup
	$(BIN)/pytest $(PARALLEL)

# The tests that read the source tree; `make test-wheel` runs the others.
test-source: setup
	$(BIN)/pytest -m source

# Tests that measure time or shares, and repeat a measurement that fails: run them on a quiet machine.
test-statistical: setup
	$(BIN)/pytest -m statistical

wheel: setup
	rm -rf build dist
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

# Installs the wheel into an empty environment, runs README's first example there, then the tests.
test-wheel: wheel
	.ci/test_wheel $(PARALLEL)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

setup: $(INSTALLED)

# Runs again when one of these files changes.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/$(PIP_INSTALL) setuptools
	$(BIN)/$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	touch $@

# For `benchmarks`: this package beside the loaders that it is compared with, and two of them in an
# environment of their own, because their requirements contradict the others'.
bench-env:
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/$(PIP_INSTALL) setuptools
	.venv-peers/bin/$(PIP_INSTALL) --requirement benchmarks/requirements.txt --no-build-isolation --editable .
	test -x .venv-formats/bin/python || $(PYTHON) -m venv .venv-formats
	.venv-formats/bin/pip install --quiet --no-deps --requirement benchmarks/requirements_formats.txt
