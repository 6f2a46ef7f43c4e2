"""What engines tell over HTTP: real answers, lying ones, and none."""

from __future__ import annotations

import json
import pathlib
import socket
import threading
from typing import Any

import pytest

from engines.identity.collect import capture
from engines.identity.collect_http import Endpoint, SilentEngine, ask, metrics_fields
from engines.identity.record import Identity, UnknownField
from engines.identity.trouble import BadRecord
from tests.support.canned_http import Answer, canned

DATA = pathlib.Path(__file__).parents[2] / "data" / "environment"
INFO = json.loads((DATA / "vllm_server_info.json").read_text(encoding="utf-8"))
METRICS = (DATA / "vllm_metrics.txt").read_text(encoding="utf-8")
VLLM: dict[str, Answer] = {
    "/metrics": METRICS,
    "/version": {"version": "0.32.0"},
    "/server_info?config_format=json": INFO,
}


def far(answers: dict[str, Answer]) -> dict[str, Any]:
    with canned(answers) as url:
        return dict(capture(url=url).fields)


def test_vllm_in_development_mode_tells_its_effective_configuration() -> None:
    told = far(VLLM)
    assert (told["engine.name"], told["engine.version"]) == ("vllm", "0.32.0")
    assert told["precision.dtype"] == "bfloat16"
    assert told["precision.quantization"] == "none"
    assert told["precision.kv_cache_dtype"] == "auto"
    assert (told["batch.max_sequences"], told["batch.max_tokens"]) == (8, 2048)
    assert (told["prefill.chunked"], told["cache.prefix"], told["cache.block_size"]) == (True, True, 128)
    assert (told["speculative"], told["graphs.cuda"]) == (False, False)
    assert (told["parallel.tensor"], told["engine.device"]) == (1, "cpu")
    assert told["determinism.batch_invariant"] is False
    assert told["python.version"] == "3.11.7"
    assert told["python.packages.torch"] == "2.13.0+cpu"
    assert "smollm2" not in json.dumps(str(told))


def test_vllm_without_it_tells_what_its_metrics_say_and_where_the_rest_would_be() -> None:
    told = far({"/metrics": METRICS, "/version": {"version": "0.32.0"}})
    assert (told["engine.name"], told["cache.block_size"], told["python.version"]) == ("vllm", 128, "3.11.7")
    assert "VLLM_SERVER_DEV_MODE=1" in told["graphs.compilation"].reason


def test_from_afar_nothing_of_this_machine_is_recorded() -> None:
    told = far(VLLM)
    for name in ("cpu.model", "os.kernel", "gpu.driver", "variables", "gpu.count", "compiler.host"):
        assert isinstance(told[name], UnknownField)
        assert "only the endpoint was asked" in told[name].reason
    assert not [name for name in told if name.startswith("variable.")]


def test_another_port_is_the_same_environment() -> None:
    digests = set()
    for _ in range(2):
        with canned(VLLM) as url:
            digests.add(capture(url=url).digest)
    assert len(digests) == 1


def test_sglang_tells_its_server_arguments_and_its_key_is_not_read() -> None:
    """As ``get_server_info`` puts it together: the fields of ``ServerArgs``, ``internal_states``, ``version``
    (sgl-project/sglang at 0025436e, python/sglang/srt/entrypoints/http_server.py)."""
    told = far(
        {
            "/get_server_info": {
                "api_key": "sk-verysecret",
                "model_path": "/weights/private",
                "dtype": "bfloat16",
                "quantization": None,
                "tp_size": 2,
                "attention_backend": "fa3",
                "disable_radix_cache": True,
                "chunked_prefill_size": 8192,
                "speculative_algorithm": None,
                "random_seed": 42,
                "version": "0.5.3",
                "internal_states": [{"last_gen_throughput": 12.5}],
            }
        }
    )
    assert (told["engine.name"], told["engine.version"]) == ("sglang", "0.5.3")
    assert (told["parallel.tensor"], told["attention.backend"]) == (2, "fa3")
    assert (told["cache.prefix"], told["prefill.chunked"], told["speculative"]) == (False, True, False)
    assert "secret" not in json.dumps(str(told))
    assert "private" not in json.dumps(str(told))


def test_llama_cpp_tells_its_build_and_samplers() -> None:
    props = json.loads((DATA / "llamacpp_props.json").read_text(encoding="utf-8"))
    told = far({"/props": props})
    assert told["engine.name"] == "llama.cpp"
    assert told["engine.version"] == UnknownField("it was built without its version")
    assert told["precision.quantization"] == "Q4_1"
    assert told["sampler.order"][:2] == ["penalties", "dry"]
    assert told["sampler.defaults"]["top_k"] == 40
    assert (told["batch.max_sequences"], told["batch.max_model_len"]) == (2, 1024)
    assert told["speculative"] is False
    assert "/models" not in str(told)
    released = far({"/props": {**props, "build_info": "b11434-4b385bfc"}})
    assert (released["engine.version"], released["engine.commit"]) == ("b11434", "4b385bfc")


