"""The judge's end of the link: many edges in, one route table out.

A batch is taken once, whatever happens to its receipt: the ledger knows batches by number, and after a
restart of the judge by what the store says of their captures, and by the numbers of batches whose live
records the judge before had in its gates when it wrote them down. Handing a batch to the sink has no await in
it, so a batch is either taken whole or not at all.

A table is pushed to every stream the moment it is published; a stream that is slow gets the newest one only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

import grpc
import grpc.aio
import msgspec

from policies.routes import RouteTable
from proxy.edge.settings import LinkTLS
from proxy.ledger import DropReason, JudgeLedger
from proxy.link.channel import bind_server, open_server
from proxy.link.flip import Flip
from proxy.link.inbound import capture_of, counts_of, identity_of, live_of
from proxy.link.pb import link_pb2 as pb
from proxy.link.pb.link_pb2_grpc import LinkServicer, add_LinkServicer_to_server
from proxy.link.ports import LinkSink, PastReader, no_past
from proxy.link.values import Capture, EdgeIdentity

_LOG = logging.getLogger(__name__)

FLIPS_WATCHED = 64
"""Incomplete flips that still collect acknowledgements."""


class EdgeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One edge, for `status` and metrics. Seconds are ages, on the server's clock."""

    identity: EdgeIdentity
    connected: bool
    epoch: int
    """Of the table that it said it uses."""
    heard_s: float
    """Since its last batch, table or acknowledgement."""
    live_lost: int
    is_supervisor: bool


class _Peer:
    """What is known of one edge incarnation or supervisor."""

    __slots__ = ("connected", "epoch", "heard_s", "identity", "is_supervisor", "live_lost", "news", "settled")

    def __init__(self, identity: EdgeIdentity, now_s: float, is_supervisor: bool) -> None:
        self.identity = identity
        self.is_supervisor = is_supervisor
        self.connected: object | None = None  # the stream that serves it now
        self.epoch = 0
        self.heard_s = now_s
        self.live_lost = 0
        self.news = asyncio.Event()
        self.settled: list[str] = []


