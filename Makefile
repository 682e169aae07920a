# Two commands matter: `make demo` shows the product, `make test` tests it.
# Both make their own virtual environment in .venv and can be run again and again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
.PHONY: help demo check static unit browser prometheus test test-long accuracy bench clean dist test-dist test-pythons
# Most tests wait for a training that sleeps: more workers than cores. A file stays on one worker.
PYTEST := $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder
UNIT := tests/capture tests/compare tests/docs tests/scale tests/unit

help:
	@echo "make demo      install into .venv and run a slow-input training under traceml"
	@echo "make check     the quick loop: format, lint, types, unit tests"
	@echo "make test      install what tests need and run everything but the following"
	@echo "make test-long frameworks, trackers, examples, guides; random kills, network namespaces, thousands of ranks, sanitizers"
	@echo "make accuracy  run the fault-injected trainings and write docs/accuracy.md"
	@echo "make bench     measure overhead and scale and write docs/performance.md"
	@echo "make docs      build the documentation site in site/"
	@echo "make dist          build the sdist and the wheels in dist/"
	@echo "make test-dist     make dist, then install and run the demo where there is no compiler"
	@echo "make test-pythons  make dist, then test its wheels on every Python from 3.10 to 3.14 of this machine"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "Python 3.10 or newer is needed; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)

PAGE := $(filter-out web/node_modules web/src/schema.ts,$(wildcard web/* web/src/*))

$(VENV)/.installed: pyproject.toml setup.py constraints.txt src/traceml/capture/_switch.c $(PAGE) | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e .
	$(BIN)/python -m compileall -q src/traceml  # as pip does for a wheel; some machines write no bytecode by themselves
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-test.txt $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/traceml run examples/diagnosis/dataloader_bottleneck_demo.py --run-name demo --overwrite \
	  --args --scenario slow --sleep-ms 2 --batch-size 32 --num-samples 1920 --hidden-dim 512 --depth 2 --print-every 20

static: $(VENV)/.installed-dev
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy

# These wait for nothing: as many workers as two cores serve, each of which imports torch first.
unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist worksteal -m "not long and not stack and not scenario and not thorough" $(UNIT)

# Both at the same time, the output of each in one piece.
check: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory --jobs=2 --output-sync static unit

# For tests of the page. Where it cannot be installed they are skipped, with the reason.
browser:
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get install -y -qq chromium chromium-driver >/dev/null 2>&1; } || \
	  echo "no browser here: the tests of the page are skipped (apt-get install chromium chromium-driver)"

# For the test that a real Prometheus reads our metrics; as above.
prometheus:
	@command -v prometheus >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1; } || \
	  echo "no Prometheus here: its test is skipped (apt-get install prometheus)"

test: static browser
	$(PYTEST) -m "not long and not stack"

test-long: $(VENV)/.installed-dev prometheus
	$(PYTEST) -m "stack and not long"
	$(BIN)/pytest -m long

accuracy: $(VENV)/.installed-dev
	$(BIN)/python -m tests.scenarios.accuracy --write docs/accuracy.md

bench: $(VENV)/.installed
	$(BIN)/python bench/overhead.py --write docs/performance.md
	$(BIN)/python bench/scale.py --write docs/performance.md

.PHONY: docs
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Packaging. The wheels are built in an environment of their own, and tried in new ones under .venv-pythons.
DIST := .venv-dist
PYTHONS ?= 3.10 3.11 3.12 3.13 3.14
# torch for these two takes 5 GB of disk each where the index has no build for CPUs only.
TRAIN_PYTHONS ?= $(filter 3.10 3.13,$(PYTHONS))

$(DIST)/.installed: requirements-dist.txt
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install -q --disable-pip-version-check -r requirements-dist.txt
	@touch $@

dist: $(DIST)/.installed
	$(DIST)/bin/python tools/build_wheels.py

test-dist: dist
	$(DIST)/bin/python tools/try_wheels.py --fresh --train $(PYTHON)

test-pythons: dist
	$(DIST)/bin/python tools/try_wheels.py --tests $(PYTHONS) --train $(TRAIN_PYTHONS)

clean:
	rm -rf $(VENV) $(DIST) .venv-pythons build dist site src/*.egg-info src/traceml/capture/*.so \
	  web/node_modules src/traceml/present/page.html
