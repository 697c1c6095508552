# Every target installs what it needs and does nothing the second time.
#
#   make demo       fit a photograph and draw it (pictures in out/)
#   make test       the tests, on every backend that this machine has
#   make lint       ruff and mypy
#   make gpu-test   the tests with the Python on PATH: for GPU machines that come with their own packages
#   make setup      only install
#
# PYTHON names the interpreter that the virtual environment is made with (and that gpu-test runs).

PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup system demo test lint gpu-test clean
.DEFAULT_GOAL := setup

setup: system .venv/.installed

system:
	@sh scripts/setup-system.sh "$(PYTHON)"

.venv/.installed: pyproject.toml | system
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv --clear .venv
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python examples/photo.py

# Two processes: Dr.Jit itself uses every core, more only compete. A file stays in one process.
test: setup
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy coopnet

# GPU machines often have no internet and a Python of their own, with drjit, numpy, pytest and what else they
# offer: no virtual environment, nothing installed, no parallel processes on the one GPU.
gpu-test:
	"$(PYTHON)" -m pytest -q tests

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
