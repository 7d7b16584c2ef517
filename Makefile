# `make demo` and `make test` need Python and nothing else: each makes the virtual environment it runs in.

PYTHON ?= $(shell python3.11 -c 'print("python3.11")' 2>/dev/null || echo python3)
TORCH ?= 2.13.0
TRITON ?= 3.6.0
TRITONS ?= 3.6.0 3.7.1 3.8.0 3.9.0
VLLMS ?= 0.33.0:3.8.0 0.33.0:3.6.0 0.26.0:3.6.0
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Nothing of the user's own Python may leak in.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.ready
NAME := jitreplay
# What depends on the Triton that is installed.
MATRIX := $(addprefix tests/test_,$(addsuffix .py,keys fuzz_keys kernels tuners harvest hooks drift targets \
	headless acceptance warmed undo warm_launch later_tuners recorder replay children early background suspects \
	read_only entry))
LIBRARIES ?= flash-linear-attention==0.6.0 fla-core==0.6.0 conch-triton-kernels==1.3 einops==0.8.2 \
	flag-gems==5.0.2 PyYAML==6.0.3 sqlalchemy==2.0.48 typing_extensions
ROOMS := manifest jit recorder replayer engines cli examples

# torch comes first and alone: its CUDA builds pin a Triton of their own, so ours is put in last, without a resolver
# to undo it. It is also put in before the development group, which would fetch the newest one otherwise.
$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "jitreplay needs Python 3.10 or newer, and PYTHON=$(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --upgrade "pip>=25.1" "setuptools>=77.0.3"
	$(PIP) install --quiet torch==$(TORCH)
	$(PIP) install --quiet --no-deps triton==$(TRITON)
	$(PIP) install --quiet --group dev --editable .
	$(PIP) install --quiet --no-deps triton==$(TRITON)
	@touch $@

.PHONY: help
help: ## Show the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' $(MAKEFILE_LIST) | awk -F': ' '{printf "make %-12s %s\n", $$1, $$2}'
	@echo "Variables: PYTHON, TORCH=$(TORCH), TRITON=$(TRITON), TRITONS, VENV=$(VENV), JOBS=$(JOBS), PYTEST_ARGS"

.PHONY: setup
setup: $(STAMP) ## Make the virtual environment; the other targets do so by themselves.

.PHONY: demo
demo: $(STAMP) ## Run the main job, end to end, without a GPU.
	@$(BIN)/jitreplay demo

.PHONY: test
test: $(STAMP) ## Run the tests that need no GPU and no vLLM.
	@$(BIN)/pytest -m "not gpu and not vllm and not slow" -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

.PHONY: test-slow
test-slow: $(STAMP) ## Run the tests that take more than a minute each.
	@$(BIN)/pytest -m "slow and not gpu and not vllm" $(PYTEST_ARGS)

# A quick run is `make test-matrix TRITONS="3.6.0 3.9.0"`: the oldest and the newest.
.PHONY: test-matrix
test-matrix: ## Run what depends on Triton with each supported one, each in its own environment.
	@for version in $(TRITONS); do \
		echo "== Triton $$version"; \
		$(MAKE) --no-print-directory test TRITON=$$version VENV=.venv-$$version PYTEST_ARGS="$(MATRIX) $(PYTEST_ARGS)"; \
	done

.PHONY: coverage
coverage: $(STAMP) ## Record and replay real kernel libraries, and write docs/coverage.md.
	@$(PIP) install --quiet --no-deps $(LIBRARIES)
	@$(BIN)/python tests/libraries/report.py

.PHONY: test-gpu
test-gpu: $(STAMP) ## Run the tests that need a GPU.
	@grep -rqs "mark\.gpu" tests || { echo "make test-gpu: no test is marked gpu yet"; exit 2; }
	@$(BIN)/pytest -m "gpu and not vllm" $(PYTEST_ARGS)

.PHONY: test-vllm
test-vllm: ## Run real vLLM code without a GPU: each version of vLLM and Triton in its own environment.
	@for each in $(VLLMS); do \
		vllm=$${each%:*} triton=$${each#*:}; \
		echo "== vLLM $$vllm, Triton $$triton"; \
		PYTHON=$(PYTHON) tests/vllm/setup.sh $$vllm $$triton .venv-vllm-$$triton .vllm $(TORCH); \
		VLLM_ROOT=$(CURDIR)/.vllm/$$vllm .venv-vllm-$$triton/bin/python -m pytest tests/vllm $(PYTEST_ARGS); \
	done

.PHONY: lint
lint: $(STAMP) ## Check style, format and types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@rm -rf build/typed && mkdir -p build/typed/$(NAME)
	@for each in $(NAME)/__init__.py $(ROOMS); do ln -s ../../../$$each build/typed/$(NAME)/; done
	@$(BIN)/pyright --pythonpath $(BIN)/python | sed 's,build/typed/$(NAME)/__init__,$(NAME)/__init__,; s,build/typed/$(NAME)/,,'

.PHONY: format
format: $(STAMP) ## Sort imports and format.
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .

.PHONY: bench
bench: $(STAMP) ## Measure, as ratios within one run.
	@test -f benchmarks/launch.py || { echo "make bench: benchmarks/launch.py is not written yet"; exit 2; }
	@$(BIN)/python benchmarks/launch.py

.PHONY: fuzz
fuzz: $(STAMP) ## Feed broken manifests to the reader.
	@test -d tests/fuzz || { echo "make fuzz: tests/fuzz is not written yet"; exit 2; }
	@$(BIN)/pytest tests/fuzz $(PYTEST_ARGS)

.PHONY: docs
docs: ## Build the documentation.
	@echo "make docs: there is no documentation to build yet"; exit 2

.PHONY: clean
clean: ## Remove what the other targets made.
	rm -rf .venv .venv-* .vllm build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
