"""The edge's end of the link without its socket: what waits for the judge, and what becomes of it.

The hot path calls :meth:`Outbox.begin`, :meth:`~Outbox.offer`, :meth:`~Outbox.drop` and
:meth:`~Outbox.live`. They touch dictionaries and counters, never a socket, and never raise. Batches are made
by the flusher, off the request's path.

Every capture is in exactly one place: *open* (begun, its body not whole yet), queued, or in the one batch
under way. A batch stays what it is until it is known to be delivered or refused, so that sending it again
cannot count anything twice; one whose fate is unknown when the edge ends is left to the ledger.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import chain

from proxy.edge.ports import CaptureHead
from proxy.edge.settings import CaptureLimits
from proxy.ledger.edge import EdgeLedger
from proxy.ledger.reasons import DropReason
from proxy.link.channel import MESSAGE_BYTES
from proxy.link.pb import link_pb2 as pb
from proxy.link.values import EdgeIdentity
from proxy.live import RECORD_BYTES, LivePacker

CAPTURE_BYTES = MESSAGE_BYTES // 4
"""No capture and no batch grows beyond this, whatever the settings say: both together must fit a message."""


class Outbox:
    """Bounded in items, bytes and age. Lives on the edge's event loop."""

    def __init__(
        self,
        identity: EdgeIdentity,
        limits: CaptureLimits,
        ledger: EdgeLedger,
        clock: Callable[[], float],
        notify: Callable[[bool], None],
    ) -> None:
        """
        Args:
            clock: monotonic seconds.
            notify: called when there is something to send: with False, within ``flush_s``; with True, now.
        """
        self._edge = pb.EdgeIdentity(
            sidecar=identity.sidecar, worker=identity.worker, incarnation=identity.incarnation
        )
        self._limits = limits
        self._queue_items = limits.queue_items
        self._queue_bytes = limits.queue_bytes
        self._batch_items = limits.batch_items
        self._batch_bytes = min(limits.batch_bytes, CAPTURE_BYTES)
        self._age_s = limits.queue_age_s
        self._ledger = ledger
        self._clock = clock
        self._notify = notify
        self._asked = 0  # 1: soon, 2: now
        self._sequence = 0
        self._open: set[int] = set()
        self._queue: deque[tuple[float, int, int, CaptureHead, bytes]] = deque()
        self._bytes = 0
        self._live = LivePacker(limits.live_records)
        self._live_half = max(1, limits.live_records // 2)
        self._batch: pb.Batch | None = None
        self._batch_number = 0
        self._reported: object = None
        self.refuses: DropReason | None = None
        """Set when nothing will ever be sent (again): why captures are dropped at once."""
        self.reachable = False
        """Whether a judge answers: a queue that overflows without one says ``no_judge``."""

    # -- the hot path ---------------------------------------------------------------------------------

    def begin(self) -> int:
        """Count a capture as begun; returns its sequence number, which :meth:`offer` ends."""
        self._sequence = sequence = self._sequence + 1
        self._ledger.count_captured()
        self._open.add(sequence)
        return sequence

    def offer(self, sequence: int, head: CaptureHead, body: bytes) -> None:
        """Queue a whole capture. One that was not begun, or has ended, is ignored."""
        if sequence not in self._open:
            return
        self._open.remove(sequence)
        size = len(body) + len(head.target)
        for name, value in head.headers:
            size += len(name) + len(value)
        now = self._clock()
        queue = self._queue
        if queue and now - queue[0][0] > self._age_s:
            self._expire(now)
        if self.refuses is not None:
            self._count_drop(self.refuses)
        elif size > CAPTURE_BYTES:
            self._count_drop(DropReason.BODY_TOO_LARGE)
        elif len(queue) >= self._queue_items:
            self._count_drop(DropReason.QUEUE_FULL if self.reachable else DropReason.NO_JUDGE)
        elif self._bytes + size > self._queue_bytes:
            self._count_drop(DropReason.QUEUE_BYTES if self.reachable else DropReason.NO_JUDGE)
        else:
            queue.append((now, sequence, size, head, body))
            self._bytes += size
            if self._asked < 2 and self._is_full():
                self._ask(2)
            elif not self._asked:
                self._ask(1)

    def drop(self, sequence: int, reason: DropReason) -> None:
        """End a capture that will never be whole. One that was not begun, or has ended, is ignored."""
        if sequence in self._open:
            self._open.remove(sequence)
            self._count_drop(reason)

    def live(
        self,
        started_unix_s: float,
        tenant: str,
        pool: str,
        endpoint: str,
        status: int,
        first_byte_s: float,
        total_s: float,
        request_bytes: int,
        response_bytes: int,
        aborted_by: int,
        flags: int,
        environment: str = "",
        overhead_s: float = math.nan,
    ) -> None:
        """Queue one :class:`comparator.records.LiveRecord`, or count it as lost where there is no room."""
        self._live.add(
            started_unix_s,
            tenant,
            pool,
            endpoint,
            status,
            first_byte_s,
            total_s,
            request_bytes,
            response_bytes,
            aborted_by,
            flags,
            environment,
            overhead_s,
        )
        if not self._asked:
            self._ask(1)
        elif self._asked == 1 and len(self._live) >= self._live_half:
            self._ask(2)

    # -- the flusher's side ---------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Captures that are neither delivered nor dropped, counted where they lie."""
        under_way = len(self._batch.captures) if self._batch is not None else 0
        return len(self._open) + len(self._queue) + under_way

    @property
    def live_lost(self) -> int:
        """Live records that found no room since the start."""
        return self._live.lost

    def next_batch(self) -> pb.Batch | None:
        """The batch to send now: the one under way if there is one, else a new one; None without news."""
        if self._batch is not None:
            return self._batch
        self._asked = 0
        self._expire(self._clock())
        queue, batch = self._queue, pb.Batch(edge=self._edge)
        taken_bytes = 0
        while queue and len(batch.captures) < self._batch_items and taken_bytes < self._batch_bytes:
            _, sequence, size, head, body = queue.popleft()
            self._bytes -= size
            taken_bytes += size
            _fill(batch.captures.add(), sequence, head, body)
        batch.live_records, names = self._live.take()
        batch.names.extend(names)
        batch.record_bytes = RECORD_BYTES
        batch.live_lost = self._live.lost
        counts = self._ledger.counts()
        news = (counts.captured, counts.dropped_total, batch.live_lost)
        if not batch.captures and not batch.live_records and news == self._reported:
            return None
        self._reported = news
        self._batch = batch
        batch.ledger.captured = counts.captured
        batch.ledger.delivered = counts.delivered
        batch.ledger.held = self.held
        batch.ledger.dropped.update(counts.dropped)
        self._batch_number += 1
        batch.batch = self._batch_number
        if queue:  # a rest waits for company like anything else
            self._ask(2 if self._is_full() else 1)
        return batch

    def report_again(self) -> None:
        """Have the ledger sent although nothing changed: a judge that was born since knows nothing."""
        self._reported = None
        self._ask(2)

    def delivered(self) -> None:
        """The batch under way reached a judge."""
        if self._batch is not None:
            self._ledger.count_delivered(len(self._batch.captures))
            self._batch = None

    def refused(self) -> None:
        """The judge said no to the batch under way and has counted nothing of it."""
        if self._batch is not None:
            for _ in self._batch.captures:
                self._count_drop(DropReason.NO_JUDGE)
            self._batch = None

    def abandon(self) -> None:
        """End all that certainly never left. The batch under way may have arrived: it stays held."""
        self.refuses = DropReason.SHUTDOWN
        while self._open:
            self._open.pop()
            self._count_drop(DropReason.SHUTDOWN)
        while self._queue:
            self._queue.popleft()
            self._count_drop(DropReason.SHUTDOWN)
        self._bytes = 0

    def _is_full(self) -> bool:
        """Whether what is queued fills a batch."""
        return len(self._queue) >= self._batch_items or self._bytes >= self._batch_bytes

    def _expire(self, now: float) -> None:
        queue = self._queue
        while queue and now - queue[0][0] > self._age_s:
            _, _, size, _, _ = queue.popleft()
            self._bytes -= size
            self._count_drop(DropReason.QUEUE_AGE if self.reachable else DropReason.NO_JUDGE)

    def _count_drop(self, reason: DropReason) -> None:
        self._ledger.count_dropped(reason)
        if not self._asked:
            self._ask(1)

    def _ask(self, urgency: int) -> None:
        self._asked = urgency
        self._notify(urgency == 2)


def _fill(capture: pb.Capture, sequence: int, head: CaptureHead, body: bytes) -> None:
    capture.capture_id = head.capture_id
    capture.sequence = sequence
    capture.request_id = head.request_id
    capture.tenant = head.tenant
    capture.rollout = head.rollout
    capture.target = head.target
    capture.headers.extend(chain.from_iterable(head.headers))
    capture.body = body
    capture.live_pool = head.live_pool
    capture.received_unix_s = head.received_unix_s
