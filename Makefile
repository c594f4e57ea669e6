# Everything from nothing: `make demo` needs make and a Python >= 3.11, and sets up the rest in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Compiled tests are kept, as their asserts take seconds to rewrite.
export PYTHONDONTWRITEBYTECODE :=

# What .venv is made with: the first of these that is new enough. `make PYTHON=/path/to/python3.12 …` names another.
PYTHON ?= python3.13 python3.12 python3.11 python3
JOBS ?= 2
RUNS ?= 10
BUDGET ?= 540
TESTS ?=
# Seconds after which a test has hung, and fails by itself.
HUNG ?= 900
# What the tests of training jobs run on, any build of it; `make TORCH= test-all` leaves them out.
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
# Each says in which checkout .venv holds blinksim alone, or blinksim and what developing it takes.
BARE := $(VENV)/.installed
STAMP := $(VENV)/.installed-dev

# An editable install points at the checkout that it was made in: a moved or copied checkout is installed again.
stale = $(if $(filter $(CURDIR),$(shell cat $(1) 2>/dev/null)),,$(1))
.PHONY: $(call stale,$(BARE)) $(call stale,$(STAMP))

define make_venv
@if ! $(BIN)/python -c '' 2>/dev/null; then \
  python=; \
  for name in $(PYTHON); do \
    if "$$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
  done; \
  if [ -z "$$python" ]; then \
    echo 'no Python >= 3.11 with venv found; install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)' >&2; exit 1; \
  fi; \
  echo "making $(VENV) with $$("$$python" --version)"; \
  "$$python" -m venv --clear $(VENV); \
fi
endef

# Python compiles what it imports; pip would spend as long again on compiling everything.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -qq --no-compile

$(BARE): pyproject.toml
	$(make_venv)
	@echo 'installing blinksim into $(VENV) (once, half a minute)'
	@$(INSTALL) --editable .
	@echo '$(CURDIR)' > $(BARE)

# Not by way of $(BARE): that would resolve and build everything twice.
$(STAMP): pyproject.toml
	$(make_venv)
	@echo 'installing blinksim and the development tools into $(VENV) (once, half a minute)'
	@$(INSTALL) --editable '.[dev]'
	@echo '$(CURDIR)' | tee $(BARE) > $(STAMP)

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*  ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*  ## /  make \1\t/' | expand -t 20

.PHONY: install
install: $(STAMP)  ## set up .venv (every target that needs it does so by itself)

.PHONY: demo
demo: $(BARE)  ## how fast is allreduce on three machines: an HGX H100, 16 Aurora nodes, an 8-GPU H200 host
	@for question in \
	  'project hgx-h100 allreduce 256MiB' \
	  'project aurora allreduce 2GB --nodes 16 --ranks-per-node 12 --model aurora-projection' \
	  'project tests/data/captures/h200x8/topo.xml allreduce 1GiB'; \
	do \
	  printf '\n$$ blinksim %s\n' "$$question"; \
	  $(BIN)/blinksim $$question; \
	done

.PHONY: lint
lint: $(STAMP)  ## ruff, and mypy --strict
	@echo 'ruff check, ruff format --check'
	@$(BIN)/python -m ruff check --quiet .
	@$(BIN)/python -m ruff format --check --quiet .
	@echo 'mypy --strict'
	@# Status 2: its workers did not start in time, as on a busy machine.
	@status=0; $(BIN)/python -m mypy --no-error-summary --num-workers $(JOBS) || status=$$?; \
	if [ $$status = 2 ]; then $(BIN)/python -m mypy --no-error-summary; else exit $$status; fi

# Each process is on a core of its own: threads of a numerical library would only wait for each other.
test quick test-all test-every: export OPENBLAS_NUM_THREADS := 1

# Processes that compile the tests at once would each compile all of them. What fails here the run itself reports.
tests/__pycache__:
	@ls tests/test_*.py tests/*/test_*.py | xargs -n 160 -P $(JOBS) $(BIN)/python -m pytest --collect-only -q >/dev/null || true

.PHONY: test
test: lint tests/__pycache__  ## lint and all quick tests (a few minutes on two cores)
	@echo 'pytest (quick tests, $(JOBS) processes)'
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout $(HUNG) -m 'not slow and not gpu' --durations=5

.PHONY: quick
quick: lint  ## lint and the tests of what changed since BASE (HEAD)
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout $(HUNG) -m 'not slow and not gpu' $$($(BIN)/python tests/touched.py $(BASE))

.PHONY: torch
torch: $(STAMP)
	@$(BIN)/python -c 'import torch' 2>/dev/null || [ -z '$(TORCH)' ] || { \
	  echo 'installing $(TORCH) into $(VENV) (once)'; \
	  $(INSTALL) '$(TORCH)' || echo 'no $(TORCH) to be had: the tests of training jobs are left out' >&2; }

.PHONY: test-all
test-all: SLOW := not gpu and not alike
test-all: torch lint tests/__pycache__  ## lint and the slow tests too, the notebooks and the site (TESTS='tests/cli …' runs some)
	@echo 'pytest (all tests, $(JOBS) processes)'
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout $(HUNG) -m '$(SLOW)' --hypothesis-profile thorough --durations=15 $(TESTS)

.PHONY: test-every
test-every: SLOW := not gpu
test-every: test-all  ## test-all, with every case of each sort (an hour)

.PHONY: corpus
corpus: $(STAMP)  ## frozen questions: which answers changed, and how (ONLY='--every 16' for some)
	@$(BIN)/python tests/corpus/corpus.py check $(ONLY)

.PHONY: test-gpu
test-gpu: $(STAMP)  ## the tests that need GPUs and CuPy (pip install 'blinksim[gpu-cuda12]')
	@$(BIN)/python -m pytest -m gpu

.PHONY: bench
bench: $(STAMP)  ## time whole commands; RUNS=20 runs each more often
	@for file in benchmarks/bench_*.py; do $(BIN)/python "$$file" --runs $(RUNS); done

.PHONY: validate
validate: $(BARE)  ## predictions against measurements on this machine's GPUs; again to go on (BUDGET=540 seconds)
	@$(BIN)/python -c "import cupy" 2>/dev/null || { \
	  cuda=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p') || true; \
	  [ -z "$$cuda" ] || $(BIN)/python -m pip install --quiet -e ".[gpu-cuda$$cuda]"; }
	@$(BIN)/python validate/validate.py --budget $(BUDGET)

.PHONY: schedules
schedules: $(BARE)  ## make the ready schedules in schedules/ anew
	@$(BIN)/python schedules/classics.py schedules

.PHONY: docs
docs: $(STAMP)  ## the pages and the reference of the Python interface, as a site in site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'built: site/index.html'

.PHONY: build
build: $(STAMP)  ## sdist and wheel into dist/
	@$(BIN)/python -m build --outdir dist

.PHONY: clean
clean:  ## remove caches and what was built; .venv stays
	@rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0r rm -rf

.PHONY: distclean
distclean: clean  ## remove .venv too
	@rm -rf $(VENV)
