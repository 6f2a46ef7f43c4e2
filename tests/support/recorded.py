"""A server that replays exchanges of an engine that cannot run here, and checks every request to the letter.

A fixture (``tests/data/engines/ENGINE/FEATURE.json``) holds one feature's exchanges, its field names, nesting
and types as the engine's own source or documents give them; ``source`` names file, commit or release, and
place. Values are examples. A request matches an exchange when method, path and whole body are equal; an
expected ``{"$any": "string"}`` stands for any value of that JSON type. A request that matches none is a
fault, and a fault fails the test that used the server.

:class:`Adapter` is what the tests of an engine's adapter do with such a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
from aiohttp import web

from comparator.records import Sampling, Step
from engines import open_engine
from engines.base import Call, CallKind, Engine, EngineOptions, Finish, Prompt, Steps
from tests.support.waiting import LIMIT_S, eventually

DATA = Path(__file__).parents[1] / "data" / "engines"
_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float)}
SAMPLING = Sampling(max_tokens=4, temperature=0.7, seed=5)
"""Of the requests in the fixtures, as :data:`PROMPT` is their prompt."""
PROMPT = Prompt(exchange_id="x1", model="m", token_ids=(4, 5, 6), sampling=SAMPLING, cache_salt="salt")
DEEP = msgspec.structs.replace(PROMPT, sampling=msgspec.structs.replace(SAMPLING, logprobs=2))


def fixture(engine: str, feature: str) -> dict[str, Any]:
    """One fixture as it lies on disk."""
    loaded: dict[str, Any] = json.loads((DATA / engine / f"{feature}.json").read_text(encoding="utf-8"))
    return loaded


def exchanges(engine: str, *features: str) -> list[dict[str, Any]]:
    """Their exchanges, in order."""
    return [one for feature in features for one in fixture(engine, feature)["exchanges"]]


def stream_bytes(events: list[Any]) -> bytes:
    """Server-sent events as these engines write them."""
    return b"".join(b"data: " + _text_of(event).encode() + b"\n\n" for event in events)


def differences(expected: Any, sent: Any, where: str = "body") -> Iterator[str]:
    """Where what was sent is not what the fixture says, in words."""
    if isinstance(expected, dict) and expected.keys() == {"$any"}:
        kind = _TYPES[expected["$any"]]
        if not isinstance(sent, kind) or isinstance(sent, bool):
            yield f"{where}: {sent!r} is no {expected['$any']}"
    elif isinstance(expected, dict) and isinstance(sent, dict):
        for name in sorted(expected.keys() | sent.keys()):
            if name not in sent:
                yield f"{where}.{name} is missing"
            elif name not in expected:
                yield f"{where}.{name} is not in the engine's request"
            else:
                yield from differences(expected[name], sent[name], f"{where}.{name}")
    elif type(expected) is not type(sent) or expected != sent:
        yield f"{where}: {sent!r} is sent for {expected!r}"


class RecordedServer:
    """Replays exchanges over real HTTP.

    Args:
        drip_bytes: write streams in pieces of this size, None for one write.
        pause_s: between two events of a stream.
    """

    def __init__(
        self, *replayed: dict[str, Any], drip_bytes: int | None = None, pause_s: float = 0.0
    ) -> None:
        self.exchanges = list(replayed)
        self.drip_bytes = drip_bytes
        self.pause_s = pause_s
        self.faults: list[str] = []
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.aborted = 0
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()
        assert not self.faults, "\n".join(self.faults)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        sent = json.loads(await request.read()) if request.can_read_body else None
        self.requests.append((request.path, sent))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return await self.reply(request, self._match(request.method, request.path, sent))

    async def reply(self, request: web.Request, told: dict[str, Any]) -> web.StreamResponse:
        """Write one recorded response."""
        if "events" in told:
            return await self._stream(request, told)
        body = told.get("text", json.dumps(told["body"]) if "body" in told else "")
        headers = told.get("headers", {"content-type": "application/json"})
        return web.Response(status=told["status"], headers=headers, body=body.encode())

    def _match(self, method: str, path: str, sent: Any) -> dict[str, Any]:
        nearest = f"{method} {path} is no request of the engine's"
        for one in self.exchanges:
            expected = one["request"]
            if (expected["method"], expected["path"]) != (method, path):
                continue
            found = list(differences(expected.get("body"), sent))
            if not found:
                response: dict[str, Any] = one["response"]
                return response
            nearest = f"{method} {path}: {'; '.join(found)}"
        self.faults.append(nearest)
        return {"status": 500, "body": {"error": {"message": nearest}}}

    async def _stream(self, request: web.Request, told: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(status=told["status"], headers=told["headers"])
        await response.prepare(request)
        try:
            for event in told["events"]:
                written = stream_bytes([event])
                size = self.drip_bytes or len(written)
                for start in range(0, len(written), size):
                    await response.write(written[start : start + size])
                    await asyncio.sleep(0)
                await asyncio.sleep(self.pause_s)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        return response


def _text_of(event: Any) -> str:
    return event if isinstance(event, str) else json.dumps(event)


def chat(**body: Any) -> Call:
    """A client's chat completion."""
    return Call(kind=CallKind.CHAT, body={"messages": [{"role": "user", "content": "hi"}], **body}, model="m")


async def collected(engine: Engine, prompt: Prompt = PROMPT) -> tuple[list[Step], Finish]:
    """All that a generation gives."""
    *parts, finish = [part async for part in engine.generate(prompt)]
    assert isinstance(finish, Finish)
    return [step for part in parts if isinstance(part, Steps) for step in part.steps], finish


class Adapter:
    """An adapter under test, opened on a recorded or lying server."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def use(self, server: RecordedServer, use: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
        """What ``use`` makes of the engine. The server's faults fail the test."""

        async def main() -> Any:
            async with server.serving(), asyncio.timeout(LIMIT_S):
                engine = open_engine(server.url, EngineOptions(kind=self.kind, **options))
                try:
                    return await use(engine)
                finally:
                    await engine.close()

        return asyncio.run(main())

    def generated(self, server: RecordedServer, prompt: Prompt = PROMPT) -> tuple[list[Step], Finish]:
        """One generation."""
        result: tuple[list[Step], Finish] = self.use(server, lambda engine: collected(engine, prompt))
        return result

    def leave_after_a_token(self, server: RecordedServer) -> None:
        """Close a generation early, and wait until the server has seen its client go."""

        async def use(engine: Engine) -> None:
            stream = engine.generate(PROMPT)
            await anext(stream)
            await stream.aclose()
            await eventually(lambda: server.aborted == 1)

        self.use(server, use)


def check_every_cut(written: bytes, read: Callable[..., list[Step]], token_ids: list[int]) -> None:
    """``read`` gives the same steps of a stream in one piece and in two, wherever it is cut."""
    whole = read(written)
    assert [step.token_id for step in whole] == token_ids
    for cut in range(1, len(written)):
        assert read(written[:cut], written[cut:]) == whole, cut
