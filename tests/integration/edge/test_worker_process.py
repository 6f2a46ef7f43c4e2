"""``python -m proxy.edge`` as the supervisor starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from policies.routes import RouteTable
from proxy.edge.settings import Timeouts
from tests.support.edge import (
    Arrived,
    Upstream,
    answer,
    get,
    post,
    read_answer,
    run,
    settings,
    status_of,
    table,
)


@dataclass
class Process:
    child: asyncio.subprocess.Process
    number: int

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.number)


@contextlib.asynccontextmanager
async def worker(initial: RouteTable, **timeouts: float) -> AsyncIterator[Process]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        ready, told = os.pipe()
        whole = settings(
            initial, listen_fds=(listener.fileno(),), ready_fd=told, timeouts=Timeouts(**timeouts)
        )
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy.edge"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(listener.fileno(), told),
        )
        os.close(told)
        try:
            assert child.stdin is not None
            child.stdin.write(msgspec.json.encode(whole))
            child.stdin.close()
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, os.read, ready, 100) == b"ready\n"
            yield Process(child, listener.getsockname()[1])
        finally:
            os.close(ready)
            if child.returncode is None:
                child.kill()
            await child.communicate()


def test_sigterm_finishes_what_runs_accepts_nothing_and_exits_0() -> None:
    async def main() -> None:
        asked = asyncio.Event()
        may_answer = asyncio.Event()

        async def slow(request: Arrived) -> None:
            await request.read_body()
            if request.lines[0].startswith(b"POST /slow"):
                asked.set()
                await may_answer.wait()
            request.say(answer(b"done"))

        async with Upstream(slow).running() as url, worker(table(url)) as process:
            idle_reader, idle = await process.connect()
            idle.write(get())
            await read_answer(idle_reader)
            reader, writer = await process.connect()
            writer.write(post(b"x", "/slow"))
            await asked.wait()
            process.child.send_signal(signal.SIGTERM)
            assert await idle_reader.read() == b"", "an idle connection closes while others finish"
            may_answer.set()
            head, body = await read_answer(reader)
            assert status_of(head) == 200
            assert b"Connection: close" in head
            assert body == b"done"
            assert await process.child.wait() == 0
            assert process.child.stderr is not None
            last = msgspec.json.decode((await process.child.stderr.read()).splitlines()[-1])
            told = {key: last[key] for key in ("event", "requests", "refused", "open_connections", "epoch")}
            assert told == {
                "event": "drained", "requests": 2, "refused": 0, "open_connections": 0, "epoch": 1
            }  # fmt: skip
            idle.close()
            writer.close()

    run(main())


def test_a_drain_that_takes_too_long_cuts() -> None:
    async def main() -> None:
        asked = asyncio.Event()

        async def never(request: Arrived) -> None:
            asked.set()
            await request.gone()

        async with Upstream(never).running() as url, worker(table(url), drain_s=0.2) as process:
            reader, writer = await process.connect()
            writer.write(get())
            await asked.wait()
            process.child.send_signal(signal.SIGTERM)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert await process.child.wait() == 0
            writer.close()

    run(main())


def test_settings_that_cannot_be_read_exit_2_and_say_why() -> None:
    async def main() -> None:
        for said, reason in ((b"{", b"cannot be read"), (b'{"sidecar": "x"}', b"worker")):
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "proxy.edge"),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            _, errors = await child.communicate(said)
            assert child.returncode == 2
            assert reason in errors

    run(main())
