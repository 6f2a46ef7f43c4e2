"""The demo's processes: two real engines and one `forkgate serve`, each a child that dies with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

READY_S = 120.0
"""Longest that a child may take to come up on a slow, busy machine."""
STOP_S = 15.0


class DemoError(Exception):
    """The demo could not do what it promised; the message says what and where to look."""


class Child:
    """One child process with its log file."""

    def __init__(self, name: str, argv: list[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._log_file: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            env={**os.environ, **(env or {})},
        )

    def first_line(self) -> str:
        """The child's first line on stdout: how an engine says where it listens."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        if not line:
            raise DemoError(
                f"{self.name} ended before it was ready (exit {self.process.wait()}); see {self.log}"
            )
        return line

    def check(self) -> None:
        if (code := self.process.poll()) is not None:
            raise DemoError(f"{self.name} ended with exit code {code}; see {self.log}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log_file.close()


def start_engine(name: str, model: Path, dtype: str, logs: Path) -> tuple[Child, str]:
    """A reference engine of one dtype. Returns it with its base URL."""
    argv = [sys.executable, "-m", "engines.reference", "--model", str(model), "--dtype", dtype]
    argv += ["--host", "127.0.0.1", "--port", "0", "--threads", "1", "--max-batch", "4"]
    child = Child(name, argv, logs / f"{name}.log", {"HF_HUB_OFFLINE": "1"})
    try:
        return child, str(json.loads(child.first_line())["url"])
    except BaseException:
        child.stop()
        raise


def wait_for(what: str, condition: Iterator[bool], child: Child, limit_s: float = READY_S) -> None:
    """Poll ``condition`` until it yields True; fail at once when the child has died."""
    end = time.monotonic() + limit_s
    for met in condition:
        if met:
            return
        child.check()
        if time.monotonic() > end:
            raise DemoError(f"{what}: not within {limit_s:.0f} s; see {child.log}")
        time.sleep(0.1)
