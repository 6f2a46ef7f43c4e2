"""Both ends of the link over a real socket."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from proxy.edge.settings import CaptureLimits
from proxy.ledger import DropReason, EdgeLedger, Past, find_ledgers, read_ledger
from proxy.link.client import EdgeLink
from proxy.link.outbox import Outbox
from proxy.link.server import LinkServer
from proxy.link.values import EdgeIdentity
from proxy.link.watcher import TableWatcher
from proxy.live import ABORTED_BY_CLIENT, FLAG_CANARY, FLAG_STREAMED
from tests.support.link import (
    ROLLOUT,
    ListListener,
    ListSink,
    MemoryStore,
    capture_head,
    edge_settings,
    route_table,
    unix_target,
)
from tests.support.link_judge import read_store
from tests.support.waiting import eventually


def run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop, as in the edge."""
    uvloop.run(main)


def offer(link: EdgeLink, count: int, body: bytes = b"{}") -> None:
    for _ in range(count):
        sequence = link.begin()
        link.offer(sequence, capture_head(str(sequence)), body)


def sequences(sink: ListSink) -> list[int]:
    return [capture.sequence for _, capture in sink.captures]


def test_a_capture_arrives_as_it_was_offered(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        head = capture_head("x", headers=((b"content-type", b"application/json"), (b"x-odd", b"\xff\x00")))
        link.offer(link.begin(), head, b"\x00body\xff")
        await eventually(lambda: sink.captures, "the capture")
        edge, capture = sink.captures[0]
        assert edge == EdgeIdentity(sidecar="host", worker=0, incarnation="edge-1")
        assert capture.body == b"\x00body\xff"
        assert capture.headers == head.headers
        assert capture.header(b"x-odd") == b"\xff\x00"
        assert (capture.sequence, capture.capture_id, capture.request_id) == (1, "id-x", "request-x")
        assert (capture.tenant, capture.rollout, capture.target) == ("acme", "old-to-new", "/v1/completions")
        assert (capture.live_pool, capture.received_unix_s) == ("old", 1_700_000_000.0)
        await eventually(lambda: link.counts().delivered == 1, "the receipt")
        assert server.ledger.balance("edge-1").in_flight_judge == 1
        assert server.ledger.balance().balanced
        await link.close(1.0)
        await server.stop()

    run(main())


def test_live_records_arrive_in_order_with_their_names(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        link.live(
            10.5, "acme", "new", "http://n:1", 200, 0.25, 1.5, 100, 2_000, 0, FLAG_CANARY | FLAG_STREAMED
        )
        link.live(11.5, "globex", "old", "http://o:1", 0, math.nan, 0.5, 7, 0, ABORTED_BY_CLIENT, 0)
        await eventually(lambda: len(sink.records) == 2, "both records")
        first, second = sink.records
        assert (first.sequence, second.sequence) == (1, 2)
        assert (first.tenant, first.pool, first.endpoint) == ("acme", "new", "http://n:1")
        assert (first.canary, first.streamed, first.retried, first.sampled) == (True, True, False, False)
        assert (first.first_byte_s, first.total_s, first.aborted_by) == (0.25, 1.5, "")
        assert math.isnan(second.first_byte_s)
        assert (second.tenant, second.aborted_by, second.status) == ("globex", "client", 0)
        await link.close(1.0)
        await server.stop()

    run(main())


def test_an_edge_swaps_a_table_in_before_it_acknowledges(tmp_path: Path) -> None:
    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(3))
        await server.start()
        listeners = [ListListener() for _ in range(3)]
        links = [
            EdgeLink(edge_settings(unix_target(tmp_path), f"edge-{number}"), listener)
            for number, listener in enumerate(listeners)
        ]
        for link in links:
            await link.start()
        await eventually(lambda: all(link.epoch == 3 for link in links), "the first table")
        await eventually(lambda: all(edge.epoch == 3 for edge in server.edges()), "acknowledgements")
        flip = server.publish(route_table(4, "a gate failed"))
        report = await flip.wait(30.0)
        assert report.complete
        assert set(report.acknowledged_s) == {"edge-0", "edge-1", "edge-2"}
        assert report.last_s == max(report.acknowledged_s.values())
        assert all([t.epoch for t in listener.tables] == [3, 4] for listener in listeners)
        assert listeners[0].tables[-1] == route_table(4, "a gate failed")
        for link in links:
            await link.close(0.0)
        await server.stop()

    run(main())


def test_an_edge_that_cannot_use_a_table_does_not_acknowledge_it(tmp_path: Path) -> None:
    class Broken(ListListener):
        def __call__(self, table: Any) -> None:
            if table.epoch == 2:
                raise RuntimeError("no such certificate")
            super().__call__(table)

    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1))
        await server.start()
        listener = Broken()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), listener)
        await link.start()
        await eventually(lambda: any(edge.epoch == 1 for edge in server.edges()), "hello")
        report = await server.publish(route_table(2)).wait(0.2)
        assert report.missing == ("edge-1",)
        assert report.acknowledged_s == {}
        report = await server.publish(route_table(3)).wait(30.0)
        assert report.complete
        assert link.epoch == 3
        await link.close(0.0)
        await server.stop()

    run(main())


