"""One request and its answer: attempts, the answer's way to the client, the end, the record.

An exchange owns the answer half of ``states``. Its client connection drives it with the ask, its upstream
connection with the answer; whoever notices the end calls ``finish`` once. Which pool may answer in another's
place is said in ``elsewhere``.
"""

from __future__ import annotations

import socket
import struct
from time import monotonic, time
from typing import TYPE_CHECKING, Final

from policies.routes import TenantName
from proxy.edge import elsewhere, states
from proxy.edge.errors import RefusalError
from proxy.edge.framing import BodyReader, CloseBody, answer_body
from proxy.edge.sampling import Capture
from proxy.ledger import DropReason
from proxy.live import (
    ABORTED_BY_FLIP,
    ABORTED_BY_NOBODY,
    ABORTED_BY_UPSTREAM,
    FLAG_CANARY,
    FLAG_STREAMED,
)

if TYPE_CHECKING:
    from proxy.edge.answers import Answer
    from proxy.edge.asks import Ask
    from proxy.edge.client import ClientConnection
    from proxy.edge.edge import Dial, Edge
    from proxy.edge.pool import Endpoint, LivePool
    from proxy.edge.upstream import UpstreamConnection

_NAN: Final = float("nan")
_STALE_S: Final = 1.0
"""A reused connection that ends this soon after a request was written to it, without a byte, had been closed
by the other side before: the two crossed. Later than that, the request may have been worked on."""
_RETRYABLE: Final = frozenset((502, 503, 504))


