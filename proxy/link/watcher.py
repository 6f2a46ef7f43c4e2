"""The supervisor's end of the link: keeps the last route table, and reports dead edge workers.

It is no edge: it routes nothing and no flip waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

import grpc.aio

from policies.routes import RouteTable
from proxy.edge.settings import LinkTLS
from proxy.ledger.edge import EdgeCounts
from proxy.link.channel import open_channel
from proxy.link.follow import TableFollower
from proxy.link.pb import link_pb2 as pb
from proxy.link.pb.link_pb2_grpc import LinkStub
from proxy.link.values import EdgeIdentity

_LOG = logging.getLogger(__name__)

GONE_KEPT = 4_096
"""Ends that wait for a judge to count them."""


class TableWatcher:
    """Lives on the supervisor's event loop."""

    def __init__(
        self,
        target: str,
        tls: LinkTLS | None,
        identity: EdgeIdentity,
        table: RouteTable,
        on_table: Callable[[RouteTable, bytes], None],
        *,
        on_settled: Callable[[str], None] = lambda incarnation: None,
        on_change: Callable[[bool], None] = lambda answers: None,
    ) -> None:
        """
        Args:
            target: gRPC target of the judge.
            identity: the supervisor's own; its incarnation must differ from every edge's.
            table: the one on disk.
            on_table: keeps a newer table, as the JSON that came: what a newer judge says besides is for
                whoever reads the file next. An exception is logged, and the table comes again on reconnect.
            on_settled: this dead edge's counters are in the judge's ledger: its file may go.
            on_change: whether the judge answers, at each change.
        """
        self._target = target
        self._tls = tls
        self._identity = identity
        self._table = table
        self._on_table = on_table
        self._on_settled = on_settled
        self._on_change = on_change
        self._answers = False
        self._gone: OrderedDict[str, EdgeCounts] = OrderedDict()
        self._sent: set[str] = set()  # on the present stream
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        """Begin to look for the judge; returns at once. Raises LinkError when a TLS file cannot be read."""
        self._channel = open_channel(self._target, self._tls)
        follower = TableFollower(
            LinkStub(self._channel),
            self._identity,
            self._table,
            self._on_table,
            self._changed,
            is_supervisor=True,
            on_settled=self._settle,
        )
        self._tasks = [
            asyncio.create_task(follower.run(), name="link watch"),
            asyncio.create_task(self._report(follower), name="link gone"),
        ]

    async def close(self, drain_s: float = 0.0) -> None:
        """End; with ``drain_s``, first wait that long for the judge to count the ends reported so far."""
        if drain_s and self._answers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(None)

    def edge_gone(self, final: EdgeCounts) -> None:
        """An edge worker is dead. Sent now, and again after each reconnect until the judge has counted it."""
        self._gone[final.incarnation] = final
        while len(self._gone) > GONE_KEPT:
            lost, _ = self._gone.popitem(last=False)
            _LOG.error("no judge has counted the end of an edge, given up", extra={"incarnation": lost})
        self._sent.discard(final.incarnation)
        self._idle.clear()
        self._wake.set()

    async def _report(self, follower: TableFollower) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            for incarnation, final in list(self._gone.items()):
                if incarnation not in self._sent and await follower.send(_gone(final)):
                    self._sent.add(incarnation)

    def _settle(self, incarnations: Iterable[str]) -> None:
        for incarnation in incarnations:
            if self._gone.pop(incarnation, None) is not None:
                self._sent.discard(incarnation)
                self._on_settled(incarnation)
        if not self._gone:
            self._idle.set()

    def _changed(self, answers: bool) -> None:
        if answers:
            self._sent.clear()
            self._wake.set()
        if answers != self._answers:
            self._answers = answers
            self._on_change(answers)


def _gone(final: EdgeCounts) -> pb.WatchUp:
    up = pb.WatchUp()
    up.gone.edge.sidecar = final.sidecar
    up.gone.edge.worker = final.worker
    up.gone.edge.incarnation = final.incarnation
    up.gone.ledger.captured = final.captured
    up.gone.ledger.delivered = final.delivered
    up.gone.ledger.dropped.update(final.dropped)
    return up
