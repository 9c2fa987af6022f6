# `make demo` and `make test` do all their own set-up, in .venv.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test emulate docs versions check setup clean

demo: .venv/demo.stamp
	$(BIN)/tilewright demo

test: .venv/dev.stamp check
	$(BIN)/python -m pytest -n 2 -m "not gpu"

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
	$(BIN)/mypy

setup: .venv/dev.stamp

.venv/bin/python:
	$(PYTHON) -m venv .venv

# What users install: no torch, no tools.
.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

# torch by its exact version: PyPI's default build for a looser one pulls in gigabytes of CUDA.
.venv/dev.stamp: pyproject.toml constraints.txt .venv/demo.stamp
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/docs.stamp: pyproject.toml constraints.txt .venv/demo.stamp
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv
