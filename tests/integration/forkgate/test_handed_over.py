"""Sockets that a service manager bound outlive ``forkgate serve``: a restart under load refuses nobody."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import aiohttp

from tests.support.sidecar import sidecar
from tests.support.waiting import LIMIT_S, eventually

MANAGER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""What systemd does of a socket unit, once it has bound: file descriptor 3, and to whom it is meant."""


def test_restart_with_a_handed_socket_refuses_nobody(tmp_path: Path) -> None:
    answered: list[int] = []

    async def ask_on(url: str) -> None:
        """A connection a request, as a client without keep-alive; any failure is the test's."""
        body = {"model": "m", "prompt": "hello", "max_tokens": 3, "temperature": 0}
        while True:
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    f"{url}/v1/completions",
                    json=body,
                    headers={"x-tenant": "globex", "connection": "close"},
                    timeout=aiohttp.ClientTimeout(total=LIMIT_S),
                ) as response,
            ):
                await response.read()
                answered.append(response.status)

    async def more() -> None:
        before = len(answered)
        await eventually(lambda: len(answered) >= before + 20, "further answers")

    async def main(bound: socket.socket) -> None:
        url = "http://{}:{}".format(*bound.getsockname())
        async with asyncio.timeout(LIMIT_S), sidecar(tmp_path) as (one, _, _):
            await one.stop()  # the harness has started it on a port of its own
            one.before = (sys.executable, "-c", MANAGER, str(bound.fileno()))
            one.pass_fds = (bound.fileno(),)
            await one.start()
            assert one.url == url
            clients = [asyncio.create_task(ask_on(url)) for _ in range(4)]
            try:
                await more()
                assert await one.stop() == 0
                await one.start()
                await more()
            finally:
                failed = [task.exception() for task in clients if task.done()]
                for task in clients:
                    task.cancel()
            assert failed == []
            assert set(answered) == {200}
            assert [line["bound_by"] for line in one.log() if line["event"] == "listening"] == [
                "us",
                *["service manager"] * 2,
            ]

    with socket.create_server(("127.0.0.1", 0), backlog=128) as bound:
        asyncio.run(main(bound))
