"""The client's side: reads asks in order, one exchange at a time (see ``states``).

A ``ClientConnection`` has the methods that an asyncio transport calls and calls those that one has, and
touches nothing else of asyncio: tests hand it a list in a transport's clothes.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from proxy.edge import states
from proxy.edge.asks import Ask, Via
from proxy.edge.diagnosis import early
from proxy.edge.errors import RefusalError, render
from proxy.edge.exchange import Exchange
from proxy.edge.framing import FramingError, ask_body
from proxy.live import ABORTED_BY_CLIENT, ABORTED_BY_DRAIN, ABORTED_BY_NOBODY, ABORTED_BY_TIMEOUT

if TYPE_CHECKING:
    from proxy.edge.edge import Edge
    from proxy.edge.ports import Transport

log = logging.getLogger(__name__)

_LINGER_S: Final = 2.0
_CR: Final = 13
_LF: Final = 10
_NEVER: Final = float("inf")

LAST_ASK_S: Final = 1.0
"""What an idle connection of a worker that drains gets for one more request."""


class ClientConnection:
    """One connection from a client; ``deadline`` is when the sweeper calls ``timed_out``."""

    __slots__ = (
        "__weakref__",
        "_ask",
        "_backlog",
        "_edge",
        "_partial",
        "_via",
        "ask",
        "deadline",
        "exchange",
        "held",
        "keep_alive",
        "read_at",
        "started",
        "started_unix_s",
        "transport",
        "tunnel",
        "write_paused",
    )

    # Why reading is paused, as bits: a connection is being opened; the pool reads slower than the client
    # writes; the client has sent enough of its next requests.
    HOLD_DIAL: Final = 1
    HOLD_POOL: Final = 2
    HOLD_BACKLOG: Final = 4

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.transport: Transport | None = None
        self.ask = states.IDLE
        self.exchange: Exchange | None = None
        self.deadline = _NEVER
        self.keep_alive = True
        self.write_paused = False
        self.tunnel = False
        self._partial: bytearray | None = None  # of a head
        self._backlog = b""  # what came after the current ask
        self.held = 0
        """Why reading is paused: bits of HOLD_*."""
        self._via = Via(b"", b"http", False)
        self._ask: Ask | None = None  # the last one
        self.started = 0.0
        self.read_at = 0.0
        """When the ask's head was whole: ``started``, unless it came in pieces."""

    # -- called by the transport ---------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:
        edge = self._edge
        self.transport = transport
        transport.set_write_buffer_limits(high=edge.limits.buffer_bytes)
        self._via = edge.peers.via(transport)
        self.deadline = monotonic() + (LAST_ASK_S if edge.draining else edge.timeouts.keepalive_s)
        if not edge.admit(self):
            self.refuse(
                RefusalError(503, "too_many_connections", "this worker has all the connections it may have")
            )

    def data_received(self, data: bytes) -> None:
        try:
            state = self.ask
            if state == states.IDLE or state == states.ASK_HEAD:
                self._read_head(data)
            elif state == states.ASK_BODY:
                self._read_body(data)
            elif state == states.ASK_DONE:
                self._backlog += data
                if len(self._backlog) > self._edge.limits.buffer_bytes:
                    self.hold(self.HOLD_BACKLOG)
            elif state == states.ASK_TUNNEL:
                self._tunnel(data)
        except RefusalError as refusal:
            self.refuse(refusal)
        except Exception:
            self._edge.bug(self)

    def eof_received(self) -> bool:
        """A client that shuts its sending side is gone: half-closed HTTP connections are not served."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        try:
            self.ask = states.ASK[self.ask][states.LOST]
            exchange = self.exchange
            if exchange is not None:
                exchange.finish(ABORTED_BY_NOBODY if self.tunnel else ABORTED_BY_CLIENT)
        except Exception:
            self._edge.bug(self)
        finally:
            self.transport = None
            self._edge.forget(self)

    def pause_writing(self) -> None:
        """The client reads slower than its pool writes."""
        self.write_paused = True
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.pause_reading()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.exchange is not None and self.exchange.upstream is not None:
            self.exchange.upstream.resume_reading()

    # -- reading the ask -----------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        partial = self._partial
        if partial is None:
            end = data.find(b"\r\n\r\n")
            if end > 0 and data[0] != _CR:
                self.started = self.read_at = monotonic()
                self.ask = states.ASK[self.ask][states.BYTES]
                self._begin(data[: end + 4], data[end + 4 :])
                return
            if self.ask == states.IDLE:
                self.started = now = monotonic()
                self.ask = states.ASK[states.IDLE][states.BYTES]
                self.deadline = now + self._edge.timeouts.header_s
            partial = self._partial = bytearray()
        old = len(partial)
        partial += data
        while partial.startswith(b"\r\n"):  # RFC 9112 section 2.2: empty lines before a request are forgiven
            del partial[:2]
            old = 0
        searched = max(old - 3, 0)
        end = partial.find(b"\r\n\r\n", searched)
        limit = self._edge.limits.head_bytes
        if end >= 0:
            self._partial = None
            self.read_at = monotonic()
            whole = bytes(partial)
            self._begin(whole[: end + 4], whole[end + 4 :])
            return
        # Only what is new is looked at, with the byte in front of it, which may be the CR of a CRLF. An LF
        # there was looked at with its own CR.
        refusal = early(bytes(partial[old - 1 if old and partial[old - 1] != _LF else old :]))
        if refusal is not None:
            raise refusal
        if len(partial) > limit:
            raise _too_long(partial, limit)

    def _begin(self, head: bytes, rest: bytes) -> None:
        """A head is whole: accept it, route it, send it."""
        edge = self._edge
        if len(head) > edge.limits.head_bytes:
            raise _too_long(head, edge.limits.head_bytes)
        ask = self._ask = edge.asks.read(head, self._via, self._ask)
        length = ask.length
        self.keep_alive = ask.keep_alive
        exchange = self.exchange = Exchange(edge, self, ask, self.started, len(head))
        if length == 0:
            self.ask = states.ASK[self.ask][states.HEAD_ONLY]
            self._backlog = rest
            exchange.start(b"")
        elif length == len(rest):
            # Nearly every request: its body came with its head.
            self.ask = states.ASK[self.ask][states.HEAD_ONLY]
            exchange.request_bytes += length
            exchange.ask_body = rest
            exchange.start(rest)
        else:
            self.ask = states.ASK[self.ask][states.HEAD_THEN_BODY]
            exchange.read_body(ask_body(length))
            exchange.start(self._body_piece(exchange, rest) if rest else b"")

    def _body_piece(self, exchange: Exchange, data: bytes) -> bytes:
        """Take a piece of body; returns what goes upstream. Moves on to ASK_DONE at its end."""
        body = exchange.ask_reader
        assert body is not None
        try:
            out = body.feed(data)
        except FramingError as error:
            raise RefusalError(400, error.code, str(error)) from error
        if body.payload_bytes > self._edge.limits.body_bytes:
            raise RefusalError(413, "body_too_large", f"a body may have {self._edge.limits.body_bytes} bytes")
        if exchange.capture is not None:
            self._edge.limit_capture(exchange)
        exchange.request_bytes += len(out)
        if body.done:
            self._backlog = body.rest
            self.ask = states.ASK[self.ask][states.BODY_END]
        return out

    def _read_body(self, data: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        out = self._body_piece(exchange, data)
        timeouts = self._edge.timeouts
        if exchange.upstream is not None:
            self.deadline = monotonic() + (
                timeouts.first_byte_s if self.ask == states.ASK_DONE else timeouts.stream_idle_s
            )
        if out:
            exchange.forward(out)
        if self.ask == states.ASK_DONE:
            exchange.asked()

    # -- called by the exchange ----------------------------------------------------------------

    def write(self, data: bytes) -> None:
        transport = self.transport
        if transport is not None:
            transport.write(data)

    def over(self, now: float) -> None:
        """The exchange is done and answered: the next one, or the end."""
        if not self.keep_alive:
            self.close()
            return
        self.ask = states.ASK[self.ask][states.OVER]
        self.deadline = now + self._edge.timeouts.keepalive_s
        backlog = self._backlog
        if backlog:
            self._backlog = b""
            self.release(self.HOLD_BACKLOG)
            self.data_received(backlog)

    def hold(self, reason: int) -> None:
        """Stop reading, for this reason."""
        if not self.held and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self.held |= reason

    def release(self, reason: int) -> None:
        """This reason to stop reading is gone."""
        if self.held:
            self.held &= ~reason
            if not self.held and self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()

    def refuse(self, refusal: RefusalError, aborted_by: int = ABORTED_BY_NOBODY) -> None:
        """Answer with an error of the edge's own, leave the record, and end the connection."""
        exchange = self.exchange
        edge = self._edge
        with_body = True
        if exchange is not None:
            if exchange.answer >= states.ANSWER_BODY:
                # The client holds a head already; this can only be said by breaking off.
                exchange.break_off(aborted_by or ABORTED_BY_CLIENT)
                return
            with_body = exchange.ask.method != b"HEAD"
            request_id = exchange.request_id.decode("ascii")
        else:
            request_id = edge.ids.new()  # no head was accepted, so nobody else's is believed
        answer = render(refusal, request_id, with_body=with_body)
        self.write(answer)
        if exchange is not None:
            exchange.status = refusal.status
            exchange.response_bytes += len(answer)
            exchange.finish(aborted_by)
        else:
            edge.record_refusal(self.started, refusal.status, len(answer), aborted_by)
        self.linger()

    def linger(self) -> None:
        """Shut the sending side behind what was written; read and forget until the client does the same."""
        self.ask = states.ASK[self.ask][states.REFUSE]
        self._partial = None
        self._backlog = b""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._last_deadline(transport)
        self.release(self.held)
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def close(self) -> None:
        """Close in order: what was written is still sent."""
        transport = self.transport
        if transport is not None:
            self._last_deadline(transport)
            transport.close()

    def _last_deadline(self, transport: Transport) -> None:
        """A client that still reads gets the time of a stream; one that has it all, a moment."""
        rest_s = self._edge.timeouts.stream_idle_s if transport.get_write_buffer_size() else _LINGER_S
        self.deadline = monotonic() + rest_s

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    # -- tunnels -------------------------------------------------------------------------------

    def become_tunnel(self, now: float) -> None:
        self.ask = states.ASK[self.ask][states.SWITCH]
        self.tunnel = True
        self.deadline = now + self._edge.timeouts.stream_idle_s
        self._edge.tunnels.add(self)
        backlog, self._backlog = self._backlog, b""
        self.release(self.HOLD_BACKLOG)
        if backlog:
            self._tunnel(backlog)

    def _tunnel(self, data: bytes) -> None:
        exchange = self.exchange
        assert exchange is not None
        exchange.request_bytes += len(data)
        if exchange.upstream is not None:
            exchange.upstream.write(data)
        self.tunnel_alive()

    def tunnel_alive(self) -> None:
        """Bytes went through: the idle time starts again, unless a flip condemned this tunnel."""
        if self in self._edge.tunnels:
            self.deadline = monotonic() + self._edge.timeouts.stream_idle_s

    # -- called by the sweeper and the worker --------------------------------------------------

    def timed_out(self) -> None:
        """``deadline`` passed."""
        exchange = self.exchange
        state = self.ask
        if state == states.ASK_HEAD:
            self.refuse(
                RefusalError(408, "header_timeout", "the request's head did not arrive in time"),
                ABORTED_BY_TIMEOUT,
            )
        elif exchange is None:
            self.abort()
        elif exchange.answer == states.DIALING:
            exchange.connect_timed_out()
        elif exchange.answer >= states.ANSWER_BODY:
            exchange.break_off(ABORTED_BY_TIMEOUT)
        elif state == states.ASK_BODY:
            if self.held:
                exchange.failed(
                    504, "request_timeout", f"pool {exchange.pool.name!r} stopped reading", ABORTED_BY_TIMEOUT
                )
            else:
                self.refuse(
                    RefusalError(408, "body_timeout", "the request's body stopped arriving"),
                    ABORTED_BY_TIMEOUT,
                )
        else:
            message = f"pool {exchange.pool.name!r} did not begin to answer in time"
            exchange.failed(504, "first_byte_timeout", message, ABORTED_BY_TIMEOUT)

    def drain(self) -> None:
        """The worker is going: every connection closes after its exchange. An idle one may have one more, for
        its client may be sending a request at this very moment, and one that has just connected surely is."""
        self.keep_alive = False
        if self.ask == states.IDLE:
            self.deadline = min(self.deadline, monotonic() + LAST_ASK_S)

    def cut(self) -> None:
        """The drain's time is over."""
        if self.exchange is not None:
            self.exchange.finish(ABORTED_BY_DRAIN)
        self.abort()


def _too_long(head: bytes | bytearray, limit: int) -> RefusalError:
    if b"\r\n" not in head[:limit]:
        return RefusalError(414, "target_too_long", f"a request's head may have {limit} bytes")
    return RefusalError(431, "head_too_large", f"a request's head may have {limit} bytes")
