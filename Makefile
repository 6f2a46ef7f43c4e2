# Two commands do everything: `make demo` shows the main job on real models, `make test` proves it.
# Every target works in .venv and creates it when missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
PEERS := .venv-bench
PEERS_STAMP := $(PEERS)/.installed

.PHONY: demo test test-engines check bench proto schema capture lock clean

demo: $(STAMP)
	$(BIN)/forkgate demo $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest

test-engines: $(STAMP) $(VLLM_STAMP)
	FORKGATE_VLLM_PYTHON=$(abspath $(VLLM)/bin/python) $(BIN)/python -m pytest tests/engines

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_generated

bench: $(STAMP) $(PEERS_STAMP)
	$(BIN)/python -m bench --json $(BENCH_ARGS)

proto: $(STAMP)
	$(BIN)/python -m tools.proto

schema: $(STAMP)
	$(BIN)/python -m tools.config_schema

# Environment capture as one file, to run inside an engine's container. Any Python builds it.
capture:
	$(PYTHON) -m tools.capture_zipapp

$(STAMP): pyproject.toml requirements.lock
	@echo "making $(VENV): a minute or three, torch is large"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

# A real vLLM, in a venv of its own: the sidecar never shares an environment with an engine.
$(VLLM_STAMP): requirements-vllm.lock
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-vllm.lock
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# The proxies and the tests that forkgate is measured against, in a venv of their own.
$(PEERS_STAMP): requirements-bench.lock
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-bench.lock
	touch $@

# Resolve the newest versions that pyproject.toml allows and write them down.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet torch==2.13.0
	.venv-lock/bin/python -m pip install --quiet -e '.[torch]' --group dev hatchling editables
	.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/^\(torch==[^+]*\)+.*/\1/' > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) $(VLLM) $(PEERS)
