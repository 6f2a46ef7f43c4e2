"""A judge's parts for tests: real desk, publisher, latch and writer; link and mirror only take notes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from comparator.pair import Fork, ForkSeen, ForkSide
from comparator.records import Arm, CaptureId
from forkgate.config import Config, loads
from forkgate.config.policy import read_policies
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.desk import Desk
from forkgate.judge.judge import Judge
from forkgate.judge.latchkeeper import LatchKeeper
from forkgate.judge.publisher import Publisher
from forkgate.judge.writer import EvidenceWriter
from forkgate.state.latch import LatchFile
from forkgate.state.paths import StatePaths
from forkgate.state.unreadable import all_latched
from forkgate.supervisor.plan import pools
from forkgate.telemetry import Instruments, Observed
from policies.routes import RouteTable
from proxy.link.flip import Flip
from proxy.link.values import Capture, EdgeIdentity

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
    canary: {{tenants: [acme]}}
"""


def config(state_dir: Path) -> Config:
    return loads(TEXT.format(state_dir=state_dir))


class NotedServer:
    """Publishes to edges that acknowledge when the test says so."""

    def __init__(self, edges: Sequence[str] = ("edge-1", "edge-2")) -> None:
        self.tables: list[RouteTable] = []
        self.flips: list[Flip] = []
        self.edge_names = edges
        self.obedient = True

    def publish(self, table: RouteTable) -> Flip:
        self.tables.append(table)
        flip = Flip(table.epoch, time.monotonic(), self.edge_names)
        self.flips.append(flip)
        if self.obedient:
            for name in self.edge_names:
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

    def submit(self, edge: EdgeIdentity, capture: Capture) -> None:
        self.submitted.append(capture)

    async def stop_rollout(self, name: str, reason: str, *, spare: str | None = None) -> None:
        self.stopped.append((name, reason))
        self.spared.append(spare)

    def resume_rollout(self, name: str) -> None:
        self.resumed.append(name)

    async def close(self, drain_s: float) -> None:
        return


class Bench:
    """One judge life over a state directory. Use as ``async with``."""

    def __init__(
        self, state_dir: Path, *, latch_s: float = 5.0, acknowledge_s: float = 5.0, epoch: int = 1
    ) -> None:
        self.paths = StatePaths(state_dir)
        self.paths.create()
        self.config = config(state_dir)
        self.server = NotedServer()
        self.mirror = NotedMirror()
        self.reader = InMemoryMetricReader()
        self._latch_s = latch_s
        self._acknowledge_s = acknowledge_s
        self._epoch = epoch

    async def __aenter__(self) -> Bench:
        names = [rollout.name for rollout in self.config.rollouts]
        self.keeper = LatchKeeper(LatchFile(self.paths.latch), lambda why: all_latched(names, why))
        self.keeper.open()
        self.desk = Desk(self.config, read_policies(self.config).policies, self.keeper.latch)
        self.writer = EvidenceWriter(self.paths.evidence, 100_000_000)
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
        self.judge.attach(self.mirror)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.judge.settle(10.0)
        await self.writer.close(10.0)
        self.keeper.close()
        self.instruments.close()

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