def test_an_older_table_is_not_obeyed_and_the_judge_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(2))
        await server.start()
        listener = ListListener()
        link = EdgeLink(edge_settings(unix_target(tmp_path), initial_table=route_table(9)), listener)
        await link.start()
        await eventually(lambda: sink.ahead == [("edge-1", 9)], "the judge to be told")
        with pytest.raises(ValueError, match="the present one is 2"):
            server.publish(route_table(2))
        report = await server.publish(route_table(10)).wait(30.0)
        assert report.complete
        assert [table.epoch for table in listener.tables] == [10]
        await link.close(0.0)
        await server.stop()

    run(main())


def test_a_judge_hears_of_rollbacks_it_does_not_know_whatever_the_epochs_say(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(9))
        await server.start()
        table = route_table(9, rolled_back={ROLLOUT: 9})
        link = EdgeLink(edge_settings(unix_target(tmp_path), initial_table=table), ListListener())
        await link.start()
        await eventually(lambda: sink.told_rolled_back == [("edge-1", {ROLLOUT: 9})], "the judge to be told")
        assert sink.ahead == []
        assert (await server.publish(route_table(10, rolled_back={ROLLOUT: 9})).wait(30.0)).complete
        await link.close(0.0)
        await server.stop()

        second = ListSink()
        server = LinkServer(unix_target(tmp_path), None, second, route_table(11, rolled_back={ROLLOUT: 9}))
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path), "edge-2", initial_table=table), ListListener())
        await link.start()
        await eventually(lambda: any(edge.epoch == 11 for edge in server.edges()), "the edge to follow")
        assert second.told_rolled_back == []  # known
        await link.close(0.0)
        await server.stop()

    run(main())


def test_a_flip_waits_for_an_edge_without_link_until_it_is_dead_or_its_grace_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        now_s = 0.0
        server = LinkServer(
            unix_target(tmp_path), None, ListSink(), route_table(1), edge_grace_s=30.0, clock=lambda: now_s
        )
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        await eventually(lambda: any(edge.connected for edge in server.edges()), "the edge")
        await link.close(0.0)
        await eventually(lambda: not any(edge.connected for edge in server.edges()), "its end")
        assert (await server.publish(route_table(2)).wait(0.05)).missing == ("edge-1",)
        now_s = 31.0
        assert (await server.publish(route_table(3)).wait(0.05)).complete
        await server.stop()

    run(main())


def test_a_supervisor_keeps_tables_and_settles_dead_edges(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(2))
        await server.start()
        dead = EdgeLedger("host", 3, "edge-dead", str(tmp_path / "dead.ledger"))
        for _ in range(5):
            dead.count_captured()
        dead.count_dropped(DropReason.QUEUE_AGE)
        tables, settled = [], []
        identity = EdgeIdentity(sidecar="host", worker=0, incarnation="supervisor")
        watcher = TableWatcher(
            unix_target(tmp_path),
            None,
            identity,
            route_table(1),
            lambda table, encoded: tables.append(table),
            on_settled=settled.append,
        )
        [(path, final)] = find_ledgers(tmp_path)
        assert path.name == "dead.ledger"
        watcher.edge_gone(final)
        await watcher.start()
        await eventually(lambda: settled == ["edge-dead"], "the judge to count it")
        watcher.edge_gone(final)  # told twice, counted once
        await eventually(lambda: settled == ["edge-dead", "edge-dead"], "the second answer")
        assert [table.epoch for table in tables] == [2]
        balance = server.ledger.balance("edge-dead")
        assert balance.dropped == {"edge_lost": 4, "queue_age": 1}
        assert balance.balanced
        flip = server.publish(route_table(3))
        assert flip.complete  # no edge is left that could route by the old table
        await eventually(lambda: [table.epoch for table in tables] == [2, 3], "the new table")
        await watcher.close()
        await server.stop()
        dead.close()

    run(main())


