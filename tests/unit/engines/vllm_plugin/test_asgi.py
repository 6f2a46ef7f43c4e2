"""The stamp and the routes, as plain ASGI: bodies untouched, nothing held back, nothing left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engines.identity import Identity
from engines.identity.record import from_json
from engines.vllm_plugin.asgi import Routes, Stamp, Told
from engines.vllm_plugin.book import Trouble
from engines.vllm_plugin.channel import Writer, create
from engines.vllm_plugin.follower import Follower
from engines.vllm_plugin.marks import key_of
from tests.support.waiting import LIMIT_S

IDENTITY = Identity(fields={"engine.name": "vllm", "precision.dtype": "float32"})
DIGEST = IDENTITY.digest.encode()
MARKED = ((b"x-forkgate-shadow", b"1"), (b"x-request-id", b"c1/baseline/0"))
SSE = ((b"content-type", b"text/event-stream"),)


def scope(
    *headers: tuple[bytes, bytes], method: str = "POST", path: str = "/v1/completions"
) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "headers": [*headers],
    }


async def nothing() -> Any:
    raise AssertionError("nobody may read the request's body but the application")


async def call(app: Any, asked: dict[str, Any], receive: Any = nothing) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(asked, receive, send)
    return sent


def app_of(*messages: dict[str, Any]) -> Callable[..., Awaitable[None]]:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    return app


def known(channel: str | None = None) -> Told:
    told = Told()
    told.know(IDENTITY)
    told.follower = Follower(channel)
    return told


START = {"type": "http.response.start", "status": 200, "headers": [*SSE]}
CHUNKS = [
    {"type": "http.response.body", "body": b"data: %d\n\n" % one, "more_body": True} for one in range(3)
]
END = {"type": "http.response.body", "body": b""}


def test_an_answer_gets_one_header_and_keeps_every_event_as_it_was() -> None:
    sent = asyncio.run(call(Stamp(app_of(START, *CHUNKS, END), known()), scope()))
    assert sent[0]["headers"] == [*SSE, (b"x-forkgate-environment", DIGEST)]
    assert START["headers"] == [*SSE]  # the application's own message is not written to
    assert all(one is other for one, other in zip(sent[1:], [*CHUNKS, END], strict=True))


def test_each_event_goes_on_before_the_next_is_made() -> None:
    order: list[str] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for place, message in enumerate([START, *CHUNKS, END]):
            order.append(f"made {place}")
            await send(message)

    async def main() -> None:
        async def send(_message: Any) -> None:
            order.append("gone")

        await Stamp(app, known())(scope(), nothing, send)

    asyncio.run(main())
    assert order == [word for place in range(5) for word in (f"made {place}", "gone")]


def test_a_digest_that_somebody_else_put_there_is_replaced() -> None:
    false = {**START, "headers": [(b"X-Forkgate-Environment", b"sha256:0"), *SSE]}
    sent = asyncio.run(call(Stamp(app_of(false), known()), scope()))
    assert sent[0]["headers"] == [*SSE, (b"x-forkgate-environment", DIGEST)]


def test_refusals_carry_it_too_and_unknown_identities_carry_none() -> None:
    refusal = {"type": "http.response.start", "status": 401, "headers": []}
    assert asyncio.run(call(Stamp(app_of(refusal), known()), scope()))[0]["headers"]
    assert asyncio.run(call(Stamp(app_of(refusal), Told()), scope()))[0] is refusal


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_request_passes_as_it_is(kind: str) -> None:
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.extend(given)

    async def send(_message: Any) -> None:
        raise AssertionError

    asyncio.run(Stamp(app, known())({"type": kind}, nothing, send))
    assert seen == [{"type": kind}, nothing, send]


def test_a_marked_request_is_followed_from_head_to_end() -> None:
    channel = create()
    told, writer = known(channel), Writer(channel)
    key = key_of("c1/baseline/0")
    assert key is not None

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        writer.write(key, 0, 4, 2)
        await send(START)
        writer.write(key, 3, 5, 2)
        await send(END)

    async def main() -> list[dict[str, Any]]:
        await call(Stamp(app, told), scope(*MARKED))
        path = "/forkgate/batch/c1%2Fbaseline%2F0"
        return await call(Routes(told), scope(method="GET", path=path))

    sent = asyncio.run(main())
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["runs"] == [[0, 4, 2], [3, 5, 2]]
    assert told.follower is not None
    assert len(told.follower.book) == 0


@pytest.mark.parametrize(
    "headers",
    [
        (),
        MARKED[:1],
        MARKED[1:],
        ((b"x-forkgate-shadow", b"0"), MARKED[1]),
        (MARKED[0], (b"x-request-id", b"\xff\xfe")),
        (MARKED[0], (b"x-request-id", b"")),
    ],
)
def test_others_are_not(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    told = known(create())

    async def main() -> None:
        await call(Stamp(app_of(START, END), told), scope(*headers))

    asyncio.run(main())
    assert told.follower is not None
    assert len(told.follower.book) == 0


@pytest.mark.parametrize("trouble", [RuntimeError("broken"), asyncio.CancelledError()])
def test_an_answer_that_breaks_off_ends_its_entry(trouble: BaseException) -> None:
    told = known(create())

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send(START)
        raise trouble

    async def main() -> None:
        with pytest.raises(type(trouble)):
            await call(Stamp(app, told), scope(*MARKED))

    asyncio.run(main())
    assert told.follower is not None
    assert (told.follower.book.open_requests, len(told.follower.book)) == (0, 1)


def test_a_server_without_a_channel_answers_all_the_same_and_says_why() -> None:
    told = known("/nowhere")

    async def main() -> list[dict[str, Any]]:
        assert len(await call(Stamp(app_of(START, END), told), scope(*MARKED))) == 2
        return await call(Routes(told), scope(method="GET", path="/forkgate/batch/c1/baseline/0"))

    assert json.loads(asyncio.run(main())[1]["body"])["unknown"] == Trouble.DEAF


def test_an_overrun_channel_spoils_what_ran_meanwhile() -> None:
    channel = create()
    told, writer = known(channel), Writer(channel)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for _ in range(20_000):
            writer.write(bytes(16), 0, 1, 0)
        await send(START)

    async def main() -> list[dict[str, Any]]:
        await call(Stamp(app, told), scope(*MARKED))
        return await call(Routes(told), scope(method="GET", path="/forkgate/batch/c1/baseline/0"))

    assert json.loads(asyncio.run(main())[1]["body"])["unknown"] == Trouble.LOST


def test_a_long_answer_is_listened_to_while_it_runs_and_nothing_ticks_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engines.vllm_plugin.follower.LISTEN_S", 0.001)
    channel = create()
    told, writer = known(channel), Writer(channel)
    key = key_of("c1/baseline/0")
    assert key is not None
    assert told.follower is not None
    follower = told.follower
    rounds = 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal rounds
        for rounds in range(4):  # more than the ring holds, in all
            for place in range(6000):
                writer.write(key if place == 0 else bytes(16), rounds, rounds + 1, 0)
            async with asyncio.timeout(LIMIT_S):
                while follower._reader is not None and follower._reader._seen[0] < (rounds + 1) * 6000:
                    await asyncio.sleep(0)
        await send(END)

    async def main() -> dict[str, Any]:
        await call(Stamp(app, told), scope(*MARKED))
        found = follower.take("c1/baseline/0")
        async with asyncio.timeout(LIMIT_S):
            while follower._timer is not None:
                await asyncio.sleep(0.001)
        return found

    assert asyncio.run(main())["runs"] == [[place, place + 1, 0] for place in range(4)]
    assert rounds == 3


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/forkgate/identity", 200),
        ("GET", "/prefix/forkgate/identity", 200),
        ("GET", "/forkgate/batch/unknown", 404),
        ("GET", "/forkgate/batch/", 404),
        ("GET", "/forkgate/batch/%FF%00%0d%0a", 404),
        ("GET", "/forkgate/batch/" + "x" * 10_000, 404),
        ("GET", "/forkgate/", 404),
        ("GET", "/forkgate/identity/more", 404),
        ("POST", "/forkgate/identity", 405),
        ("DELETE", "/forkgate/batch/a", 405),
    ],
)
def test_routes(method: str, path: str, status: int) -> None:
    start, body = asyncio.run(call(Routes(known()), scope(method=method, path=path)))
    assert start["status"] == status
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])
    told = json.loads(body["body"])
    assert "error" in told or from_json(told).digest == IDENTITY.digest


def test_an_identity_that_could_not_be_captured_says_why() -> None:
    told = Told()
    told.trouble = "the environment could not be captured: OSError: no"
    start, body = asyncio.run(call(Routes(told), scope(method="GET", path="/forkgate/identity")))
    assert (start["status"], json.loads(body["body"])["error"]["message"]) == (404, told.trouble)
