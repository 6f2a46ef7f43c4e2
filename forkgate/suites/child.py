"""One scoring process: started by exec, asked one thing at a time, killed when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from forkgate.suites.scorer_child import Reply, Request

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

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        replies: asyncio.StreamReader,
        requests: asyncio.StreamWriter,
        errors: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._process = process
        self._replies = replies
        self._requests = requests
        self._errors, self._errors_end = errors
        self._said = b""
        self._reading = asyncio.create_task(self._read_errors(), name="scorer's standard error")
        self._gone = False

    @classmethod
    async def start(cls, memory_bytes: int) -> ScoringChild:
        """Start one on a leash: it ends with this process. Raises OSError.

        By ``subprocess``, which uses ``vfork``, and from this thread, which the leash is tied to: an event
        loop's own way to start processes may be ``fork``, and in a process that holds gRPC its handlers run
        in the copy and crash it. Sockets in the place of pipes are streams of any event loop.
        """
        mine, theirs = socket.socketpair()
        errors, errors_in = socket.socketpair()
        with theirs, errors_in:
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - milliseconds
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        _LEASH,
                        str(os.getpid()),
                        sys.executable,
                        "-P",  # nothing is imported from where it lies
                        _CHILD,
                        str(memory_bytes),
                    ],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=errors_in.fileno(),
                    start_new_session=True,  # killed with all that it started
                    env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _SET,
                )
            except BaseException:
                mine.close()
                errors.close()
                raise
        replies, requests = await asyncio.open_unix_connection(sock=mine, limit=_REPLY_BYTES)
        return cls(process, replies, requests, await asyncio.open_unix_connection(sock=errors))

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
        if self._gone:
            return
        self._gone = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._reading
        self._requests.close()
        self._errors_end.close()

    async def _exchange(self, request: Request) -> Reply:
        try:
            self._requests.write(msgspec.json.encode(request) + b"\n")
            await self._requests.drain()
            line = await self._replies.readline()
        except (OSError, RuntimeError):  # uvloop raises RuntimeError for a transport that is closed already
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
        """Its status and last words. It stays unreaped, so that its group can still be killed as a whole."""
        ended = await asyncio.to_thread(os.waitid, os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):  # a grandchild may hold its standard error open
                await asyncio.shield(self._reading)
        how = f"exit status {ended.si_status}"
        if ended.si_code != os.CLD_EXITED:
            how = f"signal {signal.Signals(ended.si_status).name}"
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return f"its process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")

    async def _read_errors(self) -> None:
        while piece := await self._errors.read(65_536):
            self._said = (self._said + piece)[-_SAID_BYTES:]
            await asyncio.sleep(_SAID_PAUSE_S)
