"""What an engine's command line sets."""

from __future__ import annotations

import json

import pytest

from engines.identity.collect_flags import engine_of, flags
from engines.identity.record import UnknownField


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve owner/model", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python3 -m sglang.launch_server --model-path m", "sglang"),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve serve m", "tensorrt-llm"),
        ("/app/llama-server -m model.gguf", "llama.cpp"),
        ("python -m engines.reference --model m", "forkgate-reference"),
        ("python -m http.server", None),
        ("python train.py --note vllm", None),
    ],
)
def test_an_engine_is_known_by_what_starts_it(line: str, engine: str | None) -> None:
    assert engine_of(tuple(line.split())) == engine


def test_an_unread_command_line_names_no_engine() -> None:
    assert engine_of(UnknownField("not allowed")) is None


def test_vllm() -> None:
    line = "vllm serve m --dtype=bfloat16 -tp 2 --max_num_seqs 8 --no-enable-prefix-caching --enforce-eager "
    line += "--kv-cache-dtype fp8_e4m3 --seed -1 --compilation-config.mode 3 -O2 --gpu-memory-utilization 0.8"
    config = {"method": "ngram", "num_speculative_tokens": 4, "model": "/weights/draft"}
    told = flags("vllm", (*line.split(), "--speculative-config", json.dumps(config)))
    assert told["precision.dtype"] == "bfloat16"
    assert told["parallel.tensor"] == 2
    assert told["batch.max_sequences"] == 8
    assert told["cache.prefix"] is False
    assert told["graphs.cuda"] is False
    assert told["precision.kv_cache_dtype"] == "fp8_e4m3"
    assert told["sampler.seed"] == -1
    assert told["graphs.compilation"] == {"mode": 3}
    assert told["engine.flag.O"] == 2
    assert told["engine.flag.gpu-memory-utilization"] == 0.8
    assert told["speculative"]["method"] == "ngram"
    assert "/weights" not in json.dumps(told["speculative"])
    assert told["engine.flags_unlisted"] == []


def test_llama_cpp() -> None:
    line = (
        "llama-server -m m.gguf -c 4096 -np 4 -ctk q8_0 -fa on -ngl 99 -t 8 --samplers top_k;temperature -s 7"
    )
    told = flags("llama.cpp", tuple(line.split()))
    assert told["precision.kv_cache_dtype"] == {"k": "q8_0", "v": "f16"}
    assert told["attention.backend"] == "on"
    assert told["engine.flag.ngl"] == 99
    assert (told["cpu.threads"], told["sampler.order"], told["sampler.seed"]) == (8, "top_k;temperature", 7)
    assert told["batch.max_model_len"] == 4096


def test_sglang() -> None:
    line = "sglang.launch_server --model-path m --tp-size 4 --disable-radix-cache --disable-cuda-graph"
    line += " --attention-backend triton --enable-deterministic-inference --chunked-prefill-size -1"
    told = flags("sglang", tuple(line.split()))
    assert told["parallel.tensor"] == 4
    assert told["cache.prefix"] is False
    assert told["graphs.cuda"] is False
    assert told["attention.backend"] == "triton"
    assert told["determinism.batch_invariant"] is True
    assert told["prefill.chunk_tokens"] == -1


def test_places_and_credentials_are_told_in_no_form() -> None:
    line = "vllm serve /root/private-model --port 9123 --host 10.1.2.3 --api-key sk-topsecret99 "
    line += "--hf-token=hf_secretsecret "
    line += "--ssl-keyfile /etc/k.pem --served-model-name pet --hf-tokenABCDEF --chat-template /t.jinja "
    line += "--some-new-switch s3cr3t --dtype /etc/passwd --quantization hf_abcdefgh12345678"
    told = flags("vllm", tuple(line.split()))
    text = repr(told)
    for hidden in (
        "private",
        "9123",
        "10.1.2.3",
        "secret",
        "k.pem",
        "pet'",
        "jinja",
        "s3cr3t",
        "passwd",
        "ABC",
    ):
        assert hidden not in text.replace("or a secret", "")
    assert told["engine.flags_unlisted"] == ["some-new-switch"]
    assert isinstance(told["precision.dtype"], UnknownField)
    assert isinstance(told["precision.quantization"], UnknownField)


@pytest.mark.parametrize("value", ["{", "[1", "{" * 5000])
def test_json_that_is_none_is_unknown(value: str) -> None:
    assert isinstance(
        flags("vllm", ("vllm", "serve", "--speculative-config", value))["speculative"], UnknownField
    )