def test_the_end_of_an_edge_reaches_a_judge_that_comes_later(tmp_path: Path) -> None:
    async def main() -> None:
        dead = EdgeLedger("host", 0, "edge-dead", str(tmp_path / "dead.ledger"))
        dead.count_captured()
        settled: list[str] = []
        identity = EdgeIdentity(sidecar="host", worker=0, incarnation="supervisor")
        watcher = TableWatcher(
            unix_target(tmp_path),
            None,
            identity,
            route_table(1),
            lambda table, encoded: None,
            on_settled=settled.append,
        )
        await watcher.start()
        watcher.edge_gone(read_ledger(tmp_path / "dead.ledger"))
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(2))
        await server.start()
        await eventually(lambda: settled == ["edge-dead"], "the judge to count it")
        await watcher.close(1.0)
        await server.stop()
        dead.close()

    run(main())


def test_a_judge_that_goes_and_comes_is_told_from_one_that_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        listener = ListListener()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), listener)
        await link.start()
        assert listener.changes == ["lost"]
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1))
        await server.start()
        await eventually(lambda: listener.changes == ["lost", "back"], "the judge")
        assert link.judge_answers
        await server.stop(0.0)
        await eventually(lambda: listener.changes == ["lost", "back", "lost"], "its loss")
        again = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1))
        await again.start()
        await eventually(lambda: listener.changes[-1] == "back", "its return")
        await link.close(0.0)
        await again.stop()

    run(main())


def test_without_a_judge_a_full_queue_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        limits = CaptureLimits(queue_items=10)
        link = EdgeLink(edge_settings(unix_target(tmp_path), capture=limits), ListListener())
        await link.start()
        offer(link, 25)
        counts = link.counts()
        assert counts.dropped == {"no_judge": 15}
        assert counts.held == 10
        await link.close(0.0)
        assert link.counts().dropped == {"no_judge": 15, "shutdown": 10}

    run(main())


def test_a_bug_in_handing_over_costs_a_pause_and_not_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stumbles = Outbox.next_batch, iter([True])

    def next_batch(self: Outbox) -> Any:
        if next(stumbles, False):
            raise KeyError("a bug")
        return real(self)

    monkeypatch.setattr(Outbox, "next_batch", next_batch)

    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        offer(link, 3)
        await eventually(lambda: sequences(sink) == [1, 2, 3], "the captures")
        await eventually(lambda: link.judge_answers, "the link to count as standing")
        await link.close(0.0)
        await server.stop()

    run(main())


def test_a_bug_in_following_does_not_end_it(tmp_path: Path) -> None:
    class Stumbling(ListListener):
        def judge_back(self) -> None:
            super().judge_back()
            if self.changes.count("back") == 1:
                raise KeyError("a bug")

    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1))
        await server.start()
        listener = Stumbling()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), listener)
        await link.start()
        await eventually(lambda: listener.changes == ["lost", "back", "lost", "back"], "a second stream")
        assert (await server.publish(route_table(2)).wait(30.0)).complete
        assert [table.epoch for table in listener.tables] == [2]
        await link.close(0.0)
        await server.stop()

    run(main())


def test_an_edge_that_has_no_judge_at_all_keeps_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        listener = ListListener()
        link = EdgeLink(edge_settings(None), listener)
        await link.start()
        assert listener.changes == ["lost"]
        offer(link, 3)
        link.live(1.0, "t", "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0)
        counts = link.counts()
        assert (counts.captured, counts.dropped, counts.held) == (3, {"no_judge": 3}, 0)
        await link.close(1.0)

    run(main())


def test_with_a_judge_that_takes_nothing_a_full_queue_is_a_full_queue(tmp_path: Path) -> None:
    async def main() -> None:
        stuck = asyncio.Event()

        async def past(incarnation: str, sequences: Any) -> Past:
            await stuck.wait()
            return Past()

        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1), past=past)
        await server.start()
        limits = CaptureLimits(
            queue_items=10, queue_bytes=1_000, batch_items=4, flush_s=0.01, queue_age_s=600.0
        )
        link = EdgeLink(edge_settings(unix_target(tmp_path), capture=limits), ListListener())
        await link.start()
        await eventually(lambda: link.judge_answers, "the judge")
        offer(link, 30, b"")
        assert link.counts().dropped == {"queue_full": 20}
        offer(link, 1, bytes(900))
        assert link.counts().dropped == {"queue_full": 21}
        stuck.set()
        await eventually(lambda: link.counts().held == 0, "the queue to empty")
        offer(link, 2, bytes(700))
        assert link.counts().dropped == {"queue_full": 21, "queue_bytes": 1}
        await eventually(lambda: server.ledger.balance("edge-1").captured == 33, "the last report")
        assert server.ledger.balance("edge-1").balanced
        await link.close(1.0)
        await server.stop()

    run(main())


