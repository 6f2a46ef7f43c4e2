"""vLLM's adapter against a server with our plugin in it, honest or not: its record, its marks, its steps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from comparator.records import Fact
from engines import open_engine, openai
from engines.base import OF_ONE_ANSWER, Call, CallKind, Engine, EngineInvalid, EngineOptions, Finish
from engines.identity import Identity, UnknownField
from engines.openai import steps_facts
from engines.vllm_plugin.marks import MARK
from tests.support.fake_vllm import FakeVllm
from tests.support.waiting import LIMIT_S
from tests.unit.engines.test_vllm import SAMPLING, collected, prompt_of

RECORD = Identity(
    fields={
        "engine.name": "vllm",
        "precision.dtype": "bfloat16",
        "sampler.order": ["temperature", "top_k"],
        "sampler.logprobs_mode": "raw_logprobs",
        "artifact.digest": UnknownField("nobody hashed it"),
        "os.kernel": "6.1",
    }
)


class Plugged(FakeVllm):
    """It tells ``answer`` once for each request that came with a mark; ``lies`` say what else."""

    def __init__(self, *lies: str, answer: Any = None) -> None:
        super().__init__(*lies, digest=None if "no header" in lies else RECORD.digest)
        self.answer = {"runs": [[0, 1, 0], [2, 3, 1]]} if answer is None else answer
        self.told: list[str] = []
        self.stalled = asyncio.Event()

    def app(self) -> web.Application:
        app = super().app()
        if "no record" not in self.lies:
            app.add_routes([web.get("/forkgate/identity", self._identity)])
        app.add_routes([web.get("/forkgate/batch/{id:.+}", self._batch)])
        return app

    def marks(self) -> list[str]:
        found = (
            body.get("vllm_xargs") or body.get("sampling_params", {}).get("extra_args") or {}
            for _, body in self.requests
        )
        return [one[MARK] for one in found if MARK in one]

    async def _identity(self, _request: web.Request) -> web.Response:
        document = RECORD.to_json()
        if "forged record" in self.lies:
            document["fields"]["precision.dtype"] = "float32"
        return web.json_response(document)

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["id"]
        if "stalls" in self.lies:
            await self.stalled.wait()
        if isinstance(self.answer, int):
            return web.json_response({"error": {"message": "no"}}, status=self.answer)
        if name not in self.marks() or name in self.told:
            return web.json_response({"error": {"message": "no marked request"}}, status=404)
        self.told.append(name)
        return web.Response(text=self.answer if isinstance(self.answer, str) else json.dumps(self.answer))


def with_server(server: FakeVllm, use: Callable[[Engine], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with server.serving(), asyncio.timeout(LIMIT_S):
            engine = open_engine(server.url, EngineOptions(kind="vllm"))
            try:
                return await use(engine)
            finally:
                await engine.close()

    return asyncio.run(main())


async def finish_of(engine: Engine, **changes: Any) -> Finish:
    await engine.probe()
    _, parts = await collected(engine, prompt_of(**changes))
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return finish


def test_the_probe_tells_what_the_record_tells() -> None:
    probe = with_server(Plugged(), lambda engine: engine.probe())
    assert probe.facts["environment_digest"] == Fact(value=RECORD.digest)
    assert probe.facts["dtype"] == probe.facts["identity.precision.dtype"] == Fact(value="bfloat16")
    assert probe.facts["processor_order"] == Fact(value=["temperature", "top_k"])
    assert probe.facts["logprobs_mode"] == Fact(value="raw_logprobs")
    assert probe.facts["artifact_digest"] == Fact(unknown="nobody hashed it")
    assert "identity.os.kernel" not in probe.facts  # told by the digest; facts stand in every exchange
    assert OF_ONE_ANSWER.isdisjoint(probe.facts)


def test_whoever_wants_it_gets_the_record_itself() -> None:
    assert with_server(Plugged(), lambda engine: engine.own_record()) == RECORD  # type: ignore[attr-defined]
    assert with_server(FakeVllm(), lambda engine: engine.own_record()) is None  # type: ignore[attr-defined]


def test_a_record_that_was_changed_is_refused() -> None:
    with pytest.raises(EngineInvalid, match="it was changed after it was made"):
        with_server(Plugged("forged record"), lambda engine: engine.probe())


def test_each_answer_tells_its_digest_and_each_tokens_batch() -> None:
    server = Plugged()
    finish = with_server(server, lambda engine: finish_of(engine, exchange_id="c1/candidate/0"))
    assert server.told[-1] == "c1/candidate/0"
    assert finish.facts["environment_digest"] == Fact(value=RECORD.digest)
    assert finish.facts["batch_size"] == Fact(value=[1, 1, 3, 3, 3, 3])
    assert finish.facts["batch_place"] == Fact(value=[0, 0, 1, 1, 1, 1])
    # The record's facts are the probe's: they fall where another environment answers by now.
    assert "dtype" not in finish.facts
    # Every generation that ended was marked by its own name, the probe's too, and asked for once.
    assert len(server.told) == len(set(server.told)) > 5


def test_an_answer_without_the_header_proves_nothing_whatever_the_probe_saw() -> None:
    finish = with_server(Plugged("no header"), finish_of)
    assert finish.facts["environment_digest"].value is None


def test_a_mark_stands_beside_what_the_client_sent() -> None:
    server = Plugged()
    sampling = SAMPLING.__class__(
        **{
            **{name: getattr(SAMPLING, name) for name in SAMPLING.__struct_fields__},
            "extra": {"vllm_xargs": {"mine": 1}},
        }
    )
    with_server(server, lambda engine: finish_of(engine, sampling=sampling))
    assert server.requests[-1][1]["vllm_xargs"] == {"mine": 1, MARK: "x1"}


def test_a_call_that_goes_as_itself_is_marked_too() -> None:
    server = Plugged()
    call = Call(
        kind=CallKind.CHAT,
        body={"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"mine": 2}},
        model="m",
    )
    finish = with_server(server, lambda engine: finish_of(engine, call=call))
    assert server.requests[-1][1]["vllm_xargs"] == {"mine": 2, MARK: "x1"}
    assert finish.facts["batch_size"].value == [1, 1, 3, 3, 3, 3]


def test_the_token_route_carries_the_mark_in_its_own_words() -> None:
    server = Plugged("no completions")
    with_server(server, finish_of)
    path, body = server.requests[-1]
    assert path == "/inference/v1/generate"
    assert body["sampling_params"]["extra_args"] == {MARK: "x1"}


def test_a_server_without_the_plugin_is_sent_no_mark_and_asked_nothing() -> None:
    server = Plugged("no record")
    finish = with_server(server, finish_of)
    assert server.marks() == []
    assert finish.facts["batch_size"].unknown == "vLLM tells this only to a plugin inside the engine"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (404, "HTTP 404"),
        (503, "HTTP 503"),
        ("not json", "malformed"),
        ({"runs": "x"}, "Expected `array`"),
        ({"runs": [[0, 1]]}, "length 3"),
        ({"runs": []}, "the plugin saw no step"),
        ({"runs": [[1, 1, 0]]}, "in no order"),
        ({"runs": [[0, 1, 0], [0, 2, 0]]}, "in no order"),
        ({"unknown": "two requests had this ID at a time"}, "two requests had this ID"),
    ],
)
def test_steps_that_cannot_be_known_cost_no_answer_and_say_why(answer: Any, words: str) -> None:
    finish = with_server(Plugged(answer=answer), finish_of)
    assert finish.finish_reason == "length"
    for name in ("batch_size", "batch_place"):
        assert finish.facts[name].value is None
        assert words in str(finish.facts[name].unknown)


def test_a_server_that_does_not_tell_them_in_time_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai, "_STEPS_S", 0.02)
    finish = with_server(Plugged("stalls"), finish_of)
    assert "did not tell it within 0.02 s" in str(finish.facts["batch_size"].unknown)


def test_a_pass_too_many_is_no_token() -> None:
    told = steps_facts([(0, 1, 0), (2, 2, 0), (3, 5, 1)], 3)
    assert told == {"batch_size": Fact(value=[1, 1, 2]), "batch_place": Fact(value=[0, 0, 0])}
    assert steps_facts([(0, 4, 2)], 0)["batch_size"] == Fact(value=[])
