"""Carries out what the rules ask for, in order: the one place where an effect becomes an act.

Nothing here waits. A flip, a table, a check are tasks of their own; a breach is on its way before its reason
is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from forkgate.judge.ports import MirrorPort
from forkgate.judge.publisher import Publisher
from forkgate.judge.starts import Starts
from forkgate.telemetry.instruments import Instruments
from policies.rollout import (
    Declined,
    Effect,
    Hold,
    Latch,
    Log,
    Moved,
    MoveHome,
    Publish,
    Restarted,
    RollBack,
    RolloutState,
    RunCheck,
    RunSuites,
    SendHome,
    Stopped,
    Unlatch,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


class Actor:
    """All methods belong to the judge's event loop."""

    def __init__(
        self, publisher: Publisher, instruments: Instruments, state: Callable[[str], RolloutState]
    ) -> None:
        """
        Args:
            state: a rollout as it stands; raises KeyError.
        """
        self._publisher = publisher
        self._instruments = instruments
        self._state = state
        self._tasks: set[asyncio.Task[Any]] = set()
        self.mirror: MirrorPort | None = None
        self.starts: Starts | None = None

    def obey(self, effects: Iterable[Effect], decided_s: float) -> list[asyncio.Task[Any]]:
        """Carry effects out.

        Args:
            decided_s: when their cause was here, on the monotonic clock.

        Returns:
            What is under way towards the latch's disk and the edges.
        """
        flips: list[asyncio.Task[Any]] = []
        for effect in effects:
            match effect:
                case RollBack(latch=rollback) | SendHome(latch=rollback):
                    flips.append(self.spawn(self._publisher.roll_back(rollback, decided_s)))
                    self.make_room(rollback)
                    self._tell_breach(rollback)
                case MoveHome(rollout=rollout, pool=pool, by=by):
                    move: Coroutine[Any, Any, Any]
                    if by is None:
                        move = self._publisher.home_back(rollout, f"home is {pool} again: {rollout}")
                    else:
                        move = self._publisher.move_home(rollout, pool, f"{rollout}: home is {pool} now")
                    flips.append(self.spawn(move))
                case Publish(rollout=rollout, cause=cause):
                    self.spawn(self.publish(rollout, cause))
                case Restarted(rollout=rollout, cause=cause):
                    self._stop_starts(rollout, cause)
                case Stopped(rollout=rollout, cause=cause):
                    self._stop_starts(rollout, cause)
                    if self.mirror is not None:
                        if self._state(rollout).left:
                            self._yield(
                                rollout, f"live work of {rollout} comes back: {cause}", ending=rollout
                            )
                        self.spawn(self.mirror.stop_rollout(rollout, cause))
                case RunCheck(rollout=rollout, kind=kind):
                    level = self._state(rollout).plan.policy.level
                    log.info("check begins", extra={"rollout": rollout, "check": kind, "policy_level": level})
                    assert self.starts is not None
                    self.starts.check(rollout, kind, level)
                case RunSuites(rollout=rollout, look=look, suites=suites):
                    assert self.starts is not None
                    self.starts.suites(rollout, look, suites)
                case Hold(rollout=rollout, reason=reason, choice=choice):
                    log.error(
                        "rollout held until a person has looked",
                        extra={"rollout": rollout, "reason": reason, "choice": list(choice)},
                    )
                case Moved(rollout=rollout, before=before, after=after, cause=cause):
                    log.info(
                        "rollout moved",
                        extra={"rollout": rollout, "before": before, "after": after, "cause": cause},
                    )
                case Log():
                    self._log(effect)
                case Declined() | Unlatch():
                    pass  # whoever asked is told; a latch was opened on disk before the state was stepped
        return flips

    async def publish(self, rollout: str, cause: str) -> None:
        """A new table; copies that it asks for are taken from now on."""
        if self.mirror is not None and self._state(rollout).mirrors:
            self.mirror.resume_rollout(rollout)
        await self._publisher.publish(cause)

    async def settle(self, timeout_s: float) -> None:
        """Let what is under way come to its end: no flip is abandoned half-way by a shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this beside everything else; what it raises is told."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def under_way(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The same for work that somebody waits for, and is told what it raises; it goes on when they
        leave."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def make_room(self, rollback: Latch) -> None:
        """The old pool gets live work back: before it does, shadows leave it. The flip is on its way to the
        disk already, and waits for none of them."""
        name = rollback.rollout
        if rollback.tenant is not None:
            why, ending = f"live work of {rollback.tenant} comes back: {name} sends it home", None
        elif self._state(name).left:
            why, ending = f"live work comes back: {name} is rolled back", name
        else:
            return  # nobody had moved
        self._yield(name, why, ending=ending, spare=rollback.verdict.deciding_id)

    def _yield(self, rollout: str, why: str, *, ending: str | None, spare: str | None = None) -> None:
        pool = self._state(rollout).plan.baseline
        stopped = 0
        if self.mirror is not None:
            stopped += self.mirror.yield_pool(pool, why, ending=ending, spare=spare)
        if self.starts is not None:
            stopped += self.starts.yield_pool(pool, why)
        if stopped:
            log.warning(
                "shadows make room for live work", extra={"pool": pool, "stopped": stopped, "cause": why}
            )

    def _tell_breach(self, rollback: Latch) -> None:
        whose: dict[str, Any] = {"rollout": rollback.rollout}
        if rollback.tenant is None:
            self._stop_starts(rollback.rollout, "the rollout was rolled back")
        else:
            whose["tenant"] = rollback.tenant
        log.error(
            "policy breached, rolling back" if rollback.who is None else "a person rolls back",
            extra={
                **whose,
                "gate": rollback.verdict.gate,
                "reason": rollback.verdict.reason,
                "deciding_id": rollback.verdict.deciding_id,
            },
        )

    def _stop_starts(self, rollout: str, why: str) -> None:
        if self.starts is not None:
            self.starts.stop(rollout, why)

    def _log(self, effect: Log) -> None:
        extra: dict[str, Any] = {"rollout": effect.rollout}
        verdict = effect.verdict
        if verdict is not None:
            self._instruments.verdict(effect.rollout, verdict)
            extra |= {
                "gate": verdict.gate,
                "answer": verdict.answer.value,
                "value": verdict.value,
                "limit": verdict.limit,
                "n": verdict.n,
                "alpha": verdict.alpha,
                "rollback_nats": verdict.rollback_nats,
                "promotion_nats": verdict.promotion_nats,
            }
        log.info("%s", effect.message, extra=extra)  # as an argument: it may quote an engine

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a judge's task failed", exc_info=error)
