"""A whole sidecar between engine stubs that die, with a live load that checks every answer it gets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.support.saboteur import StubProcess
from tests.support.sidecar import MARK, Sidecar, eventually_async
from tests.support.waiting import all_obey, eventually

SEAMS = Path(__file__).resolve().parent / "seams"

ONLY_TOKENS = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 100000}\n"
"""A candidate that dies is no fork: nothing but a fork rolls this one back."""


class Stack(Sidecar):
    """A :class:`Sidecar` whose configuration is a dictionary and whose children have fault points."""

    def __init__(
        self,
        directory: Path,
        old: str,
        new: str,
        *,
        old_shadow: str | None = None,
        workers: int = 2,
        policy: str = ONLY_TOKENS,
        canary: tuple[str, ...] = ("acme",),
        percent: float = 100.0,
        shadow: dict[str, Any] | None = None,
        judge: dict[str, Any] | None = None,
        rest: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(directory, old, new, workers=workers)
        (directory / "policy.yaml").write_text(policy)
        self.seams = directory / "seams"
        self.seams.mkdir(exist_ok=True)
        pools: list[dict[str, Any]] = [
            {"name": "old", "endpoints": [old]},
            {"name": "new", "endpoints": [new]},
        ]
        if old_shadow is not None:
            pools[0]["shadow_endpoints"] = [old_shadow]
        self.config: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": 0, "workers": workers},
            "state_dir": "state",
            "pools": pools,
            "home": "old",
            "identity": {"tenant_header": "x-tenant", "trusted_peers": ["127.0.0.0/8"]},
            "tenants": [{"name": "acme"}, {"name": "globex"}],
            "capture": {"flush_s": 0.02, "queue_age_s": 600},
            "timeouts": {"drain_s": 5, "connect_s": 2, "eject_s": 0.2},
            "judge": {"grace_s": 120, "return_s": 0.2, "drain_s": 2, "sidecar": "test", **(judge or {})},
            "rollouts": [
                {
                    "name": "old-to-new",
                    "baseline": "old",
                    "candidate": "new",
                    "policy": "policy.yaml",
                    "global_seed": "s",
                    "checks": {"self_check": False, "quick_check": False},
                    "shadow": {
                        "percent": percent,
                        "token_only_percent": 0,
                        "control_percent": 0,
                        "logprobs": 3,
                        "tokens_per_second": 1e6,
                        "arm_timeout_s": 30,
                        "quiet_s": 0.2,
                        **(shadow or {}),
                    },
                    "start": "on_load",
                    "shadow_stage": {"skip": bool(canary)},
                    "steps": [{"tenants": list(canary)}] if canary else [],
                }
            ],
            **(rest or {}),
        }
        self.write()
        self.epochs: list[int] = []
        """Of the judge's tables and of every edge's, in the order seen; see :meth:`watch`."""
        self.unbalanced: list[dict[str, Any]] = []

    def write(self) -> None:
        """Put :attr:`config` into the file that the next start reads."""
        self.file.write_text(json.dumps(self.config))

    def spawn(self) -> None:
        """Start it, and wait for nothing."""
        environment = {
            **os.environ,
            MARK: str(self.directory),
            "PYTHONPATH": str(SEAMS),
            "FORKGATE_TEST_SEAMS": str(self.seams),
        }
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forkgate", "serve", str(self.file)],
                stdout=log,
                stderr=log,
                env=environment,
            )
        if self.session is None:
            self.session = aiohttp.ClientSession()

    async def start(self) -> None:
        self.spawn()
        await self.until_judged()

    async def until_edges(self) -> None:
        """Wait until every edge worker accepts."""
        await eventually(
            lambda: (
                sum(line["event"] == "ready" and line["child"] != "judge" for line in self.log())
                >= self.workers
            ),
            "edges",
        )

    async def until(self, what: str, **wanted: Any) -> dict[str, Any]:
        """Wait until the rollout shows these values."""
        found: dict[str, Any] = {}

        async def shown() -> bool:
            nonlocal found
            with contextlib.suppress(aiohttp.ClientError, OSError):
                found = await self.admin("/v1/rollouts/old-to-new")
                return all(found.get(key) == value for key, value in wanted.items())
            return False

        await eventually_async(shown, what)
        return found

    async def word(self, verb: str, *, tenant: str | None = None) -> tuple[int, dict[str, Any]]:
        """A person's word on the admin API's socket: status, and what it answers.

        Raises aiohttp.ClientError or OSError where no judge answers, or it dies of it.
        """
        said = {"reason": f"test: {verb}"} | ({} if tenant is None else {"tenant": tenant})
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.state / "admin.sock"))) as session,
            session.post(f"http://judge/v1/rollouts/old-to-new/{verb}", json=said) as response,
        ):
            return response.status, json.loads(await response.read())

    async def obeyed(self) -> None:
        """Every edge routes by the judge's present table."""

        async def all_do() -> bool:
            return all_obey(await self.status(), self.workers)

        await eventually_async(all_do, "every edge's acknowledgement")

    async def quiet(self, captured: int = 0) -> dict[str, Any]:
        """Wait until this many are captured and none is in flight; the ledger, which must balance."""
        ledger: dict[str, Any] = {}

        async def over() -> bool:
            nonlocal ledger
            with contextlib.suppress(aiohttp.ClientError, OSError):
                ledger = await self.admin("/v1/ledger")
                return bool(ledger["in_flight"] == 0 and ledger["captured"] >= captured)
            return False

        await eventually_async(over, "nothing in flight")
        assert ledger["balanced"], ledger
        assert ledger["captured"] == ledger["compared"] + sum(ledger["dropped"].values()), ledger
        return ledger

    async def watch(self) -> None:
        """Look at ledger and epochs, again and again, whatever dies meanwhile."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, KeyError, json.JSONDecodeError):
                status = await self.status()
                self.epochs.append(status["epoch"])
                ledger = await self.admin("/v1/ledger")
                if not ledger["balanced"]:
                    self.unbalanced.append(ledger)
            await asyncio.sleep(0.05)

    def table_epoch(self) -> int:
        """Of the table that the supervisor keeps."""
        return int(json.loads((self.state / "routes.json").read_text())["epoch"])

    def stop_then_kill(self, child: str) -> set[int]:
        """``kill -9`` a child that is frozen first, so that what it holds is known: its clients' ports."""
        pid = self.pids(child)[-1]
        os.kill(pid, signal.SIGSTOP)
        try:
            held = {
                connection.raddr.port
                for connection in psutil.Process(pid).net_connections(kind="tcp")
                if connection.raddr
            }
        finally:
            os.kill(pid, signal.SIGKILL)
        return held


