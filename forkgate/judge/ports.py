"""What the judge needs from the mirror."""

from __future__ import annotations

from typing import Protocol

from proxy.link.values import Capture, EdgeIdentity


class MirrorPort(Protocol):
    """Runs captures on both pools and reports to a :class:`proxy.mirror.ports.MirrorSink`."""

    def submit(self, edge: EdgeIdentity, capture: Capture) -> None:
        """Take one capture; never waits. Exactly one end of it is reported later."""
        ...

    async def stop_rollout(self, name: str, reason: str, *, spare: str | None = None) -> None:
        """Abort its arms, but for those of capture ``spare``, and refuse its captures from now on.

        Returns when nothing of it runs any more."""
        ...

    def resume_rollout(self, name: str) -> None:
        """Take its captures again."""
        ...

    async def close(self, drain_s: float) -> None:
        """Let running pairs end for that long, then abort them."""
        ...
