"""The demo's processes: two real engines and one `forkgate serve`, each a child that dies with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

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
        """End it and wait for it. It is killed last of all: what it started would outlive it."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # the second: wait for nobody
            self.process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
                break
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log_file.close()


def start_engine(name: str, model: Path, dtype: str, logs: Path, children: contextlib.ExitStack) -> str:
    """A reference engine of one dtype; ``children`` stops it, even while it starts. Returns its base URL."""
    argv = [sys.executable, "-m", "engines.reference", "--model", str(model), "--dtype", dtype]
    argv += ["--host", "127.0.0.1", "--port", "0", "--threads", "1", "--max-batch", "4"]
    child = Child(name, argv, logs / f"{name}.log", {"HF_HUB_OFFLINE": "1"})
    children.callback(child.stop)
    return str(json.loads(child.first_line())["url"])
