"""One scoring process: started by exec, asked one thing at a time, killed when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from forkgate.suites.scorer_child import Reply, Request

_LOG = logging.getLogger(__name__)

_CHILD = str(Path(__file__).with_name("scorer_child.py"))
_LEASH = str(Path(__file__).parents[1] / "supervisor" / "leash.py")
_REPLY_BYTES = 65_536
"""A reply is a few scores and errors of bounded length."""
_SAID_BYTES = 2_000
"""Of its standard error, kept for the message that tells of its end."""
_SAID_PAUSE_S = 0.01
"""Between two readings of it: a scorer that prints without end is slowed down, not the judge."""
_PASSED_ON = ("HOME", "LANG", "LC_ALL", "PATH", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV")
"""Environment variables that a scorer sees: none that may hold a credential."""


_SET = {
    "PYTHONHASHSEED": "0",  # the same score for the same answer, tomorrow too
    "PYTHONUNBUFFERED": "1",
    # Numeric libraries reserve memory for each core that they see, and would take them all.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


class ChildHungError(Exception):
    """No reply in time; the process was killed."""


class ChildEndedError(Exception):
    """It ended, or said what is no reply, before it replied. The message says how."""


class ScoringChild:
    """Use one at a time, from one task at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._said = b""
        self._reading = asyncio.create_task(self._read_errors(), name="scorer's standard error")

    @classmethod
    async def start(cls, memory_bytes: int) -> ScoringChild:
        """Start one on a leash: it ends with this process. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _LEASH,
            str(os.getpid()),
            sys.executable,
            "-P",  # nothing is imported from where it lies
            _CHILD,
            str(memory_bytes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_REPLY_BYTES,
            start_new_session=True,  # killed with all that it started
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _SET,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: Request, limit_s: float) -> Reply:
        """One request and its reply. After any exception the process is gone: start another.

        Raises:
            ChildHungError: no reply within ``limit_s``.
            ChildEndedError: the process ended, or broke the protocol.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(request)
        except TimeoutError:
            await self.kill()
            raise ChildHungError(f"no reply within {limit_s:g} s, its process was ended") from None
        except ChildEndedError:
            await self.kill()
            raise
        except asyncio.CancelledError:
            # Its reply would be taken for the next one's.
            await asyncio.shield(self.kill())
            raise

    async def kill(self) -> None:
        """End it and all that it started. Returns when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def _exchange(self, request: Request) -> Reply:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        except ValueError as error:  # a line over the limit
            raise ChildEndedError(f"its reply has more than {_REPLY_BYTES} bytes") from error
        if not line.endswith(b"\n"):
            raise ChildEndedError(await self._how_it_ended())
        try:
            reply = msgspec.json.decode(line, type=Reply)
        except msgspec.DecodeError as error:
            raise ChildEndedError(f"it broke its protocol: {error}") from error
        if reply.id != request.id:
            raise ChildEndedError("it answered another question than was asked")
        return reply

    async def _how_it_ended(self) -> str:
        status = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # what it said last; a grandchild may hold the pipe open
                await asyncio.shield(self._reading)
        how = f"exit status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                how = f"signal {signal.Signals(-status).name}"
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")

    async def _read_errors(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        while piece := await stream.read(65_536):
            self._said = (self._said + piece)[-_SAID_BYTES:]
            await asyncio.sleep(_SAID_PAUSE_S)
