"""An engine stub for fault tests: :class:`FakeVllm` that also breaks at the level of HTTP, and can be killed.

``python -m tests.support.saboteur NAME [PORT]`` serves one in a process of its own (a JSON line on standard
output tells the port); :class:`StubProcess` starts, kills and restarts it on the same port.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from engines.headers import REQUEST_ID_HEADER
from tests.support.fake_vllm import FakeVllm
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
TRICKLE_S = 0.7


class Saboteur(FakeVllm):
    """Lies of its own, for shadow requests (they come as tokens) or, with ``live:`` before it, live ones.

    ``stalls``: never a byte. ``answers 500``. ``garbage``: bytes that are no event stream. ``half way``: the
    connection is reset after two tokens. ``endless``: tokens without end, whatever was asked. ``trickles``: a
    token of a copy's every 0.7 s. ``half closed``: its side of the connection is closed, the other is left
    open, after two tokens of a copy, before the first byte of a live answer. ``holds checks``: what a check
    asks is answered once this is taken back.
    """

    def __init__(self, name: str, *lies: str, pause_s: float = 0.0) -> None:
        super().__init__(*lies, pause_s=pause_s)
        self.name = name
        self.live = 0
        self.shadow = 0
        self.live_running = 0
        self.held = 0
        """Requests of checks that wait."""
        self._told = asyncio.Event()

    def obey(self, lies: list[str] | None, pause_s: float | None) -> None:
        """Behave so from now on; None: as before."""
        self.lies = self.lies if lies is None else set(lies)
        self.pause_s = self.pause_s if pause_s is None else pause_s
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def _hold(self) -> None:
        self.held += 1
        try:
            while self.lies_about("holds checks"):
                await self._told.wait()
        finally:
            self.held -= 1

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        shadow = not isinstance(body.get("prompt", body.get("messages")), str)
        # The requests are counted, not kept: this stub lives under load.
        self.requests.clear()
        self.headers.clear()
        self.shadow += shadow
        self.live += not shadow
        if request.headers.get(REQUEST_ID_HEADER, "").startswith("check/"):
            await self._hold()
        prefix = "" if shadow else "live:"
        if self.lies_about(prefix + "answers 500"):
            return web.json_response({"error": {"message": "EngineCore died"}}, status=500)
        if self.lies_about(prefix + "answers 503"):
            return web.json_response({"error": {"message": "overloaded"}}, status=503)
        if self.lies_about(prefix + "stalls"):
            await asyncio.sleep(3600)
        if self.lies_about(prefix + "garbage"):
            return web.Response(body=b"\x00\xff{]data: nonsense\n\n" * 50, content_type="text/event-stream")
        if self.lies_about(prefix + "half way") or self.lies_about(prefix + "endless"):
            return await self._break(request, body, endless=self.lies_about(prefix + "endless"))
        if self.lies_about(prefix + "half closed"):
            return await self._half_close(request, body, tokens=2 if shadow else 0)
        if shadow and self.lies_about("trickles"):
            return await self._trickle(request, body)
        self.live_running += not shadow
        try:
            return await super()._generate(request)
        finally:
            self.live_running -= not shadow

    async def _break(
        self, request: web.Request, body: dict[str, Any], *, endless: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        params = body.get("sampling_params", body)
        more = {**params, "max_tokens": 10**9}
        events = self._events(request.path, {**body, "sampling_params": more, "max_tokens": 10**9}, more)
        self.running += 1
        try:
            for place, event in enumerate(events):
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                if place == 2 and not endless:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                if place % 16 == 0:
                    await asyncio.sleep(0.001)
        finally:
            self.running -= 1
        return response

    async def _half_close(
        self, request: web.Request, body: dict[str, Any], *, tokens: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        if tokens:
            await response.prepare(request)
            events = self._events(request.path, body, body.get("sampling_params", body))
            for event in itertools.islice(events, tokens):
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        assert request.transport is not None
        request.transport.write_eof()
        await asyncio.sleep(3600)
        return response

    async def _trickle(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in self._events(request.path, body, body.get("sampling_params", body)):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(TRICKLE_S)
        await response.write(b"data: [DONE]\n\n")
        return response


async def _control(stub: Saboteur, request: web.Request) -> web.Response:
    told = json.loads(await request.read())
    stub.obey(told.get("lies"), told.get("pause_s"))
    return web.json_response(
        {
            "live": stub.live,
            "shadow": stub.shadow,
            "live_running": stub.live_running,
            "held": stub.held,
        }
    )


async def _serve(name: str, port: int, lies: list[str]) -> None:
    stub = Saboteur(name, *lies)
    app = stub.app()
    app.add_routes([web.post("/control", lambda request: _control(stub, request))])

    async def signed(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-engine"] = name
        seen = repr((request.raw_path, request.raw_headers, await request.read()))
        response.headers["x-seen"] = hashlib.sha256(seen.encode()).hexdigest()

    app.on_response_prepare.append(signed)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    sys.stdout.write(json.dumps({"port": runner.addresses[0][1]}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


class StubProcess:
    """A :class:`Saboteur` in a process of its own, always on the same port."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.lies: list[str] = []
        self.pause_s = 0.0
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.saboteur",
            self.name,
            str(self.port),
            *self.lies,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # aiohttp's words about clients that left
        )
        assert self._process.stdout is not None
        self.port = json.loads(await self._process.stdout.readline())["port"]
        if self.pause_s:
            await self.set(*self.lies, pause_s=self.pause_s)

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: its port takes connections, and nothing is read or answered until :meth:`thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def set(self, *lies: str, pause_s: float | None = None) -> dict[str, int]:
        """Tell it how to behave from now on, also after a restart; its counts come back."""
        self.lies = list(lies)
        self.pause_s = self.pause_s if pause_s is None else pause_s
        return await self._tell({"lies": self.lies, "pause_s": self.pause_s})

    async def counts(self) -> dict[str, int]:
        return await self._tell({})

    async def _tell(self, words: dict[str, Any]) -> dict[str, int]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/control", json=words) as response,
        ):
            counts: dict[str, int] = await response.json()
            return counts


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