def test_a_key_is_sent_and_never_recorded() -> None:
    with canned({"/version": {"version": "1.2"}}, key="sk-verysecret") as url:
        made = capture(url=url, key="sk-verysecret")
        refused = capture(url=url)
    assert made.fields["engine.version"] == "1.2"
    assert "verysecret" not in json.dumps(made.to_json())
    assert "/version: the engine wants a key (--api-key-env)" in refused.about["notes"]
    assert isinstance(refused.fields["engine.version"], UnknownField)


def test_an_engine_that_serves_its_own_record_is_believed_and_keeps_its_digest() -> None:
    own = Identity(fields={"engine.name": "vllm", "precision.dtype": "bfloat16"}, about={"sources": {}})
    with canned({"/forkgate/identity": own.to_json(), **VLLM}) as url:
        made = capture(url=url)
    assert made.digest == own.digest
    assert made.fields == own.fields


def test_a_served_record_that_was_changed_is_refused() -> None:
    document = Identity(fields={"precision.dtype": "bfloat16"}).to_json()
    document["fields"] = {"precision.dtype": "float16"}
    with (
        canned({"/forkgate/identity": document}) as url,
        pytest.raises(BadRecord, match="/forkgate/identity: digest"),
    ):
        capture(url=url)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/metrics": "\x00\xff vllm:", "/version": "[]", "/props": "3"},
        {"/version": {"version": ["0.32"]}, "/server_info": {"vllm_config": "text"}},
        {**VLLM, "/server_info?config_format=json": {"vllm_config": [], "vllm_env": 3, "system_env": "x"}},
        {
            **VLLM,
            "/server_info?config_format=json": {
                "vllm_config": {"model_config": "text", "cache_config": None}
            },
        },
        {**VLLM, "/server_info?config_format=json": b"[" * 100_000},
        {"/props": {"build_info": 3}, "/get_server_info": {"tp_size": {"a": float("1")}}},
        {"/version": (500, b"oh"), "/metrics": (302, b"http://127.0.0.1:1/")},
    ],
)
def test_nonsense_leaves_fields_unknown_and_a_record_all_the_same(answers: dict[str, Answer]) -> None:
    with canned(answers) as url:
        made = capture(url=url)
    assert isinstance(made.fields["precision.dtype"], UnknownField)
    assert made.digest.startswith("sha256:")


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ('cache_dtype="hf_abcdefgh12345678"', "precision.kv_cache_dtype"),
        ('cache_dtype="/etc/passwd"', "precision.kv_cache_dtype"),
        ('cache_dtype="a\\"b,block_size=\\"9"', "precision.kv_cache_dtype"),
        (f'cache_dtype="{"x" * 100_000}"', "precision.kv_cache_dtype"),
        ('block_size="\x1b[2J"', "cache.block_size"),
        ('enable_prefix_caching="<script>"', "cache.prefix"),
    ],
)
def test_hostile_labels_of_metrics_never_become_values(labels: str, field: str) -> None:
    told = metrics_fields(f"vllm:cache_config_info{{{labels}}} 1.0\n")
    assert isinstance(told[field], UnknownField)
    assert set(told) == {field}


@pytest.mark.parametrize(
    "line",
    [
        "vllm:cache_config_info{",
        "vllm:cache_config_info{cache_dtype=auto} 1.0",
        'vllm:cache_config_info{other="x"} NaN',
        'python_info{major="3",minor="x",patchlevel="1"} 1.0',
        'vllm:cache_config_infox{cache_dtype="auto"} 1.0',
    ],
)
def test_lines_that_are_no_samples_are_passed_over(line: str) -> None:
    told = metrics_fields(line + "\n")
    assert not {name for name, value in told.items() if not isinstance(value, UnknownField)}


def test_nobody_at_the_address_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(SilentEngine, match="is the engine up"):
        ask(Endpoint(f"http://127.0.0.1:{port}"))


def test_a_server_that_never_answers_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(SilentEngine, match="no answer"):
        Endpoint(f"http://127.0.0.1:{mute.getsockname()[1]}", wait_s=0.1).get("/version")


def test_a_server_that_drips_is_left() -> None:
    """Each byte comes in time, the answer never ends."""
    left = threading.Event()

    def drip(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not left.wait(0.02):
                try:
                    peer.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        with pytest.raises(SilentEngine, match="no whole answer"):
            Endpoint(f"http://127.0.0.1:{server.getsockname()[1]}", wait_s=0.3).get("/metrics")
        left.set()
        thread.join()


def test_a_flood_is_cut_off() -> None:
    with canned({"/metrics": b"x" * (9 << 20)}) as url:
        assert Endpoint(url).get("/metrics") == UnknownField("/metrics answers more than 8 MiB")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host", "give http://"),
        ("localhost:8000", "give http://"),
        ("http://user:secret@host", "put no credential into it"),
        ("http://host/?a=1", "with no query"),
    ],
)
def test_what_is_no_address_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Endpoint(url)
    assert "secret" not in str(error.value)
