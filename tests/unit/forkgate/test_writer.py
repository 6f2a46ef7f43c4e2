"""The evidence thread: batches by itself, isolates what cannot be stored, comes back when the disk does."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.evidence import (
    Batch,
    ComparisonDone,
    Drop,
    EvidenceError,
    EvidenceFull,
    EvidenceReader,
    EvidenceStore,
    JournalEntry,
)
from comparator.evidence.journal import ComparisonRef, decode_items
from forkgate.judge import writer as module
from forkgate.judge.writer import EvidenceWriter
from proxy.ledger import JudgeLedger
from proxy.link.pb import link_pb2 as pb
from proxy.link.server import LinkServer
from proxy.live import RECORD_BYTES, LivePacker
from tests.support.exchanges import comparison, live, pair
from tests.support.link import ListSink, route_table
from tests.support.waiting import LIMIT_S, PATIENCE_S, eventually


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def done(number: int) -> ComparisonDone:
    return ComparisonDone(
        comparison=comparison(pair(capture_id=f"c-{number}")), incarnation="e", sequence=number
    )


def drop(number: int) -> Drop:
    return Drop(incarnation="e", sequence=number, rollout="r", reason="too_old", detail="", unix_s=1.0)


async def opened(path: Path) -> EvidenceWriter:
    writer = EvidenceWriter(path / "evidence.db", 100_000_000)
    writer.start()
    await writer.status()
    return writer


def test_what_waits_while_a_transaction_runs_goes_into_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    entered, gate, real = threading.Event(), threading.Event(), EvidenceStore.add

    def slow(self: EvidenceStore, batch: Batch) -> Any:
        entered.set()
        gate.wait(LIMIT_S)
        batches.append(len(batch.comparisons))
        return real(self, batch)

    async def main() -> None:
        writer = await opened(tmp_path)
        monkeypatch.setattr(EvidenceStore, "add", slow)
        first = asyncio.create_task(writer.keep(done(1)))
        await eventually(entered.is_set)  # the thread is at it
        rest = [asyncio.create_task(writer.keep(done(number))) for number in range(2, 12)]
        await eventually(lambda: len(writer._jobs) == 10)
        gate.set()
        await asyncio.gather(first, *rest)
        await writer.close(10)

    run(main())
    assert batches == [1, 10]


def test_one_pair_that_cannot_be_stored_costs_its_neighbours_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate, real = threading.Event(), threading.Event(), EvidenceStore.add

    def picky(self: EvidenceStore, batch: Batch) -> Any:
        entered.set()
        gate.wait(LIMIT_S)
        if any(one.sequence == 3 for one in batch.comparisons):
            raise EvidenceError(self.path, "a pair cannot be stored: no integer")
        return real(self, batch)

    async def main() -> None:
        writer = await opened(tmp_path)
        monkeypatch.setattr(EvidenceStore, "add", picky)
        kept = [asyncio.create_task(writer.keep(done(1)))]
        await eventually(entered.is_set)
        kept += [asyncio.create_task(writer.keep(done(number))) for number in range(2, 6)]
        await eventually(lambda: len(writer._jobs) == 4)
        gate.set()
        results = await asyncio.gather(*kept, return_exceptions=True)
        assert [isinstance(one, EvidenceError) for one in results] == [False, False, True, False, False]
        await writer.close(10)

    run(main())
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        assert reader.ledger_counts("e").compared == 4


def test_notes_wait_for_a_full_disk_to_have_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, real = threading.Event(), EvidenceStore.add
    full.set()

    def add(self: EvidenceStore, batch: Batch) -> Any:
        if full.is_set():
            raise EvidenceFull(self.path, "the disk is full")
        return real(self, batch)

    async def main() -> None:
        writer = await opened(tmp_path)
        monkeypatch.setattr(EvidenceStore, "add", add)
        writer.note(drop(1))
        await eventually(lambda: writer.trouble is not None)
        with pytest.raises(EvidenceFull):
            await writer.keep(done(2))
        full.clear()
        await writer.keep(done(3))
        assert writer.trouble is None
        await writer.close(10)

    run(main())
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        counts = reader.ledger_counts("e")
    assert (counts.compared, counts.dropped) == (1, {"too_old": 1})


def test_notes_are_bounded_and_the_lost_ones_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NOTES", 10)

    async def main() -> None:
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000)  # never started: nobody takes them
        writer.note(*(drop(number) for number in range(15)))
        assert writer.notes_lost == 5

    run(main())


def test_store_that_could_not_be_opened_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REOPEN_S", 0.0)

    async def main() -> None:
        (tmp_path / "evidence.db").mkdir()
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000)
        writer.start()
        with pytest.raises(EvidenceError):
            await writer.keep(done(1))
        (tmp_path / "evidence.db").rmdir()
        await writer.keep(done(2))
        assert writer.trouble is None
        await writer.close(10)

    run(main())


def test_nothing_is_kept_after_the_close(tmp_path: Path) -> None:
    async def main() -> None:
        writer = await opened(tmp_path)
        writer.note(drop(1))
        await writer.close(10)
        with pytest.raises(EvidenceError, match="the judge is stopping"):
            await writer.keep(done(2))

    run(main())
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        assert reader.ledger_counts("e").dropped == {"too_old": 1}


def test_trouble_that_is_told_again_and_again_does_not_grow(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "evidence.db").mkdir()
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000)
        writer.start()
        told = set()
        for _ in range(10):
            with pytest.raises(EvidenceError) as caught:
                await writer.status()
            told.add(str(caught.value))
        assert len(told) == 1
        assert str(writer.trouble).count("evidence.db") == 1
        await writer.close(5)

    run(test())


def test_past_of_a_broken_store_is_empty_so_that_live_records_still_come_in(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "evidence.db").write_bytes(b"no database " * 1_000)
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000)
        writer.start()
        past = await writer.past("e", [1, 2])
        assert (past.compared, past.ended) == (0, frozenset())
        await writer.close(10)

    run(main())


def test_disk_that_hangs_costs_an_edge_its_past_and_not_its_live_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, real = threading.Event(), EvidenceStore.add

    def be_patient_for(seconds: float) -> None:
        monkeypatch.setattr(module, "PAST_S", seconds)
        monkeypatch.setattr(module, "ASK_S", seconds)

    def add(self: EvidenceStore, batch: Batch) -> Any:
        hangs.wait(LIMIT_S)
        return real(self, batch)

    async def main() -> None:
        be_patient_for(60)
        writer = await opened(tmp_path)
        await writer.keep(done(1))
        monkeypatch.setattr(EvidenceStore, "add", add)
        be_patient_for(0.05)
        writer.note(drop(2))
        ledger = JudgeLedger()
        sink = ListSink()
        server = LinkServer("unused", None, sink, route_table(1), ledger=ledger, past=writer.past)
        await server.take(batch_after_a_restart())
        assert len(sink.records) == 1
        # The pair that the store holds counts as lost with its judge: wrong of one, right in sum.
        assert ledger.balance("e").dropped == {"judge_lost": 1}
        assert ledger.balance("e").balanced
        with pytest.raises(EvidenceError, match="the disk did not answer within"):
            await writer.status()
        hangs.set()
        be_patient_for(60)
        assert (await writer.past("e", [1, 2])).ended == {1, 2}
        await writer.close(10)

    run(main())


def batch_after_a_restart() -> pb.Batch:
    """Of an edge whose first capture an earlier judge took and compared."""
    packer = LivePacker(10)
    packer.add(1.0, "acme", "old", "http://h:1", 200, 0.1, 0.2, 3, 4, 0, 0)
    records, names = packer.take()
    batch = pb.Batch(batch=2, live_records=records, names=names, record_bytes=RECORD_BYTES)
    batch.edge.sidecar, batch.edge.incarnation = "host", "e"
    batch.ledger.captured = batch.ledger.delivered = 1
    return batch


KILLED = """
import asyncio, sys
from pathlib import Path
from comparator.evidence import ComparisonDone, JournalEntry
from forkgate.judge.writer import EvidenceWriter
from tests.support.exchanges import comparison, live, pair

