"""Child processes of the bench: pinned, logged, ended by who started them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import orjson

from bench.machine import BenchError, pinned

READY_S = 30.0


@contextlib.contextmanager
def process(
    arguments: Sequence[str],
    core: int | Iterable[int],
    log: Path,
    *,
    stdin: bytes | None = None,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """A pinned child whose stderr goes to ``log``; ended, and waited for, on the way out."""
    with log.open("ab") as stderr, pinned(core):
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=pass_fds,
        )
    try:
        if stdin is not None:
            assert child.stdin is not None
            child.stdin.write(stdin)
            child.stdin.close()
        yield child
    finally:
        # Killed last of all: what a sidecar started would go on writing where it ran. Its second SIGTERM says
        # to wait for nobody.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(10)
                break
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def told(child: subprocess.Popen[bytes], log: Path) -> dict[str, object]:
    """The one JSON line that our own helpers print when they are ready."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise BenchError(f"{child.args!r}: ended before it was ready:\n{tail(log)}")
    told = orjson.loads(line)
    assert isinstance(told, dict)
    return told


def tail(log: Path) -> str:
    """The end of a log, for an error's message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:])


def fetch(url: str) -> bytes | None:
    """A body, or None when nobody answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            body = answer.read()
            assert isinstance(body, bytes)
            return body
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def wait_until(child: subprocess.Popen[bytes], log: Path, name: str, ready: Callable[[], bool]) -> None:
    """Ask until ``ready``. Raises BenchError when the child ends before, or time runs out."""
    deadline = time.monotonic() + READY_S
    while not ready():
        if child.poll() is not None:
            raise BenchError(f"{name} ended with {child.returncode}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise BenchError(f"{name} was not ready after {READY_S:.0f} s:\n{tail(log)}")
        time.sleep(0.05)
