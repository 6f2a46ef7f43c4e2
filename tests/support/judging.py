"""A judge's parts for tests: real desk, publisher, latch and writer; link and mirror only take notes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from comparator.comparison import Comparison
from comparator.evidence import NO_KEYS, Kept, Keyring
from comparator.pair import Fork, ForkSeen, ForkSide
from comparator.records import Arm, CaptureId
from forkgate.checks.progress import CheckProgress
from forkgate.checks.report import CheckReport
from forkgate.config import Config, loads
from forkgate.config.policy import read_policies
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.desk import Desk
from forkgate.judge.judge import Judge
from forkgate.judge.latchkeeper import LatchKeeper
from forkgate.judge.publisher import Publisher
from forkgate.judge.starts import Starts
from forkgate.judge.words import LatchUnwritableError, Word
from forkgate.judge.writer import EvidenceWriter
from forkgate.state.latch import LatchFile
from forkgate.state.paths import StatePaths
from forkgate.state.unreadable import all_latched
from forkgate.supervisor.plan import pools
from forkgate.telemetry import Instruments, Observed
from policies.policy import Level
from policies.rollout import CheckKind, Lift
from policies.routes import RouteTable, TenantName
from policies.verdict import Answer
from proxy.link.flip import Flip
from proxy.link.values import Capture, EdgeIdentity
from tests.support.waiting import PATIENCE_S

TEXT = """
state_dir: {state_dir}
pools:
  - {{name: old, endpoints: ["http://127.0.0.1:9001"]}}
  - {{name: new, endpoints: ["http://127.0.0.1:9002"]}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}, {{name: globex}}]
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: audit
    global_seed: s
    checks: {{self_check: false, quick_check: false}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
"""


def config(state_dir: Path, *, checks: bool = False) -> Config:
    text = TEXT.format(state_dir=state_dir)
    return loads(text.replace("_check: false", "_check: true") if checks else text)


class NotedServer:
    """Publishes to edges that acknowledge at once, those of them that are obedient."""

    def __init__(self, edges: Sequence[str] = ("edge-1", "edge-2")) -> None:
        self.tables: list[RouteTable] = []
        self.flips: list[Flip] = []
        self.edge_names = edges
        self.obedient = edges

    def publish(self, table: RouteTable) -> Flip:
        self.tables.append(table)
        flip = Flip(table.epoch, time.monotonic(), self.edge_names)
        self.flips.append(flip)
        for name in self.obedient:
            asyncio.get_running_loop().call_soon(flip.acknowledge, name, time.monotonic())
        return flip

    def edges(self) -> tuple[str, ...]:
        return tuple(self.edge_names)


class NotedMirror:
    def __init__(self) -> None:
        self.submitted: list[Capture] = []
        self.stopped: list[tuple[str, str]] = []
        self.spared: list[str | None] = []
        self.resumed: list[str] = []
        self.yielded: list[tuple[str, str | None, str | None]] = []
        """(pool, the rollout that ends by it, the capture that is spared)."""

    def submit(self, edge: EdgeIdentity, capture: Capture) -> None:
        self.submitted.append(capture)

    def yield_pool(self, pool: str, why: str, *, ending: str | None = None, spare: str | None = None) -> int:
        self.yielded.append((pool, ending, spare))
        return 0

    async def stop_rollout(self, name: str, reason: str, *, spare: str | None = None) -> None:
        self.stopped.append((name, reason))
        self.spared.append(spare)

    def resume_rollout(self, name: str) -> None:
        self.resumed.append(name)

    async def close(self, drain_s: float) -> None:
        return


class NotedChecks:
    """Makes each check when the test says how it ends."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, CheckKind, Level]] = []
        self.ends: list[asyncio.Future[CheckReport]] = []
        self.far: CheckProgress | None = None
        """How far the one is that runs, as the test says."""
        self.yielded: list[str] = []
        """Pools that live work came back to."""

    def progress(self, rollout: str) -> CheckProgress | None:
        return self.far

    def yield_pool(self, pool: str, why: str) -> int:
        self.yielded.append(pool)
        return 0

    async def run(self, rollout: str, kind: CheckKind, level: Level) -> CheckReport:
        self.asked.append((rollout, kind, level))
        self.ends.append(asyncio.get_running_loop().create_future())
        return await self.ends[-1]

    def end(self, answer: Answer, reason: str = "as the test says") -> None:
        """The check asked for last ends so."""
        _, kind, level = self.asked[-1]
        report = CheckReport(
            check=kind, level=level, answer=answer, reason=reason, pools=("old",), endpoints=()
        )
        self.ends[-1].set_result(report)


class NotedSuites:
    """Takes note of what is to be asked."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str, str]] = []
        self.done: list[Collection[tuple[str, int]]] = []
        self.stopped: list[tuple[str, str]] = []
        self.sinks: list[Callable[[Comparison], Awaitable[None]]] = []
        self.finished: list[Callable[[Any], None]] = []

    def start(
        self,
        rollout: str,
        stage: str,
        suite: Any,
        done: Collection[tuple[str, int]],
        sink: Callable[[Comparison], Awaitable[None]],
        finished: Callable[[Any], None],
    ) -> None:
        self.started.append((rollout, stage, suite.name))
        self.done.append(done)
        self.sinks.append(sink)
        self.finished.append(finished)

    async def stop(self, rollout: str, why: str) -> None:
        self.stopped.append((rollout, why))

    def progress(self, rollout: str) -> tuple[()]:
        return ()

    async def close(self) -> None:
        return


class Bench:
    """One judge life over a state directory. Use as ``async with``."""

    def __init__(
        self,
        state_dir: Path,
        *,
        latch_s: float = PATIENCE_S,
        acknowledge_s: float = PATIENCE_S,
        epoch: int = 1,
        checks: bool = False,
        keys: Keyring = NO_KEYS,
        kept: Kept = Kept.FULL,
        looked_at: bool = True,
    ) -> None:
        """
        Args:
            looked_at: old pools have been found ready as the test begins.
        """
        self.paths = StatePaths(state_dir)
        self.paths.create()
        self.config = config(state_dir, checks=checks)
        self.checks = NotedChecks()
        self.suites = NotedSuites()
        self.server = NotedServer()
        self.mirror = NotedMirror()
        self.reader = InMemoryMetricReader()
        self._latch_s = latch_s
        self._acknowledge_s = acknowledge_s
        self._epoch = epoch
        self._keys, self._kept_as = keys, kept
        self._looked_at = looked_at

    async def __aenter__(self) -> Bench:
        names = [rollout.name for rollout in self.config.rollouts]
        self.keeper = LatchKeeper(LatchFile(self.paths.latch), lambda why: all_latched(names, why))
        self.keeper.open()
        self.desk = Desk(self.config, read_policies(self.config).policies, self.keeper.latch)
        self.writer = EvidenceWriter(self.paths.evidence, 100_000_000, keys=self._keys, kept=self._kept_as)
        self.writer.start()
        self.checkpoints = Checkpoints(self.paths.rollouts, self.desk, self.writer)
        await self.checkpoints.restore()
        self.publisher = Publisher(
            home=self.config.home,
            pools=pools(self.config),
            states=self.desk.states,
            keeper=self.keeper,
            epoch=max(self._epoch, self.keeper.latch.epoch + 1),
            latch_s=self._latch_s,
            acknowledge_s=self._acknowledge_s,
        )
        self.publisher.server = self.server
        self.instruments = Instruments([self.reader], {}, ["acme", "globex"], self._observed)
        self.judge = Judge(self.desk, self.publisher, self.writer, self.instruments, self.checkpoints)
        self.starts = Starts(self.checks, self.suites, {}, self._kept, self.judge)
        self.judge.attach(self.mirror, self.starts)
        self.judge.begin()
        for pool in dict.fromkeys(rollout.baseline for rollout in self.config.rollouts if self._looked_at):
            # Nobody watches old pools here; a judge of its own has `PoolWatch` for it.
            self.judge.pool_seen(pool, True, "1 of 1 endpoints answers")
        # One that skips its shadow stage has left it now; what follows is the test's.
        await self.judge.settle(PATIENCE_S)
        self.server.tables.clear()
        self.server.flips.clear()
        self.mirror.resumed.clear()
        return self

    async def _kept(self, rollout: str, digest: str, stage: str) -> Collection[tuple[str, int]]:
        return ()

    async def __aexit__(self, *_: object) -> None:
        await self.starts.close()
        await self.judge.settle(10.0)
        await self.writer.close(10.0)
        self.keeper.close()
        self.instruments.close()

    async def say(self, event: Word, name: str = "old-to-new") -> tuple[str, ...]:
        """What a person says; what stands in its way."""
        return (await self.judge.act(name, event)).blocked

    async def lift(self, name: str, who: str, why: str, tenant: str | None = None) -> bool:
        """Lift it, and let a second pass. False when the disk would not let go of the latch."""
        whom = None if tenant is None else TenantName(tenant)
        try:
            said = Lift(who=who, why=why, tenant=whom, unix_s=time.time())
            blocked = (await self.judge.act(name, said)).blocked
        except LatchUnwritableError:
            return False
        assert not blocked, blocked
        self.judge.tick()
        await self.judge.settle(PATIENCE_S)
        return True

    def _observed(self) -> Observed:
        return Observed(
            edges=2,
            epoch=1,
            captured=0,
            compared=0,
            dropped={},
            in_flight=0,
            rolled_back={},
            evidence_bytes=0,
        )


def fork_seen(
    capture_id: str = "01900000-0000-7000-8000-000000000001", rollout: str = "old-to-new"
) -> ForkSeen:
    def side(arm: Arm, token_id: int) -> ForkSide:
        return ForkSide(
            arm=arm,
            token_id=token_id,
            text=None,
            logprob=-0.1,
            margin_nats=0.5,
            top_ids=(1, 2),
            top_logprobs=(-0.1, -0.6),
        )

    return ForkSeen(
        capture_id=CaptureId(capture_id),
        rollout=rollout,
        tenant="acme",
        left_arm=Arm.BASELINE,
        right_arm=Arm.CANDIDATE,
        fork=Fork(
            fork_index=3,
            left=side(Arm.BASELINE, 1),
            right=side(Arm.CANDIDATE, 2),
            max_error_nats=0.1,
            max_error_index=3,
            proper_prefix=False,
        ),
    )
