"""The pool's side: reads the answers of one connection, one exchange after the other (see ``states``)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

from proxy.edge import states
from proxy.edge.errors import BadAnswerError
from proxy.edge.framing import FramingError
from proxy.live import ABORTED_BY_UPSTREAM

if TYPE_CHECKING:
    from proxy.edge.answers import Answer
    from proxy.edge.edge import Edge
    from proxy.edge.exchange import Exchange
    from proxy.edge.pool import Endpoint
    from proxy.edge.ports import Transport

_MOST_INTERIM: Final = 16
"""1xx answers before a final one; more is a pool that never answers."""


class UpstreamConnection:
    """One connection to an endpoint. ``exchange`` is whom it works for; None while it is idle."""

    __slots__ = (
        "_answer",
        "_edge",
        "_last_end",
        "_partial",
        "_reading",
        "_write_paused",
        "endpoint",
        "exchange",
        "idle_since",
        "keep_alive",
        "reused",
        "transport",
    )

    def __init__(self, edge: Edge, endpoint: Endpoint) -> None:
        self._edge = edge
        self._last_end = edge.limits.head_bytes - 4  # where the empty line of the longest head begins
        self.endpoint = endpoint
        self.exchange: Exchange | None = None
        self.transport: Transport | None = None
        self.keep_alive = True
        self.reused = False
        self._partial: bytes = b""
        self._answer: Answer | None = None  # the last final one
        self._reading = True
        self._write_paused = False
        self.idle_since = 0.0

    # -- called by the transport ---------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=self._edge.limits.buffer_bytes)

    def data_received(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            self.abort()  # an answer that nobody asked for: out of step, unusable
            return
        try:
            answer = exchange.answer
            if answer == states.ANSWER_BODY:
                exchange.answer_piece(data)
            elif answer == states.ANSWER_TUNNEL:
                exchange.response_bytes += len(data)
                exchange.client.write(data)
                exchange.client.tunnel_alive()
            else:
                self._read_head(exchange, data)
        except (BadAnswerError, FramingError) as error:
            self.keep_alive = False
            if exchange.answer >= states.ANSWER_BODY:
                exchange.break_off(ABORTED_BY_UPSTREAM)
            else:
                exchange.failed(502, "bad_answer", f"pool {exchange.pool.name!r}: {error}")
        except Exception:
            self._edge.bug(exchange.client)

    def eof_received(self) -> bool:
        """The pool hung up. Between this and ``connection_lost`` nobody may be given an idle one."""
        if self.exchange is None and self in self.endpoint.idle:
            self.endpoint.idle.remove(self)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        exchange = self.exchange
        if exchange is None:
            if self in self.endpoint.idle:
                self.endpoint.idle.remove(self)
            return
        try:
            exchange.upstream_ended(error is None)
        except Exception:
            self._edge.bug(exchange.client)

    def pause_writing(self) -> None:
        """The pool reads slower than the client writes."""
        self._write_paused = True
        if self.exchange is not None:
            self.exchange.client.hold(self.exchange.client.HOLD_POOL)

    def resume_writing(self) -> None:
        self._write_paused = False
        if self.exchange is not None:
            self.exchange.client.release(self.exchange.client.HOLD_POOL)

    # ------------------------------------------------------------------------------------------

    def _read_head(self, exchange: Exchange, data: bytes) -> None:
        now = monotonic()
        if exchange.answer == states.WAITING:
            exchange.answer = states.ANSWER[states.WAITING][states.FIRST_BYTE]
            self._partial = b""
        if self._partial:
            data = self._partial + data
            self._partial = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > self._edge.limits.head_bytes:
                    raise _too_large()
                if b"HTTP/1."[: len(data)] != data[:7]:
                    raise BadAnswerError("this is no HTTP/1.1")
                self._partial = data
                return
            if end > self._last_end:
                raise _too_large()
            head = data[: end + 4]
            data = data[end + 4 :]
            answer = self._edge.answers.read(head, exchange.ask.method, self._answer)
            if answer.status >= 200:
                self._answer = answer
                self.keep_alive = answer.keep_alive
                if self.endpoint.health.failures:
                    self.endpoint.health.answered()
                exchange.final_answer(answer, data, now)
                return
            if answer.status == 101:
                if not (exchange.ask.websocket and answer.websocket):
                    raise BadAnswerError("101 to a request that asked for no websocket")
                self.keep_alive = False
                self.endpoint.health.answered()
                exchange.switched(answer, data)
                return
            exchange.interim += 1
            if exchange.interim > _MOST_INTERIM:
                raise BadAnswerError(f"more than {_MOST_INTERIM} interim answers")
            exchange.interim_answer(answer)
            if not data:
                return

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def pause_reading(self) -> None:
        if self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and self.transport is not None and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def release(self, *, reusable: bool, flush: bool) -> None:
        """Its exchange is over: back among the idle, or away, with or without what is still to be written.

        One whose answer overtook its ask is used up.
        """
        self.exchange = None
        if reusable and self.keep_alive and not self._write_paused:
            self.reused = True
            self.idle_since = self._edge.now
            if not self._reading:
                self.resume_reading()
            self.endpoint.release(self)
        elif flush:
            self.close()
        else:
            self.abort()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _too_large() -> BadAnswerError:
    return BadAnswerError("the response head is too large")
