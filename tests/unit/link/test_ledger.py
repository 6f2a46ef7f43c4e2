"""The judge's ledger, where the property test does not go."""

from __future__ import annotations

import pytest

from proxy.ledger import Balance, DropReason, EdgeCounts, JudgeLedger, Past
from proxy.ledger import judge as judge_module


def counts(incarnation: str, captured: int, *, delivered: int = 0, held: int | None = None) -> EdgeCounts:
    return EdgeCounts(
        sidecar="host",
        worker=0,
        incarnation=incarnation,
        captured=captured,
        delivered=delivered,
        dropped={},
        held=captured - delivered if held is None else held,
    )


def test_a_lost_capture_of_the_judge_is_a_gap_not_a_drop() -> None:
    ledger = JudgeLedger()
    ledger.receive(counts("e", 3), 1, [1, 2, 3], Past())
    assert ledger.balance().balanced
    # The edge says it delivered four, of which this judge has seen three.
    ledger.receive(counts("e", 5, delivered=4), 2, [5], None)
    assert ledger.balance().gap == 1
    assert not ledger.balance().balanced


def test_an_end_of_something_never_received_is_a_fault() -> None:
    ledger = JudgeLedger()
    ledger.receive(counts("e", 1), 1, [1], Past())
    ledger.compared("e", 2)
    ledger.dropped("nobody", 1, DropReason.TOO_OLD)
    assert ledger.balance("e").faults == 1
    assert ledger.balance().faults == 2


def test_captures_of_a_dead_edge_still_end_at_the_judge() -> None:
    ledger = JudgeLedger()
    ledger.receive(counts("e", 3), 1, [1, 2], Past())
    settled: list[str] = []
    ledger.on_settled = settled.append
    ledger.gone(counts("e", 4), None)
    assert ledger.balance("e").dropped == {"edge_lost": 2}
    assert not ledger.settled("e")
    assert ledger.in_flight("e") == {1, 2}
    ledger.compared("e", 1)
    assert settled == []
    ledger.dropped("e", 2, DropReason.TOO_OLD)
    assert settled == ["e"]
    assert ledger.settled("e")
    assert ledger.balance("e") == Balance(
        captured=4,
        compared=1,
        dropped={"edge_lost": 2, "too_old": 1},
        in_flight_edge=0,
        in_flight_judge=0,
        faults=0,
    )
    assert ledger.receive(counts("e", 5), 3, [5], None) is None  # a ghost's batch
    assert ledger.late_batches == 1
    assert ledger.balance().balanced


def test_totals_outlive_the_incarnations_that_are_shown_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "SETTLED_KEPT", 2)
    ledger = JudgeLedger()
    for number in range(5):
        ledger.receive(counts(f"e{number}", 3), 1, [1, 2], Past())
        ledger.compared(f"e{number}", 1)
        ledger.dropped(f"e{number}", 2, DropReason.TOO_OLD)
        ledger.gone(counts(f"e{number}", 3), None)
    assert list(ledger.incarnations()) == ["e3", "e4"]
    with pytest.raises(KeyError):
        ledger.balance("e0")
    total = ledger.balance()
    assert (total.captured, total.compared) == (15, 5)
    assert total.dropped == {"edge_lost": 5, "too_old": 5}
    assert total.balanced


def test_living_incarnations_are_bounded_and_the_silent_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "INCARNATIONS", 3)
    ledger = JudgeLedger()
    for name in ("a", "b", "c"):
        ledger.receive(counts(name, 4), 1, [1], Past())
    ledger.compared("b", 1)
    ledger.compared("c", 1)
    ledger.receive(counts("c", 4, delivered=1, held=3), 2, [], None)
    ledger.receive(counts("d", 1), 1, [1], Past())
    # a has work open at the judge, c spoke last: b is taken for dead, its three held captures lost.
    assert ledger.balance("b").dropped == {"edge_lost": 3}
    assert ledger.receive(counts("b", 5, delivered=1), 2, [2], None) is None
    assert ledger.balance().balanced


def test_an_edges_first_word_needs_its_past() -> None:
    ledger = JudgeLedger()
    assert not ledger.knows("e")
    with pytest.raises(ValueError, match="first batch of incarnation e without its past"):
        ledger.receive(counts("e", 1), 1, [1], None)
    with pytest.raises(ValueError, match="the end of incarnation e without its past"):
        ledger.gone(counts("e", 1), None)
    ledger.receive(counts("e", 1), 1, [1], Past())
    assert ledger.knows("e")