class Exchange:
    """See the module. Times are monotonic seconds unless a name says unix.

    Most requests leave most of this as it is, so what is not always set has its default in the class.
    """

    answer = states.NONE
    answer_reader: BodyReader | None = None
    ask_body = b""
    """The ask's body when it came with its head; else ``ask_reader`` has it."""
    ask_reader: BodyReader | None = None
    capture: Capture | None = None
    endpoint: Endpoint | None = None
    environment = ""
    upstream: UpstreamConnection | None = None
    first_byte_s = _NAN
    flags = 0
    overhead_s = 0.0
    """Time spent in the edge: from the ask's head read to its writing to the pool, and from the answer's head
    read to its writing to the client, with what came along of either. Neither the dial nor a wait for a peer
    is in it.

    Nor is what later pieces of a stream take. They go out as they come in, so that a client has its last
    token later by one piece's passing, not by the sum of all; and two looks at the clock are 1,170
    instructions on the 10,000 that the core takes for a piece, 12 %."""
    flipped = False
    """Its tenant was sent elsewhere while it was under way, and its pool may not finish it."""
    interim = 0
    response_bytes = 0
    sent: list[bytes] | None = None
    """What was written, or waits for a connection, so that it can be written again; None: not kept."""
    sent_at = 0.0
    sheltered = False
    """Nobody at home answered, so the pool answers that its tenant was sent home from."""
    stale_retried = False
    status = 0
    tried: tuple[Endpoint, ...] = ()
    _dial: Dial | None = None

    def __init__(
        self, edge: Edge, client: ClientConnection, ask: Ask, now: float, request_bytes: int
    ) -> None:
        self.edge = edge
        self.client = client
        self.ask = ask
        self.started = now
        self.started_unix_s = time()
        self.request_bytes = request_bytes
        self.request_id: bytes = ask.request_id or edge.ids.new().encode("ascii")
        router = edge.router
        self.tenant: TenantName = router.tenant_of(ask)
        self.pool: LivePool = router.route(self.tenant, now)
        self.canary = self.pool is not router.home
        if self.canary:
            self.flags = FLAG_CANARY
            if not self.pool.takes(now):
                elsewhere.begin(self, now)
        elif router.refuges and self.tenant in router.refuges and not self.pool.takes(now):
            elsewhere.begin(self, now)
        if router.rules:
            edge.sample(self)

    # -- the ask, towards the pool -------------------------------------------------------------

    def read_body(self, reader: BodyReader) -> None:
        """The body follows in pieces."""
        self.ask_reader = reader
        if self.capture is not None:
            reader.keep = []

    def start(self, body: bytes) -> None:
        """Begin the first attempt with the head and what already came of the body."""
        ask = self.ask
        first = b"".join((ask.block, ask.forwarded, b"x-request-id: ", self.request_id, b"\r\n\r\n", body))
        self.sent = [first]
        self._attempt(self.client.read_at)

    def _attempt(self, now: float, *, fresh: bool = False) -> None:
        """Send what was kept so far on an idle connection, or on a new one."""
        endpoint = self.pool.choose(now, self.tried)
        if endpoint is None:
            self.client.refuse(
                RefusalError(503, "no_endpoint", f"pool {self.pool.name!r} has no endpoint left to try")
            )
            return
        self.endpoint = endpoint
        endpoint.in_flight += 1
        if endpoint.idle and not fresh:
            self._send(endpoint.idle.pop(), now)
            return
        self.answer = states.ANSWER[self.answer][states.DIAL]
        client = self.client
        client.deadline = now + self.edge.timeouts.connect_s
        self.overhead_s += monotonic() - now
        if client.ask != states.ASK_DONE:
            client.hold(client.HOLD_DIAL)  # an ask that is whole needs no pause, and its client may hang up
        self._dial = self.edge.dialer.dial(endpoint, self)

    def connected(self, upstream: UpstreamConnection) -> None:
        """The dialer's connection stands."""
        self._dial = None
        self.client.release(self.client.HOLD_DIAL)
        self._send(upstream, monotonic())

    def not_connected(self, error: str) -> None:
        """The dialer could not connect."""
        self._dial = None
        self._failed_to_connect(502, "connect_failed", error)

    def connect_timed_out(self) -> None:
        """The connection did not stand in time."""
        self.stop_dialing()
        self._failed_to_connect(504, "connect_timeout", "no connection in time")

    def _failed_to_connect(self, status: int, code: str, error: str) -> None:
        endpoint = self.endpoint
        assert endpoint is not None
        now = monotonic()
        endpoint.health.failed(now)
        self.edge.counts.connect_failures += 1
        # Nothing was written, so any other endpoint of the pool may have it, kept or not.
        self.tried = (*self.tried, endpoint)
        if self.sent is not None and self.pool.choose(now, self.tried) is not None:
            self.again()
            return
        self._give_up(status, code, f"pool {self.pool.name!r}: {error}")

    def _send(self, upstream: UpstreamConnection, now: float) -> None:
        sent = self.sent
        assert sent is not None
        self.upstream = upstream
        upstream.exchange = self
        self.answer = states.ANSWER[self.answer][states.SEND]
        self.sent_at = now
        upstream.write(sent[0] if len(sent) == 1 else b"".join(sent))
        self.overhead_s += monotonic() - now
        client = self.client
        if client.write_paused:
            upstream.pause_reading()
        edge = self.edge
        whole = client.ask == states.ASK_DONE
        client.deadline = now + (edge.timeouts.first_byte_s if whole else edge.timeouts.stream_idle_s)
        if self.capture is not None:
            edge.begin_capture(self)
            if whole and self.capture is not None:
                edge.offer_capture(self)

    def forward(self, piece: bytes) -> None:
        """One more piece of the ask's body."""
        sent = self.sent
        upstream = self.upstream
        if upstream is not None:
            upstream.write(piece)
            if sent is not None:
                reader = self.ask_reader
                assert reader is not None
                keeps = self.canary or self.tenant in self.edge.router.refuges
                if keeps and reader.payload_bytes <= self.edge.limits.retry_body_bytes:
                    sent.append(piece)
                else:
                    self.sent = None
        else:
            # A connection is being opened. The client is paused, so this is one read's worth at most.
            assert sent is not None
            sent.append(piece)

    def asked(self) -> None:
        """The ask is whole and forwarded (or waits, whole, for a connection)."""
        if self.capture is not None and self.upstream is not None:
            self.edge.offer_capture(self)

    # -- the answer, towards the client --------------------------------------------------------

    def interim_answer(self, answer: Answer) -> None:
        """A 1xx other than 101 (RFC 9110 section 15.2). An HTTP/1.0 client knows none."""
        if self.ask.minor:
            self.client.write(answer.block + b"\r\n")

    def final_answer(self, answer: Answer, first: bytes, now: float) -> None:
        """The final head, and what came of the body in the same read, at ``now``."""
        client = self.client
        edge = self.edge
        if answer.status in _RETRYABLE and elsewhere.move(self):
            return
        if edge.router.refuges and self.pool is edge.router.home and answer.status not in _RETRYABLE:
            edge.router.home_answered(self.tenant)
        self.sent = None
        self.status = answer.status
        self.environment = answer.environment
        self.first_byte_s = now - self.started
        self.answer = states.ANSWER[self.answer][states.FINAL_HEAD]
        framing = b""
        length = answer.length
        if length < 0:
            framing = self._frame(answer)
        # A client that is not done asking may find its connection closed; see states.
        if edge.draining or client.ask != states.ASK_DONE:
            client.keep_alive = False
        if not client.keep_alive:
            framing += b"Connection: close\r\n"
        if length == 0 or length == len(first):
            # Nearly every answer that is no stream: no body, or one that came with its head.
            out = b"".join(
                (
                    answer.block,
                    framing,
                    b"x-request-id: ",
                    self.request_id,
                    b"\r\n\r\n",
                    first if length else b"",
                )
            )
            client.write(out)
            self.response_bytes += len(out)
            end = monotonic()
            self.overhead_s += end - now
            self._answered(b"" if length else first, end)
            return
        head = b"".join((answer.block, framing, b"x-request-id: ", self.request_id, b"\r\n\r\n"))
        reader = self.answer_reader = answer_body(length, self.ask.minor)
        client.deadline = now + edge.timeouts.stream_idle_s
        if first:
            head += reader.feed(first)
        client.write(head)
        self.response_bytes += len(head)
        self.overhead_s += monotonic() - now
        if reader.done:
            self._answered(reader.rest, now)

    def answer_piece(self, data: bytes) -> None:
        """A piece of the answer's body: in at once, out at once."""
        reader = self.answer_reader
        assert reader is not None
        out = reader.feed(data)
        client = self.client
        if out and client.transport is not None:
            client.transport.write(out)
            self.response_bytes += len(out)
        edge = self.edge
        client.deadline = edge.now + edge.stream_idle_s
        if reader.done:
            self._answered(reader.rest, monotonic())

    def answer_closed(self, reader: CloseBody) -> None:
        """The end of an answer that ends with its connection."""
        last = reader.end()
        if last:
            self.client.write(last)
            self.response_bytes += len(last)
        self._answered(b"", monotonic())

    def _frame(self, answer: Answer) -> bytes:
        """Frame an answer without Content-Length for this client. An HTTP/1.0 one reads until the end."""
        if answer.event_stream:
            self.flags |= FLAG_STREAMED
        if self.ask.minor:
            return b"Transfer-Encoding: chunked\r\n"
        self.client.keep_alive = False
        return b""

    def _answered(self, rest: bytes, now: float) -> None:
        """The answer is whole. ``rest`` came after it: nobody asked for that."""
        self.answer = states.ANSWER[self.answer][states.ANSWER_END]
        client = self.client
        if rest:
            assert self.upstream is not None
            self.upstream.keep_alive = False
        self.finish(ABORTED_BY_NOBODY, now)
        if client.ask == states.ASK_DONE:
            client.over(now)
        else:
            client.linger()

    def switched(self, answer: Answer, first: bytes) -> None:
        """101: from here on bytes, not messages (RFC 9110 section 7.8)."""
        now = monotonic()
        self.sent = None
        self.status = 101
        self.environment = answer.environment
        self.first_byte_s = now - self.started
        self.answer = states.ANSWER[self.answer][states.SWITCH]
        head = b"%bConnection: Upgrade\r\nUpgrade: websocket\r\nx-request-id: %b\r\n\r\n%b" % (
            answer.block,
            self.request_id,
            first,
        )
        self.client.write(head)
        self.response_bytes += len(head)
        self.client.become_tunnel(now)

    # -- trouble -------------------------------------------------------------------------------

    def upstream_ended(self, clean: bool) -> None:
        """The upstream connection is gone; ``clean`` when it was closed in order."""
        upstream = self.upstream
        assert upstream is not None
        answer = self.answer
        reader = self.answer_reader
        if answer == states.ANSWER_BODY and clean and isinstance(reader, CloseBody):
            self.answer_closed(reader)
        elif answer in (states.ANSWER_BODY, states.ANSWER_TUNNEL):
            self.break_off(ABORTED_BY_NOBODY if answer == states.ANSWER_TUNNEL else ABORTED_BY_UPSTREAM)
        else:
            stale = answer == states.WAITING and upstream.reused and monotonic() - self.sent_at <= _STALE_S
            if stale and self.sent is not None and not self.stale_retried:
                self.stale_retried = True
                self.edge.counts.stale_retries += 1
                self.again(fresh=True)
                return
            if not stale:
                self.pool.unanswered(upstream.endpoint, monotonic())
            self._give_up(
                502, "upstream_reset", f"pool {self.pool.name!r} closed the connection without an answer"
            )

    def failed(self, status: int, code: str, message: str, aborted_by: int = ABORTED_BY_UPSTREAM) -> None:
        """The pool has the request, or some of it, and its answer has no head, or none in time."""
        upstream = self.upstream
        assert upstream is not None
        if not self.client.write_paused:  # else nobody read what the pool may have said
            self.pool.unanswered(upstream.endpoint, monotonic())
        self._give_up(status, code, message, aborted_by)

    def sent_elsewhere(self) -> None:
        """A flip took its tenant from its pool, and nothing may finish there (``RouteTable.aborts``)."""
        self.flipped = True
        if self.answer >= states.ANSWER_BODY:
            self.break_off(ABORTED_BY_FLIP)
            return
        self.stop_dialing()
        if not elsewhere.move_home(self):
            message = f"pool {self.pool.name!r} is no longer this tenant's, send the request again"
            self.client.refuse(RefusalError(503, "sent_elsewhere", message), ABORTED_BY_FLIP)

    def _give_up(self, status: int, code: str, message: str, aborted_by: int = ABORTED_BY_UPSTREAM) -> None:
        """This attempt ends before a head was forwarded: home, if this was a canary, else an error answer."""
        self.edge.counts.upstream_failures += 1
        if elsewhere.move(self):
            return
        self.client.refuse(RefusalError(status, code, message), aborted_by)

    def again(self, *, fresh: bool = False) -> None:
        """This attempt is void; the next begins, at the pool that is the exchange's now."""
        self.answer = states.ANSWER[self.answer][states.AGAIN]
        self._let_go(reusable=False)
        self._attempt(monotonic(), fresh=fresh)

    def break_off(self, aborted_by: int) -> None:
        """End visibly incomplete: the client holds a head, and its body will not be whole.

        A body that ends with the connection would look whole after an orderly close: that one is reset.
        """
        client = self.client
        reset = self.answer_reader is not None and not self.ask.minor
        self.finish(aborted_by)
        if reset and client.transport is not None:
            raw = client.transport.get_extra_info("socket")
            if isinstance(raw, socket.socket) or hasattr(raw, "setsockopt"):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.abort()
        else:
            client.close()

    # -- the end -------------------------------------------------------------------------------

    def stop_dialing(self) -> None:
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.cancel()

    def _let_go(self, *, reusable: bool) -> None:
        """Part from endpoint and connection."""
        endpoint, self.endpoint = self.endpoint, None
        if endpoint is not None:
            endpoint.in_flight -= 1
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.release(reusable=reusable, flush=self.client.tunnel)
        client = self.client
        if client.held:
            client.release(client.HOLD_DIAL | client.HOLD_POOL)

    def finish(self, aborted_by: int, now: float | None = None) -> None:
        """Release everything and leave the record. The client connection decides what becomes of itself."""
        if now is None:
            now = monotonic()
        edge = self.edge
        client = self.client
        endpoint = self.endpoint
        if self._dial is not None:
            self.stop_dialing()
        whole = (
            aborted_by == ABORTED_BY_NOBODY
            and self.answer == states.ANSWER_DONE
            and client.ask == states.ASK_DONE
        )
        self.answer = states.ANSWER[self.answer][states.DROP]
        self._let_go(reusable=whole)
        client.exchange = None
        if self.capture is not None:
            edge.drop_capture(self, DropReason.CLIENT_ABORTED)
        edge.counts.requests += 1
        try:
            edge.port.live(
                self.started_unix_s,
                self.tenant,
                self.pool.name,
                endpoint.url if endpoint is not None else "",
                self.status,
                self.first_byte_s,
                now - self.started,
                self.request_bytes,
                self.response_bytes,
                ABORTED_BY_FLIP if self.flipped else aborted_by,
                self.flags,
                self.environment,
                _NAN if self.first_byte_s != self.first_byte_s else self.overhead_s,
            )
        except Exception:
            edge.shadow_failed()