class LinkServer:
    """Serves one judge. All methods belong to its event loop."""

    def __init__(
        self,
        bind: str,
        tls: LinkTLS | None,
        sink: LinkSink,
        table: RouteTable,
        *,
        ledger: JudgeLedger | None = None,
        past: PastReader = no_past,
        live_taken: Mapping[str, int] | None = None,
        edge_grace_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            bind: ``unix:PATH`` or ``host:port``; port 0 picks one.
            tls: required unless the address is local; clients must present a certificate of its CA.
            ledger: shared with whoever ends captures; one of its own when None.
            past: the evidence store's memory.
            live_taken: incarnation → the last batch whose live records an earlier judge took, as far as that
                was written down: they are not taken again.
            edge_grace_s: an edge that lost its link may serve canaries this long (its ``judge_grace_s``).
        """
        self._bind = bind
        self._tls = tls
        self._sink = sink
        self._table = table
        self._encoded = msgspec.json.encode(table)
        self.ledger = ledger if ledger is not None else JudgeLedger()
        self._past = past
        self._live_taken = live_taken or {}
        self._grace_s = edge_grace_s
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._flips: deque[Flip] = deque(maxlen=FLIPS_WATCHED)
        self._reporters: dict[str, _Peer] = {}  # dead incarnation → the supervisor that reported it
        self.ledger.on_settled = self._settled
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._server: grpc.aio.Server | None = None
        self.port = 0
        """The bound TCP port; 0 on a unix socket."""

    @property
    def table(self) -> RouteTable:
        """The table published last."""
        return self._table

    async def start(self) -> None:
        """Listen. Raises LinkError when the address or a TLS file is no good."""
        server = open_server()
        add_LinkServicer_to_server(_Servicer(self), server)
        self.port = bind_server(server, self._bind, self._tls)
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.5) -> None:
        """Stop listening and end every stream; batches being taken have ``grace_s`` to end."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    def publish(self, table: RouteTable) -> Flip:
        """Send a newer table to every edge, now.

        Raises:
            ValueError: its epoch is not above the present one: no edge would obey it.
        """
        if table.epoch <= self._table.epoch:
            raise ValueError(f"route table {table.epoch}: the present one is {self._table.epoch} already")
        self._table = table
        self._encoded = msgspec.json.encode(table)
        now_s = self._clock()
        expected = (key for key, peer in self._edges() if self._may_route(peer, now_s))
        flip = Flip(table.epoch, now_s, expected)
        self._flips.append(flip)
        for peer in self._peers.values():
            peer.news.set()
        return flip

    def edges(self) -> tuple[EdgeStatus, ...]:
        """Every edge and supervisor that is not known to be dead."""
        now_s = self._clock()
        return tuple(
            EdgeStatus(
                identity=peer.identity,
                connected=peer.connected is not None,
                epoch=peer.epoch,
                heard_s=now_s - peer.heard_s,
                live_lost=peer.live_lost,
                is_supervisor=peer.is_supervisor,
            )
            for peer in self._peers.values()
        )

    def _edges(self) -> Iterator[tuple[str, _Peer]]:
        return ((key, peer) for key, peer in self._peers.items() if not peer.is_supervisor)

    def _may_route(self, peer: _Peer, now_s: float) -> bool:
        return peer.connected is not None or now_s - peer.heard_s < self._grace_s

    def _peer(self, identity: EdgeIdentity, is_supervisor: bool = False) -> _Peer:
        peer = self._peers.get(identity.incarnation)
        now_s = self._clock()
        if peer is None:
            self._forget_silent(now_s)
            peer = self._peers[identity.incarnation] = _Peer(identity, now_s, is_supervisor)
        peer.heard_s = now_s
        return peer

    def _forget_silent(self, now_s: float) -> None:
        """Drop peers without a stream whose grace ended long ago; the ledger keeps its own account."""
        limit_s = 20 * self._grace_s
        for key, peer in list(self._peers.items()):
            if peer.connected is None and now_s - peer.heard_s > limit_s:
                del self._peers[key]

    # -- up: batches ----------------------------------------------------------------------------------

    async def take(self, batch: pb.Batch) -> None:
        """Count a batch and hand it to the sink, once. Raises ValueError for one that breaks the protocol."""
        identity = identity_of(batch.edge)
        records, overheads = live_of(batch)
        captures = [capture_of(capture) for capture in batch.captures]
        sequences = [capture.sequence for capture in captures]
        if len(set(sequences)) != len(sequences) or not batch.batch:
            raise ValueError(f"batch {batch.batch}: no number, or a sequence occurs twice")
        counts = counts_of(identity, batch.ledger)
        async with self._lock(identity.incarnation):
            past = None
            if not self.ledger.knows(identity.incarnation):
                past = await self._past(identity.incarnation, sequences)
            fresh = self.ledger.receive(counts, batch.batch, sequences, past)
            if fresh is None:
                return
            self._peer(identity).live_lost = batch.live_lost
            for capture in captures:
                if capture.sequence in fresh:
                    self._hand_over(identity, capture)
            if records and batch.batch > self._live_taken.get(identity.incarnation, 0):
                self._sink.live(records)
                self._sink.overhead(overheads)

    def _hand_over(self, identity: EdgeIdentity, capture: Capture) -> None:
        try:
            self._sink.capture(identity, capture)
        except Exception:
            # The sink owes an end and will not give one; the batch's other captures are sound.
            _LOG.exception("a capture could not be taken", extra={"capture_id": capture.capture_id})
            self.ledger.dropped(identity.incarnation, capture.sequence, DropReason.UNSUPPORTED)

    def _lock(self, incarnation: str) -> asyncio.Lock:
        lock = self._locks.get(incarnation)
        if lock is None:
            lock = self._locks[incarnation] = asyncio.Lock()
        return lock

    # -- down: tables ---------------------------------------------------------------------------------

    async def follow(
        self,
        hello: pb.Hello,
        ups: AsyncIterator[pb.WatchUp],
        write: Callable[[pb.WatchDown], Awaitable[None]],
    ) -> None:
        """Serve one stream until its other end goes. ``write`` sends one message and may be awaited."""
        identity = identity_of(hello.edge)
        peer = self._peer(identity, hello.is_supervisor)
        stream = object()
        peer.connected = stream
        self._uses(peer, hello.epoch)
        if hello.epoch > self._table.epoch:
            self._sink.epoch_ahead(identity, hello.epoch)
        # Whatever its epoch: a judge that knows nothing of a table may have given its number away again.
        unknown = {
            name: epoch for name, epoch in hello.rolled_back.items() if name not in self._table.rolled_back
        }
        if unknown:
            self._sink.rolled_back(identity, unknown)
        peer.news.set()
        tasks = {
            asyncio.create_task(self._push(peer, stream, write), name="link push"),
            asyncio.create_task(self._listen(peer, ups), name="link listen"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if peer.connected is stream:
                peer.connected = None
                peer.heard_s = self._clock()

    async def _listen(self, peer: _Peer, ups: AsyncIterator[pb.WatchUp]) -> None:
        async for up in ups:
            peer.heard_s = self._clock()
            kind = up.WhichOneof("kind")
            if kind == "acknowledge":
                self._uses(peer, up.acknowledge.epoch)
            elif kind == "gone" and peer.is_supervisor:
                incarnation = up.gone.edge.incarnation
                self._reporters[incarnation] = peer
                await self.bury(up.gone)
                if self.ledger.settled(incarnation):
                    self._settled(incarnation)

    async def _push(
        self, peer: _Peer, stream: object, write: Callable[[pb.WatchDown], Awaitable[None]]
    ) -> None:
        sent = -1
        while peer.connected is stream:
            await peer.news.wait()
            peer.news.clear()
            down = pb.WatchDown(epoch=self._table.epoch)
            if sent != self._table.epoch:
                down.route_table = self._encoded
                sent = self._table.epoch
            down.settled.extend(peer.settled)
            peer.settled.clear()
            if down.route_table or down.settled:
                await write(down)

    def _uses(self, peer: _Peer, epoch: int) -> None:
        peer.epoch = epoch
        if peer.is_supervisor:
            return
        now_s = self._clock()
        for flip in self._flips:
            if epoch >= flip.epoch:
                flip.acknowledge(peer.identity.incarnation, now_s)
        self._drop_complete()

    def _drop_complete(self) -> None:
        for flip in [flip for flip in self._flips if flip.complete]:
            self._flips.remove(flip)

    def _settled(self, incarnation: str) -> None:
        """Tell the supervisor that it may forget a dead edge: only now, since until its last capture has
        ended a kill of this process would lose captures that nobody else remembers."""
        reporter = self._reporters.pop(incarnation, None)
        if reporter is not None:
            reporter.settled.append(incarnation)
            reporter.news.set()

    async def bury(self, gone: pb.EdgeGone) -> None:
        """Count an edge's end. Safe to tell twice."""
        identity = identity_of(gone.edge)
        final = counts_of(identity, gone.ledger)
        async with self._lock(identity.incarnation):
            past = None
            if not self.ledger.knows(identity.incarnation):
                past = await self._past(identity.incarnation, ())
            self.ledger.gone(final, past)
        self._peers.pop(identity.incarnation, None)
        for flip in self._flips:
            flip.release(identity.incarnation)
        self._drop_complete()
        self._sink.edge_gone(identity, final)


class _Servicer(LinkServicer):
    """gRPC's calls, turned into the server's. Names are gRPC's."""

    def __init__(self, server: LinkServer) -> None:
        self._server = server

    async def Submit(self, request: pb.Batch, context: Any) -> pb.Receipt:  # noqa: N802
        try:
            await self._server.take(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            _LOG.exception(
                "a batch was not taken",
                extra={"batch": request.batch, "incarnation": request.edge.incarnation},
            )
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not taken: {type(error).__name__}")
        return pb.Receipt(batch=request.batch)

    async def Watch(self, request_iterator: AsyncIterator[pb.WatchUp], context: Any) -> None:  # noqa: N802
        async for up in request_iterator:
            if up.WhichOneof("kind") != "hello":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
            try:
                await self._server.follow(up.hello, request_iterator, context.write)
            except ValueError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
