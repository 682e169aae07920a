# Two commands matter: `make demo` shows the product, `make test` is what CI runs.
# Both make their own virtual environment in .venv and can be run again and again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
.PHONY: help demo test check accuracy bench clean

help:
	@echo "make demo      install into .venv and run a slow-input training under traceml"
	@echo "make test      install what tests need and run everything: format, lint, types, tests"
	@echo "make check     the quick loop: format, lint, types, tests without trainings"
	@echo "make accuracy  run the fault-injected trainings and print injected against measured"
	@echo "make bench     measure overhead and scale and write docs/performance.md"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Python 3.10 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml setup.py constraints.txt src/traceml/capture/_switch.c | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/traceml run examples/diagnosis/dataloader_bottleneck_demo.py --run-name demo --overwrite \
	  --args --scenario slow --sleep-ms 2 --batch-size 32 --num-samples 1920 --hidden-dim 512 --depth 2 --print-every 20

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/pytest -m "not scenario and not framework"

test: $(VENV)/.installed-dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/pytest

accuracy: $(VENV)/.installed-dev
	$(BIN)/python -m tests.scenarios.accuracy

bench: $(VENV)/.installed
	$(BIN)/python bench/overhead.py --write docs/performance.md
	$(BIN)/python bench/scale.py --write docs/performance.md

clean:
	rm -rf $(VENV) build src/*.egg-info src/traceml/capture/*.so
