"""The tests run where ``FORKGATE_VLLM_PYTHON`` names a Python with vLLM (``make test-engines`` builds one).

Without it they fail: a proof that was skipped is no proof.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from engines.model import ensure_smollm2
from tests.support.vllm_server import Vllm


@pytest.fixture(scope="session")
def model_dir() -> pathlib.Path:
    return ensure_smollm2()


@pytest.fixture(scope="session")
def vllm(model_dir: pathlib.Path) -> Iterator[Vllm]:
    python = os.environ.get("FORKGATE_VLLM_PYTHON")
    if not python:
        pytest.fail(
            "FORKGATE_VLLM_PYTHON is not set: run `make test-engines`, or let it name a Python with vLLM",
            pytrace=False,
        )
    server = Vllm(python, model_dir)
    yield server
    server.stop()