def entry(number, item):
    return JournalEntry(
        rollout="r", sequence=number, before=number - 1, after=number, unix_s=1.0, kind="observed",
        items=(item,),
    )

async def main():
    writer = EvidenceWriter(Path(sys.argv[1]), 100_000_000)
    writer.start()
    number = 0
    while True:
        number += 1
        writer.note(entry(number, live(sequence=number)))
        number += 1
        one = comparison(pair(capture_id=f"c-{number}"))
        done = ComparisonDone(comparison=one, incarnation="e", sequence=number)
        await writer.keep(done, entry(number, one))
        print(number, flush=True)

asyncio.run(main())
"""


def test_killed_judge_loses_nothing_of_the_journal_that_was_committed(tmp_path: Path) -> None:
    """Nor does it leave an entry whose comparison is not there: both are of one transaction."""
    path = tmp_path / "evidence.db"
    root = Path(__file__).resolve().parents[3]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], cwd=root, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(40):
        committed = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with EvidenceReader(path) as reader:
        rows = list(reader.journal("r", 10**9))
        assert [row.after for row in rows] == list(range(1, len(rows) + 1))
        assert len(rows) >= committed == 80
        for row in rows:
            (part,) = decode_items(row.body)
            if isinstance(part, ComparisonRef):
                assert reader.comparison(part.capture_id).pairs


def test_comparison_that_waits_for_the_next_transaction_keeps_its_notes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BATCH_PAIRS", 2)
    batches: list[tuple[list[int], list[int]]] = []
    entered, gate, real = threading.Event(), threading.Event(), EvidenceStore.add

    def slow(self: EvidenceStore, batch: Batch) -> Any:
        entered.set()
        gate.wait(LIMIT_S)
        numbers = [one.sequence or 0 for one in batch.comparisons]
        batches.append((numbers, [entry.sequence for entry in batch.journal]))
        return real(self, batch)

    def entry(number: int) -> JournalEntry:
        return JournalEntry(
            rollout="r", sequence=number, before=number, after=number, unix_s=1.0, kind="Lift", body=b"\x80"
        )

    async def main() -> None:
        writer = await opened(tmp_path)
        monkeypatch.setattr(EvidenceStore, "add", slow)
        kept = [asyncio.create_task(writer.keep(done(1), entry(1)))]
        await eventually(entered.is_set)
        for number in range(2, 7):
            kept.append(asyncio.create_task(writer.keep(done(number), entry(number))))
            await asyncio.sleep(0)
            if number == 3:
                writer.note(entry(30))
        gate.set()
        await asyncio.gather(*kept)
        await writer.close(10)

    run(main())
    assert batches == [([1], [1]), ([2, 3], [2, 3, 30]), ([4, 5], [4, 5]), ([6], [6])]


def test_live_records_that_wait_for_a_broken_store_are_bounded_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_NOTED_ITEMS", 10)

    def entry(count: int) -> JournalEntry:
        return JournalEntry(
            rollout="r",
            sequence=1,
            before=0,
            after=count,
            unix_s=1.0,
            kind="observed",
            items=(live(),) * count,
        )

    async def main() -> None:
        writer = EvidenceWriter(tmp_path / "evidence.db", 100_000_000)  # never started: nobody takes them
        writer.note(entry(4), entry(4), entry(4))
        assert writer.notes_lost == 1
        writer.note(entry(11))
        assert writer.notes_lost == 4

    run(main())


def test_entry_that_no_journal_holds_is_counted_and_leaves_its_mark(tmp_path: Path) -> None:
    poison = msgspec.structs.replace(live(), request_bytes=2**64)
    entry = JournalEntry(
        rollout="r", sequence=1, before=0, after=1, unix_s=1.0, kind="observed", items=(poison,)
    )

    async def main() -> None:
        writer = await opened(tmp_path)
        writer.note(entry)
        await writer.close(10)
        assert writer.notes_lost == 1
        assert writer.trouble is None

    run(main())
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        (row,) = reader.journal("r", 10**9)
        assert (row.kind, row.after) == ("lost", 1)


def test_notes_that_are_waited_for_are_committed_or_it_is_said_that_they_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        writer = await opened(tmp_path)
        await writer.kept(drop(1), limit_s=PATIENCE_S)
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            assert reader.ledger_counts("e").dropped == {"too_old": 1}
        real = EvidenceStore.add

        def full(_store: EvidenceStore, _batch: Batch) -> Any:
            raise EvidenceFull(tmp_path, "no room")

        monkeypatch.setattr(EvidenceStore, "add", full)
        with pytest.raises(EvidenceError):
            await writer.kept(drop(2), limit_s=PATIENCE_S)
        monkeypatch.setattr(EvidenceStore, "add", real)
        await writer.kept(drop(3), limit_s=PATIENCE_S)  # what waited goes with it
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            assert reader.ledger_counts("e").dropped == {"too_old": 3}
        await writer.close(10)

    run(main())
