"""What may become a value: settings do, credentials and places do not."""

from __future__ import annotations

from typing import Any

import pytest

from engines.identity.collect_values import (
    field_value,
    json_value,
    number_or_text,
    secret_name,
    text_value,
)
from engines.identity.collect_variables import variables
from engines.identity.record import UnknownField


@pytest.mark.parametrize(
    "text",
    [
        "hf_abcdefgh12345678",
        "sk-proj-abcdefgh",
        "Bearer abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx",
        "AKIAABCDEFGHIJKL",
        "/home/somebody/model",
        "https://user:pass@host/",
        "line\nbreak",
        "\x1b[31mred",
        "x" * 201,
        "",
    ],
)
def test_a_text_that_is_no_setting_is_left_out(text: str) -> None:
    told = text_value(text)
    assert isinstance(told, UnknownField)
    assert text == "" or text not in told.reason
    assert isinstance(number_or_text(text), UnknownField)


@pytest.mark.parametrize("text", ["bfloat16", ":4096:8", "Ring,Tree", "0-3,8", "FLASH_ATTN", "fp8_e4m3"])
def test_a_setting_is_kept_as_it_is(text: str) -> None:
    assert text_value(text) == text


def test_numbers_are_numbers() -> None:
    assert [number_or_text(text) for text in ("8", "-1", "0.9", "True", "false")] == [8, -1, 0.9, True, False]


@pytest.mark.parametrize(
    "name", ["api-key", "HF_TOKEN", "hf_token", "ssl-key", "apiKey", "VLLM_API_KEY", "authorization"]
)
def test_names_of_credentials_are_known(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize(
    "name", ["max-num-batched-tokens", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "tokenizer"]
)
def test_tokens_of_text_are_no_credentials(name: str) -> None:
    assert not secret_name(name)


def test_a_document_loses_what_must_not_be_told_place_by_place() -> None:
    told: Any = {
        "method": "eagle3",
        "model": "owner/draft-model",
        "path": "/weights/draft",
        "api_key": "abc",
        "hf_token": "abc",
        "deep": {"secret": 1, "k": [float("nan"), 2**60]},
    }
    left_out = json_value("/weights/draft")
    assert json_value(told) == {
        "method": "eagle3",
        "model": "owner/draft-model",
        "path": left_out,
        "deep": {"k": ["nan", str(2**60)]},
    }
    assert isinstance(field_value("/weights/draft"), UnknownField)


def test_a_document_without_end_has_one_here() -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    assert len(str(json_value(nested))) < 300
    assert len(json_value(list(range(5000)))) == 512


def test_only_listed_variables_are_read() -> None:
    told = variables(
        {
            "NCCL_ALGO": "Ring",
            "NCCL_SOCKET_IFNAME": "eth0",
            "NCCL_COMM_ID": "10.0.0.1:5000",
            "VLLM_KV_CACHE_LAYOUT": "HND",
            "VLLM_USE_V2_MODEL_RUNNER": "1",
            "VLLM_API_KEY": "sk-abcdefghij",
            "VLLM_PORT": "8000",
            "VLLM_SERVICE_HOST": "10.0.0.2",
            "VLLM_PORT_8000_TCP_PROTO": "tcp",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "OMP_NUM_THREADS": "4",
            "HF_TOKEN": "hf_abcdefgh12345678",
            "AWS_SECRET_ACCESS_KEY": "abc",
            "HOME": "/home/somebody",
            "CUDA_VISIBLE_DEVICES": "3",
            "NVIDIA_TF32_OVERRIDE": "0",
            "VLLM_BATCH_INVARIANT": "1",
        }
    )
    assert {name for name in told if name.startswith("variable.")} == {
        "variable.NCCL_ALGO",
        "variable.VLLM_KV_CACHE_LAYOUT",
        "variable.VLLM_USE_V2_MODEL_RUNNER",
        "variable.CUBLAS_WORKSPACE_CONFIG",
        "variable.OMP_NUM_THREADS",
        "variable.NVIDIA_TF32_OVERRIDE",
        "variable.VLLM_BATCH_INVARIANT",
    }
    assert told["nccl.algorithm"] == "Ring"
    assert told["cpu.threads"] == 4
    assert told["determinism.batch_invariant"] is True
    assert told["precision.tf32"] is False


def test_variables_that_could_not_be_read_say_so_wherever_they_count() -> None:
    why = UnknownField("not allowed")
    assert variables(why)["variables"] == why
    assert variables(why)["nccl.algorithm"] == why
