"""One child process: started by exec, told its settings on standard input, watched until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from forkgate.supervisor import leash

log = logging.getLogger(__name__)

READY = b"ready\n"
_LEASH = str(Path(leash.__file__))


class Child:
    """A running process and its ready pipe."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, ready: asyncio.Task[bool]) -> None:
        self.name = name
        self.process = process
        self.started = time.monotonic()
        self._ready = ready

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lived_s(self) -> float:
        return time.monotonic() - self.started

    async def ready(self) -> bool:
        """True once it said so; False when it ended before."""
        return await asyncio.shield(self._ready)

    async def wait(self) -> int:
        """Exit status; negative is the signal that killed it."""
        status = await self.process.wait()
        await self._ready
        return status

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


async def start(
    name: str,
    arguments: Sequence[str],
    settings: Callable[[int], bytes],
    pass_fds: Sequence[int] = (),
    withheld: Collection[str] = (),
) -> Child:
    """Start ``python ARGUMENTS`` on a leash.

    Args:
        settings: makes the child's standard input from the file descriptor of its ready pipe.
        pass_fds: descriptors that it inherits under the same numbers.
        withheld: variables of the environment that it does not inherit.

    Raises:
        OSError: no process could be made.
    """
    reader_fd, writer_fd = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _LEASH,
            str(os.getpid()),
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(*pass_fds, writer_fd),
            env={name: value for name, value in os.environ.items() if name not in withheld},
            start_new_session=True,  # a Ctrl-C in the terminal reaches the supervisor alone; it decides
        )
    except BaseException:
        os.close(reader_fd)
        raise
    finally:
        os.close(writer_fd)
    ready = asyncio.create_task(_until_ready(reader_fd), name=f"{name} ready")
    assert process.stdin is not None
    try:
        process.stdin.write(settings(writer_fd))
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it died while being told; wait() says how
    return Child(name, process, ready)


async def _until_ready(fd: int) -> bool:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.read(len(READY)) == READY
    finally:
        transport.close()


def died_of(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
