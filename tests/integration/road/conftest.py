"""Real models on the reference engine: float32 twice, and bfloat16.

Each has one place (``--max-batch 1``), so that a request's numbers do not depend on who else is there.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from engines.model import ensure_smollm2
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.waiting import LIMIT_S

MODEL = "smollm2"


def engine(dtype: str) -> Iterator[EngineProcess]:
    options = ("--served-model-name", MODEL, "--threads", "1", "--max-batch", "1", "--dtype", dtype)
    with reference_engine(ensure_smollm2(), *options) as running:
        yield running


@pytest.fixture(scope="session")
def float32() -> Iterator[EngineProcess]:
    yield from engine("float32")


@pytest.fixture(scope="module")
def float32_again() -> Iterator[EngineProcess]:
    yield from engine("float32")


@pytest.fixture(scope="module")
def bfloat16() -> Iterator[EngineProcess]:
    yield from engine("bfloat16")


def post(engine: EngineProcess, path: str, body: dict[str, Any]) -> Any:
    """Ask an engine itself."""
    request = urllib.request.Request(
        engine.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


def prompt_ids(engine: EngineProcess, prompt: str) -> list[int]:
    """By the engine's own tokenizer and template."""
    ids: list[int] = post(engine, "/tokenize", {"messages": [{"role": "user", "content": prompt}]})["tokens"]
    return ids


def answer_ids(engine: EngineProcess, prompt: str, tokens: int, **sampling: Any) -> list[int]:
    """What the engine says by itself."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
    told = post(engine, "/v1/chat/completions", {**body, **sampling, "return_token_ids": True})
    ids: list[int] = told["choices"][0]["token_ids"]
    return ids
