"""What the mirror reports, and to whom. The judge implements it; tests use a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from comparator.comparison import Comparison
from comparator.pair import ForkSeen
from proxy.ledger import DropReason
from proxy.link.values import Capture
from proxy.mirror.record import ArmPlan


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


class Tracer(Protocol):
    """Who follows captures by trace context. Quick, and never raises; the end of a comparison is told to it
    by whoever receives that."""

    def begin(self, capture: Capture) -> None:
        """Its arms are about to run."""
        ...

    def arm(self, plan: ArmPlan) -> Mapping[str, str]:
        """Headers that the arm's request carries, ``traceparent`` and ``tracestate``; empty for none."""
        ...

    def dropped(self, capture_id: str, reason: str) -> None:
        """It ends without a comparison, whether it was begun or not."""
        ...


class NoTracer:
    """Nobody follows, and no request carries a context."""

    def begin(self, capture: Capture) -> None:
        return

    def arm(self, plan: ArmPlan) -> Mapping[str, str]:
        return {}

    def dropped(self, capture_id: str, reason: str) -> None:
        return
