"""Captures for a judge, without an edge: the edge's own link client, fed by hand.

What it offers is what an edge would: 2 KiB chat calls with ids and conversations of their own, over the real
wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

from bench.machine import BenchError
from bench.payloads import PATH, TENANT, another_body
from bench.routes import LIVE, ROLLOUT, shadow_table
from policies.routes import RouteTable, TenantName
from proxy.edge.ports import CaptureHead
from proxy.edge.settings import EdgeSettings
from proxy.link.client import EdgeLink

_HEADERS = ((b"content-type", b"application/json"), (b"user-agent", b"OpenAI/Python 3.57.0"))


class _Listener:
    """``proxy.edge.ports.TableListener`` that only waits for the judge."""

    def __init__(self) -> None:
        self.judged = asyncio.Event()

    def __call__(self, table: RouteTable) -> None:
        pass

    def judge_lost(self) -> None:
        self.judged.clear()

    def judge_back(self) -> None:
        self.judged.set()


class Feeder:
    """Offers captures to one judge."""

    def __init__(self, link: EdgeLink) -> None:
        self._link = link
        self.offered = 0

    def offer(self) -> None:
        """One more capture."""
        self.offered += 1
        identity = str(uuid.uuid4())
        head = CaptureHead(
            capture_id=identity,
            request_id=identity,
            tenant=TenantName(TENANT),
            rollout=ROLLOUT,
            target=PATH,
            headers=_HEADERS,
            live_pool=LIVE,
            received_unix_s=time.time(),
        )
        self._link.offer(self._link.begin(), head, another_body(self.offered))


@contextlib.asynccontextmanager
async def feeder(judge: str) -> AsyncIterator[Feeder]:
    """A link to the judge at this address, up."""
    listener = _Listener()
    settings = EdgeSettings(
        sidecar="bench",
        worker=0,
        incarnation=str(uuid.uuid4()),
        listen_fds=(),
        judge=judge,
        initial_table=shadow_table(1, percent=100),
    )
    link = EdgeLink(settings, listener)
    await link.start()
    try:
        try:
            await asyncio.wait_for(listener.judged.wait(), 10)
        except TimeoutError:
            raise BenchError(f"no judge answers at {judge}") from None
        yield Feeder(link)
    finally:
        await link.close(0.5)
