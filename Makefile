# Commands for a checkout; `make` without a target prints them. Each first installs into $(VENV), if necessary.
#
#   make smoke      the complete workflow on tiny graphs; ends with the paths of the figures and of the report
#   make resume     the same, after a workflow was killed
#   make papers     every figure of the five papers; SCALE=tiny takes minutes and downloads nothing
#   make test       the quick tests, to run for every change
#   make test-long  tests of whole programs: launches, workflows, browsers, compilers, and much training
#   make test-device every strategy on fake GPUs; needs a C++ compiler but no GPU
#   make test-slurm tests that start a local Slurm and submit jobs to it; needs root and Debian's packages
#   make test-slurm-later the same with the Slurm of Debian 13, which mmdebstrap installs into build/debian-13
#   make test-network fetches from the publishers of graphs; skipped without a network
#   make test-versions some tests with the oldest and with the newest versions, each in an environment in build/versions
#   make test-all   all tests; with HARNESS_SLURM_TEST=1 also the tests on Slurm
#   make bench      measures speed relative to other libraries and the last landing; fails if a ratio dropped by a fifth
#   make dgl        installs DGL, with which `bench` and `distdgl` compare, into build/dgl
#   make distdgl    compares with DistDGL on emulated hosts and records benchmarks/results/distdgl*.md; needs root
#   make lint       style, layout, types, spelling, and the site
#   make docs       builds the site of docs/ in build/docs; warnings and broken links are errors
#   make test-map   writes the tests and seconds of each folder in the latest `make test test-long` into docs/develop/maintainers.md
#   make format     formats the code and redraws docs/develop/architecture.svg
#   make setup      only installs
#   make clean      removes caches, and $(VENV) if `make` made it; keeps results, figures and stores

PYTHON      ?= python3
VENV        ?= .venv
# The package index from which pip installs torch; if empty, the default index.
TORCH_INDEX ?=
# If not empty, install only files with the hashes in constraints.lock. Torch has none: each index has builds of its own.
HASHES      ?=
# If not empty, keep the torch that is installed in $(VENV), or in $(PYTHON) if $(VENV) does not exist yet.
KEEP_TORCH  ?=
PROFILE     ?= workflows/profiles/local
EXPERIMENT  ?= workflows/experiments/smoke.yaml
# The pictures of a figure: all, or svg, which takes less time.
PICTURES    ?= $(if $(filter file default,$(origin EXPERIMENT)),svg,all)
# The scale of the papers' figures: tiny, laptop or published.
SCALE       ?= laptop

BIN       := $(VENV)/bin
INSTALLED := $(VENV)/installed
PINS      := $(VENV)/constraints.txt
# Exists if this Makefile made the environment.
MADE      := $(VENV)/made-by-make
PIP       := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
WORKFLOW  := --profile $(PROFILE) --config experiment=$(EXPERIMENT) pictures=$(PICTURES)

export PATH := $(abspath $(BIN)):$(PATH)
# The number of parallel test workers. Tests spend half of their time waiting for processes to start and end.
WORKERS     ?= 2
# One thread per process, because the ranks of a run share the cores.
export OMP_NUM_THREADS ?= 1
# Bytecode is cached even if the shell forbids it: otherwise each of the hundreds of processes compiles the sources anew.
unexport PYTHONDONTWRITEBYTECODE

# `make` without a target runs the first one, which prints the comment above.
help:
	@sed -n '/^#/!q; s/^#  *make/make/p' $(firstword $(MAKEFILE_LIST))

.PHONY: help docs test-map smoke papers resume test test-long test-device test-slurm test-slurm-later test-network test-versions test-all bench dgl distdgl lint format setup clean

smoke: $(INSTALLED)
	$(BIN)/snakemake all verify $(WORKFLOW)

papers: $(INSTALLED)
	$(BIN)/snakemake papers --profile $(PROFILE) --config scale=$(SCALE) pictures=$(if $(filter tiny,$(SCALE)),svg,all)

resume: $(INSTALLED)
	$(BIN)/snakemake --unlock $(WORKFLOW)
	$(BIN)/snakemake all verify $(WORKFLOW)

