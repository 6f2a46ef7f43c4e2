"""Captures that wait for their turn: bounded in items, bytes and age, and shared among tenants."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

import msgspec

from engines.base import CallKind
from proxy.ledger import DropReason
from proxy.link.values import Capture, EdgeIdentity
from proxy.mirror.errors import Dropped
from proxy.mirror.settings import MirrorSettings


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A capture in the queue."""

    edge: EdgeIdentity
    capture: Capture
    kind: CallKind
    since_s: float
    """Monotonic."""


class CaptureQueue:
    """First in, first out. What is full refuses the newcomer."""

    def __init__(self, settings: MirrorSettings, monotonic: Callable[[], float]) -> None:
        self._items = settings.queue_items
        self._limit_bytes = settings.queue_bytes
        self._age_s = settings.queue_age_s
        share = settings.tenant_share_percent / 100
        self._tenant_items = max(1, int(settings.queue_items * share))
        self._monotonic = monotonic
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0
        self._by_tenant: Counter[str] = Counter()
        self.blocked: tuple[DropReason, str] = (DropReason.IN_FLIGHT_LIMIT, "every slot is taken")
        """What keeps the head waiting: the reason why a full queue drops."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, edge: EdgeIdentity, capture: Capture, kind: CallKind) -> None:
        """Raises Dropped when there is no room."""
        reason, detail = self.blocked
        if len(self._waiting) >= self._items:
            raise Dropped(reason, f"{self._items} captures wait already: {detail}")
        size = len(capture.body)
        if self._bytes + size > self._limit_bytes:
            raise Dropped(reason, f"{self._bytes} of {self._limit_bytes} bytes wait already: {detail}")
        if self._by_tenant[capture.tenant] >= self._tenant_items:
            raise Dropped(
                DropReason.TENANT_BUDGET, f"{self._tenant_items} captures of this tenant wait already"
            )
        self._waiting.append(Waiting(edge=edge, capture=capture, kind=kind, since_s=self._monotonic()))
        self._bytes += size
        self._by_tenant[capture.tenant] += 1

    def head(self) -> Waiting | None:
        return self._waiting[0] if self._waiting else None

    def pop(self) -> Waiting:
        """The head. Raises IndexError on an empty queue."""
        waiting = self._waiting.popleft()
        self._bytes -= len(waiting.capture.body)
        left = self._by_tenant[waiting.capture.tenant] - 1
        if left:
            self._by_tenant[waiting.capture.tenant] = left
        else:
            del self._by_tenant[waiting.capture.tenant]
        return waiting

    def expire(self) -> Iterator[tuple[Waiting, str]]:
        """Take out what has waited too long, with the reason in words."""
        now_s = self._monotonic()
        while self._waiting and now_s - self._waiting[0].since_s > self._age_s:
            waited = now_s - self._waiting[0].since_s
            yield self.pop(), f"waited {waited:.1f} s; {self.blocked[0]}: {self.blocked[1]}"

    def next_expiry_s(self) -> float | None:
        """Seconds until the head is too old; None for an empty queue."""
        if not self._waiting:
            return None
        return max(0.0, self._waiting[0].since_s + self._age_s - self._monotonic())
