"""What the core is handed: the shadow side, and the transports of its connections.

Nothing of the shadow side may wait, block or raise; ``proxy.link.client.EdgeLink`` is the real one. Tests
hand the core in-memory ones of both.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from policies.routes import RolloutName, RouteTable, TenantName
from proxy.ledger import DropReason


class CaptureHead(msgspec.Struct, frozen=True, kw_only=True):
    """A sampled request as known at its head. Its body follows, whole or not at all."""

    capture_id: str
    request_id: str
    tenant: TenantName
    rollout: RolloutName
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Lower-case names from an allow-list. Never Authorization, cookies or API keys."""
    live_pool: str
    received_unix_s: float


class ShadowPort(Protocol):
    """Where the edge leaves copies and records."""

    def begin(self) -> int:
        """Count one capture and return its sequence number (from 1)."""
        ...

    def offer(self, sequence: int, head: CaptureHead, body: bytes) -> None:
        """Hand a whole capture over, or drop it with a reason when the queue is full."""
        ...

    def drop(self, sequence: int, reason: DropReason) -> None:
        """A begun capture that will never be whole."""
        ...

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
        environment: str,
        overhead_s: float,
    ) -> None:
        """One live request is over. ``aborted_by`` and ``flags`` are those of ``proxy.live``, and so is
        ``environment``: what the answer's head told of who gave it. ``overhead_s``: see
        ``Exchange.overhead_s``; NaN where no byte came."""
        ...


class TableListener(Protocol):
    """How a new route table, and word of the judge itself, reaches the edge."""

    def __call__(self, table: RouteTable) -> None:
        """Swap it in before returning; the link acknowledges the epoch right after."""
        ...

    def judge_lost(self) -> None:
        """Nobody answers any more. Told once, at the change; the listener starts its own grace."""
        ...

    def judge_back(self) -> None:
        """A judge answers again, or for the first time. A table follows or has just come."""
        ...


class Transport(Protocol):
    """What the edge uses of an asyncio transport."""

    def write(self, data: bytes) -> None: ...
    def can_write_eof(self) -> bool: ...
    def write_eof(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str) -> object: ...
