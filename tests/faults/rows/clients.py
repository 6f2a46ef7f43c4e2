"""Clients that are the fault: ten thousand malformed requests, five thousand connections that say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.figures import Figures
from tests.faults.scene import CLIENTS, Scene, play
from tests.support.stack import Connection, request_bytes

MALFORMED = 10_000
AT_ONCE = 32
SEED = 20261130
IDLE = 5_000
HELD_S = 5.0

Make = Callable[[random.Random], bytes]


def _word(draw: random.Random) -> bytes:
    return bytes(draw.choices(b"abcdefghijklmnopqrstuvwxyz", k=draw.randint(1, 12)))


def _post(draw: random.Random, *lines: bytes, body: bytes = b"") -> bytes:
    head = [b"POST /v1/completions HTTP/1.1", b"host: " + _word(draw), b"x-tenant: acme", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


MALFORMATIONS: dict[str, Make] = {
    "bytes that are no HTTP": lambda draw: draw.randbytes(draw.randint(1, 400)).replace(b"\n", b"") + b"\n\n",
    "no method": lambda draw: b" /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n",
    "another protocol": lambda draw: b"GET / " + _word(draw).upper() + b"/9.9\r\nhost: x\r\n\r\n",
    "two spaces in the request line": lambda draw: b"GET  /" + _word(draw) + b"  HTTP/1.1\r\nhost: x\r\n\r\n",
    "a bare line feed": lambda draw: b"GET /v1/models HTTP/1.1\nhost: " + _word(draw) + b"\n\n",
    "no host": lambda draw: b"GET /" + _word(draw) + b" HTTP/1.1\r\n\r\n",
    "two hosts": lambda draw: b"GET / HTTP/1.1\r\nhost: a\r\nhost: " + _word(draw) + b"\r\n\r\n",
    "a space before the colon": lambda draw: _post(draw, _word(draw) + b" : x", b"content-length: 0"),
    "a folded line": lambda draw: _post(draw, b"x-a: b\r\n " + _word(draw), b"content-length: 0"),
    "a NUL in a value": lambda draw: _post(draw, b"x-a: b\0" + _word(draw), b"content-length: 0"),
    "a negative length": lambda draw: _post(draw, b"content-length: -%d" % draw.randint(1, 10**6)),
    "a length in words": lambda draw: _post(draw, b"content-length: " + _word(draw)),
    "two lengths": lambda draw: _post(
        draw, b"content-length: 5", b"content-length: %d" % draw.randint(6, 99), body=b"hello"
    ),
    "length and chunks": lambda draw: _post(
        draw, b"content-length: %d" % draw.randint(1, 99), b"transfer-encoding: chunked", body=b"0\r\n\r\n"
    ),
    "a coding nobody knows": lambda draw: _post(draw, b"transfer-encoding: " + _word(draw), body=b"x"),
    "chunked twice": lambda draw: _post(draw, b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "a head too large": lambda draw: _post(draw, b"x-a: " + b"a" * draw.randint(66_000, 80_000)),
    "too many fields": lambda draw: _post(draw, *(b"x-%d: a" % one for one in range(draw.randint(101, 300)))),
    "a chunk size in words": lambda draw: _post(
        draw, b"transfer-encoding: chunked", body=b"z" + _word(draw) + b"\r\nhello\r\n0\r\n\r\n"
    ),
}
"""None of them is a request, whatever the draw: each must be refused."""


async def malformed(figures: Figures, directory: Path) -> None:
    """Refused, each of them, and the connection closed."""

    async def act(it: Scene) -> None:
        host, port = it.one.url.removeprefix("http://").rsplit(":", 1)
        draw = random.Random(SEED)
        queue = [
            (name, MALFORMATIONS[name](draw))
            for name in (list(MALFORMATIONS)[number % len(MALFORMATIONS)] for number in range(MALFORMED))
        ]
        seen: Counter[str] = Counter()
        wrong: list[str] = []

        async def sender() -> None:
            while queue:
                name, request = queue.pop()
                found = await _refusal(host, int(port), request)
                seen[found] += 1
                if not (found == "closed" or 400 <= int(found) <= 505):
                    wrong.append(f"{name}: {found} for {request[:80]!r}")

        reached = await it.live_at_engines() - len(it.load.answers)
        async with it.fault():
            await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
        reached = await it.live_at_engines() - len(it.load.answers) - reached
        # Those of the load that are under way at either look are the difference that there may be.
        assert abs(reached) <= 2 * CLIENTS, f"{reached} malformed requests reached an engine"
        assert not wrong, f"{len(wrong)} were not refused: {wrong[:3]}"
        answers = ", ".join(f"{count} times {what}" for what, count in seen.most_common())
        it.figures.note = f"{answers}; none reached an engine"

    await play(figures, directory, act)


async def _refusal(host: str, port: int, request: bytes) -> str:
    """The status of the answer, or ``closed`` for none. Raises TimeoutError where the edge does neither."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(20):
            answer = b""
            with contextlib.suppress(OSError):
                writer.write(request)
                answer = await reader.read()  # to the end: it must close
        return answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"
    finally:
        writer.transport.abort()


async def idle(figures: Figures, directory: Path) -> None:
    """A third has said nothing, a third asked once and keeps its connection, a third stops in mid-head."""

    async def act(it: Scene) -> None:
        host, port = it.one.url.removeprefix("http://").rsplit(":", 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == resource.RLIM_INFINITY or hard > IDLE + 500, f"RLIMIT_NOFILE: {hard} is too low"
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, IDLE + 1_000)), hard))
        held: list[asyncio.StreamWriter] = []
        asked: list[Connection] = []
        try:
            async with it.fault():
                for begin in range(0, IDLE, 100):
                    await asyncio.gather(
                        *(_hold(host, int(port), number, held, asked) for number in range(begin, begin + 100))
                    )
                await asyncio.sleep(HELD_S)
                # Who keeps a connection may use it after all.
                again = await asked[0].ask("acme", request_bytes("acme", "after a while"))
                assert again.whole, again
                open_now = _connections(it)
                assert open_now >= IDLE, f"{open_now} connections are open at the edges"
                it.grown()
        finally:
            for writer in held:
                writer.transport.abort()
            for one in asked:
                one.close()
        it.figures.note = f"{open_now} connections were held open at once"

    # A head that stops is refused after header_s: here they stay until all are there.
    timeouts = {"drain_s": 5, "connect_s": 2, "eject_s": 0.2, "header_s": 120}
    await play(figures, directory, act, rest={"timeouts": timeouts})


async def _hold(
    host: str, port: int, number: int, held: list[asyncio.StreamWriter], asked: list[Connection]
) -> None:
    if number % 3 == 1:
        one = Connection(host, port)
        answer = await one.ask("globex", request_bytes("globex", f"idle {number}"))
        assert answer.whole, answer
        asked.append(one)
        return
    _, writer = await asyncio.open_connection(host, port)
    held.append(writer)
    if number % 3 == 2:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-te")


def _connections(it: Scene) -> int:
    """As the kernel sees it: sockets of the edge processes that are connected."""
    count = 0
    for name in ("edge 0", "edge 1"):
        connections = psutil.Process(it.one.pids(name)[-1]).net_connections(kind="tcp")
        count += sum(one.status == psutil.CONN_ESTABLISHED for one in connections)
    return count


ROWS = (
    ("malformed-requests", f"{MALFORMED:,} malformed requests, {AT_ONCE} at once", malformed),
    ("idle-connections", f"{IDLE:,} idle connections held open", idle),
)
