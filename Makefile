# The commands of a contributor, and of CI. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo examples known-example test slow settings check coverage package versions lowest newest stubs api errors bench types figures accelerators accelerators-test docs matrix fuzz mutants clean

help: ## list the commands
	@awk -F ':.*## ' '/^[-. a-z]+:.*## / { printf "make %-17s  %s\n", $$1, $$2 }' Makefile

# An environment of its own, since the tests need almost twice as much.
DEMO := .venv-demo
EXAMPLE ?= digits
EXAMPLES := $(filter-out _%,$(notdir $(basename $(wildcard examples/*.py))))

demo: known-example $(DEMO)/installed ## train on handwritten digits, with plain Optax and with treekit (EXAMPLE=finetune, grow, neural_ode or sharded)
	$(DEMO)/bin/python examples/$(EXAMPLE).py

examples: $(DEMO)/installed ## run all examples, and record what their pages show
	$(DEMO)/bin/python docs/_record.py

known-example:
	@$(if $(filter $(EXAMPLE),$(EXAMPLES)),:,echo "There is no example $(EXAMPLE). EXAMPLE is one of: $(EXAMPLES)." >&2; exit 1)

$(DEMO)/installed: pyproject.toml
	@$(DEMO)/bin/python -m pip --version >/dev/null 2>&1 || { python=$$($(FIND_PYTHON)) && "$$python" -m venv --clear $(DEMO); }
	@echo "Installing treekit and what the examples use into $(DEMO): about 1.1 GB."
	@{ $(DEMO)/bin/python -m pip install --quiet --upgrade "pip>=25.1" && \
		$(DEMO)/bin/python -m pip install --quiet --editable ".[optax]" --group examples; } || \
		{ echo "The packages were not installed (see above): that needs a network, and a folder that can be written." >&2; exit 1; }
	@touch $@

test: .venv/installed ## run the tests and the examples in docstrings and documentation
	$(BIN)/python -m pytest -n 2

# tests/conftest.py compiles fast rather than well; here the processes that tests start do so too.
FAST = XLA_FLAGS="$$($(BIN)/python -m benchmarks.compile_fast)"

slow: .venv/installed ## the tests that `make test` leaves out, since they take long and rarely fail
	$(FAST) $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# JAX reads these variables. The docstrings' examples print dtypes, and what is left out here has no array in it.
SETTINGS_TESTS = tests $(addprefix --ignore=tests/,test_docs.py test_package.py test_typing.py)
settings: .venv/installed ## the tests under JAX's own settings
	$(FAST) JAX_ENABLE_X64=1 $(BIN)/python -m pytest -n 2 $(SETTINGS_TESTS)
	for setting in JAX_DEBUG_NANS JAX_CHECK_TRACER_LEAKS; do \
		env $(FAST) $$setting=1 $(BIN)/python -m pytest -n 2 $(SETTINGS_TESTS) || exit 1; \
	done

check: .venv/installed ## format, lint and types, and the stubs of Optax and of treekit.optax against the packages
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright
	@# Private modules are left out: they are checked by mypy, or are for type checkers only.
	echo 'treekit\.optax\._.*' | MYPYPATH=typings $(BIN)/python -m mypy.stubtest optax treekit.optax \
		--ignore-missing-stub --ignore-disjoint-bases --allowlist /dev/stdin

coverage: .venv/installed ## the tests, which have to reach each line and branch of treekit/
	$(BIN)/python -m pytest -n 2 --cov

package: .venv/installed ## build sdist and wheel into dist/, and run the tests that the sdist has, from it
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	folder=$$(mktemp -d) && tar -xf dist/*.tar.gz -C "$$folder" && cd "$$folder"/* && $(abspath $(BIN))/python -m pytest -n 2

versions: .venv/installed ## the tests with the lowest dependencies, the newest and releases between them (about an hour), and docs/versions.md
	$(BIN)/python -m tests.versions

lowest newest: .venv/installed ## `make test` with these dependencies, on the oldest or the newest Python here (TESTS=... for some)
	$(BIN)/python -m tests.versions $@ $(TESTS)

stubs: .venv/installed ## write the names of Optax for type checkers, treekit/optax/*/__init__.pyi, from the Optax of .venv
	$(BIN)/python -m tests.optax_names

api: .venv/installed ## write the public interface that the tests hold us to, tests/data/public_api.txt, from the sources
	$(BIN)/python -m tests.public_api

errors: .venv/installed ## print every error as a user reads it, from the tables in tests/errors
	$(BIN)/python -m tests.test_errors

bench: .venv/installed ## treekit beside its peers, and benchmarks/results/benchmarks.md (QUICK=1 for a short look, printed only)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

types: .venv/installed ## what mypy and pyright know of treekit and of its peers, in docs/versions.md
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.evidence.typed_peers

# With libtpu, where it is installed, for the bytes that compiled steps move.
figures: .venv/installed ## figures beside their goals and the last recorded; worse is an error (TIMES=1: of time too; RECORD=1)
	$(if $(wildcard $(ACCELERATORS)/installed),$(ACCELERATORS)/bin,$(BIN))/python -m benchmarks.evidence.figures $(if $(TIMES),--times) $(if $(RECORD),--record)

# An environment of its own, since JAX looks for a TPU wherever libtpu is installed.
ACCELERATORS := .venv-accelerators

accelerators: $(ACCELERATORS)/installed$(if $(GPU),-gpu) ## compile for TPUs (GPU=1: for GPUs too), and write benchmarks/results/accelerators.md
	$(ACCELERATORS)/bin/python -m benchmarks.evidence.accelerators

accelerators-test: $(ACCELERATORS)/installed ## the tests that compile for TPUs, on a machine that needs none
	$(ACCELERATORS)/bin/python -m pytest -n 2 tests/accelerators

$(ACCELERATORS)/installed: .venv/installed
	$(BIN)/python -m venv --clear $(ACCELERATORS)
	$(ACCELERATORS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(ACCELERATORS)/bin/python -m pip install --quiet --editable ".[optax]" --group accelerators
	@touch $@

# JAX's CUDA 12 plugin and what it needs are 5 GB; no driver and no GPU is needed.
$(ACCELERATORS)/installed-gpu: $(ACCELERATORS)/installed
	$(ACCELERATORS)/bin/python -m pip install --quiet "jax[cuda12]"
	@touch $@

# What is read by the checker of English: pages, drawings, and the docstrings, comments and messages of Python files.
ENGLISH = README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md docs treekit examples benchmarks
docs: .venv/installed ## build the documentation into site/, and search it; a warning, a misspelling or an unclear word is an error
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/codespell
	$(BIN)/python docs/_english.py $(ENGLISH)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python docs/_search.py site

matrix: .venv/installed ## every optimizer, wrapper and kind of params against the laws (more than an hour; MINUTES=30 for a part)
	$(BIN)/python -m benchmarks.evidence.matrix

fuzz: .venv/installed ## random compositions of transformations against plain Optax (MINUTES=30; SEED=... for the first)
	$(FAST) $(BIN)/python -m tests.fuzz

mutants: .venv/installed ## small mistakes in treekit that no test notices (hours; COUNT=20 for a look, ONLY=_select for one place)
	$(BIN)/python -m pip install --quiet --group mutants
	$(BIN)/python -m pytest -n 2 --cov --cov-context=test --cov-report= --cov-fail-under=0
	$(BIN)/python -m tests.mutants

clean: ## remove .venv, caches and builds
	rm -rf .venv $(DEMO) $(ACCELERATORS) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv: .venv/installed ## make the environment that the others use; they do so by themselves

# An empty file that says when the environment last followed pyproject.toml.
.venv/installed: pyproject.toml
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { python=$$($(FIND_PYTHON)) && "$$python" -m venv --clear .venv; }
	@echo "Installing treekit and its tools into .venv: about 1.5 GB, which takes some minutes the first time."
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --editable ".[optax]" --group dev
	@touch $@

# Prints the first of these that is a Python of 3.11 or later: what `python3` is may be older.
FIND_PYTHON = for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && echo "$$python" && exit 0; done; \
	echo "treekit needs Python 3.11 or later: install one, or name it: make PYTHON=/path/to/python" >&2; exit 1