class Answer:
    """What one live request got."""

    def __init__(self, tenant: str, port: int) -> None:
        self.tenant = tenant
        self.port = port
        """The client's end of its connection."""
        self.started = time.monotonic()
        self.ended = 0.0
        self.status = 0
        self.engine = ""
        self.body = b""
        self.error: str | None = None

    @property
    def whole(self) -> bool:
        return self.error is None and self.status == 200 and self.body.rstrip().endswith(b"data: [DONE]")

    def __repr__(self) -> str:
        return (
            f"<{self.tenant} port {self.port} {self.status} by {self.engine!r} {self.error} "
            f"{self.body[-60:]!r} after {self.ended - self.started:.3f} s>"
        )


def request_bytes(tenant: str, prompt: str, *, tokens: int = 4, request_id: str | None = None) -> bytes:
    body = json.dumps(
        {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
    ).encode()
    named = f"x-request-id: {request_id}\r\n" if request_id is not None else ""
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-tenant: {tenant}\r\n{named}"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


class Connection:
    """A client's keep-alive connection, opened again when it broke."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.port = 0
        self.raw_head = b""

    async def ask(self, tenant: str, request: bytes) -> Answer:
        """One request. Every way to fail is in the answer's ``error``."""
        answer = Answer(tenant, self.port)
        try:
            async with asyncio.timeout(30):
                if self._streams is None:
                    self._streams = await asyncio.open_connection(*self._address)
                    self.port = self._streams[1].get_extra_info("sockname")[1]
                answer.port = self.port
                reader, writer = self._streams
                writer.write(request)
                await self._read(reader, answer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            answer.error = f"{type(error).__name__}: {error}"
            self.close()
        answer.ended = time.monotonic()
        return answer

    async def _read(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        self.raw_head = await reader.readuntil(b"\r\n\r\n")
        lines = self.raw_head.decode("latin-1").split("\r\n")
        answer.status = int(lines[0].split()[1])
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        answer.engine = headers.get("x-engine", "")
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                answer.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            answer.body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection", "").lower() == "close":
            self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """Steady live traffic on keep-alive connections; every answer is kept."""

    def __init__(self, stack: Stack, clients: int = 4, pause_s: float = 0.03) -> None:
        address = stack.url.removeprefix("http://").rsplit(":", 1)
        self._address = (address[0], int(address[1]))
        self._clients = clients
        self._pause_s = pause_s
        self.answers: list[Answer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._tasks = [
            asyncio.create_task(self._client(("acme", "globex")[number % 2], number))
            for number in range(self._clients)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    _stopping = False

    async def _client(self, tenant: str, number: int) -> None:
        connection = Connection(*self._address)
        count = 0
        while not self._stopping:
            count += 1
            self.answers.append(await connection.ask(tenant, request_bytes(tenant, f"{number} asks {count}")))
            await asyncio.sleep(self._pause_s)
        connection.close()

    async def more(self, count: int = 12) -> None:
        """Wait for this many further answers."""
        before = len(self.answers)
        await eventually(lambda: len(self.answers) >= before + count, "further answers")

    def bad(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.whole]


@contextlib.asynccontextmanager
async def stubs(*names: str) -> AsyncIterator[list[StubProcess]]:
    """Engine stubs in processes of their own."""
    processes = [StubProcess(name) for name in names]
    try:
        await asyncio.gather(*(one.start() for one in processes))
        yield processes
    finally:
        await asyncio.gather(*(one.kill() for one in processes))


@contextlib.asynccontextmanager
async def stack(directory: Path, **options: Any) -> AsyncIterator[tuple[Stack, StubProcess, StubProcess]]:
    """A running stack, the old pool's stub and the new pool's."""
    async with stubs("old", "new") as (old, new):
        one = Stack(directory, old.url, new.url, **options)
        try:
            await one.start()
            yield one, old, new
        finally:
            await one.close()
