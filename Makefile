# Two commands are all the set-up there is: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?= -n 2 --dist loadscope
BIN = $(VENV)/bin
# Everything that is checked; the type checkers read the same list from pyproject.toml.
SOURCES = taskqueue_client tests examples benchmarks docs/conf.py

.PHONY: demo test lint types tests docs benchmarks clean

demo: $(VENV)/.demo
	$(BIN)/python -m examples.demo

test: lint types docs tests

lint: $(VENV)/.test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: $(VENV)/.test
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html

tests: $(VENV)/.test
	$(BIN)/pytest $(PYTEST_ARGS)

benchmarks: $(VENV)/.test
	$(BIN)/python -m benchmarks

# One recipe for both: what the demo needs, and all that the tests need on top.
$(VENV)/.demo: EXTRAS = cli,events,fast
$(VENV)/.test: EXTRAS = cli,events,fast,test,lint,docs
$(VENV)/.demo $(VENV)/.test: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) .venvs build dist docs/_build
