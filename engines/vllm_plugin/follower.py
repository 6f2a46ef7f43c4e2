"""One API server's ear: the book of its marked requests, filled from the channel while there are any."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from engines.vllm_plugin.book import Book, Trouble
from engines.vllm_plugin.channel import NoChannel, Reader

LISTEN_S = 0.25
"""How often the channel is read while marked requests run; it holds 16,384 records an engine."""
_LOG = logging.getLogger("vllm.forkgate")


class Follower:
    """Used inside one event loop. With no marked request under way it does nothing at all."""

    def __init__(self, channel: str | None) -> None:
        self.book = Book(time.monotonic)
        self.deaf: str | None = None
        """Why nothing can be heard from the engine cores; None where it can."""
        self._reader: Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._reader = Reader(channel)
        except NoChannel as error:
            self.deaf = str(error)
            _LOG.warning("forkgate: no batch facts from this server: %s", error)

    def begin(self, request_id: str) -> bytes | None:
        """A marked request has come. Its key, where it is followed."""
        key = self.book.open(request_id, Trouble.DEAF if self._reader is None else None)
        if key is not None and self._timer is None and self._reader is not None:
            self._timer = asyncio.get_running_loop().call_later(LISTEN_S, self._tick)
        return key

    def end(self, key: bytes) -> None:
        """Its answer is over, whole or not."""
        self._listen()
        self.book.end(key)

    def take(self, request_id: str) -> dict[str, Any]:
        """What is known of it, once. Raises :class:`engines.vllm_plugin.book.Missing`."""
        self._listen()
        return self.book.take(request_id)

    def close(self) -> None:
        """Stop listening."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _tick(self) -> None:
        self._timer = None
        self._listen()
        self.book.expire()
        if self.book.open_requests:
            self._timer = asyncio.get_running_loop().call_later(LISTEN_S, self._tick)

    def _listen(self) -> None:
        if self._reader is not None and self._reader.drain(self.book.note):
            self.book.lose()
