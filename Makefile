# Everything a contributor or CI runs. `make` alone lists the targets.

PYTHON ?= python3
# Test processes at once: two more than there are cores, because tests of jobs wait half of their time.
CORES := $(shell nproc 2>/dev/null || echo 2)
JOBS ?= $(shell echo $$(($(CORES) < 8 ? $(CORES) + 2 : 8)))
# What a soak run draws its choices from, and how many times as long as the shortest it is.
SEED ?= 0
LENGTH ?= 1
# Where a CPU build of torch can be had, if not from the sources pip is configured with.
TORCH_CPU_INDEX ?=

TORCH := 2.13.0
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# `constraints-prefect-3.8.txt` for the oldest Prefect that is supported.
CONSTRAINTS ?= constraints.txt
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c $(CONSTRAINTS)
SETUP := $(VENV)/.setup-done
DEMO_DEPS := $(VENV)/.demo-deps-done
FRAMEWORKS := lightning==2.6.6 torchmetrics==1.9.0 lightning-utilities==0.15.3 \
  keras==3.15.1 h5py==3.16.0 absl-py==2.5.1 namex==0.1.0 optree==0.20.0 ml-dtypes==0.6.0
AZURITE := 3.37.0
TRUSS := 0.18.36
CLIENTS := $(VENV)/clients/.done
EMULATORS := $(VENV)/emulators/.done
TEST_PATH = $(BIN):$(CURDIR)/$(dir $(EMULATORS))node_modules/.bin:$$PATH
ENGINE_PROGRAMS := dockerd docker-registry busybox ip
INSTALL_ENGINES := apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 \
  docker.io docker-registry busybox-static iproute2
INSTALL_BROWSER := apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 chromium

# Pytest rewrites the asserts of 470 modules in each worker unless it may keep the result.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help setup demo-deps demo engines browser test test-deps test-fast test-all test-pythons test-packaging test-oldest-prefect frameworks soak ruff bench-checkpoints bench-weights bench-gangs bench-logs bench-docker bench-cli bench-listing bench-sampling bench-queue docs docs-serve screens lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(SETUP) ## create .venv with the package (editable) and the development tools
	@echo "setup: $(VENV) is up to date; activate it with: . $(VENV)/bin/activate"

$(SETUP): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "prefect-bt needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || true). Run: make $(or $(GOALS),$(MAKECMDGOALS)) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setup: creating $(VENV) with $$($(PYTHON) --version) and installing prefect-bt[dev] (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@touch $@

demo-deps: $(DEMO_DEPS) ## add PyTorch (CPU build where there is one) and transformers to .venv
	@echo "demo-deps: $(VENV) has them"

$(DEMO_DEPS): $(SETUP)
	@echo "demo-deps: installing torch $(TORCH), transformers, accelerate, tokenizers, peft"
	@if $(BIN)/python -c 'import sys, importlib.metadata as m; sys.exit(m.version("torch").split("+")[0] != "$(TORCH)")' 2>/dev/null; then \
	  echo "demo-deps: torch $(TORCH) is already there"; \
	elif $(PIP) 'torch==$(TORCH)+cpu' 2>/dev/null; then \
	  echo "demo-deps: torch $(TORCH)+cpu, from the sources pip is configured with"; \
	elif [ -n "$(TORCH_CPU_INDEX)" ]; then \
	  echo "demo-deps: torch $(TORCH) from TORCH_CPU_INDEX"; \
	  $(PIP) --index-url "$(TORCH_CPU_INDEX)" 'torch==$(TORCH)'; \
	else \
	  if [ "$$(uname -s)" = Linux ]; then \
	    echo "demo-deps: no CPU build found; the default registry serves the CUDA build (gigabytes). To avoid it: make demo-deps TORCH_CPU_INDEX=<URL of PyTorch's CPU index>"; \
	  fi; \
	  $(PIP) 'torch==$(TORCH)'; \
	fi
	@$(PIP) --editable '.[demo]'
	@touch $@

demo: $(DEMO_DEPS) ## train a small language model as a job, look at it, serve it, ask it
	@echo "demo: pushing examples/tiny-lm/config.py, following it, asking it (two to four minutes)"
	@PATH="$(BIN):$$PATH" sh examples/demo.sh