def test_a_batch_that_comes_again_is_counted_once(tmp_path: Path) -> None:
    async def main() -> None:
        sink, store = ListSink(), MemoryStore()
        answers = 0

        class Forgetful(LinkServer):
            async def take(self, batch: Any) -> None:
                nonlocal answers
                await super().take(batch)
                answers += 1
                if answers % 3:
                    raise OSError("the receipt is lost")

        server = Forgetful(unix_target(tmp_path), None, sink, route_table(1), past=store.past)
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        for _ in range(4):
            offer(link, 5)
            await eventually(lambda: link.counts().held == 0, "delivery")
        assert sorted(sequences(sink)) == list(range(1, 21))
        await eventually(lambda: server.ledger.balance("edge-1").captured == 20, "the last report")
        assert server.ledger.balance("edge-1").balanced
        assert link.counts().delivered == 20
        await link.close(1.0)
        await server.stop()

    run(main())


def test_a_refused_batch_is_dropped_and_does_not_block_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()

        class Strict(LinkServer):
            async def take(self, batch: Any) -> None:
                if any(capture.body == b"poison" for capture in batch.captures):
                    raise ValueError("not this one")
                await super().take(batch)

        server = Strict(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
        await link.start()
        offer(link, 1, b"poison")
        await eventually(lambda: link.counts().dropped == {"no_judge": 1}, "the refusal")
        offer(link, 1)
        await eventually(lambda: sequences(sink) == [2], "the next one")
        await eventually(lambda: server.ledger.balance("edge-1").captured == 2, "the report")
        assert server.ledger.balance("edge-1").balanced
        await link.close(1.0)
        await server.stop()

    run(main())


def test_closing_hands_over_what_is_queued(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        ledger = tmp_path / "edge.ledger"
        settings = edge_settings(
            unix_target(tmp_path),
            capture=CaptureLimits(flush_s=60.0, queue_age_s=600.0),
            ledger_file=str(ledger),
        )
        link = EdgeLink(settings, ListListener())
        await link.start()
        await eventually(lambda: link.judge_answers, "the judge")
        offer(link, 150)
        unfinished = link.begin()
        await link.close(30.0)
        assert sorted(sequences(sink)) == list(range(1, 151))
        final = read_ledger(ledger)
        assert (final.captured, final.delivered, final.dropped) == (151, 150, {"shutdown": 1})
        link.drop(unfinished, DropReason.CLIENT_ABORTED)  # the edge may still end it; it is over
        link.offer(link.begin(), capture_head(), b"")
        assert read_ledger(ledger).captured == 151
        await server.stop()

    run(main())


async def start_judge(target: str, store: Path) -> asyncio.subprocess.Process:
    judge = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.link_judge",
        target,
        str(store),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[3],
    )
    assert judge.stdout is not None
    assert await judge.stdout.readline() == b"ready\n"
    return judge


def test_the_ledger_balances_after_the_judge_was_killed_twice(tmp_path: Path) -> None:
    """A real process, killed -9 under load. Then a third judge counts what the store and the edge say."""

    async def main() -> None:
        target, store = unix_target(tmp_path), tmp_path / "store"
        link = EdgeLink(edge_settings(target), ListListener())
        for _ in range(2):
            judge = await start_judge(target, store)
            if link.epoch == 1 and not link.judge_answers:
                await link.start()
            before = link.counts().delivered
            while link.counts().delivered < before + 200:
                offer(link, 5)
                await asyncio.sleep(0.001)
            judge.kill()
            await judge.wait()
            assert judge.stdout is not None
            judge.stdout.feed_eof()
            offer(link, 20)
        assert link.epoch == 5
        ends = read_store(store)
        sink = ListSink()
        server = LinkServer(target, None, sink, route_table(6), past=ends.past)
        await server.start()
        await eventually(lambda: link.counts().held == 0, "delivery of what was left")
        await eventually(
            lambda: server.ledger.balance("edge-1").captured == link.counts().captured, "the last report"
        )
        balance = server.ledger.balance("edge-1")
        assert balance.balanced
        assert balance.compared == len(ends.ends["edge-1"])
        # What is lost: acknowledged to the edge, in nobody's store, and not sent again.
        resent = set(sequences(sink))
        delivered = link.counts().delivered
        lost = delivered - len(ends.ends["edge-1"]) - len(resent)
        assert balance.dropped.get("judge_lost", 0) == lost > 0
        assert not resent.intersection(ends.ends["edge-1"])
        await link.close(1.0)
        await server.stop()

    run(main())


def test_an_edge_killed_with_captures_in_hand_is_charged_from_its_file(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        server = LinkServer(unix_target(tmp_path), None, sink, route_table(1))
        await server.start()
        ledger = tmp_path / "edge.ledger"
        script = (
            "import asyncio, os, signal, uvloop\n"
            "from proxy.link.client import EdgeLink\n"
            "from proxy.edge.settings import CaptureLimits\n"
            "from tests.support.link import *\n"
            "async def main():\n"
            f"    s = edge_settings({unix_target(tmp_path)!r}, ledger_file={str(ledger)!r})\n"
            "    link = EdgeLink(s, ListListener())\n"
            "    await link.start()\n"
            "    for n in range(40): link.offer(link.begin(), capture_head(), b'')\n"
            "    while link.counts().delivered < 40: await asyncio.sleep(0.005)\n"
            "    for n in range(7): link.offer(link.begin(), capture_head(), b'')\n"
            "    link.begin()\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
            "uvloop.run(main())\n"
        )
        edge = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, cwd=Path(__file__).resolve().parents[3]
        )
        assert await edge.wait() == -9
        identity = EdgeIdentity(sidecar="host", worker=0, incarnation="supervisor")
        settled: list[str] = []
        watcher = TableWatcher(
            unix_target(tmp_path),
            None,
            identity,
            route_table(1),
            lambda table, encoded: None,
            on_settled=settled.append,
        )
        await watcher.start()
        watcher.edge_gone(read_ledger(ledger))
        await eventually(lambda: sink.gone, "the judge to count it")
        balance = server.ledger.balance("edge-1")
        assert (balance.captured, balance.in_flight_judge) == (48, 40)
        assert balance.dropped == {"edge_lost": 8}
        assert balance.balanced
        # Its file may go only when the judge has nothing of it in hand any more.
        for sequence in range(1, 40):
            server.ledger.compared("edge-1", sequence)
        assert settled == []
        server.ledger.compared("edge-1", 40)
        await eventually(lambda: settled == ["edge-1"], "the account to be closed")
        assert server.ledger.balance("edge-1").balanced
        await watcher.close()
        await server.stop()

    run(main())


def test_a_judge_that_hangs_is_a_lost_judge_and_gets_the_same_batch_when_it_wakes(tmp_path: Path) -> None:
    async def main() -> None:
        target, store = unix_target(tmp_path), tmp_path / "store"
        judge = await start_judge(target, store)
        listener = ListListener()
        link = EdgeLink(edge_settings(target), listener)
        await link.start()
        await eventually(lambda: listener.changes == ["lost", "back"], "the judge")
        judge.send_signal(signal.SIGSTOP)
        offer(link, 10)
        await eventually(lambda: listener.changes[-1] == "lost", "the judge to be given up")
        assert link.counts().held == 10
        judge.send_signal(signal.SIGCONT)
        await eventually(lambda: link.counts().delivered == 10, "delivery")
        await eventually(lambda: listener.changes[-1] == "back", "its return")
        assert sorted(read_store(store).ends["edge-1"]) == [2, 4, 6, 8, 10]
        judge.kill()
        await judge.wait()
        await link.close(0.0)

    run(main())


def test_the_edges_end_brings_no_heavy_module_with_it() -> None:
    heavy = ("numpy", "scipy", "aiohttp", "engines", "comparator", "proxy.mirror", "sqlite3", "torch")
    code = f"import sys, proxy.link.client; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
