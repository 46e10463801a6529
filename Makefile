# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# Tests wait for half of their time: on two cores, four processes take two thirds of the time of two.
PYTEST_ARGS ?= -n 4 --dist loadscope --no-loadscope-reorder
BIN = $(VENV)/bin
# Everything that is checked; the type checkers read the same list from pyproject.toml.
SOURCES = taskqueue_client tests examples benchmarks docs/conf.py

# With PYTHONDONTWRITEBYTECODE set, each process would compile all tests again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types mypy pyright collected tests docs benchmarks campaign soak fuzz mutants clean

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

# Two at a time, the longest first, as each uses one core; the tests alone, as some of them measure time.
test: lint
	$(MAKE) --no-print-directory --jobs 2 pyright mypy docs collected
	$(MAKE) --no-print-directory tests

lint: $(VENV)/.test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

types: mypy pyright

mypy pyright: $(VENV)/.test

mypy:
	$(BIN)/mypy

pyright:
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.test
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

# The processes of `tests` begin at the same time: in a fresh clone, each would compile all tests.
collected: $(VENV)/.test
	-@$(BIN)/pytest --collect-only -qq > /dev/null

tests: $(VENV)/.test
	$(BIN)/pytest $(PYTEST_ARGS)

benchmarks: $(VENV)/.test
	$(BIN)/python -m benchmarks $(ROWS)

# How long faults are injected; with SEED=7, the same tasks and faults again.
MINUTES ?= 20
HOURS ?= 1

campaign: $(VENV)/.test
	$(BIN)/python -m tests.campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

soak: $(VENV)/.test
	$(BIN)/python -m tests.campaign --hours $(HOURS) $(if $(SEED),--seed $(SEED))

# Examples of each parser; seconds of coverage-guided fuzzing of each, where atheris is installed; requests to
# local queues, of which a quiet core makes about 1,100 a second.
FUZZ_EXAMPLES ?= 10000
FUZZ_SECONDS ?= 20
FUZZ_REQUESTS ?= 1000000

fuzz: $(VENV)/.test
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/pytest $(PYTEST_ARGS) --timeout 0 --hypothesis-profile exploring \
		tests/fuzz/test_fuzz_inputs.py
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m tests.fuzz --requests $(FUZZ_REQUESTS) $(if $(SEED),--seed $(SEED))

# A tenth more of the mutants takes some minutes more for each area; AREAS=claims tries those of one area.
TENTHS ?= 2

mutants: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'mutmut>=3.8'
	$(BIN)/python -m tests.mutation --tenths $(TENTHS) $(if $(SEED),--seed $(SEED)) $(AREAS)

# One recipe for both: what the demo needs, and all that the tests need on top. With scriptworker, the tests install
# rfc3987-syntax, which nothing uses here; without it, each import of jsonschema takes two seconds less.
$(VENV)/.demo: EXTRAS = cli,events,fast
$(VENV)/.test: EXTRAS = cli,events,fast,test,lint,docs
$(VENV)/.demo $(VENV)/.test: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	case $@ in *.test) $(BIN)/python -m pip uninstall --quiet --quiet --yes rfc3987-syntax;; esac
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist docs/_build
