"""What vLLM calls, called here without a vLLM: the entry points, and that no trouble of ours becomes its."""

from __future__ import annotations

import asyncio
import json
import logging
import types
from typing import Any

import pytest

from engines.identity import collect
from engines.identity.record import from_json
from engines.vllm_plugin import capture, general
from engines.vllm_plugin.asgi import Stamp
from engines.vllm_plugin.channel import VARIABLE, NoChannel, Reader, create
from engines.vllm_plugin.endpoint import ForkgateEndpoint
from engines.vllm_plugin.marks import MARK
from engines.vllm_plugin.processor import BatchProcessor

CONFIG = types.SimpleNamespace(
    model_config=types.SimpleNamespace(
        dtype="torch.bfloat16", quantization=None, logprobs_mode="raw_logprobs"
    ),
    speculative_config=None,
    use_v2_model_runner=False,
)
UPDATE = types.SimpleNamespace(
    batch_size=1, removed=[], moved=[], added=[(0, types.SimpleNamespace(extra_args={MARK: "a"}), [1], [])]
)


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch tells is tested with a real vLLM; here it is not even imported."""
    monkeypatch.setattr(collect.collect_torch, "torch_facts", lambda: {"cpu.threads": 3})
    monkeypatch.setenv(VARIABLE, "")  # so that what a test sets is taken back
    monkeypatch.delenv(VARIABLE)


# -- the record -------------------------------------------------------------------------------------


def worker(**changes: Any) -> Any:
    backend = types.SimpleNamespace(get_name=lambda: "FLASH_ATTN")
    group = types.SimpleNamespace(backend=backend)
    runner = types.SimpleNamespace(attn_groups=[[group], [group]])
    return types.SimpleNamespace(vllm_config=CONFIG, model_runner=runner, **changes)


def test_a_worker_tells_what_it_knows_and_leaves_out_what_it_does_not() -> None:
    told = json.loads(capture.of_worker(worker()))
    assert told["engine.name"] == "vllm"
    assert (told["precision.dtype"], told["attention.backend"], told["cpu.threads"]) == (
        "bfloat16",
        "FLASH_ATTN",
        3,
    )
    assert told["sampler.order"][0] == "allowed_token_ids"
    assert "artifact.digest" not in told


@pytest.mark.parametrize("runner", [None, types.SimpleNamespace(), types.SimpleNamespace(attn_groups=None)])
def test_a_worker_of_another_shape_tells_the_rest(runner: Any) -> None:
    odd = types.SimpleNamespace(vllm_config=types.SimpleNamespace(), model_runner=runner)
    told = json.loads(capture.of_worker(odd))
    assert told["engine.name"] == "vllm"
    assert not {"attention.backend", "sampler.order"} & set(told)


def test_the_record_is_whole_and_the_workers_word_goes_first() -> None:
    record = capture.of_server([json.dumps({"cpu.threads": 7, "precision.dtype": "float16"})], CONFIG)
    assert (record.fields["cpu.threads"], record.fields["precision.dtype"]) == (7, "float16")
    assert from_json(record.to_json()) == record
    assert json.dumps({"unknown": record.fields["artifact.digest"].reason})


def test_workers_that_differ_are_told_each() -> None:
    workers = [json.dumps({"cpu.threads": one, "engine.device": "cuda"}) for one in (4, 4, 8)]
    fields = capture.of_server([*workers, json.dumps({"engine.device": "cuda"})], CONFIG).fields
    assert fields["cpu.threads"] == [4, 4, 8, None]
    assert fields["engine.device"] == "cuda"


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({"use_v2_model_runner": True}, "logit_bias"),
        ({"use_v2_model_runner": False}, "allowed_token_ids"),
        ({"use_v2_model_runner": True, "speculative_config": object()}, None),
        ({}, None),
    ],
)
def test_the_order_of_the_sampler_is_told_where_it_is_known(
    changes: dict[str, Any], order: str | None
) -> None:
    told = json.loads(capture.of_worker(types.SimpleNamespace(vllm_config=types.SimpleNamespace(**changes))))
    assert (told.get("sampler.order") or [None])[0] == order


# -- entry points -----------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [None, "", "other", "forkgated"])
def test_nothing_is_touched_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    if named is None:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("VLLM_PLUGINS", named)
    monkeypatch.setattr(general, "create", lambda: pytest.fail("made"))
    general.register()
    processor = BatchProcessor(CONFIG, None, False)
    processor.update_state(UPDATE)
    assert processor._writer is None


def test_the_first_process_makes_the_channel_and_the_others_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other,forkgate")
    monkeypatch.setenv(VARIABLE, "kept")
    general.register()
    assert general.os.environ[VARIABLE] == "kept"
    monkeypatch.delenv(VARIABLE)
    general.register()
    Reader(general.os.environ[VARIABLE]).close()


def test_no_memory_for_a_channel_is_said_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> str:
        raise NoChannel("no shared memory: full")

    monkeypatch.setenv("VLLM_PLUGINS", "forkgate")
    monkeypatch.setattr(general, "create", refuse)
    general.register()
    assert "no shared memory: full" in caplog.text
    processor = BatchProcessor(CONFIG, None, False)
    processor.update_state(UPDATE)
    assert processor._rows is None
    assert "no batch facts from this engine core" in caplog.text


def test_with_speculative_decoding_nobody_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, create())
    drafting = types.SimpleNamespace(speculative_config=object())
    assert BatchProcessor(drafting, None, False)._rows is None


def test_the_older_runners_batch_reaches_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, create())
    reader = Reader(general.os.environ[VARIABLE])
    processor = BatchProcessor(CONFIG, None, False)
    processor.update_state(None)
    processor.update_state(UPDATE)
    logits = object()
    assert processor.apply(logits) is logits
    assert processor.is_argmax_invariant()
    told: list[Any] = []
    reader.drain(lambda *record: told.append(record[1:]))
    assert told == [(0, 1, 0, 0)]


@pytest.mark.parametrize(
    "broken",
    [
        types.SimpleNamespace(),  # an interface of another shape
        types.SimpleNamespace(batch_size=1, removed=[], moved=[], added=[(0, None, None, None)]),
        types.SimpleNamespace(batch_size=-1, removed=[], moved=[], added=UPDATE.added),
    ],
)
def test_a_batch_that_cannot_be_followed_ends_the_watching_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: Any
) -> None:
    monkeypatch.setenv(VARIABLE, create())
    processor = BatchProcessor(CONFIG, None, False)
    with caplog.at_level(logging.ERROR):
        processor.update_state(broken)
        processor.update_state(UPDATE)
    assert caplog.text.count("no more batch facts from this engine core") == 1
    assert processor._rows is None


def test_steps_of_the_newer_runner_that_cannot_be_followed_do_not_either(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, create())
    states = types.SimpleNamespace(prompt_len=types.SimpleNamespace(np=[1]))
    processor = BatchProcessor(CONFIG, states)
    assert processor.add_request(0, types.SimpleNamespace(extra_args={MARK: "a"}))
    logits = object()
    assert processor.apply(logits, types.SimpleNamespace()) is logits
    assert not processor.add_request(0, types.SimpleNamespace(extra_args={MARK: "a"}))
    assert caplog.text.count("no more batch facts from this engine core") == 1


# -- the API server ---------------------------------------------------------------------------------


class App:
    """The part of FastAPI's application that is used; ``built``: vLLM's hosting standards came first."""

    def __init__(self, *, built: bool) -> None:
        self.mounted: dict[str, Any] = {}
        self.middleware_stack: Any = self.build_middleware_stack() if built else None

    def build_middleware_stack(self) -> Any:
        async def stack(_scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        return stack

    def mount(self, path: str, app: Any) -> None:
        self.mounted[path] = app


class Client:
    vllm_config = CONFIG

    def __init__(self, told: Any) -> None:
        self._told = told

    async def collective_rpc(self, method: str) -> Any:
        assert method == capture.METHOD
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


async def answers(app: App, path: str) -> tuple[list[Any], list[Any]]:
    """An ordinary answer's messages, and those of one of ours."""
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    found: list[list[Any]] = []
    for one in (app.middleware_stack, app.mounted["/forkgate"]):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await one(scope, None, send)
        found.append(sent)
    return found[0], found[1]


