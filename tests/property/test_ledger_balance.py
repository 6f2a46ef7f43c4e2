"""The ledger against a model that knows every capture's true fate, under kills at any moment.

Both real ends are driven (outbox with its file, server with its ledger); only the socket between them is
left out, so that hypothesis decides what arrives, what is acknowledged and who dies in between.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.edge.settings import CaptureLimits
from proxy.ledger import DropReason, EdgeLedger, read_ledger
from proxy.link.outbox import Outbox
from proxy.link.pb import link_pb2 as pb
from proxy.link.server import LinkServer
from proxy.link.values import EdgeIdentity
from tests.support.link import ListSink, MemoryStore, capture_head, route_table


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited for something")


class Edge:
    """One incarnation, and what the model knows of it."""

    def __init__(self, number: int, directory: Path, clock: Any) -> None:
        self.incarnation = f"edge-{number}"
        self.path = directory / f"{number}.ledger"
        self.identity = EdgeIdentity(sidecar="host", worker=number, incarnation=self.incarnation)
        self.ledger = EdgeLedger("host", number, self.incarnation, str(self.path))
        limits = CaptureLimits(queue_items=6, queue_bytes=60, batch_items=3, queue_age_s=5.0)
        self.outbox = Outbox(self.identity, limits, self.ledger, clock, lambda now: None)
        self.outbox.reachable = True
        self.open: list[int] = []
        self.acknowledged: set[int] = set()
        self.alive = True
        self.buried = False


class LedgerUnderKills(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="forkgate-ledger-"))
        self.now_s = 0.0
        self.edges: list[Edge] = []
        self.store = MemoryStore()
        self.start_judge()

    def start_judge(self) -> None:
        self.sink = ListSink()
        self.working: list[tuple[str, int]] = []
        self.failed: set[tuple[str, int]] = set()
        self.met: set[str] = set()
        self.buried_unmet: set[str] = set()
        self.server = LinkServer("unix:unused", None, self.sink, route_table(1), past=self.store.past)

    def pick(self, data: st.DataObject, alive: bool = True) -> Edge:
        return data.draw(st.sampled_from([edge for edge in self.edges if edge.alive or not alive]))

    @precondition(lambda self: sum(edge.alive for edge in self.edges) < 3)
    @rule()
    def start_edge(self) -> None:
        self.edges.append(Edge(len(self.edges), self.directory, lambda: self.now_s))

    @precondition(lambda self: any(edge.alive for edge in self.edges))
    @rule(data=st.data(), count=st.integers(1, 5), size=st.integers(0, 30))
    def capture(self, data: st.DataObject, count: int, size: int) -> None:
        edge = self.pick(data)
        for _ in range(count):
            edge.outbox.offer(edge.outbox.begin(), capture_head(headers=(), target=""), bytes(size))

    @precondition(lambda self: any(edge.alive for edge in self.edges))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        edge = self.pick(data)
        edge.open.append(edge.outbox.begin())

    @precondition(lambda self: any(edge.alive and edge.open for edge in self.edges))
    @rule(data=st.data(), reason=st.sampled_from([DropReason.CLIENT_ABORTED, DropReason.BODY_TOO_LARGE]))
    def abort(self, data: st.DataObject, reason: DropReason) -> None:
        edge = data.draw(st.sampled_from([edge for edge in self.edges if edge.alive and edge.open]))
        sequence = edge.open.pop()
        edge.outbox.drop(sequence, reason)
        edge.outbox.drop(sequence, reason)  # a second end is nothing

    @rule(seconds=st.floats(0.0, 4.0))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: bool(self.edges))
    @rule(data=st.data(), receipt_arrives=st.booleans())
    def send(self, data: st.DataObject, receipt_arrives: bool) -> None:
        """Also from a dead edge: its last batch may still lie in the socket."""
        edge = self.pick(data, alive=False)
        batch = edge.outbox.next_batch() if edge.alive else edge.outbox._batch
        if batch is None:
            return
        before = len(self.sink.captures)
        run(self.server.take(batch))
        if not edge.buried:
            self.met.add(edge.incarnation)
        self.working += [(e.incarnation, c.sequence) for e, c in self.sink.captures[before:]]
        if receipt_arrives and edge.alive:
            edge.acknowledged |= {capture.sequence for capture in batch.captures}
            edge.outbox.delivered()

    @precondition(lambda self: bool(self.working))
    @rule(data=st.data(), end=st.sampled_from(["compared", "unsupported", "too_old", "evidence_failed"]))
    def finish(self, data: st.DataObject, end: str) -> None:
        key = self.working.pop(data.draw(st.integers(0, len(self.working) - 1)))
        if end == "evidence_failed":
            self.failed.add(key)
            self.server.ledger.dropped(*key, DropReason.EVIDENCE_FAILED)
            return
        self.store.add(*key, end)
        if end == "compared":
            self.server.ledger.compared(*key)
        else:
            self.server.ledger.dropped(*key, DropReason(end))

    @rule()
    def kill_judge(self) -> None:
        self.start_judge()

    @precondition(lambda self: any(edge.alive for edge in self.edges))
    @rule(data=st.data(), ended=st.integers(0, 3), again=st.booleans())
    def kill_judge_before_its_receipt(self, data: st.DataObject, ended: int, again: bool) -> None:
        """The case that is easiest to count twice: some of a batch has ended, and all of it comes again."""
        self.capture(data, 3, 1)
        self.send(data, False)
        for _ in range(min(ended, len(self.working))):
            self.finish(data, "compared")
        self.kill_judge()
        if again:
            self.send(data, True)

    @precondition(lambda self: any(edge.alive for edge in self.edges))
    @rule(data=st.data())
    def kill_edge(self, data: st.DataObject) -> None:
        self.pick(data).alive = False

    @precondition(lambda self: any(not edge.alive for edge in self.edges))
    @rule(data=st.data())
    def report_dead_edge(self, data: st.DataObject) -> None:
        self.bury(data.draw(st.sampled_from([edge for edge in self.edges if not edge.alive])))

    def bury(self, edge: Edge) -> None:
        final = read_ledger(edge.path)
        gone = pb.EdgeGone()
        gone.edge.sidecar, gone.edge.worker, gone.edge.incarnation = "host", 0, edge.incarnation
        gone.ledger.captured, gone.ledger.delivered = final.captured, final.delivered
        gone.ledger.dropped.update(final.dropped)
        if edge.incarnation not in self.met:
            self.buried_unmet.add(edge.incarnation)
            self.met.add(edge.incarnation)
        run(self.server.bury(gone))
        edge.buried = True

    @invariant()
    def every_incarnation_balances(self) -> None:
        for edge in self.edges:
            if edge.incarnation not in self.met:
                continue
            balance = self.server.ledger.balance(edge.incarnation)
            assert balance.gap == 0, (edge.incarnation, balance)
            assert balance.faults == 0
            assert balance.in_flight_judge == sum(key[0] == edge.incarnation for key in self.working)
            self.losses_are_the_true_ones(edge, balance.dropped)

    def losses_are_the_true_ones(self, edge: Edge, dropped: dict[str, int]) -> None:
        kept = set(self.store.ends.get(edge.incarnation, {}))
        alive_here = {sequence for incarnation, sequence in self.working if incarnation == edge.incarnation}
        alive_here |= {sequence for incarnation, sequence in self.failed if incarnation == edge.incarnation}
        lost = edge.acknowledged - kept - alive_here
        judge_lost, edge_lost = dropped.get("judge_lost", 0), dropped.get("edge_lost", 0)
        if not edge.buried:
            assert judge_lost == len(lost)
            assert edge_lost == 0
        elif edge.incarnation in self.buried_unmet:
            # This judge never spoke to it: whose the last, unacknowledged batch was cannot be known.
            assert judge_lost <= len(lost) <= judge_lost + edge_lost
        else:
            assert judge_lost <= len(lost)

    def teardown(self) -> None:
        for edge in self.edges:
            edge.alive = False
            self.bury(edge)
        for key in self.working:
            self.server.ledger.dropped(*key, DropReason.SHUTDOWN)
        self.working.clear()
        total = self.server.ledger.balance()
        captured = sum(read_ledger(edge.path).captured for edge in self.edges if edge.incarnation in self.met)
        assert total.captured == captured
        assert total.in_flight_edge == total.in_flight_judge == 0
        assert captured == total.compared + sum(total.dropped.values())
        compared = sum(end == "compared" for ends in self.store.ends.values() for end in ends.values())
        assert total.compared == compared
        for edge in self.edges:
            edge.ledger.close()
        shutil.rmtree(self.directory)


LedgerUnderKills.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
test_ledger_balances_whatever_dies = LedgerUnderKills.TestCase