# Azure's own emulator: without npm the tests of azure:// stores are skipped, and say so.
$(EMULATORS): $(SETUP)
	@mkdir -p $(dir $@)
	@if command -v npm >/dev/null; then \
	  echo "emulators: installing azurite $(AZURITE) (40 s)"; \
	  npm install --silent --no-audit --no-fund --prefix $(dir $@) azurite@$(AZURITE) >/dev/null 2>&1 \
	    || echo "emulators: azurite could not be installed; azure:// stores are not tested"; \
	else \
	  echo "emulators: no npm; azure:// stores are not tested"; \
	fi
	@touch $@

# The client whose requests the HTTP API answers, in an environment of its own.
$(CLIENTS): $(SETUP)
	@echo "clients: installing truss $(TRUSS) (half a minute)"
	@$(PYTHON) -m venv $(dir $@)
	@$(dir $@)bin/python -m pip install -qq --disable-pip-version-check truss==$(TRUSS) \
	  || echo "clients: truss could not be installed; it is not tested as a client"
	@touch $@

# A Docker Engine, a registry and a shell for images; the tests start what does not run.
engines: ## install docker.io, docker-registry and busybox-static where that is possible (Debian, root)
	@PATH="$$PATH:/usr/sbin"; missing=; \
	for program in $(ENGINE_PROGRAMS); do command -v $$program >/dev/null || missing=1; done; \
	if [ -z "$$missing" ]; then \
	  :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "engines: installing docker.io, docker-registry and busybox-static (a minute)"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { $(INSTALL_ENGINES) || { apt-get update && $(INSTALL_ENGINES); }; } >/dev/null 2>&1 </dev/null \
	    || echo "engines: they could not be installed; images and Docker nodes are not tested"; \
	else \
	  echo "engines: not as root, or no apt-get; Docker is tested if an Engine answers"; \
	fi

# Of its own, because it is large (103 MB to fetch, 400 MB on disk, half a minute) and for few tests.
browser: ## install Chromium, which tests of web pages use, where that is possible (Debian, root)
	@if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then \
	  :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "browser: installing chromium (half a minute)"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { $(INSTALL_BROWSER) || { apt-get update && $(INSTALL_BROWSER); }; } >/dev/null 2>&1 </dev/null \
	    || echo "browser: it could not be installed; attacks of web pages are not tested"; \
	else \
	  echo "browser: not as root, or no apt-get; tests of web pages are skipped without chromium"; \
	fi

# pip, npm and apt-get at once. A target that depends on test-deps runs others that need .venv from its
# recipe: with `make -j`, two prerequisites would create .venv twice at once.
test-deps: ## install everything that the tests use
	@$(MAKE) --no-print-directory -j4 GOALS="$(MAKECMDGOALS)" $(DEMO_DEPS) $(EMULATORS) $(CLIENTS) engines browser

# Pyright runs before the tests, on all cores: beside them it would take the processor time that they
# wait for. Of the package alone: `make lint` and `make test-all` check the tests and docs/ too.
test: test-deps ## the gate: lint, types, tests of every kind, one real training (12 minutes)
	@$(MAKE) --no-print-directory ruff
	@echo "test: pyright of the package, then the tests, $(JOBS) at once"
	@$(BIN)/pyright --threads $(CORES) prefect_bt prefect_bt/flows prefect_bt/blocks
	@PATH="$(TEST_PATH)" $(BIN)/pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

