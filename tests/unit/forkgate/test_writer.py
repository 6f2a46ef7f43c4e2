"""The evidence thread: batches by itself, isolates what cannot be stored, comes back when the disk does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from comparator.evidence import (
    Batch,
    ComparisonDone,
    Drop,
    EvidenceError,
    EvidenceFull,
    EvidenceReader,
    EvidenceStore,
)
from forkgate.judge import writer as module
from forkgate.judge.writer import EvidenceWriter
from proxy.ledger import JudgeLedger
from proxy.link.pb import link_pb2 as pb
from proxy.link.server import LinkServer
from proxy.live import LivePacker
from tests.support.exchanges import comparison, pair
from tests.support.link import ListSink, route_table
from tests.support.waiting import eventually


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


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
        gate.wait(30)
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
        gate.wait(30)
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
        hangs.wait(60)
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
    batch = pb.Batch(batch=2, live_records=records, names=names)
    batch.edge.sidecar, batch.edge.incarnation = "host", "e"
    batch.ledger.captured = batch.ledger.delivered = 1
    return batch
