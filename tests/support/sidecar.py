"""``forkgate serve`` as users start it, with engines made of Python behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.support.fake_vllm import FakeVllm
from tests.support.waiting import PATIENCE_S, begun, eventually

CONFIG = """
listen: {{host: 127.0.0.1, port: 0, workers: {workers}}}
state_dir: state
pools:
  - {{name: old, endpoints: ["{old}"]}}
  - {{name: new, endpoints: ["{new}"]}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}, {{name: globex}}]
capture: {{flush_s: 0.01, queue_age_s: 600}}
timeouts: {{drain_s: 40}}
judge: {{grace_s: {grace_s}, return_s: 0.2, drain_s: 10, sidecar: test}}
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: audit
    global_seed: s
    checks: {{self_check: {checks}, quick_check: {checks}}}
    shadow: {{percent: 100, token_only_percent: 0, control_percent: 0, logprobs: 5,
             queue_age_s: 600}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
telemetry: {{prometheus: {{host: 127.0.0.1, port: 0}}, tenant_attribute: true}}
"""

MARK = "FORKGATE_TEST_DIRECTORY"


class Sidecar:
    """One ``forkgate serve`` on a directory. Its log is read as data."""

    def __init__(
        self,
        directory: Path,
        old: str,
        new: str,
        *,
        workers: int = 2,
        grace_s: float = 120.0,
        checks: bool = False,
    ) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.file = directory / "forkgate.yaml"
        self.file.write_text(
            CONFIG.format(old=old, new=new, workers=workers, grace_s=grace_s, checks=str(checks).lower())
        )
        self.log_file = directory / "log"
        self.workers = workers
        self.process: subprocess.Popen[bytes] | None = None
        self.session: aiohttp.ClientSession | None = None
        self.before: tuple[str, ...] = ()
        """What the command line begins with: a program that becomes ``forkgate serve``."""
        self.pass_fds: tuple[int, ...] = ()
        self._log: list[dict[str, Any]] = []
        self._log_bytes = 0

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it and wait until the judge sees every edge and both engines are probed."""
        log = self.log_file.open("ab")
        with log:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "forkgate", "serve", str(self.file)],
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: str(self.directory)},
                pass_fds=self.pass_fds,
            )
        if self.session is None:
            self.session = aiohttp.ClientSession()
        await self.until_judged()

    async def until_judged(self) -> dict[str, Any]:
        """Wait for a judge that all edges have answered to, with probed engines."""
        found: dict[str, Any] = {}

        async def ready() -> bool:
            nonlocal found
            assert self.process is not None
            assert self.process.poll() is None, self.log_file.read_text()[-4000:]
            with contextlib.suppress(aiohttp.ClientError, OSError):
                found = await self.status()
                edges = [
                    edge for edge in found["edges"] if edge["connected"] and edge["epoch"] == found["epoch"]
                ]
                ready = len(edges) >= self.workers and not found["troubles"]
                return ready and begun(found, self.file.read_text())
            return False

        await eventually_async(ready, "a judge with all edges")
        return found

    async def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    async def close(self) -> None:
        """End what still runs, drained or not. Nothing of it writes into the directory after this."""
        if self.session is not None:
            await self.session.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            await eventually(self._all_ended, "the end of every process of this directory")

    def _all_ended(self) -> bool:
        """Kill what is left. The mark tells, for one may have been started since the log's last line."""
        left = list(self._family())
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return left == []

    def _family(self) -> Iterator[psutil.Process]:
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get(MARK) == str(self.directory):
                    yield one

    # -- asking -------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        address = json.loads((self.state / "listen.json").read_text())["addresses"][0]
        return f"http://{address}"

    async def request(self, tenant: str = "acme", prompt: str = "hello", tokens: int = 6) -> tuple[int, str]:
        """One live completion: status, and the pool's engine that answered (by its first token's text)."""
        assert self.session is not None
        body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0}
        async with self.session.post(
            f"{self.url}/v1/completions", json=body, headers={"x-tenant": tenant}
        ) as response:
            return response.status, (await response.read()).decode()

    async def admin(self, path: str, method: str = "GET", body: Any = None) -> Any:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self.state / "admin.sock"))) as session,
            session.request(method, f"http://judge{path}", json=body) as response,
        ):
            return json.loads(await response.read())

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.admin("/v1/status")
        return found

    async def cli(self, *arguments: str) -> tuple[int, str, str]:
        """The command line as users type it: exit status, standard output, standard error."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "forkgate",
            *arguments,
            "--state-dir",
            str(self.state),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:  # whoever asked has given up
                process.kill()
                await process.wait()
        return process.returncode, out.decode(), err.decode()

    def log(self) -> list[dict[str, Any]]:
        """Every whole line of the log that is JSON. What was read before is not read again: some wait for a
        line, with thousands before it."""
        with self.log_file.open("rb") as log:
            if os.fstat(log.fileno()).st_size < self._log_bytes:  # a test has emptied it
                self._log, self._log_bytes = [], 0
            log.seek(self._log_bytes)
            whole, end, _ = log.read().rpartition(b"\n")
        self._log_bytes += len(whole) + len(end)
        for line in whole.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                self._log.append(json.loads(line))
        return list(self._log)

    def pids(self, child: str | None = None) -> list[int]:
        """Children that were ever started, or those of one name, oldest first."""
        return [
            line["child_pid"]
            for line in self.log()
            if line["event"] == "started" and (child is None or line["child"] == child)
        ]

    def kill(self, child: str) -> int:
        """``kill -9`` its newest life; returns the process id."""
        pid = self.pids(child)[-1]
        os.kill(pid, signal.SIGKILL)
        return pid


async def eventually_async(condition: Any, what: str) -> None:
    """``eventually`` for a coroutine."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"did not come true: {what}") from None


def alive(pid: int) -> bool:
    """Running, and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextlib.asynccontextmanager
async def sidecar(
    directory: Path,
    *,
    workers: int = 2,
    grace_s: float = 120.0,
    checks: bool = False,
    lies: Sequence[str] = (),
) -> AsyncIterator[tuple[Sidecar, FakeVllm, FakeVllm]]:
    """A running sidecar, the old pool's engine and the new pool's, which may lie."""
    async with FakeVllm().serving() as old, FakeVllm(*lies).serving() as new:
        one = Sidecar(directory, old.url, new.url, workers=workers, grace_s=grace_s, checks=checks)
        try:
            await one.start()
            yield one, old, new
        finally:
            await one.close()
