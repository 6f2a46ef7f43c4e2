"""What became of every capture that edges began, as the judge knows it.

The theory is in ``proxy/ledger/__init__.py``.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from proxy.ledger.edge import EdgeCounts
from proxy.ledger.reasons import DropReason

_LOG = logging.getLogger(__name__)

SETTLED_KEPT = 256
"""Dead incarnations shown one by one; older ones are folded into the total."""
INCARNATIONS = 4_096
"""Living incarnations kept apart. Beyond, the one silent longest is taken for dead."""
GONE_REMEMBERED = 65_536
"""Dead incarnations whose late batches are still refused."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence store knows of an incarnation from earlier lives of the judge."""

    compared: int = 0
    dropped: dict[str, int] = {}
    """Ends at the judge, by reason; what edges dropped themselves is not in it."""
    ended: frozenset[int] = frozenset()
    """Which of the sequences asked about have ended."""

    @property
    def ends(self) -> int:
        return self.compared + sum(self.dropped.values())


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger at one moment, of one incarnation or of all."""

    captured: int
    compared: int
    dropped: dict[str, int]
    """Edge and judge together, by reason."""
    in_flight_edge: int
    in_flight_judge: int
    faults: int
    """Captures that somebody ended twice, or that ended without having been received."""

    @property
    def gap(self) -> int:
        """captured − compared − dropped − in flight. 0, or somebody's counting is wrong."""
        return (
            self.captured
            - self.compared
            - sum(self.dropped.values())
            - self.in_flight_edge
            - self.in_flight_judge
        )

    @property
    def balanced(self) -> bool:
        return self.gap == 0 and self.faults == 0


class _Life:
    """One edge incarnation."""

    __slots__ = (
        "compared",
        "dropped",
        "edge",
        "edge_in_flight",
        "faults",
        "gone",
        "last_batch",
        "open",
        "received",
    )

    def __init__(self, edge: EdgeCounts) -> None:
        self.edge = edge
        self.edge_in_flight = 0
        self.last_batch = 0
        self.received = 0
        """Distinct captures that judges received: this life's, and what earlier ones ended or lost."""
        self.open: set[int] = set()
        self.compared = 0
        self.dropped: Counter[str] = Counter()
        self.faults = 0
        self.gone = False

    def inherit(self, past: Past, resent_ends: int) -> None:
        """Take over what earlier lives of the judge ended, and charge what they lost."""
        self.compared += past.compared
        self.dropped.update(past.dropped)
        lost = self.edge.delivered - (past.ends - resent_ends)
        if lost > 0:
            self.dropped[DropReason.JUDGE_LOST] += lost
        self.received += past.ends + max(0, lost)

    def balance(self) -> Balance:
        dropped = self.dropped + Counter(self.edge.dropped)
        return Balance(
            captured=self.edge.captured,
            compared=self.compared,
            dropped={str(reason): count for reason, count in sorted(dropped.items())},
            in_flight_edge=self.edge_in_flight,
            in_flight_judge=len(self.open),
            faults=self.faults,
        )


