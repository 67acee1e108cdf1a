# Everything a contributor types. Each target makes its own virtual environment when there is none.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo examples docs test test-slow test-lowest lint format bench clean

demo: $(VENV)/.installed  ## train the three applications on embedded data and write a report
	$(BIN)/mha-apps demo --force

examples: $(VENV)/.installed  ## run every example, which draws the pictures of its gallery again
	@for script in examples/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(VENV)/.installed-docs  ## the site with the reference, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: $(VENV)/.installed-dev  ## the quick test suite
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: $(VENV)/.installed-dev  ## the tests that take longer
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev  ## format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## put format and style right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-bench  ## the measurements behind the README's numbers
	$(BIN)/python benchmarks/attention.py modules
	$(BIN)/python benchmarks/attention.py windows
	$(BIN)/python benchmarks/attention.py lengths
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/vit.py speed
	$(BIN)/python benchmarks/vit.py predict
	$(BIN)/python benchmarks/cnn.py overhead

test-lowest: $(VENV)/.installed-dev  ## the quick suite with the oldest versions that pyproject.toml allows
	$(BIN)/pip install --quiet uv
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	$(BIN)/uv pip install --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev,export]'
	.venv-lowest/bin/python -m pytest

clean:  ## remove the environments and caches, not the runs
	rm -rf .venv .venv-lowest .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps make a second run do nothing until pyproject.toml changes.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -e '.[dev,export]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -e '.[dev,bench,export]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-dev

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install -e '.[docs]'
	@touch $@ $(VENV)/.installed
