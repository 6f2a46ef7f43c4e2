"""The tests run where the environment names the engines, which ``make test-engines`` builds:
``FORKGATE_VLLM_PYTHON`` a Python with vLLM, ``FORKGATE_VLLM_GRPC_PYTHON`` one that sees its gRPC server too,
``FORKGATE_LLAMA_SERVER`` the llama-server.

Without them they fail: a proof that was skipped is no proof.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from engines.model import ensure_smollm2, ensure_smollm2_gguf
from tests.support.llama_server import LlamaServers
from tests.support.vllm_grpc_server import VllmGrpc
from tests.support.vllm_server import Vllm


@pytest.fixture(scope="session")
def model_dir() -> pathlib.Path:
    return ensure_smollm2()


@pytest.fixture(scope="session")
def vllm(model_dir: pathlib.Path) -> Iterator[Vllm]:
    server = Vllm(named("FORKGATE_VLLM_PYTHON"), model_dir)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def vllm_grpc(model_dir: pathlib.Path) -> Iterator[VllmGrpc]:
    server = VllmGrpc(named("FORKGATE_VLLM_GRPC_PYTHON"), model_dir)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def llama() -> Iterator[LlamaServers]:
    servers = LlamaServers(named("FORKGATE_LLAMA_SERVER"), ensure_smollm2_gguf())
    yield servers
    servers.stop()


def named(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        pytest.fail(f"{variable} is not set: run `make test-engines`, which builds it", pytrace=False)
    return found
