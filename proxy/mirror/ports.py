"""What the mirror reports, and to whom. The judge implements it; tests use a list."""

from __future__ import annotations

from typing import Protocol

from comparator.comparison import Comparison
from comparator.pair import ForkSeen
from proxy.ledger import DropReason


class MirrorSink(Protocol):
    """Receives everything that became of a capture: exactly one of comparison_finished and dropped.

    A comparison that could not be kept is both: ``comparison_finished`` raised, so it is
    dropped as ``evidence_failed``.
    """

    def fork_seen(self, event: ForkSeen) -> None:
        """Called in line, the moment the deciding token arrived. Must be quick: a rollback hangs on it.

        A control's fork comes with ``right_arm`` control: the floor's, never the candidate's. Samples of
        suites are not told of here.

        Not called for a pair that its end may yet show to be no evidence (a request that went as itself, an
        environment not proved beforehand): that fork comes with the finished pair alone.
        """
        ...

    async def comparison_finished(self, comparison: Comparison, incarnation: str, sequence: int) -> None:
        """Keep it. The capture counts as compared once this returns; an exception counts it as
        ``evidence_failed``."""
        ...

    async def dropped(
        self, incarnation: str, sequence: int, rollout: str, reason: DropReason, detail: str
    ) -> None:
        """The capture ends here, for this reason."""
        ...
