# Everything runs from .venv, which the first target that needs it creates.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Small networks run fastest on one thread; the tests use two processes.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all lint format clean

demo: .venv/demo.stamp
	$(BIN)/splitpoint demo --out out/demo

test: .venv/dev.stamp lint
	$(PYTEST) -n 2 -m "not slow"

test-all: .venv/dev.stamp lint
	$(PYTEST) -n 2 --hypothesis-profile=random

lint: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv out

.venv/%.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --editable ".[$*]"
	touch $@
