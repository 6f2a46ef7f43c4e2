"""What the link's server needs from the judge around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from comparator.records import LiveRecord
from proxy.ledger import EdgeCounts, Past
from proxy.link.values import Capture, EdgeIdentity


class LinkSink(Protocol):
    """Receives what edges send. Called on the event loop, between two awaits: be quick."""

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        """One capture, the first time it comes. From here on somebody owes the ledger its end."""
        ...

    def live(self, records: Sequence[LiveRecord]) -> None:
        """One batch of live records of one edge incarnation, in order."""
        ...

    def overhead(self, seconds: Sequence[float]) -> None:
        """What the edge itself added to each of them; NaN where it did not measure it."""
        ...

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        """An edge uses a newer table than ours: publish one with an epoch above ``epoch``, or it obeys no
        more."""
        ...

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        """An edge's table says that these rollouts stand rolled back, at these epochs; ours does not. Either
        a person lifted them since, or the judge before announced them and could not write them down."""
        ...

    def edge_gone(self, edge: EdgeIdentity, final: EdgeCounts) -> None:
        """A supervisor reported the end of an edge; the ledger has counted it."""
        ...


class PastReader(Protocol):
    """The evidence store's memory of earlier lives of the judge."""

    async def __call__(self, incarnation: str, sequences: Sequence[int]) -> Past:
        """What ended of this incarnation, and which of ``sequences`` did. An exception keeps the batch with
        its edge, to come again."""
        ...


async def no_past(incarnation: str, sequences: Sequence[int]) -> Past:
    """For a judge without a store, as in tests: every life is the first."""
    return Past()