# Parallel tests must not start Slurm, because a machine can run only one.
test: $(INSTALLED)
	HARNESS_SLURM_TEST= $(BIN)/pytest -q -m "not long and not slow" -n $(WORKERS) --dist worksteal --ignore=tests/device \
	  --junit-xml=build/tests.xml

test-long: $(INSTALLED)
	HARNESS_SLURM_TEST= $(BIN)/pytest -q -m "long and not slow" -n $(WORKERS) --dist worksteal --ignore=tests/device \
	  --junit-xml=build/long-tests.xml

test-device: $(INSTALLED)
	$(BIN)/pytest -q -m "not slow" -n $(WORKERS) --dist worksteal tests/device

test-slurm: $(INSTALLED)
	HARNESS_SLURM_TEST=1 $(BIN)/pytest -q -m "not slow" tests/slurm

test-slurm-later: $(INSTALLED)
	HARNESS_SLURM_TEST=1 tests/slurm/later.sh build/debian-13 $(BIN)/pytest -q -m "not slow" tests/slurm

test-network: $(INSTALLED)
	HARNESS_NETWORK_TEST=1 $(BIN)/pytest -q -rs tests/fetch/test_publishers.py

test-versions:
	tests/versions.sh build/versions

test-all: $(INSTALLED)
	HARNESS_SLURM_TEST= $(BIN)/pytest -q -n $(WORKERS) --dist worksteal
	$(if $(HARNESS_SLURM_TEST),$(BIN)/pytest -q tests/slurm)

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks --record bench startup $(if $(and $(MKL_RT),$(DGL_PYTHON)),competitors)

# The versions for which DGL publishes files on PyPI. Torch is first, so that its index is the only one.
DGL := build/dgl/bin/python
dgl: $(DGL)
$(DGL):
	$(PYTHON) -m venv build/dgl
	$(DGL) -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.1.1 'numpy<2'
	$(DGL) -m pip install --quiet dgl==1.1.3 packaging pandas psutil pydantic pyyaml setuptools

distdgl: $(INSTALLED) $(DGL)
	DGL_PYTHON=$(abspath $(DGL)) $(BIN)/python -m benchmarks --record distdgl distdgl-samplers

lint: $(INSTALLED) docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/snakefmt --check workflows
	$(BIN)/codespell

docs: $(INSTALLED)
	$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	rm -rf build/docs/contributed
	$(BIN)/harness report benchmarks/packs --out build/docs/contributed

test-map: $(INSTALLED)
	$(BIN)/python docs/map_tests.py build/tests.xml build/long-tests.xml

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/snakefmt workflows
	$(BIN)/python docs/draw_architecture.py

setup: $(INSTALLED)

# Torch is installed first, in a separate command: resolved with the others, an open range would pick the largest build.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "python 3.11 or newer is needed, and $(PYTHON) is " + sys.version)'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { $(PYTHON) -m venv $(if $(KEEP_TORCH),--system-site-packages) $(VENV) && touch $(MADE); }
	@echo "Installing into $(VENV). This takes a few minutes, once."
ifdef KEEP_TORCH
	@grep -v '^torch==' constraints.txt > $(PINS)
	@$(BIN)/python -m pip list --format=freeze | grep '^torch==' >> $(PINS) || { echo 'KEEP_TORCH is set, but there is no torch in $(VENV) to keep.' >&2; exit 1; }
else
	@cp constraints.txt $(PINS)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),--constraint $(PINS)) $$(grep '^torch==' $(PINS))
endif
ifdef HASHES
	$(PIP) --require-hashes --no-deps --requirement constraints.lock
	$(PIP) --no-deps --no-build-isolation --editable .
else
	$(PIP) --constraint $(PINS) --editable '.[dev]'
endif
	@touch $@

clean:
	@test ! -e $(VENV) || test -e $(MADE) || echo "$(VENV) stays: it was not made by this Makefile."
	if [ -e $(MADE) ]; then rm -rf $(VENV); fi
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find harness strategies tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
