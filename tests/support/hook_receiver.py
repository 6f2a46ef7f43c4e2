"""A receiver of hooks on a real socket that answers as it is told: slowly, wrongly, hugely, not at all."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tests.support.waiting import LIMIT_S

Answer = bytes | str
"""Bytes are sent as they are; ``hang`` says nothing, ``close`` closes, ``endless`` never stops."""


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


ALLOW = answer(200, b'{"allow": true}')


@dataclass
class Received:
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HookReceiver:
    """Answers the first request with the first of ``answers``, and every one after the last with that."""

    answers: list[Answer]
    requests: list[Received] = field(default_factory=list)
    sent_bytes: int = 0
    port: int = 0
    scheme: str = "http"
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that a request makes true."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._more.clear()
                await self._more.wait()

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[HookReceiver]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        self.scheme = "http" if tls is None else "https"
        try:
            yield self
        finally:
            self._released.set()
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            said = self.answers[min(len(self.requests), len(self.answers) - 1)]
            self.requests.append(Received(head[0].split(" ")[1], headers, body))
            self._more.set()
            await self._say(said, writer)
        writer.close()

    async def _say(self, said: Answer, writer: asyncio.StreamWriter) -> None:
        if said == "hang":
            await self._released.wait()
        elif said == "endless":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()
                self.sent_bytes += 65_536
        elif isinstance(said, bytes):
            writer.write(said)
            await writer.drain()
