# Everything from a bare clone. Needs make and Python 3.11 to 3.14; uv is used where it is installed.
# Each target sets up what it needs; set-up runs again only when pyproject.toml changes. What pip compiles to bytecode
# one after the other takes half a minute of it, so all CPUs do that, and not for what is hardly imported here (IDLE).
# Files that are no Python of ours do not matter. While pip waits for the development tools, compiling for the searches
# begins; `make warm-up` waits for its end, and where it failed does it over.

BIN := .venv/bin
# Distributions of their own, installed with the development tools; their data files are copied into .venv.
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))
PACKAGE_FILES := $(wildcard packages/*/pyproject.toml packages/*/*/share/minizinc/*/*)
STAMP := .venv/.ready
OUT := out
PYTHON ?=
# One more than the usual two cores: some tests wait for a deadline or a process, and another has the core meanwhile.
WORKERS ?= 3
PYTEST_ARGS ?=
# Packages' own tests, and packages of which few modules or none are imported here.
IDLE := /tests?/|/(fontTools|jaxlib|material|mypyc?|pandas|pip|setuptools)/
# Training frameworks in which slow tests train.
TRAINERS := accelerate lightning peft
# The package index has gigabytes of CUDA in its PyTorch for Linux; the build for CPUs is a local version.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)

# Tests start hundreds of processes: without bytecode each of them would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup solvers frameworks slow-models demo test quick test-slow warm-up lint style types format schemas docs \
  pages count bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | \
	  awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

setup: $(STAMP)  ## create .venv with remat and its development tools

$(STAMP): pyproject.toml $(PACKAGE_FILES)
	@rm -f $@ .venv/.no-torch
	@python=; for candidate in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c \
	    'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; \
	  then python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "remat needs Python 3.11 to 3.14 and found none of them;" \
	    "install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; fi; \
	echo "setting up .venv with $$($$python --version)"; \
	if command -v uv >/dev/null 2>&1; then \
	  uv venv --quiet --allow-existing --python "$$python" .venv && \
	  export VIRTUAL_ENV="$(CURDIR)/.venv" && uv pip install --quiet --editable . && \
	  { $(BIN)/remat warm-up >/dev/null 2>&1 & } && uv pip install --quiet --group dev $(PACKAGES:%=--editable %); \
	else \
	  if ! "$$python" -m venv .venv; then \
	    echo "Python's venv module is missing; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; fi; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1" && \
	  install="$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check" && \
	  $$install --editable . && { $(BIN)/remat warm-up >/dev/null 2>&1 & } && $$install --group dev $(PACKAGES:%=--editable %) && \
	  { $(BIN)/python -m compileall -qq -j 0 -x '$(IDLE)' .venv/lib/python3*/site-packages >/dev/null 2>&1 || true; }; \
	fi
	@touch $@

# The minizinc program is no Python package. Without it some tests are skipped, so it is no failure not to get it.
solvers:  ## install the minizinc program with apt, where that is possible
	@command -v minizinc >/dev/null 2>&1 && exit 0; \
	if command -v apt-get >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as="sudo -n"; else as=none; fi; \
	  if [ "$$as" != none ]; then \
	    echo "installing the minizinc program with apt-get"; \
	    get="$$as env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq"; \
	    $$get install -y minizinc >/dev/null 2>&1 || \
	      { $$get update >/dev/null 2>&1; $$get install -y minizinc >/dev/null 2>&1; }; \
	  fi; \
	fi; \
	command -v minizinc >/dev/null 2>&1 || \
	  echo "the minizinc program is not here and cannot be installed from here, so its tests will be skipped;" \
	    "on Debian and Ubuntu: sudo apt-get install minizinc; elsewhere: the bundle of www.minizinc.org" >&2

# By pip, since uv does not look where a local version is found; .no-torch keeps the search from being repeated.
# --no-compile: bytecode of all its modules would take 30 s, and the first import makes what is needed.
frameworks: $(STAMP)  ## install PyTorch for CPUs, where such a build is at hand
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' && exit 0; \
	if [ "$$(cat .venv/.no-torch 2>/dev/null)" != "$(TORCH)" ]; then \
	  echo "installing $(TORCH)"; \
	  if log=$$($(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --retries 1 \
	    "$(TORCH)" 2>&1 && $(BIN)/python -c "import torch" 2>&1); then exit 0; fi; \
	  case "$$log" in \
	    *"No matching distribution found for torch"*) echo "$(TORCH)" > .venv/.no-torch ;; \
	    *) echo "$$log" >&2; [ -z "$$REMAT_CI" ] || exit 1 ;; \
	  esac; \
	fi; \
	echo "PyTorch is not here, so its tests will be skipped; to have them: make frameworks TORCH=..., with what pip shall" \
	  "install (torch==2.13.0 is found everywhere; on Linux it brings CUDA, gigabytes)" >&2

slow-models: frameworks  ## install transformers and the training frameworks that some slow tests run
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(bool(u.find_spec("torch") and not all(map(u.find_spec, "$(TRAINERS)".split()))))' || \
	  $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --retries 1 "transformers>=5.23" $(TRAINERS) || \
	  echo "transformers and $(TRAINERS) cannot be installed from here, so their tests will be skipped" >&2

demo: $(STAMP)  ## schedule a ResNet-50 training step in 80 % of its memory, check and plot it (2 minutes)
	@mkdir -p $(OUT)
	$(BIN)/remat solve resnet50 --budget 80% --time-limit 60 \
	  -o $(OUT)/resnet50.schedule.json --plot $(OUT)/resnet50.png
	$(BIN)/remat validate resnet50 $(OUT)/resnet50.schedule.json --budget 80% --order fixed
	@echo "schedule: $(OUT)/resnet50.schedule.json"
	@echo "picture:  $(OUT)/resnet50.png"

test: solvers $(STAMP)  ## all checks: style, types, documentation, tests (without the slow ones)
	$(MAKE) -j2 frameworks warm-up style
	$(MAKE) -j3 types pages quick

# Its workers wait now and then, for a deadline or another process: mypy and the pages are checked beside them.
quick: $(STAMP)
	$(BIN)/pytest -m "not slow" -n $(WORKERS) --dist worksteal --durations=50 --durations-min=0.5 $(PYTEST_ARGS)

test-slow: slow-models $(STAMP)  ## the slow tests only
	$(BIN)/pytest -m "slow and not alone" -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
	$(BIN)/pytest -m "slow and alone" $(PYTEST_ARGS)

warm-up: $(STAMP)  ## compile what the searches need, once
	$(BIN)/remat warm-up

lint: style types  ## ruff, mypy and banned words

style: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tests/prose.py

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)  ## put the code in order: ruff --fix and ruff format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

schemas: $(STAMP)  ## write the JSON Schemas of the package from the models that they describe
	$(BIN)/python tests/schemas.py

# Not --quiet, which lets --strict pass over warnings.
docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A slow test builds the whole site, and tests of pages run their examples.
pages: $(STAMP)  ## check text and links of the documentation, without pictures and outputs of notebooks
	NO_MKDOCS_2_WARNING=1 REMAT_DRAFT=1 $(BIN)/mkdocs build --strict --site-dir $(OUT)/pages

count:  ## lines of code per folder
	@python3 benchmarks/code_lines.py

bench: $(STAMP)  ## the benchmarks; see benchmarks/README.md
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

clean:  ## remove everything that the other targets made
	rm -rf .venv $(OUT) site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
