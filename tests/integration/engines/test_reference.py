"""The reference engine over HTTP, as its clients see it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import pathlib
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import openai
import pytest

from comparator.records import Sampling
from engines import open_engine
from engines.base import (
    OF_ONE_ANSWER,
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineOptions,
    Finish,
    Prompt,
    Steps,
)
from engines.identity.artifact_json import from_json
from engines.sse import DONE, EventParser
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.tiny_model import EOS
from tests.support.waiting import LIMIT_S, PATIENCE_S, eventually, until


def post(url: str, body: Any) -> tuple[int, Any, dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return (
                answer.status,
                answer.read(),
                {name.lower(): value for name, value in answer.headers.items()},
            )
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def ask(engine: EngineProcess, path: str, **body: Any) -> Any:
    status, answer, _ = post(engine.url + path, body)
    assert status == 200, answer
    return json.loads(answer)


def metric(engine: EngineProcess, name: str) -> float:
    with urllib.request.urlopen(engine.url + "/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).split()[1])


COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "seed": 3, "ignore_eos": True}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 3}
IDS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


def streamed(engine: EngineProcess, path: str, **body: Any) -> list[Any]:
    status, answer, headers = post(engine.url + path, {**body, "stream": True})
    assert status == 200, answer
    assert headers["content-type"].startswith("text/event-stream")
    payloads = EventParser().feed(answer)
    assert payloads[-1] == DONE
    return [json.loads(payload) for payload in payloads[:-1]]


def test_a_completion_streams_what_it_answers_whole(engine: EngineProcess) -> None:
    body = {**COMPLETION, **IDS, "logprobs": 4, "stop": ["zz"]}
    whole = ask(engine, "/v1/completions", **body)["choices"][0]
    events = streamed(engine, "/v1/completions", **body, stream_options={"include_usage": True})
    choices = [event["choices"][0] for event in events[:-1]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [one for choice in choices for one in choice["token_ids"]] == whole["token_ids"]
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for choice in choices for one in choice["logprobs"][field]] == whole["logprobs"][field]
    assert choices[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert "prompt_token_ids" not in choices[1]
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


def test_a_chat_streams_what_it_answers_whole(engine: EngineProcess) -> None:
    body = {**CHAT, **IDS, "logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    answer = ask(engine, "/v1/chat/completions", **body)
    whole = answer["choices"][0]
    first, *events = streamed(engine, "/v1/chat/completions", **body)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == answer["prompt_token_ids"]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["delta"]["content"] for choice in choices) == whole["message"]["content"]
    assert [one for choice in choices for one in choice["token_ids"]] == whole["token_ids"]
    assert [one for choice in choices for one in choice["logprobs"]["content"]] == whole["logprobs"][
        "content"
    ]
    assert len(whole["logprobs"]["content"][0]["top_logprobs"]) == 3


def test_the_official_client_gets_its_answers(engine: EngineProcess) -> None:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none") as client:
        assert client.models.list().data[0].id == "tiny"
        chat = client.chat.completions.create(model="tiny", messages=CHAT["messages"], max_tokens=8, seed=1)
        text = chat.choices[0].message.content
        stream = client.chat.completions.create(
            model="tiny", messages=CHAT["messages"], max_tokens=8, seed=1, stream=True
        )
        assert "".join(event.choices[0].delta.content or "" for event in stream) == text
        completion = client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=4, logprobs=2)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == 3
        with pytest.raises(openai.BadRequestError, match="n: "):
            client.completions.create(model="tiny", prompt="a", n=3)
        with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
            client.completions.create(model="other", prompt="a")


def test_token_ids_in_are_the_prompt_that_runs(engine: EngineProcess) -> None:
    ids = ask(engine, "/tokenize", model="tiny", prompt="hello")["tokens"]
    by_text = ask(engine, "/v1/completions", **COMPLETION, **IDS)["choices"][0]
    by_ids = ask(engine, "/v1/completions", **{**COMPLETION, "prompt": ids}, **IDS)["choices"][0]
    assert by_ids == by_text
    assert by_ids["prompt_token_ids"] == ids


def test_rendering_tells_the_ids_and_the_effective_parameters(engine: EngineProcess) -> None:
    rendered = ask(engine, "/v1/chat/completions/render", model="tiny", messages=CHAT["messages"], top_p=0.5)
    assert rendered["token_ids"] == ask(engine, "/tokenize", messages=CHAT["messages"])["tokens"]
    params = rendered["sampling_params"]
    # The client's word, generation_config.json's, and the room that the model has left.
    assert (params["top_p"], params["temperature"]) == (0.5, 0.9)
    assert params["max_tokens"] == 1024 - len(rendered["token_ids"])
    assert ask(engine, "/v1/completions/render", prompt="a")[0]["sampling_params"]["max_tokens"] == 16


def test_every_answer_names_the_environment(engine: EngineProcess, tiny_folder: pathlib.Path) -> None:
    _, answer, headers = post(engine.url + "/v1/completions", {**COMPLETION, "forkgate_facts": True})
    with urllib.request.urlopen(engine.url + "/forkgate/identity", timeout=LIMIT_S) as told:
        identity = json.loads(told.read())
    assert identity["digest"] == engine.digest == headers["x-forkgate-environment"]
    facts = json.loads(answer)["forkgate_facts"]
    assert facts["environment_digest"] == engine.digest
    assert facts["batch_size"] == [1] * 12
    assert (facts["seed"], facts["logprobs_mode"]) == (3, "raw_logprobs")
    assert identity["fields"]["precision.dtype"] == facts["dtype"] == "float32"
    with urllib.request.urlopen(engine.url + "/forkgate/artifact", timeout=LIMIT_S) as told:
        artifact = json.loads(told.read())
    weights = next(file for file in artifact["files"] if file["role"] == "weight")
    served = tiny_folder / weights["path"]
    assert weights["sha256"] == hashlib.sha256(served.read_bytes()).hexdigest()
    assert from_json(artifact).digest == facts["artifact_digest"] == identity["fields"]["artifact.digest"]


def test_a_seed_left_out_is_drawn_and_told(engine: EngineProcess) -> None:
    body = {**COMPLETION, "seed": None, **IDS, "forkgate_facts": True}
    first, second = (ask(engine, "/v1/completions", **body) for _ in range(2))
    assert first["forkgate_facts"]["seed"] != second["forkgate_facts"]["seed"]
    replay = ask(engine, "/v1/completions", **{**body, "seed": first["forkgate_facts"]["seed"]})
    assert replay["choices"] == first["choices"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (
            "completions",
            {"prompt": "a", "best_off": 2},
            "best_off",
            "does not honour this field; leave it out",
        ),
        ("completions", {"prompt": "a", "n": 2}, "n", "n"),
        ("completions", {"prompt": "a", "best_of": 2}, "best_of", "best_of"),
        ("completions", {"prompt": "a", "echo": True}, "echo", "echo"),
        ("completions", {"prompt": "a", "suffix": "b"}, "suffix", "suffix"),
        ("completions", {"prompt": ["a", "b"]}, "prompt", "prompt"),
        ("completions", {"prompt": [1, 99999]}, "prompt", "token ID 99999 is not below 300"),
        ("completions", {"prompt": []}, "prompt", "no token"),
        ("completions", {"prompt": ""}, "prompt", "no token"),
        ("completions", {}, None, "prompt"),
        ("completions", {"prompt": "a", "max_tokens": 2000}, "max_tokens", "over 1024"),
        ("completions", {"prompt": "a" * 1024}, "prompt", "over 1024"),
        ("completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", ">= 1"),
        ("completions", {"prompt": "a", "min_tokens": 99}, "min_tokens", "over max_tokens 16"),
        ("completions", {"prompt": "a", "temperature": -1}, "temperature", ">= 0"),
        ("completions", {"prompt": "a", "top_p": 0}, "top_p", "> 0"),
        ("completions", {"prompt": "a", "seed": -1}, "seed", ">= 0"),
        ("completions", {"prompt": "a", "logprobs": 51}, "logprobs", "--max-logprobs 50"),
        ("completions", {"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "'x' is no token ID"),
        ("completions", {"prompt": "a", "logit_bias": {"300": 1}}, "logit_bias", "'300' is no token ID"),
        ("completions", {"prompt": "a", "stop": ""}, "stop", "empty"),
        ("completions", {"prompt": "a", "cache_salt": ""}, "cache_salt", "cache_salt"),
        ("completions", {"prompt": "a", "priority": "x"}, "priority", "priority"),
        ("completions", b"{", None, "not JSON"),
        ("chat/completions", {"messages": []}, "messages", "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0]", r"messages[0].content"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0]",
            "parts of type text",
        ),
        ("chat/completions", {**CHAT, "tools": [{"type": "function"}]}, "tools", "tools"),
        (
            "chat/completions",
            {**CHAT, "response_format": {"type": "json_object"}},
            "response_format.type",
            "type",
        ),
        ("chat/completions", {**CHAT, "top_logprobs": 2}, "top_logprobs", "needs logprobs: true"),
    ],
)
def test_what_is_not_honoured_is_refused_with_its_name(
    engine: EngineProcess, path: str, body: Any, param: str | None, words: str
) -> None:
    status, answer, _ = post(f"{engine.url}/v1/{path}", body)
    error = json.loads(answer)["error"]
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", 400)
    assert words in error["message"]
    assert error["param"] == param


def test_a_route_that_does_not_exist_has_the_same_error_shape(engine: EngineProcess) -> None:
    status, answer, _ = post(engine.url + "/v1/embeddings", {})
    assert status == 404
    assert "POST /v1/embeddings" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("place", ["running", "waiting"])
def test_a_client_that_leaves_frees_its_place_at_once(
    engine: EngineProcess, stream: bool, place: str
) -> None:
    """900 tokens take seconds; the gauge is back at rest long before they could have been generated."""
    host, port = engine.url.removeprefix("http://").split(":")
    body = json.dumps({**COMPLETION, "max_tokens": 900, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    taken = 3 if place == "waiting" else 1  # two places in the batch
    clients = []
    for _ in range(taken):
        client = socket.create_connection((host, int(port)))
        client.sendall(head + body)
        clients.append(client)
        until(functools.partial(has_open, engine, len(clients)))
    leaving = clients.pop()
    leaving.close()
    until(lambda: open_requests(engine) == taken - 1)
    for client in clients:
        client.close()
    until(
        lambda: open_requests(engine) == 0 and metric(engine, "forkgate_reference_kv_cache_usage_ratio") == 0
    )


def has_open(engine: EngineProcess, expected: int) -> bool:
    return open_requests(engine) == expected


def open_requests(engine: EngineProcess) -> int:
    names = ("forkgate_reference_requests_running", "forkgate_reference_requests_waiting")
    return int(sum(metric(engine, name) for name in names))


def test_concurrent_clients_share_forward_passes_and_keep_their_draws(engine: EngineProcess) -> None:
    alone = [ask(engine, "/v1/completions", **{**COMPLETION, "seed": seed}, **IDS) for seed in range(4)]
    together: list[Any] = [None] * 4
    start = threading.Barrier(4)

    def client(seed: int) -> None:
        start.wait()
        together[seed] = ask(
            engine, "/v1/completions", **{**COMPLETION, "seed": seed}, **IDS, forkgate_facts=True
        )

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        assert one["choices"][0]["token_ids"] == other["choices"][0]["token_ids"]
    assert max(max(one["forkgate_facts"]["batch_size"]) for one in together) == 2


def test_a_marked_request_tells_each_steps_batch_once(engine: EngineProcess) -> None:
    def steps(name: str) -> tuple[int, Any]:
        path = "/forkgate/batch/" + urllib.parse.quote(name, safe="")
        try:
            with urllib.request.urlopen(engine.url + path, timeout=LIMIT_S) as told:
                return told.status, json.loads(told.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None

    def send(name: str, mark: str, **body: Any) -> list[int]:
        headers = {"content-type": "application/json", "x-forkgate-shadow": mark, "x-request-id": name}
        data = json.dumps({**COMPLETION, **IDS, **body}).encode()
        request = urllib.request.Request(engine.url + "/v1/completions", data, headers)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.loads(answer.read())["forkgate_facts"]["batch_size"]

    threads = [
        threading.Thread(target=send, args=(f"c{place}/control/0", "1"), kwargs={"forkgate_facts": True})
        for place in range(4)
    ]
    for thread in threads:
        thread.start()
    sizes = send("mine/baseline/0", "1", forkgate_facts=True)
    for thread in threads:
        thread.join()
    send("live", "0", forkgate_facts=True)
    status, told = steps("mine/baseline/0")
    assert status == 200
    account = [
        size
        for place, (start, size, _) in enumerate(told["runs"])
        for size in [size] * ((told["runs"][place + 1][0] if place + 1 < len(told["runs"]) else 12) - start)
    ]
    assert account == sizes
    assert steps("mine/baseline/0")[0] == 404
    assert steps("live")[0] == 404
    assert all(steps(f"c{place}/control/0")[0] == 200 for place in range(4))


# -- through its adapter ----------------------------------------------------------------------------


def with_adapter(engine: EngineProcess, use: Callable[[Engine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        adapter = open_engine(engine.url, EngineOptions(kind="reference"))
        try:
            async with asyncio.timeout(LIMIT_S):
                return await use(adapter)
        finally:
            await adapter.close()

    return asyncio.run(main())


def test_its_adapter_finds_every_capability(engine: EngineProcess) -> None:
    probe = with_adapter(engine, lambda adapter: adapter.probe())
    assert probe.missing == {}
    assert probe.has == frozenset(Capability)
    assert (probe.model, probe.max_logprobs) == ("tiny", 50)
    assert probe.facts["environment_digest"].value == engine.digest
    assert probe.record is not None
    assert probe.artifact is not None  # both travel with the evidence
    assert probe.record.digest == engine.digest
    assert probe.record.fields["artifact.digest"] == probe.artifact.digest
    assert probe.facts["identity.precision.dtype"].value == "float32"
    assert "identity.os.kernel" not in probe.facts  # told by the digest; facts stand in every exchange
    assert OF_ONE_ANSWER.isdisjoint(probe.facts)  # a later answer's batch is not the probe's
    assert probe.facts["template_sha256"].value.startswith("sha256:")


def test_its_adapter_runs_what_it_encodes(engine: EngineProcess) -> None:
    call = Call(kind=CallKind.CHAT, body={"messages": CHAT["messages"]}, model="tiny")

    async def use(adapter: Engine) -> None:
        encoding = await adapter.encode(call)
        assert (encoding.sampling.temperature, encoding.sampling.top_p) == (0.9, 0.95)
        sampling = msgspec.structs.replace(
            encoding.sampling, seed=8, logprobs=20, max_tokens=10, ignore_eos=True
        )
        prompt = Prompt(
            exchange_id="x", model="tiny", token_ids=encoding.token_ids, sampling=sampling, cache_salt="s"
        )
        runs = []
        for one in (prompt, msgspec.structs.replace(prompt, call=call)):
            parts = [part async for part in adapter.generate(one)]
            runs.append([step for part in parts if isinstance(part, Steps) for step in part.steps])
            finish = parts[-1]
            assert isinstance(finish, Finish)
            assert finish.prompt_token_ids == encoding.token_ids
            assert finish.facts["environment_digest"].value == engine.digest
        tokens, itself = runs
        assert len(tokens) == 10
        assert all(len(step.top_ids) == 20 for step in tokens)
        # The client's own call, with the seed: the same draws as long as end-of-sequence is not drawn.
        shared = [step.token_id for step in itself]
        assert shared[: shared.index(EOS)] if EOS in shared else shared
        assert [step.token_id for step in tokens][: len(shared)] == shared

    with_adapter(engine, use)


def test_its_adapter_aborts_by_closing(engine: EngineProcess) -> None:
    sampling = Sampling(max_tokens=900, ignore_eos=True)
    prompt = Prompt(exchange_id="x", model="tiny", token_ids=(1, 2), sampling=sampling, cache_salt="s")

    async def use(adapter: Engine) -> None:
        before = await adapter.load()
        stream = adapter.generate(prompt)
        await anext(stream)
        load = await adapter.load()
        assert load.running + load.waiting == 1
        assert load.generated_tokens.value > before.generated_tokens.value
        # Of this process alone: torch and the tiny model take more than 50 MB, and no test machine has 1 TB.
        assert 50e6 < load.memory_bytes.value < 1e12
        await stream.aclose()
        await eventually(lambda: open_requests(engine) == 0)
        after = await adapter.load()
        assert after.generated_tokens.value - before.generated_tokens.value < sampling.max_tokens

    with_adapter(engine, use)


def test_its_adapter_says_what_the_engine_cannot_do(engine: EngineProcess) -> None:
    async def use(adapter: Engine) -> None:
        body = {"messages": CHAT["messages"], "top_a": 0.1}
        with pytest.raises(CannotEncode, match="top_a: the reference engine does not honour") as caught:
            await adapter.encode(Call(kind=CallKind.CHAT, body=body, model="tiny"))
        assert not caught.value.goes_as_itself

    with_adapter(engine, use)


# -- the process ------------------------------------------------------------------------------------


def test_it_ends_cleanly_on_sigterm_in_mid_answer(tiny_folder: pathlib.Path) -> None:
    with reference_engine(tiny_folder, "--served-model-name", "tiny") as running:
        host, port = running.url.removeprefix("http://").split(":")
        body = json.dumps({**COMPLETION, "max_tokens": 1000, "stream": True}).encode()
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            running.process.terminate()
            assert running.process.wait(timeout=PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "/nowhere"], "/nowhere: there is no config.json in it"),
        (["--model", "MODEL", "--max-batch", "0"], "--max-batch: 0 is outside 1-1024"),
        (["--model", "MODEL", "--port", "70000"], "--port: 70000 is outside"),
        (["--model", "MODEL", "--matmul", "widen"], "--matmul widen: only for --dtype bfloat16"),
        (["--model", "MODEL", "--port", "TAKEN"], "Address already in use"),
    ],
)
def test_a_bad_start_says_what_is_wrong(tiny_folder: pathlib.Path, options: list[str], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"MODEL": str(tiny_folder), "TAKEN": str(taken.getsockname()[1])}
        command = [sys.executable, "-m", "engines.reference", *(names.get(one, one) for one in options)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
