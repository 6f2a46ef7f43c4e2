"""``forkgate serve`` and its command line for tests that have no event loop of their own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import LIMIT_S, PATIENCE_S, all_obey, begun

READY_S = LIMIT_S
"""Engines are probed with real generations; on a busy machine that takes a while."""
SETTLE_S = LIMIT_S


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Serving:
    """One running ``forkgate serve``."""

    def __init__(self, directory: Path, config: str) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.file = directory / "forkgate.yaml"
        self.file.write_text(config, encoding="utf-8")
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until every edge obeys the judge's table and every engine is probed."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "forkgate", "serve", str(self.file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.until("forkgate is ready", self._ready, READY_S)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)  # wait for nobody: killed, it would leave its children
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30)
            self.process.kill()
            self.process.wait()
            raise

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        address: str = json.loads((self.state / "listen.json").read_text())["addresses"][0]
        return address

    def admin(self, path: str) -> Any:
        """GET from the judge's admin API."""
        connection = _Unix(self.state / "admin.sock")
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def cli(self, *arguments: str) -> Done:
        """The command line as users type it, where its configuration lies."""
        done = subprocess.run(
            [sys.executable, "-m", "forkgate", *arguments],
            cwd=self.directory,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return Done(code=done.returncode, out=done.stdout, err=done.stderr)

    def until(self, what: str, condition: Callable[[], object], limit_s: float = SETTLE_S) -> None:
        """Wait for a condition; fail at once when forkgate has died."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            if time.monotonic() > deadline_s:
                raise AssertionError(
                    f"did not come true in {limit_s:.0f} s: {what}\n{self.log.read_text()[-4000:]}"
                )
            time.sleep(0.02)

    def settled(self, captured: int) -> dict[str, Any]:
        """Wait until at least this many captures have ended, and return the ledger."""
        ledger: dict[str, Any] = {}

        def ended() -> bool:
            nonlocal ledger
            ledger = self.admin("/v1/ledger")
            return bool(ledger["captured"] >= captured and ledger["in_flight"] == 0)

        self.until(f"{captured} captures ended", ended)
        return ledger

    def obeyed(self) -> None:
        """Wait until every edge routes by the judge's present table."""

        def obeyed() -> bool:
            return all_obey(self.admin("/v1/status"))

        self.until("every edge has acknowledged", obeyed)

    def _ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status = self.admin("/v1/status")
            edges = [one for one in status["edges"] if one["connected"] and one["epoch"] == status["epoch"]]
            ready = bool(edges) and not status["troubles"]
            return ready and begun(status, self.file.read_text(encoding="utf-8"))
        return False


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("judge", timeout=LIMIT_S)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@contextlib.contextmanager
def serving(directory: Path, config: str) -> Iterator[Serving]:
    """A ready ``forkgate serve`` in a directory of its own; stopped at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    one = Serving(directory, config)
    try:
        one.start()
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()
