# `make demo` and `make test` need nothing but Python 3.11 or newer: everything is installed into .venv first.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup demo test test-statistical lint types bench-env

demo: setup
	$(BIN)/python jobs/train_digits.py

# With Debian's package `prometheus` installed its configuration is checked too; `jobs/check_dashboards.py` checks more.
test: setup
	$(BIN)/pytest

# Tests that measure time or shares, and repeat a measurement that fails: run them on a quiet machine.
test-statistical: setup
	$(BIN)/pytest -m statistical

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

setup: $(INSTALLED)

# Again whenever one of these files changes.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

# For benchmarks/throughput.py: this package beside the loaders that it is compared with, and two in an environment of their own.
bench-env:
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --constraint constraints.txt setuptools
	.venv-peers/bin/pip install --quiet --constraint constraints.txt --requirement benchmarks/requirements.txt --no-build-isolation --editable .
	test -x .venv-formats/bin/python || $(PYTHON) -m venv .venv-formats
	.venv-formats/bin/pip install --quiet --no-deps --requirement benchmarks/requirements_formats.txt
