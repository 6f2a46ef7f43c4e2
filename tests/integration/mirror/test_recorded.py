"""The mirror with the engines that cannot run here: one whole comparison each, over recorded exchanges.

The recorded exchanges are the engines' own; what the capture decides (IDs, seed, limits) is put in their
places, and the replaying server holds every request to the letter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain
from typing import Any

import orjson
import pytest
import uvloop

from comparator.records import Outcome
from engines import EngineOptions, open_engine
from engines.base import Capability
from tests.support.engines import FakeEndpoint, probe
from tests.support.lying import FakeSglang, FakeTensorRtLlm
from tests.support.mirror import Rig, rig
from tests.support.recorded import RecordedServer, exchanges

MESSAGES = [{"role": "user", "content": "hi"}]
CAPTURED: dict[str, Any] = {
    "target": "/v1/chat/completions",
    "body": orjson.dumps({"model": "m", "messages": MESSAGES, "max_tokens": 4, "temperature": 0.7}),
}
ANY = {"$any": "string"}
NO_LOGPROBS = frozenset(Capability) - {Capability.LOGPROBS, Capability.PRIORITY, Capability.CACHE_SALT}
SEEN = frozenset(Capability) - {Capability.PRIORITY}


@asynccontextmanager
async def recorded_rig(
    kind: str, left: RecordedServer, right: RecordedServer, has: frozenset[Capability], **settings: Any
) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        endpoints = []
        for server in (left, right):
            await stack.enter_async_context(server.serving())
            engine = open_engine(server.url, EngineOptions(kind=kind))
            stack.push_async_callback(engine.close)
            engine.active = 0  # type: ignore[attr-defined]
            endpoints.append(FakeEndpoint(engine, probe(has)))
        yield await stack.enter_async_context(rig(*endpoints, logprobs=2, **settings))


def sglang(ids: list[int] | None = None) -> RecordedServer:
    """Encode a chat to four tokens and answer with four; ``ids`` in place of the recorded ones."""
    generate = exchanges("sglang", "logprobs")[0]
    body, events = generate["request"]["body"], generate["response"]["events"]
    body |= {"rid": ANY, "cache_salt": ANY, "input_ids": [1, 2, 3, 4]}
    body["sampling_params"]["sampling_seed"] = {"$any": "integer"}
    for event in events[:-1]:
        event["prompt_token_ids"] = [1, 2, 3, 4]
        event["meta_info"]["prompt_tokens"] = 4
    if ids is not None:
        renamed = dict(zip([11, 12, 13, 14], ids, strict=True))
        for event in events[:-1]:
            event["output_ids"] = [renamed[one] for one in event["output_ids"]]
            meta = event["meta_info"]
            for entry in chain(meta["output_token_logprobs"], *meta["output_top_logprobs"]):
                entry[1] = renamed.get(entry[1], entry[1])
    return RecordedServer(*exchanges("sglang", "models", "server_info", "encode", "metrics"), generate)


def tensorrt_llm(ids: list[int] | None = None) -> RecordedServer:
    generate = exchanges("tensorrt_llm", "seed")[0]
    body, events = generate["request"]["body"], generate["response"]["events"]
    body |= {"prompt": [1, 2, 3, 4], "seed": {"$any": "integer"}}
    events[-2]["usage"]["prompt_tokens"] = 4
    if ids is not None:
        events[0]["choices"][0]["token_ids"] = ids
    return RecordedServer(*exchanges("tensorrt_llm", "models", "encode", "metrics"), generate)


def sent(server: RecordedServer) -> dict[str, Any]:
    """The one generation that it was asked for."""
    (body,) = [body for _, body in server.requests if body is not None and "stream" in body]
    return dict(body)


@pytest.mark.parametrize("drip_bytes", [None, 3])
def test_two_sglang_servers_make_one_whole_comparison(drip_bytes: int | None) -> None:
    async def main() -> None:
        left, right = sglang(), sglang([11, 12, 98, 99])
        left.drip_bytes = drip_bytes
        async with recorded_rig("sglang", left, right, SEEN) as made:
            pair = await made.pair(**CAPTURED)
            assert pair.valid
            assert pair.fork is not None
            assert (pair.fork.fork_index, pair.left.token_ids[2], pair.right.token_ids[2]) == (2, 13, 98)
            assert pair.left.prompt_token_ids == (1, 2, 3, 4)
            assert pair.left.steps[0].top_ids == (11, 91)
            assert pair.left.outcome is Outcome.COMPLETED
            bodies = [sent(server) for server in (left, right)]
            assert bodies[0]["sampling_params"] == bodies[1]["sampling_params"]
            assert bodies[0]["sampling_params"]["sampling_seed"] == pair.left.sampling.seed
            assert bodies[0]["cache_salt"] != bodies[1]["cache_salt"]

    uvloop.run(main())


def test_two_tensorrt_llm_servers_make_one_whole_comparison() -> None:
    async def main() -> None:
        left, right = tensorrt_llm(), tensorrt_llm([11, 12, 98, 99])
        async with recorded_rig("tensorrt_llm", left, right, NO_LOGPROBS) as made:
            pair = await made.pair(**CAPTURED)
            assert pair.valid
            assert pair.fork is not None
            assert (pair.fork.fork_index, pair.left.token_ids) == (2, (11, 12, 13, 14))
            assert pair.left.prompt_token_ids == (1, 2, 3, 4)
            assert pair.left.steps[0].top_ids == ()
            bodies = [sent(server) for server in (left, right)]
            assert bodies[0] == bodies[1]
            assert bodies[0]["seed"] == pair.left.sampling.seed

    uvloop.run(main())


@pytest.mark.parametrize(
    ("kind", "lying", "words"),
    [
        ("sglang", FakeSglang("another prompt", pause_s=0.001), "it ran another prompt"),
        ("tensorrt_llm", FakeTensorRtLlm("another length", pause_s=0.001), "it ran another prompt"),
    ],
)
def test_a_candidate_that_runs_another_prompt_makes_no_valid_pair(
    kind: str, lying: RecordedServer, words: str
) -> None:
    async def main() -> None:
        honest = type(lying)(pause_s=0.001)
        async with recorded_rig(kind, honest, lying, NO_LOGPROBS) as made:
            pair = await made.pair(**CAPTURED)
            assert not pair.valid
            assert pair.right.outcome is Outcome.INVALID
            assert words in (pair.right.error or "")

    uvloop.run(main())
