"""What the judge needs from the mirror, and from what makes checks and asks suites."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

from comparator.comparison import Comparison
from forkgate.checks.progress import CheckProgress
from forkgate.checks.report import CheckReport
from policies.policy import Level
from policies.rollout import CheckKind
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

    def yield_pool(self, pool: str, why: str, *, ending: str | None = None, spare: str | None = None) -> int:
        """Stop every arm on this pool now, and start none until it has been quiet for a while.

        Returns how many questions were stopped."""
        ...

    def resume_rollout(self, name: str) -> None:
        """Take its captures again."""
        ...

    async def close(self, drain_s: float) -> None:
        """Let running pairs end for that long, then abort them."""
        ...


class CheckPort(Protocol):
    """Makes the checks that a rollout starts with."""

    async def run(self, rollout: str, kind: CheckKind, level: Level) -> CheckReport:
        """Make one check. Every trouble is in the report; raises nothing but a cancellation."""
        ...

    def progress(self, rollout: str) -> CheckProgress | None:
        """How far the check of this rollout is; None while none runs."""
        ...

    def yield_pool(self, pool: str, why: str) -> int:
        """Break off every check on this pool now, and make it anew once the pool has been quiet for a while.

        Returns how many were broken off."""
        ...


class Loaded(Protocol):
    """A suite as it was read when the sidecar started."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...


class SuiteEnd(Protocol):
    """How asking a suite ended."""

    @property
    def rollout(self) -> str: ...

    @property
    def suite(self) -> str: ...

    @property
    def stage(self) -> str: ...

    @property
    def stopped(self) -> str | None:
        """Why it was broken off; None when it was asked to its end."""
        ...

    @property
    def summary(self) -> str:
        """One sentence, with numbers."""
        ...

    @property
    def whole(self) -> bool: ...


class SuiteProgress(Protocol):
    """How far a suite is."""

    @property
    def suite(self) -> str: ...

    @property
    def stage(self) -> str: ...

    @property
    def asked(self) -> int:
        """Answers wanted: samples times passes."""
        ...

    @property
    def run(self) -> int:
        """Of these, there."""
        ...

    @property
    def passage(self) -> int:
        """The pass under way, from 0."""
        ...

    @property
    def passes(self) -> int: ...

    @property
    def waiting(self) -> str | None:
        """What it pauses for, in words."""
        ...


SuiteT = TypeVar("SuiteT", bound=Loaded, contravariant=True)


class SuitePort(Protocol[SuiteT]):
    """Asks suites through the mirror."""

    def start(
        self,
        rollout: str,
        stage: str,
        suite: SuiteT,
        done: Collection[tuple[str, int]],
        sink: Callable[[Comparison], Awaitable[None]],
        finished: Callable[[SuiteEnd], None],
    ) -> None:
        """Ask every (sample, pass) that is not in ``done``. Neither waits nor raises."""
        ...

    async def stop(self, rollout: str, why: str) -> None:
        """Ask no more. Returns when nothing of it runs."""
        ...

    def progress(self, rollout: str) -> Sequence[SuiteProgress]:
        """How far each suite of the present stage is."""
        ...

    async def close(self) -> None:
        """End everything."""
        ...
