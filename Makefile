# Two commands on a fresh machine with Python 3.11 and make: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= $(shell getconf _NPROCESSORS_ONLN)

.PHONY: run test test-ray lint format bench clean

run: $(VENV)/.run  ## train the default task to a good policy and show where the result is
	$(BIN)/covey train td3 --env pendulum

test: lint  ## the whole test suite, as CI runs it
	$(BIN)/pytest -n $(CORES) --dist loadfile

test-ray: $(VENV)/.dev  ## islands on Ray, whose workers are killed; installs the extra `ray`
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	$(BIN)/pytest tests/population/test_ray.py

lint: $(VENV)/.dev
	$(BIN)/ruff check covey tests benchmarks examples
	$(BIN)/ruff format --check covey tests benchmarks examples
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix covey tests benchmarks examples
	$(BIN)/ruff format covey tests benchmarks examples

bench: $(VENV)/.dev  ## the learner's speed as a share of what the machine can do
	$(BIN)/python -m benchmarks.learner

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "covey needs Python 3.11 or newer: make PYTHON=python3.11 run")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps playground
	touch $@ $(VENV)/.run
