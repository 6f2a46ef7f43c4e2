"""The edge's end of the link without its socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.edge.settings import CaptureLimits
from proxy.ledger import DropReason, EdgeLedger
from proxy.link.outbox import CAPTURE_BYTES, Outbox
from proxy.link.values import EdgeIdentity
from tests.support.link import capture_head

IDENTITY = EdgeIdentity(sidecar="host", worker=2, incarnation="edge-1")


class Box:
    """An outbox with a clock that stands still and a note of what it asked for."""

    def __init__(self, **limits: float) -> None:
        self.now_s = 100.0
        self.asked: list[bool] = []
        self.ledger = EdgeLedger("host", 2, "edge-1", None)
        self.outbox = Outbox(
            IDENTITY,
            CaptureLimits(**limits),  # type: ignore[arg-type]
            self.ledger,
            lambda: self.now_s,
            self.asked.append,
        )
        self.outbox.reachable = True

    def offer(self, size: int = 0) -> int:
        sequence = self.outbox.begin()
        self.outbox.offer(sequence, capture_head(target="", headers=()), bytes(size))
        return sequence

    @property
    def dropped(self) -> dict[str, int]:
        return self.ledger.counts().dropped


def test_a_batch_tells_the_ledger_as_it_stood_with_the_batch_still_held() -> None:
    box = Box(batch_items=2)
    box.outbox.begin()
    for _ in range(3):
        box.offer()
    batch = box.outbox.next_batch()
    assert batch is not None
    assert [capture.sequence for capture in batch.captures] == [2, 3]
    assert (batch.batch, batch.ledger.captured, batch.ledger.delivered, batch.ledger.held) == (1, 4, 0, 4)
    assert box.outbox.next_batch() is batch
    box.outbox.delivered()
    second = box.outbox.next_batch()
    assert second is not None
    assert [capture.sequence for capture in second.captures] == [4]
    assert (second.batch, second.ledger.delivered, second.ledger.held) == (2, 2, 2)


def test_nothing_new_makes_no_batch_and_a_drop_is_news() -> None:
    box = Box()
    assert box.outbox.next_batch() is not None  # the first word to a judge, if only of zeros
    box.outbox.delivered()
    assert box.outbox.next_batch() is None
    box.outbox.drop(box.outbox.begin(), DropReason.BODY_TOO_LARGE)
    batch = box.outbox.next_batch()
    assert batch is not None
    assert dict(batch.ledger.dropped) == {"body_too_large": 1}
    box.outbox.delivered()
    assert box.outbox.next_batch() is None
    box.outbox.report_again()
    assert box.outbox.next_batch() is not None


def test_it_asks_once_for_soon_and_once_for_now() -> None:
    box = Box(batch_items=3)
    box.offer()
    box.offer()
    assert box.asked == [False]
    box.offer()
    box.offer()
    assert box.asked == [False, True]
    box.outbox.next_batch()
    assert box.asked == [False, True, False]  # one is left over and waits for company
    for _ in range(6):
        box.offer()
    box.outbox.delivered()
    box.outbox.next_batch()
    assert box.asked == [False, True, False, True, True]  # four are: another batch is full


def test_live_records_ask_for_now_when_half_their_room_is_taken() -> None:
    box = Box(live_records=4)
    for _ in range(6):
        box.outbox.live(1.0, "t", "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0)
    assert box.asked == [False, True]
    batch = box.outbox.next_batch()
    assert batch is not None
    assert batch.live_lost == box.outbox.live_lost == 2


@pytest.mark.parametrize(
    ("limits", "sizes", "reason"),
    [
        ({"queue_items": 2}, [1, 1, 1], "queue_full"),
        ({"queue_bytes": 100}, [60, 60], "queue_bytes"),
        ({}, [CAPTURE_BYTES + 1], "body_too_large"),
    ],
)
def test_what_does_not_fit_is_dropped_for_its_reason(
    limits: dict[str, float], sizes: list[int], reason: str
) -> None:
    box = Box(**limits)
    for size in sizes:
        box.offer(size)
    assert box.dropped == {reason: 1}
    assert box.outbox.held == len(sizes) - 1


def test_old_captures_make_room_for_new_ones() -> None:
    box = Box(queue_items=2, queue_age_s=10.0)
    box.offer()
    box.now_s += 6.0
    box.offer()
    box.now_s += 6.0
    box.offer()
    assert box.dropped == {"queue_age": 1}
    box.now_s += 10.0
    assert box.outbox.next_batch() is not None
    assert box.dropped == {"queue_age": 2}


def test_without_a_judge_every_overflow_is_no_judge() -> None:
    box = Box(queue_items=1, queue_age_s=1.0)
    box.outbox.reachable = False
    box.offer()
    box.offer()
    box.now_s += 2.0
    box.outbox.next_batch()
    assert box.dropped == {"no_judge": 2}


def test_a_capture_ends_once() -> None:
    box = Box()
    sequence = box.offer()
    box.outbox.drop(sequence, DropReason.CLIENT_ABORTED)
    box.outbox.offer(sequence, capture_head(), b"")
    box.outbox.drop(99, DropReason.CLIENT_ABORTED)
    assert box.dropped == {}
    assert box.outbox.held == 1


def test_abandoning_leaves_the_batch_under_way_to_the_ledger() -> None:
    box = Box(batch_items=1)
    box.offer()
    box.offer()
    box.outbox.begin()
    box.outbox.next_batch()
    box.outbox.abandon()
    assert box.dropped == {"shutdown": 2}
    assert box.outbox.held == 1
    box.offer()
    assert box.dropped == {"shutdown": 3}


def test_a_ledger_file_outlives_its_writer_and_is_not_written_twice(tmp_path: Path) -> None:
    from proxy.ledger import LedgerFileError, read_ledger

    path = tmp_path / "edge.ledger"
    ledger = EdgeLedger("host", 2, "edge-1", str(path))
    assert ledger.durable
    ledger.count_captured()
    ledger.count_delivered(3)
    ledger.count_dropped(DropReason.QUEUE_AGE)
    counts = read_ledger(path)  # while it is still mapped
    assert counts == ledger.counts()
    assert (counts.sidecar, counts.worker, counts.incarnation) == ("host", 2, "edge-1")
    assert (counts.captured, counts.delivered, counts.dropped) == (1, 3, {"queue_age": 1})
    ledger.close()
    assert ledger.counts() == counts
    (tmp_path / "torn.ledger").write_bytes(path.read_bytes()[:3_000])
    for name, message in [("torn.ledger", "3000 bytes"), ("none.ledger", "No such file")]:
        with pytest.raises(LedgerFileError, match=message):
            read_ledger(tmp_path / name)


@pytest.mark.parametrize("trouble", ["exists", "no directory"])
def test_an_edge_whose_ledger_cannot_be_made_counts_in_memory_and_says_so(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / ("edge.ledger" if trouble == "exists" else "none/edge.ledger")
    if trouble == "exists":
        path.write_bytes(b"another life's")
    ledger = EdgeLedger("host", 2, "edge-1", str(path))
    ledger.count_captured()
    assert not ledger.durable
    assert ledger.captured == 1
    assert "cannot be written" in caplog.text
    if trouble == "exists":
        assert path.read_bytes() == b"another life's"
