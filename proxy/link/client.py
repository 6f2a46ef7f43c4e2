"""The edge's end of the link: captures and live records up, route tables down.

Two tasks on the edge's event loop, and nothing on a request's path but :class:`~proxy.link.outbox.Outbox`:

- *submit* sends one batch at a time and sends the same one again until a judge has it. There is no other
  retry: connecting and its back-off are gRPC's own (``proxy/link/channel.py``).
- *watch* holds the stream that route tables come down on, swaps each in and acknowledges it at once.

A judge *answers* while the stream stands and the last batch went through; the listener is told of each
change. No numpy, engine or comparator comes in with this module: edge workers import it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import grpc
import grpc.aio

from proxy.edge.ports import CaptureHead, TableListener
from proxy.edge.settings import EdgeSettings
from proxy.ledger.edge import EdgeCounts, EdgeLedger
from proxy.ledger.reasons import DropReason
from proxy.link.channel import open_channel
from proxy.link.follow import RETRY_S, TableFollower
from proxy.link.outbox import Outbox
from proxy.link.pb import link_pb2 as pb
from proxy.link.pb.link_pb2_grpc import LinkStub
from proxy.link.values import EdgeIdentity

_LOG = logging.getLogger(__name__)

SUBMIT_S = 5.0
"""Deadline of one attempt to hand a batch over. The judge only queues it, so a slow answer is no answer."""

STOP_S = 1.0
"""What a cancelled task gets to end: the worker must stop, whatever hangs in it."""

# The judge has read the batch and will never take it; all other failures leave its fate open.
_REFUSALS = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED})


class EdgeLink:
    """Implements :class:`proxy.edge.ports.ShadowPort` towards a real judge."""

    begin: Callable[[], int]
    offer: Callable[[int, CaptureHead, bytes], None]
    drop: Callable[[int, DropReason], None]
    live: Callable[[float, str, str, str, int, float, float, int, int, int, int, str, float], None]

    def __init__(
        self, settings: EdgeSettings, on_table: TableListener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._on_table = on_table
        self._identity = EdgeIdentity(
            sidecar=settings.sidecar, worker=settings.worker, incarnation=settings.incarnation
        )
        self._ledger = EdgeLedger(
            settings.sidecar, settings.worker, settings.incarnation, settings.ledger_file
        )
        self._outbox = Outbox(self._identity, settings.capture, self._ledger, clock, self._wake)
        # The hot path goes straight to the outbox.
        self.begin = self._outbox.begin
        self.offer = self._outbox.offer
        self.drop = self._outbox.drop
        self.live = self._outbox.live
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: grpc.aio.Channel | None = None
        self._follower: TableFollower | None = None
        self._submitter: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._watching = False
        self._submitting = True
        self._answers = False
        self._closing = False

    @property
    def epoch(self) -> int:
        """Epoch of the table in use."""
        return self._settings.initial_table.epoch if self._follower is None else self._follower.epoch

    @property
    def judge_answers(self) -> bool:
        """True while both streams with the judge stand."""
        return self._answers

    def counts(self) -> EdgeCounts:
        """The ledger of this incarnation, now."""
        return self._ledger.counts(held=self._outbox.held)

    @property
    def live_lost(self) -> int:
        """Live records that found no room since the start."""
        return self._outbox.live_lost

    async def start(self) -> None:
        """Begin to look for the judge; returns at once.

        The listener is told ``judge_lost`` first: until one answers, its grace runs.

        Raises:
            LinkError: a TLS file cannot be read.
        """
        self._loop = asyncio.get_running_loop()
        self._on_table.judge_lost()
        if self._settings.judge is None:
            self._outbox.refuses = DropReason.NO_JUDGE
            return
        self._channel = open_channel(self._settings.judge, self._settings.link_tls)
        stub = LinkStub(self._channel)
        self._submitter = asyncio.create_task(self._submit_forever(stub), name="link submit")
        self._follower = TableFollower(
            stub,
            self._identity,
            self._settings.initial_table,
            lambda table, encoded: self._on_table(table),
            self._changed,
        )
        self._watcher = asyncio.create_task(self._follower.run(), name="link watch")

    async def close(self, drain_s: float) -> None:
        """Hand over what is queued, for at most ``drain_s`` seconds, and end the rest as ``shutdown``."""
        self._closing = True
        self._news.set()
        if self._submitter is not None and self._answers:
            await asyncio.wait({self._submitter}, timeout=drain_s)
        tasks = [task for task in (self._submitter, self._watcher) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        if self._timer is not None:
            self._timer.cancel()
        if self._channel is not None:
            await self._channel.close(None)
        self._outbox.abandon()
        self._ledger.close()

    # -- captures and records up ----------------------------------------------------------------------

    def _wake(self, now: bool) -> None:
        if now:
            self._news.set()
        elif self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(self._settings.capture.flush_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._news.set()

    async def _submit_forever(self, stub: LinkStub) -> None:
        while True:
            try:
                await self._submit_news(stub)
                return
            except Exception:  # without this task no judge hears of a canary that fails
                _LOG.exception("handing over stumbled; it goes on")
                self._set(submitting=False)
                await asyncio.sleep(RETRY_S[1])
                self._news.set()

    async def _submit_news(self, stub: LinkStub) -> None:
        """Until the link closes and nothing is left."""
        while True:
            await self._news.wait()
            self._news.clear()
            batch = self._outbox.next_batch()
            if batch is not None:
                await self._deliver(stub, batch)
            if self._closing:
                if batch is None:
                    return
                self._news.set()

    async def _deliver(self, stub: LinkStub, batch: pb.Batch) -> None:
        """Send one batch until its fate is known."""
        pause_s = RETRY_S[0]
        while True:
            try:
                await stub.Submit(batch, timeout=SUBMIT_S, wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                code = error.code()
                if code in _REFUSALS:
                    _LOG.error(
                        "the judge refused a batch",
                        extra={"batch": batch.batch, "code": code.name, "error": error.details()},
                    )
                    self._outbox.refused()
                    return
                if self._submitting:
                    _LOG.warning(
                        "the judge does not take a batch, trying on",
                        extra={"batch": batch.batch, "code": code.name},
                    )
                self._set(submitting=False)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            else:
                self._outbox.delivered()
                self._set(submitting=True)
                return

    # -- whether it answers ---------------------------------------------------------------------------

    def _changed(self, watching: bool) -> None:
        self._set(watching=watching)
        if watching:
            self._outbox.report_again()

    def _set(self, *, watching: bool | None = None, submitting: bool | None = None) -> None:
        self._watching = self._watching if watching is None else watching
        self._submitting = self._submitting if submitting is None else submitting
        answers = self._watching and self._submitting
        self._outbox.reachable = answers
        if answers != self._answers:
            self._answers = answers
            if answers:
                _LOG.info("the judge answers", extra={"epoch": self.epoch})
                self._on_table.judge_back()
            else:
                _LOG.warning("the judge no longer answers")
                self._on_table.judge_lost()
