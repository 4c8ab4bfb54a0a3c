# Two commands on a fresh machine with Python 3.11 and make: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# `make bench-peers PEERS_VERSIONS=` gives the others the newest jax instead of covey's.
PEERS_VERSIONS ?= -c constraints.txt
# Processes of `make test`: by default one per core, and no more than there is memory for.
WORKERS ?= $(shell $(PYTHON) tests/workers.py)
# Of `make torture`; with RESULTS=FILE, the table sums up all campaigns in that file.
MINUTES ?= 10

.PHONY: run test test-slow test-envpool test-web test-ray test-trackers torture lint format docs bench bench-peers bench-learning clean

run: $(VENV)/.run  ## train the default task to a good policy and show where the result is
	$(BIN)/covey train td3 --env pendulum

test: lint  ## the whole test suite, as CI runs it
	$(BIN)/pytest -n $(WORKERS) --dist loadfile

test-slow: $(VENV)/.dev  ## learning tests beyond one per agent, and long fault tests
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m slow

test-envpool: $(VENV)/.dev  ## EnvPool's environments; installs the extra `envpool`, 800 MB
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,envpool]'
	$(BIN)/pytest tests/envs/test_envpool.py

test-web: $(VENV)/.dev  ## the live page in a real browser; installs Playwright and, as root on Debian, Chromium
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,web-test]'
	command -v chromium || command -v chromium-browser || command -v google-chrome || (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)
	COVEY_TEST_WEB=1 $(BIN)/pytest tests/web/test_browser.py

test-ray: $(VENV)/.dev  ## islands on Ray, whose workers are killed; installs the extra `ray`
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray]'
	$(BIN)/pytest tests/islands/test_ray.py

test-trackers: $(VENV)/.dev  ## wandb, trackio and mlflow without a network; installs their extras
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,wandb,trackio,mlflow]'
	$(BIN)/pytest tests/storage/test_tracker_packages.py

torture: $(VENV)/.dev  ## the fault campaign: kills, failing disks, damaged files, wrong arguments, faulty environments
	$(BIN)/python -m benchmarks.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results $(RESULTS))

lint: $(VENV)/.dev
	$(BIN)/ruff check covey tests benchmarks examples
	$(BIN)/ruff format --check covey tests benchmarks examples
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix covey tests benchmarks examples
	$(BIN)/ruff format covey tests benchmarks examples

docs: $(VENV)/.docs  ## the documentation as a site, docs/_build/html/index.html; runs its notebook, checks its links
	$(BIN)/sphinx-build -W --keep-going -n -q docs docs/_build/html

bench: $(VENV)/.dev  ## the learners' speed as a share of what the machine can do; replay, memory, compilation
	$(BIN)/python -m benchmarks.learner
	$(BIN)/python -m benchmarks.costs

bench-peers: $(VENV)/.dev $(PEERS)/.done  ## the same work by QDax, SBX, Stable-Baselines3 and prt-rl, in turns; a race
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m benchmarks.peers --peers $(PEERS)/bin/python
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m benchmarks.peers.quality --peers $(PEERS)/bin/python --race --agents td3 --seeds 3

bench-learning: $(VENV)/.dev $(PEERS)/.done  ## is as much learned in as many steps? Takes hours
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m benchmarks.peers.quality --peers $(PEERS)/bin/python --task Pendulum-v1 --steps 8000 --seeds 8
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m benchmarks.peers.quality --peers $(PEERS)/bin/python --agents td3 --seeds 10

clean:
	rm -rf $(VENV) $(PEERS)

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

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@ $(VENV)/.run

$(PEERS)/.done: benchmarks/peers/requirements.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check $(PEERS_VERSIONS) -r benchmarks/peers/requirements.txt
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps qdax==0.5.0 prt-rl==0.6.3 vmas==1.5.2 gym==0.26.2
	touch $@