test-fast: $(SETUP) ## the tests that need nothing outside the process and little time
	@echo "test-fast: neither slow nor integration, $(JOBS) at once"
	@PATH="$(BIN):$$PATH" $(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not slow and not integration and not extended and not soak' $(PYTEST_ARGS)

test-all: test-deps ## everything but soak: also what repeats a kind elsewhere, and the newest Python (half an hour)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-pythons
	@echo "test-all: all tests, $(JOBS) at once"
	@PATH="$(TEST_PATH)" $(BIN)/pytest -n $(JOBS) --dist worksteal -m 'not soak' $(PYTEST_ARGS)

test-pythons: ## import, packaging and test-fast with the oldest and the newest other Python here
	@for python in $$($(PYTHON) .ci/pythons.py --others); do \
	  version=$$($$python -c 'import platform; print(platform.python_version())'); \
	  echo "test-pythons: Python $$version ($$python)"; \
	  mkdir -p .venv/pythons; \
	  $(MAKE) --no-print-directory test-fast test-packaging \
	    PYTHON=$$python VENV=.venv/pythons/$$version || exit 1; \
	done

test-packaging: $(SETUP)
	@PATH="$(BIN):$$PATH" $(BIN)/pytest tests/test_packaging.py

test-oldest-prefect: test-deps ## the integration tests of the gate with the oldest Prefect that is supported
	@$(MAKE) --no-print-directory setup VENV=.venv/prefect-3.8 CONSTRAINTS=constraints-prefect-3.8.txt
	@PATH="$(BIN)/../prefect-3.8/bin:$(CURDIR)/$(dir $(EMULATORS))node_modules/.bin:$$PATH" \
	  pytest -n $(JOBS) --dist worksteal -m 'integration and not extended and not soak' $(PYTEST_ARGS)

# Beside the project's packages, which stay as they are pinned: torch and numpy are used from there.
frameworks: $(DEMO_DEPS) ## Lightning and Keras, whose own checkpoints `make soak` looks at
	@test -d $(VENV)/frameworks || $(PIP) --no-deps --target $(VENV)/frameworks $(FRAMEWORKS)

soak: test-deps frameworks test-oldest-prefect ## sweeps that make test-all leaves out: kills, damage, hostile input (SEED=0 LENGTH=1)
	@echo "soak: seed $(SEED), length $(LENGTH), $(JOBS) at once"
	@PATH="$(TEST_PATH)" SOAK_SEED=$(SEED) SOAK_LENGTH=$(LENGTH) \
	  $(BIN)/pytest -n $(JOBS) --dist worksteal --timeout 3600 -m soak $(PYTEST_ARGS)

bench-checkpoints: $(DEMO_DEPS) ## measure checkpoints beside s5cmd and boto3 (half an hour, 16 GB of disk)
	@$(PIP) --editable '.[bench]'
	@$(BIN)/python benchmarks/checkpoints.py $(BENCH_ARGS)

bench-weights: $(SETUP) ## measure mirrors of weights beside hf download and s5cmd (half an hour, 45 GB of disk)
	@$(PIP) --editable '.[bench]'
	@$(BIN)/python benchmarks/weights.py $(BENCH_ARGS)

bench-gangs: $(SETUP) ## measure gangs of 64 nodes on this machine (five minutes)
	@$(BIN)/python benchmarks/gangs.py $(BENCH_ARGS)

bench-logs: $(SETUP) ## measure logs beside `cat` (five minutes)
	@$(BIN)/python benchmarks/logs.py $(BENCH_ARGS)

bench-cli: $(SETUP) ## measure the start-up of commands beside pip and prefect (a minute)
	@$(BIN)/python benchmarks/cli_startup.py $(BENCH_ARGS)

bench-listing: $(SETUP) ## measure lists of 2,000 jobs beside `find` (three minutes)
	@$(BIN)/python benchmarks/listing.py $(BENCH_ARGS)

bench-sampling: $(SETUP) ## measure the metrics of a node beside psutil and nvitop (two minutes)
	@$(BIN)/python benchmarks/sampling.py $(BENCH_ARGS)

bench-queue: $(SETUP) ## measure the queue of two machines: kills, waiting jobs, a sweep (an hour)
	@$(BIN)/python benchmarks/queue_benchmark.py pool $(BENCH_ARGS)
	@$(BIN)/python benchmarks/queue_benchmark.py waiting
	@$(BIN)/python benchmarks/queue_benchmark.py sweep

bench-docker: $(SETUP) engines ## measure the first line in a container beside docker run (two minutes)
	@$(BIN)/python benchmarks/start_in_docker.py $(BENCH_ARGS)

# mkdocs runs as a module, in this folder, because its hook imports docs/ and prefect_bt/. With --quiet it
# would ignore warnings, on which a strict build fails.
docs: $(SETUP) ## build the documentation site into site/
	@echo "docs: building site/"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

docs-serve: $(SETUP) ## serve the documentation site, and build it again when a file changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

screens: $(SETUP) browser ## make the pictures of docs/screens with a real server and Chromium (two minutes)
	@$(BIN)/python -m docs.screens.make_screens

ruff: $(SETUP)
	@echo "lint: ruff check"
	@$(BIN)/ruff check .
	@echo "lint: ruff format --check"
	@$(BIN)/ruff format --check .

lint: ruff ## ruff (rules, format) and pyright
	@echo "lint: pyright"
	@$(BIN)/pyright --threads $(CORES)

clean: ## remove .venv, builds and caches; what jobs wrote stays
	@echo "clean: removing $(VENV), build, dist and tool caches"
	@rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