class JudgeLedger:
    """One for a judge. Not thread-safe: it lives on the judge's event loop."""

    def __init__(self) -> None:
        self._lives: OrderedDict[str, _Life] = OrderedDict()  # least recently heard first
        self._settled: OrderedDict[str, _Life] = OrderedDict()
        self._folded = Balance(
            captured=0, compared=0, dropped={}, in_flight_edge=0, in_flight_judge=0, faults=0
        )
        self._gone: OrderedDict[str, None] = OrderedDict()
        self.on_settled: Callable[[str], None] = lambda incarnation: None
        """Called when a dead incarnation has nothing in flight any more: its account is closed."""
        self.late_batches = 0
        """Batches of incarnations already declared dead; what they held was charged to ``edge_lost``."""

    def knows(self, incarnation: str) -> bool:
        """Whether the store's :class:`Past` is no longer needed for this incarnation."""
        return incarnation in self._lives or incarnation in self._gone

    def receive(
        self, edge: EdgeCounts, batch: int, sequences: Sequence[int], past: Past | None
    ) -> frozenset[int] | None:
        """Count one batch and say which of its captures are new.

        Args:
            edge: the counters that came with the batch, ``held`` set.
            batch: its number, rising within an incarnation.
            sequences: of the captures in it.
            past: required for an incarnation that :meth:`knows` not; ignored otherwise.

        Returns:
            The sequences to work on; None for a batch that came before, or from the dead.
        """
        if edge.incarnation in self._gone:
            self.late_batches += 1
            return None
        life = self._lives.get(edge.incarnation)
        if life is None:
            if past is None:
                raise ValueError(f"first batch of incarnation {edge.incarnation} without its past")
            life = _Life(edge)
            life.inherit(past, len(past.ended.intersection(sequences)))
            self._add(edge.incarnation, life)
            fresh = frozenset(sequences) - past.ended
        elif batch <= life.last_batch:
            return None
        else:
            self._lives.move_to_end(edge.incarnation)
            fresh = frozenset(sequences)
        again = fresh & life.open
        life.faults += len(again)
        fresh -= again
        life.last_batch = batch
        life.edge = edge
        life.edge_in_flight = (edge.held or 0) - len(sequences)
        life.received += len(fresh)
        life.open |= fresh
        return fresh

    def compared(self, incarnation: str, sequence: int) -> None:
        """A pair was made of it and kept."""
        life = self._end(incarnation, sequence)
        if life is not None:
            life.compared += 1
            self._settle(incarnation, life)

    def dropped(self, incarnation: str, sequence: int, reason: DropReason) -> None:
        """It ended at the judge without one."""
        life = self._end(incarnation, sequence)
        if life is not None:
            life.dropped[reason] += 1
            self._settle(incarnation, life)

    def gone(self, final: EdgeCounts, past: Past | None) -> None:
        """An edge is dead; ``final`` was read from its file. Safe to tell twice.

        Args:
            past: required for an incarnation that :meth:`knows` not; ignored otherwise.
        """
        if final.incarnation in self._gone:
            return
        life = self._lives.get(final.incarnation)
        if life is None:
            if past is None:
                raise ValueError(f"the end of incarnation {final.incarnation} without its past")
            life = _Life(final)
            life.inherit(past, max(0, past.ends - final.delivered))
            self._add(final.incarnation, life)
        self._bury(final.incarnation, life, final)

    def balance(self, incarnation: str | None = None) -> Balance:
        """The whole ledger, or one incarnation's. Raises KeyError for one that is not kept apart."""
        if incarnation is not None:
            life = self._lives.get(incarnation) or self._settled[incarnation]
            return life.balance()
        total = self._folded
        for life in (*self._settled.values(), *self._lives.values()):
            total = _add(total, life.balance())
        return total

    def incarnations(self) -> Iterable[str]:
        """Those that :meth:`balance` can show one by one, the dead first."""
        return (*self._settled, *self._lives)

    def batches(self) -> dict[str, int]:
        """The last batch taken of each living incarnation."""
        return {name: life.last_batch for name, life in self._lives.items() if life.last_batch}

    def settled(self, incarnation: str) -> bool:
        """Whether this incarnation is dead and its account closed."""
        return incarnation in self._gone and incarnation not in self._lives

    def in_flight(self, incarnation: str) -> frozenset[int]:
        """Sequences of this incarnation that the judge still works on."""
        life = self._lives.get(incarnation)
        return frozenset(life.open) if life is not None else frozenset()

    def _end(self, incarnation: str, sequence: int) -> _Life | None:
        life = self._lives.get(incarnation)
        if life is None:
            # Its life is settled, so it had nothing open: a second end of something.
            folded = self._folded
            self._folded = msgspec.structs.replace(folded, faults=folded.faults + 1)
            return None
        if sequence not in life.open:
            life.faults += 1
            return None
        life.open.remove(sequence)
        return life

    def _add(self, incarnation: str, life: _Life) -> None:
        if len(self._lives) >= INCARNATIONS:
            silent = next((name for name, other in self._lives.items() if not other.open), None)
            if silent is not None:
                _LOG.warning(
                    "an edge that was silent longest is taken for dead",
                    extra={"incarnation": silent, "edges": INCARNATIONS},
                )
                self._bury(silent, self._lives[silent], self._lives[silent].edge)
        self._lives[incarnation] = life

    def _bury(self, incarnation: str, life: _Life, final: EdgeCounts) -> None:
        life.edge = final
        life.edge_in_flight = 0
        life.gone = True
        lost = final.captured - final.dropped_total - life.received
        if lost > 0:
            life.dropped[DropReason.EDGE_LOST] += lost
        self._gone[incarnation] = None
        while len(self._gone) > GONE_REMEMBERED:
            self._gone.popitem(last=False)
        self._settle(incarnation, life)

    def _settle(self, incarnation: str, life: _Life) -> None:
        """Put a dead incarnation with nothing open aside; fold the oldest such into the total."""
        if not life.gone or life.open:
            return
        del self._lives[incarnation]
        self._settled[incarnation] = life
        self.on_settled(incarnation)
        while len(self._settled) > SETTLED_KEPT:
            _, oldest = self._settled.popitem(last=False)
            self._folded = _add(self._folded, oldest.balance())


def _add(left: Balance, right: Balance) -> Balance:
    dropped = Counter(left.dropped)
    dropped.update(right.dropped)
    return Balance(
        captured=left.captured + right.captured,
        compared=left.compared + right.compared,
        dropped=dict(sorted(dropped.items())),
        in_flight_edge=left.in_flight_edge + right.in_flight_edge,
        in_flight_judge=left.in_flight_judge + right.in_flight_judge,
        faults=left.faults + right.faults,
    )
