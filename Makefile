# `make demo` and `make test` do all their own set-up, in .venv.

PYTHON ?= python3
BIN := .venv/bin

# What a run leaves for the next: bytecode (so pip need not compile any), what mypy has seen, and the
# kernels that tests compile. All of it is found by its content, so nothing of it can be out of date.
CACHE := $(CURDIR)/.venv/cache
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CACHE)/bytecode
export MYPY_CACHE_DIR := $(CACHE)/mypy
export TILEWRIGHT_TEST_STORE := $(CACHE)/kernels

.PHONY: demo test test-all emulate docs versions check setup clean

demo: .venv/demo.stamp
	$(BIN)/tilewright demo

# The short suite: another selection of the tests for each commit (tests/selection.py).
test: .venv/dev.stamp check
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" $(PYTEST)

test-all: .venv/dev.stamp check
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not gpu" --selection all $(PYTEST)

# Every pipeline, dtype, layout, epilogue and kind of problem on emulated AMD GPUs.
emulate: .venv/dev.stamp
	$(BIN)/python benchmarks/emulated.py

# The site, in build/site. A broken link, a page that the navigation lacks and a public name without a
# docstring are errors.
docs: .venv/docs.stamp
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -c docs/site . build/site

# In an environment of its own under .venv: another Triton is 200 MB to fetch.
versions: .venv/demo.stamp
	$(BIN)/python benchmarks/versions.py --short --triton newest

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto

setup: .venv/dev.stamp

.venv/bin/python:
	$(PYTHON) -m venv .venv

# What users install: no torch, no tools.
.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

# torch by its exact version: PyPI's default build for a looser one pulls in gigabytes of CUDA.
.venv/dev.stamp: pyproject.toml constraints.txt .venv/demo.stamp
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/docs.stamp: pyproject.toml constraints.txt .venv/dev.stamp
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv
