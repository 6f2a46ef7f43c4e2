"""A TLS listener that handshakes which are never finished neither shut nor fatten.

A server of the event loop hands a connection over once its handshake is done. Whoever counts connections
never sees one that does not get there, and each holds a descriptor and OpenSSL's buffers for as long as a
handshake may take. Here :data:`HANDSHAKES` are under way at most. One more puts the oldest out, which has had
:data:`FAIR_S` to be done; until it has, whoever comes next waits in the kernel's backlog. An honest client
needs two round trips, and is not the oldest for long.

Standard library alone, and for edge and judge alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

log = logging.getLogger(__name__)

HANDSHAKES: Final = 1_024
"""Under way at once at one listener, each with 55 KiB."""
FAIR_S: Final = 0.25
"""What each of them has at least. Short, so that 4,096 a second pass: who comes faster fills the kernel's
backlog, and an honest client waits behind all of it. No burst of honest clients comes near it: to answer a
hello takes a millisecond, so that few are under way when the next are accepted."""
_A_TURN: Final = 64
"""Accepted before the loop sees to anything else."""
_NO_ROOM_S: Final = 0.2
"""Pause where the machine has no descriptor left."""
_TOLD_S: Final = 60.0


class TlsDoor:
    """Serves one listening socket."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], Any],
        *,
        handshake_s: float,
        most: int = HANDSHAKES,
        fair_s: float = FAIR_S,
    ) -> None:
        """
        Args:
            listener: bound and listening; the door's own from here on.
            protocol: what a connection is handed to; made when it is accepted, called when its handshake is
                done.
            handshake_s: how long one may take.
        """
        self._listener = listener
        self.address: tuple[Any, ...] = listener.getsockname()
        self._context = context
        self._protocol = protocol
        self._handshake_s = handshake_s
        self._most = most
        self._fair_s = fair_s
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[socket.socket, float] = {}
        """Oldest first, with the time of each."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._told_s = float("-inf")
        self.put_out = 0
        """Handshakes that were ended to make room."""

    @property
    def handshakes(self) -> int:
        """Under way now."""
        return len(self._under_way)

    def open(self) -> None:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    async def drain(self, seconds: float) -> None:
        """Accept nobody any more. Handshakes that are under way get this long."""
        self._accept_nobody()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self.close()

    def close(self) -> None:
        """Accept nobody any more, and end what is not done; those that are go on."""
        self._accept_nobody()
        while self._under_way:
            self._end_oldest()

    def _accept_nobody(self) -> None:
        if self._again is not None:
            self._again.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()

    # ------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(_A_TURN):
            full = len(self._under_way) >= self._most
            if full and (young_s := self._fair_s - self._age_s()) > 0:
                self._pause(young_s)
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no descriptor, or no memory: those under way may give some back
                log.error("no connection can be accepted, tried again", extra={"error": str(error)})
                self._pause(_NO_ROOM_S)
                return
            if full:
                self._make_room()
            connection.setblocking(False)
            self._under_way[connection] = self._loop.time()
            task = self._loop.create_task(self._shake(connection), name="handshake")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shake(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=self._handshake_s
            )
        except (OSError, TimeoutError):  # what is no TLS, takes too long, has no certificate, or is gone
            pass
        finally:
            self._under_way.pop(connection, None)

    def _age_s(self) -> float:
        """Of the oldest."""
        return self._loop.time() - next(iter(self._under_way.values()))

    def _make_room(self) -> None:
        self.put_out += 1
        now_s = self._loop.time()
        if now_s - self._told_s >= _TOLD_S:
            self._told_s = now_s
            log.warning(
                "too many TLS handshakes are never finished, the oldest are ended",
                extra={"address": str(self.address), "count": self.put_out},
            )
        self._end_oldest()

    def _end_oldest(self) -> None:
        connection = next(iter(self._under_way))
        del self._under_way[connection]
        with contextlib.suppress(OSError):  # its transport may have closed it in this very turn
            connection.shutdown(socket.SHUT_RDWR)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(seconds, self.open)
