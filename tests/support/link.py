"""Both ends of the link without the rest of forkgate around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comparator.records import LiveRecord
from policies.routes import MirrorRule, Pool, PoolName, RolloutName, RouteTable, TenantName
from proxy.edge.ports import CaptureHead
from proxy.edge.settings import CaptureLimits, EdgeSettings
from proxy.ledger import EdgeCounts, Past
from proxy.link.values import Capture, EdgeIdentity

ROLLOUT = RolloutName("old-to-new")


def route_table(epoch: int, cause: str = "", rolled_back: dict[RolloutName, int] | None = None) -> RouteTable:
    return RouteTable(
        epoch=epoch,
        home=PoolName("old"),
        pools=(
            Pool(name=PoolName("old"), endpoints=("http://127.0.0.1:9001",)),
            Pool(name=PoolName("new"), endpoints=("http://127.0.0.1:9002",)),
        ),
        routes={TenantName("acme"): PoolName("new")},
        mirrors=(MirrorRule(rollout=ROLLOUT, percent=100.0),),
        cause=cause,
        rolled_back=rolled_back or {},
    )


def edge_settings(judge: str | None, incarnation: str = "edge-1", **changes: Any) -> EdgeSettings:
    values: dict[str, Any] = {
        "sidecar": "host",
        "worker": 0,
        "incarnation": incarnation,
        "listen_fds": (),
        "judge": judge,
        "initial_table": route_table(1),
        "capture": CaptureLimits(flush_s=0.01, queue_age_s=600.0),
    }
    values.update(changes)
    return EdgeSettings(**values)


def capture_head(name: str = "c", **changes: Any) -> CaptureHead:
    values: dict[str, Any] = {
        "capture_id": f"id-{name}",
        "request_id": f"request-{name}",
        "tenant": TenantName("acme"),
        "rollout": ROLLOUT,
        "target": "/v1/completions",
        "headers": ((b"content-type", b"application/json"),),
        "live_pool": "old",
        "received_unix_s": 1_700_000_000.0,
    }
    values.update(changes)
    return CaptureHead(**values)


class ListSink:
    """A judge that only takes notes."""

    def __init__(self) -> None:
        self.captures: list[tuple[EdgeIdentity, Capture]] = []
        self.records: list[LiveRecord] = []
        self.overheads: list[float] = []
        self.ahead: list[tuple[str, int]] = []
        self.gone: list[tuple[str, EdgeCounts]] = []
        self.told_rolled_back: list[tuple[str, dict[str, int]]] = []

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        self.captures.append((edge, capture))

    def live(self, records: Sequence[LiveRecord]) -> None:
        self.records.extend(records)

    def overhead(self, seconds: Sequence[float]) -> None:
        self.overheads.extend(seconds)

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        self.ahead.append((edge.incarnation, epoch))

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        self.told_rolled_back.append((edge.incarnation, dict(announced)))

    def edge_gone(self, edge: EdgeIdentity, final: EdgeCounts) -> None:
        self.gone.append((edge.incarnation, final))


class ListListener:
    """An edge's router that only takes notes."""

    def __init__(self) -> None:
        self.tables: list[RouteTable] = []
        self.changes: list[str] = []

    def __call__(self, table: RouteTable) -> None:
        self.tables.append(table)

    def judge_lost(self) -> None:
        self.changes.append("lost")

    def judge_back(self) -> None:
        self.changes.append("back")


class MemoryStore:
    """What the evidence store remembers over lives of the judge: (incarnation, sequence) → how it ended."""

    def __init__(self) -> None:
        self.ends: dict[str, dict[int, str]] = {}

    def add(self, incarnation: str, sequence: int, end: str) -> None:
        assert sequence not in self.ends.setdefault(incarnation, {}), "ended twice"
        self.ends[incarnation][sequence] = end

    async def past(self, incarnation: str, sequences: Sequence[int]) -> Past:
        ends = self.ends.get(incarnation, {})
        dropped: dict[str, int] = {}
        for end in ends.values():
            if end != "compared":
                dropped[end] = dropped.get(end, 0) + 1
        return Past(
            compared=sum(end == "compared" for end in ends.values()),
            dropped=dropped,
            ended=frozenset(sequences).intersection(ends),
        )


def unix_target(directory: Path) -> str:
    """A gRPC address in this directory; socket paths may hold 107 bytes at most."""
    return f"unix:{directory / 'link.sock'}"
