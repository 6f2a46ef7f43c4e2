"""captured = compared + dropped{reason} + in flight, at every moment.

Theory of operation
-------------------
A *capture* is one (edge incarnation, sequence): a process life and a number that it never gives twice. It is
**captured** when the edge begins it and ends exactly once, **compared** or **dropped** for one reason. Until
then it is in flight, at the edge (its body is still coming, it is queued, its batch waits for a receipt) or
at the judge.

Two parties count, each on its own, and the balance is what their counts say of each other:

- The edge counts captured, delivered and dropped{reason} in a small memory-mapped file
  (:class:`EdgeLedger`), so that they outlive a ``kill -9``; a copy travels with each batch, with the number
  of captures it really holds (counted from its containers, not computed from the rest).
- The judge counts what arrives (:class:`JudgeLedger`): which sequences are open, which ended and how.

Batches go one at a time and are numbered, so a batch that comes twice is known by its number. Only the
last one of an incarnation can come twice; after a judge's restart the evidence store says which of its
sequences have already ended.

What a killed process held is charged by subtracting counts of *different* origin:

``edge_lost``
    captured and dropped as read from the dead edge's file, minus what judges received from it.
``judge_lost``
    captures that the edge saw acknowledged, minus ends of that incarnation which the store holds, leaving
    out ends of captures that the edge is only now sending again.

A dead edge's file is kept by its supervisor until the judge says that its account is settled: nothing of it
is in flight any more. Until then, a judge that comes after a killed one gets the same counts again.

Two things it does not promise, both of them of the disk:

- A store that cannot be read, or does not answer within seconds, has no past: all that the edge saw
  acknowledged is charged to ``judge_lost``, pairs that were compared and kept included. The sum still holds;
  the split over reasons is then too dark, never too bright.
- A drop counts when it happens and is committed a moment later (a pair counts once it is committed). A judge
  killed in between takes the drops of one transaction with it. They come out as ``judge_lost`` while the edge
  lives or its file lies there; of an edge settled within that moment nobody reports them again, and the
  store's history lacks them.

A difference that comes out negative is no loss but a fault in somebody's counting: it is not clamped away, it
stays visible as :attr:`Balance.gap`, which is 0 in a sound system.
"""

from proxy.ledger.edge import EdgeCounts, EdgeLedger, LedgerFileError, find_ledgers, read_ledger
from proxy.ledger.judge import Balance, JudgeLedger, Past
from proxy.ledger.reasons import DropReason

__all__ = [
    "Balance",
    "DropReason",
    "EdgeCounts",
    "EdgeLedger",
    "JudgeLedger",
    "LedgerFileError",
    "Past",
    "find_ledgers",
    "read_ledger",
]
