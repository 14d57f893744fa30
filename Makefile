# make test   sets up .venv and runs the test suite
# make lint   sets up .venv and runs ruff and mypy
# make demo   sets up .venv and trains a small sparse GRU online
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint demo clean

test: .venv/ready
	$(BIN)/python -m pytest -n auto

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: .venv/ready
	$(BIN)/python examples/online_copy.py

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("snapgrad needs Python 3.11 or newer; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
