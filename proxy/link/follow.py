"""The stream that route tables come down on, followed for ever: shared by edges and their supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import msgspec

from policies.routes import RouteTable
from proxy.link.pb import link_pb2 as pb
from proxy.link.values import EdgeIdentity

if TYPE_CHECKING:
    from grpc.aio import StreamStreamCall

    from proxy.link.pb.link_pb2_grpc import LinkStub

_LOG = logging.getLogger(__name__)

RETRY_S = (0.05, 1.0)
"""Pause after a stream that ended, doubling from the first to the second while nothing comes of it."""


class TableFollower:
    """One end of ``Watch``. Swaps each newer table in and acknowledges it right after. For an edge a judge
    whose table cannot be used does not answer; it is asked again and again."""

    def __init__(
        self,
        stub: LinkStub,
        identity: EdgeIdentity,
        table: RouteTable,
        on_table: Callable[[RouteTable, bytes], None],
        on_change: Callable[[bool], None],
        *,
        is_supervisor: bool = False,
        on_settled: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        """
        Args:
            table: the one in use.
            on_table: returns once the table is in use; an exception leaves it unacknowledged. It is given the
                JSON too, for what a newer judge may say there besides.
            on_change: True once the judge has spoken on a stream, False when that stream has ended.
            on_settled: incarnations whose end the judge has counted.
        """
        self._stub = stub
        self._identity = identity
        self._on_table = on_table
        self._on_change = on_change
        self._is_supervisor = is_supervisor
        self._on_settled = on_settled
        self._call: StreamStreamCall[pb.WatchUp, pb.WatchDown] | None = None
        self._writing = asyncio.Lock()
        self._table = table

    @property
    def epoch(self) -> int:
        """Of the table in use."""
        return self._table.epoch

    async def run(self) -> None:
        """Follow until cancelled."""
        pause_s = RETRY_S[0]
        while True:
            try:
                if await self._follow():
                    pause_s = RETRY_S[0]
            except grpc.aio.AioRpcError as error:
                _LOG.info(
                    "link to the judge is down", extra={"code": error.code().name, "error": error.details()}
                )
            except asyncio.InvalidStateError:
                _LOG.info("link to the judge is down", extra={"error": "the stream ended"})
            except Exception:  # an edge that follows no tables any more would obey no rollback
                _LOG.exception("link to the judge is down (a bug); following again")
            self._on_change(False)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def send(self, up: pb.WatchUp) -> bool:
        """Write one message on the present stream; False when there is none, or it broke."""
        if self._call is None:
            return False
        try:
            async with self._writing:
                await self._call.write(up)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return True

    async def _follow(self) -> bool:
        """Follow one stream to its end; returns whether anything came of it."""
        call = self._stub.Watch(None, wait_for_ready=True)
        came = False
        try:
            hello = pb.Hello(epoch=self.epoch, is_supervisor=self._is_supervisor)
            hello.rolled_back.update({str(name): at for name, at in self._table.rolled_back.items()})
            hello.edge.sidecar = self._identity.sidecar
            hello.edge.worker = self._identity.worker
            hello.edge.incarnation = self._identity.incarnation
            await call.write(pb.WatchUp(hello=hello))
            while True:
                down = await call.read()
                if not isinstance(down, pb.WatchDown):
                    return came
                if down.route_table:
                    if self._take(down.route_table):
                        async with self._writing:
                            await call.write(pb.WatchUp(acknowledge=pb.Acknowledge(epoch=self.epoch)))
                    elif not self._is_supervisor:
                        # An edge that can use no table of its judge, a newer one's, would obey no rollback:
                        # it is as good as none, so that canary tenants go home by their grace.
                        return came
                if down.settled and self._on_settled is not None:
                    self._on_settled(down.settled)
                if not came:
                    came = True
                    self._call = call
                    self._on_change(True)
        finally:
            self._call = None
            call.cancel()

    def _take(self, encoded: bytes) -> bool:
        """Use a table if it is newer. False when it is no table: it must not be acknowledged."""
        try:
            table = msgspec.json.decode(encoded, type=RouteTable)
        except msgspec.DecodeError as error:
            _LOG.error("the judge's route table is unusable and ignored", extra={"error": str(error)})
            return False
        if table.epoch > self.epoch:
            try:
                self._on_table(table, encoded)
            except Exception:
                _LOG.exception(
                    "a route table could not be swapped in, the one before stays",
                    extra={"epoch": table.epoch, "known": self.epoch},
                )
                return False
            self._table = table
        return True