@pytest.mark.parametrize("built", [True, False])
def test_a_server_stamps_with_what_its_workers_told(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, create())
    app, plugin = App(built=built), ForkgateEndpoint()

    async def main() -> tuple[list[Any], list[Any]]:
        plugin.attach_router(app)
        await plugin.init_state(Client([json.dumps({"cpu.threads": 5})]), None, None)
        return await answers(app, "/forkgate/identity")

    plain, ours = asyncio.run(main())
    record = from_json(json.loads(ours[1]["body"]))
    assert isinstance(app.middleware_stack, Stamp)
    assert plain[0]["headers"] == [(b"x-forkgate-environment", record.digest.encode())]
    assert record.fields["cpu.threads"] == 5


@pytest.mark.parametrize("told", [RuntimeError("no such method"), [], ["not json"], None])
def test_a_capture_that_fails_leaves_a_server_that_serves(
    told: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app, plugin = App(built=True), ForkgateEndpoint()

    async def main() -> tuple[list[Any], list[Any]]:
        plugin.attach_router(app)
        await plugin.init_state(Client(told), None, None)
        return await answers(app, "/forkgate/identity")

    plain, ours = asyncio.run(main())
    assert plain[0]["headers"] == []
    assert ours[0]["status"] == 404
    assert b"could not be captured" in ours[1]["body"]
    assert "no answer of this server will carry a digest" in caplog.text
