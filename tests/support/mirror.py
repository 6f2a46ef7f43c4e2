"""A mirror between fake engines, a list for a sink, and a ledger that must balance at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson

from comparator.comparison import Comparison, SampleRef
from comparator.pair import ForkSeen, Pair
from engines.base import Call, CallKind
from proxy.ledger import DropReason, EdgeCounts, JudgeLedger, Past
from proxy.link.values import Capture, EdgeIdentity
from proxy.mirror import Mirror, MirrorSettings, SampleAsk, ShadowPool, ShadowRollout, Sources
from tests.support.engines import FakeEndpoint, FakeEngine
from tests.support.link import ROLLOUT
from tests.support.waiting import eventually

EDGE = EdgeIdentity(sidecar="host", worker=0, incarnation="edge-1")


class ListMirrorSink:
    """A judge that only takes notes."""

    def __init__(self) -> None:
        self.comparisons: dict[int, Comparison] = {}
        self.pairs: dict[int, Pair] = {}
        """The first pair of each."""
        self.drops: dict[int, tuple[DropReason, str]] = {}
        self.forks: list[ForkSeen] = []
        self.log: list[str] = []
        """What came, in order."""
        self.store_error: Exception | None = None
        self.store_gate: asyncio.Event | None = None

    def fork_seen(self, event: ForkSeen) -> None:
        self.forks.append(event)
        self.log.append(f"fork {event.capture_id}")

    async def comparison_finished(self, comparison: Comparison, incarnation: str, sequence: int) -> None:
        if self.store_gate is not None:
            await self.store_gate.wait()
        if self.store_error is not None:
            raise self.store_error
        assert sequence not in self.pairs, "finished twice"
        self.comparisons[sequence] = comparison
        self.pairs[sequence] = comparison.pairs[0]
        self.log.append(f"pair {comparison.capture_id}")

    async def dropped(
        self, incarnation: str, sequence: int, rollout: str, reason: DropReason, detail: str
    ) -> None:
        assert sequence not in self.drops, "dropped twice"
        assert sequence not in self.pairs, "compared and dropped"
        self.drops[sequence] = (reason, detail)
        self.log.append(f"drop id-{sequence}")

    @property
    def reasons(self) -> list[str]:
        """Of all drops, in the order of the captures."""
        return [str(reason) for _, (reason, _) in sorted(self.drops.items())]


class Rig:
    """One rollout under test."""

    def __init__(
        self,
        baseline: FakeEngine | FakeEndpoint | list[FakeEndpoint] | None = None,
        candidate: FakeEngine | FakeEndpoint | list[FakeEndpoint] | None = None,
        *,
        sources: Sources | None = None,
        declared: tuple[str | None, str | None] = (None, None),
        dedicated: bool = True,
        change: Callable[[Rig], tuple[ShadowPool, ShadowPool]] | None = None,
        **settings: Any,
    ) -> None:
        values: dict[str, Any] = {
            "token_only_percent": 0.0,
            "control_percent": 0.0,
            "tokens_per_second": 1e9,
            "logprobs": 5,
            "queue_age_s": 3_600.0,
        }
        values.update(settings)
        self.settings = MirrorSettings(**values)
        self.baseline, self.candidate = _endpoints(baseline), _endpoints(candidate)
        self.sink = ListMirrorSink()
        self.ledger = JudgeLedger()
        pools = [
            ShadowPool(
                name=name,
                endpoints=tuple(endpoints),  # type: ignore[arg-type]
                dedicated=dedicated,
                declared_digest=digest,  # type: ignore[arg-type]
            )
            for name, endpoints, digest in (
                ("old", self.baseline, declared[0]),
                ("new", self.candidate, declared[1]),
            )
        ]
        self.rollout = ShadowRollout(
            name=ROLLOUT, baseline=pools[0], candidate=pools[1], settings=self.settings, global_seed="s"
        )
        if change is not None:
            left, right = change(self)
            self.rollout = msgspec.structs.replace(self.rollout, baseline=left, candidate=right)
        self.mirror = Mirror([self.rollout], self.sink, self.ledger, sources)
        self._batches = itertools.count(1)
        self._captured = 0
        self._rollouts: set[str] = set()
        """Of the captures."""

    def submit(self, count: int = 1, **changes: Any) -> list[int]:
        """Captures arrive, as from the link; returns their sequences."""
        sequences = list(range(self._captured + 1, self._captured + count + 1))
        self._captured += count
        counts = EdgeCounts(
            sidecar="host",
            worker=0,
            incarnation=EDGE.incarnation,
            captured=self._captured,
            delivered=self._captured - count,
            dropped={},
            held=count,
        )
        fresh = self.ledger.receive(counts, next(self._batches), sequences, Past())
        assert fresh == frozenset(sequences)
        for sequence in sequences:
            made = capture(sequence, **changes)
            self._rollouts.add(made.rollout)
            self.mirror.submit(EDGE, made)
        return sequences

    async def settled(self) -> None:
        """Until the judge works on nothing any more, and the sink has heard of everything."""

        def quiet() -> bool:
            ended = len(self.sink.pairs) + len(self.sink.drops)
            return ended == self._captured and not self.ledger.in_flight(EDGE.incarnation)

        await eventually(quiet, "every capture to end")

    async def pair(self, **changes: Any) -> Pair:
        """Submit one capture and return the pair that it must become."""
        (sequence,) = self.submit(**changes)
        await self.settled()
        assert sequence in self.sink.pairs, self.sink.drops
        return self.sink.pairs[sequence]

    async def comparison(self, **changes: Any) -> Comparison:
        """Submit one capture and return all that it must come to."""
        (sequence,) = self.submit(**changes)
        await self.settled()
        assert sequence in self.sink.comparisons, self.sink.drops
        return self.sink.comparisons[sequence]

    async def drop(self, **changes: Any) -> tuple[str, str]:
        """Submit one capture and return the drop that it must become."""
        (sequence,) = self.submit(**changes)
        await self.settled()
        reason, detail = self.sink.drops[sequence]
        return str(reason), detail

    def check(self) -> None:
        """The ledger balances, and the sink was told the same."""
        balance = self.ledger.balance()
        assert balance.balanced, balance
        assert balance.in_flight_judge == 0
        assert balance.captured == self._captured
        assert balance.compared == len(self.sink.pairs)
        told: dict[str, int] = {}
        for reason in self.sink.reasons:
            told[reason] = told.get(reason, 0) + 1
        assert balance.dropped == told
        if self._rollouts <= {self.rollout.name}:
            (status,) = self.mirror.status()
            assert status.dropped == told, "a lane counts what the ledger counts"
        for endpoint in (*self.baseline, *self.candidate):
            assert endpoint.engine.active == 0, "a generation runs on"


@asynccontextmanager
async def rig(*args: Any, drain_s: float = 0.0, **kwargs: Any) -> AsyncIterator[Rig]:
    """A rig whose ledger is checked at the end of every test."""
    made = Rig(*args, **kwargs)
    try:
        yield made
    finally:
        await made.mirror.close(drain_s)
    made.check()


def capture(sequence: int, **changes: Any) -> Capture:
    body = changes.pop("body", None)
    if body is None:
        body = orjson.dumps({"model": "m", "prompt": "hello", "max_tokens": 32, **changes.pop("fields", {})})
    values: dict[str, Any] = {
        "sequence": sequence,
        "capture_id": f"id-{sequence}",
        "request_id": f"request-{sequence}",
        "tenant": "acme",
        "rollout": ROLLOUT,
        "target": "/v1/completions",
        "headers": ((b"content-type", b"application/json"),),
        "body": body,
        "live_pool": "old",
        "received_unix_s": 1_700_000_000.0,
    }
    values.update(changes)
    return Capture(**values)


def sample_ask(
    passage: int = 0,
    sample_id: str = "s-1",
    *,
    model: str = "m",
    fields: dict[str, Any] | None = None,
    **changes: bool,
) -> SampleAsk:
    """A question of a suite of two samples, asked five times each."""
    sample = SampleRef(
        suite="starter",
        digest="sha256:0",
        stage="shadow",
        sample_id=sample_id,
        category="short",
        passage=passage,
        samples=2,
        passes=5,
    )
    body = {"model": model, "prompt": f"hello {sample_id}", "max_tokens": 32, **(fields or {})}
    return SampleAsk(call=Call(kind=CallKind.COMPLETION, body=body, model=model), sample=sample, **changes)


def _endpoints(given: FakeEngine | FakeEndpoint | list[FakeEndpoint] | None) -> list[FakeEndpoint]:
    if given is None:
        given = FakeEngine()
    if isinstance(given, FakeEngine):
        given = FakeEndpoint(given)
    return given if isinstance(given, list) else [given]
