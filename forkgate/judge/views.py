"""The judge as people and tools see it: :class:`forkgate.admin.AdminPort`, made of plain data."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from comparator.evidence import EvidenceError, Keyring
from forkgate.admin.port import KeepingPort, Refused, Verb
from forkgate.fleet import Fleet
from forkgate.judge.judge import Judge
from forkgate.judge.keeping import EvidenceKeeping
from forkgate.judge.plan_view import plan_view
from forkgate.judge.pool_watch import PoolWatch
from forkgate.judge.replay import Replayer
from forkgate.judge.rollout_view import rollout_view
from forkgate.judge.settings import JudgeSettings
from forkgate.judge.words import JournalUnwritableError, LatchUnwritableError, Word
from forkgate.state.paths import StatePaths
from forkgate.supervisor.plan import sidecar_name
from forkgate.telemetry import MetricsPage, Outlet
from policies.rollout import (
    Abort,
    Advance,
    Lift,
    Pause,
    Resume,
    RollBackNow,
    RolloutState,
    Stage,
    Start,
)
from policies.routes import TenantName
from proxy.ledger import Balance
from proxy.link.server import LinkServer
from proxy.mirror import Mirror


class Views:
    """Reads everything, changes nothing but by :meth:`act` and :meth:`replay`."""

    def __init__(
        self,
        settings: JudgeSettings,
        judge: Judge,
        server: LinkServer,
        fleet: Fleet,
        mirror: Mirror,
        replayer: Replayer,
    ) -> None:
        self._settings = settings
        self._config = settings.config
        self._judge = judge
        self._server = server
        self._fleet = fleet
        self._mirror = mirror
        self._replayer = replayer
        self._paths = StatePaths(self._config.state_dir)
        self._addresses: list[str] = []
        self._started = time.monotonic()
        self._started_unix_s = time.time()
        self.evidence_path: Path = self._paths.evidence
        self.evidence_keys: Keyring = judge.writer.keys
        self.keeping: KeepingPort = EvidenceKeeping(judge.writer)
        self.page: MetricsPage | None = None
        self.outlet: Outlet | None = None
        self.pool_watch: PoolWatch | None = None

    async def status(self) -> dict[str, Any]:
        table = self._judge.publisher.table
        edges = [edge for edge in self._server.edges() if not edge.is_supervisor]
        return {
            "version": importlib.metadata.version("forkgate"),
            "sidecar": sidecar_name(self._config),
            "state_dir": self._config.state_dir,
            "judge": {
                "pid": os.getpid(),
                "incarnation": self._settings.incarnation,
                "started_unix_s": self._started_unix_s,
                "uptime_s": time.monotonic() - self._started,
            },
            "listen": self._listen(),
            "metrics": self.page.address if self.page is not None else None,
            "epoch": table.epoch,
            "home": table.home,
            "routes": dict(table.routes),
            "edges": [
                {
                    "sidecar": edge.identity.sidecar,
                    "worker": edge.identity.worker,
                    "incarnation": edge.identity.incarnation,
                    "connected": edge.connected,
                    "epoch": edge.epoch,
                    "heard_s": edge.heard_s,
                    "live_records_lost": edge.live_lost,
                }
                for edge in edges
            ],
            "pools": [
                {**pool, "watch": self._watched(pool["name"])} for pool in self._fleet.view(table.home)
            ],
            "ledger": self.ledger(),
            "rollouts": self.rollouts(),
            "evidence": await self._evidence(),
            "latch": {
                "durable": self._judge.publisher.keeper.durable,
                "epoch": self._judge.publisher.keeper.latch.epoch,
                "trouble": self._judge.publisher.keeper.trouble,
            },
            "flips": [msgspec.to_builtins(flip) for flip in list(self._judge.flips)[-20:]],
            "hooks": [] if self._judge.hooks is None else self._judge.hooks.view(),
            "troubles": self.troubles(),
        }

    def ledger(self) -> dict[str, Any]:
        ledger = self._server.ledger
        lives = {name: _balance(ledger.balance(name)) for name in ledger.incarnations()}
        return {
            **_balance(ledger.balance()),
            "late_batches": ledger.late_batches,
            "live_records_lost": sum(edge.live_lost for edge in self._server.edges()),
            "incarnations": lives,
        }

    def rollouts(self) -> list[dict[str, Any]]:
        return [self._rollout(state) for state in self._judge.desk.states()]

    def rollout(self, name: str) -> dict[str, Any]:
        return self._rollout(self._state(name))

    def plan(self, name: str) -> dict[str, Any]:
        state = self._state(name)
        starts = self._judge.starts
        return plan_view(
            state,
            time.time(),
            check=starts.check_progress(name) if starts is not None else None,
            too_early=self._judge.too_early(state),
            withheld=self._judge.in_the_way.told(state),
        )

    async def act(
        self,
        name: str,
        verb: Verb,
        *,
        reason: str,
        who: str,
        tenant: str | None = None,
        look: str | None = None,
    ) -> dict[str, Any]:
        meant = self._state(name)
        begins = verb is Verb.START or (verb is Verb.LIFT and tenant is None)
        early = await self._judge.before_it_begins(name) if begins else ()
        event = _word(
            verb, who, reason, None if tenant is None else TenantName(tenant), time.time(), look=look
        )
        keeper = self._judge.publisher.keeper
        try:
            acted = await self._judge.act(name, event, meant)
        except LatchUnwritableError as error:
            whose = name if tenant is None else f"{tenant} in {name}"
            raise Refused(
                503, f"rollout {name!r}: the rollback of {whose} stands: {error}", code="latch_unwritable"
            ) from error
        except JournalUnwritableError as error:
            raise Refused(
                503,
                f"rollout {name!r}: not done, for it could not be journalled first: {error}",
                code="journal_unwritable",
            ) from error
        if acted.blocked:
            told = "\n".join(f"  - {reason}" for reason in acted.blocked)
            raise Refused(409, f"rollout {name!r}: {verb} is not possible now:\n{told}", code="blocked")
        troubles = [f"too early: {one}" for one in early]
        if not keeper.durable:
            troubles.append(f"not durable yet: {keeper.trouble or 'being written'}")
        if acted.unkept is not None:
            troubles.append(f"not journalled yet, a judge that starts now may not know of it: {acted.unkept}")
        epoch = self._judge.publisher.table.epoch
        return {"rollout": self.rollout(name), "epoch": epoch, "troubles": troubles}

    async def replay(self, capture_id: str, replicate: int, arm: str) -> dict[str, Any]:
        return await self._replayer.replay(capture_id, replicate, arm)

    def not_ready(self) -> list[str]:
        """What has to happen once. An engine that dies later is a trouble, not a reason to take this sidecar
        out of service: its edges answer clients whatever becomes of a shadow's engine."""
        return self._fleet.unprobed()

    def troubles(self) -> list[str]:
        """What a person should look at, in words."""
        found = self._fleet.troubles()
        if self._judge.writer.trouble is not None:
            found.append(self._judge.writer.trouble)
        if self._judge.writer.notes_lost:
            found.append(f"{self._judge.writer.notes_lost} drops or verdicts could not be kept")
        if self._judge.checkpoints.trouble is not None:
            found.append(self._judge.checkpoints.trouble)
        if self.page is not None and self.page.trouble is not None:
            found.append(f"running without metrics: {self.page.trouble}")
        if self.outlet is not None and self.outlet.trouble is not None:
            found.append(f"running without a collector: {self.outlet.trouble}")
        if self._judge.hooks is not None:
            found += self._judge.hooks.troubles()
        keeper = self._judge.publisher.keeper
        if not keeper.durable:
            found.append(f"the rollback latch is not durable: {keeper.trouble or 'being written'}")
        for state in self._judge.desk.states():
            if state.stage is Stage.PROMOTED and not self._judge.publisher.has_moved(state):
                why = keeper.trouble or "being written"
                found.append(f"rollout {state.plan.name} is promoted and home has not moved: {why}")
            old = state.pools.get(state.plan.baseline)
            if old is not None and not old.ready and state.routed:
                found.append(f"pool {state.plan.baseline} could not take everything back: {old.reason}")
        if not self._server.ledger.balance().balanced:
            found.append("the ledger does not balance")
        return found

    def _state(self, name: str) -> RolloutState:
        try:
            return self._judge.desk.state(name)
        except KeyError:
            known = ", ".join(state.plan.name for state in self._judge.desk.states()) or "none"
            raise Refused(
                404, f"no rollout is called {name!r}; there are: {known}", code="not_found"
            ) from None

    def _rollout(self, state: RolloutState) -> dict[str, Any]:
        plan = state.plan
        latch = self._judge.publisher.keeper.latch
        latched = latch.latched.get(plan.name)
        tenants = latch.tenants.get(plan.name, {})
        starts = self._judge.starts
        view = rollout_view(
            state,
            self._judge.desk.tallies[plan.name],
            time.time(),
            progress=starts.progress(plan.name) if starts is not None else (),
            checking=starts is not None and starts.checking(plan.name),
            check=starts.check_progress(plan.name) if starts is not None else None,
            too_early=self._judge.too_early(state),
            latch_epoch=latched.epoch if latched is not None else None,
            tenant_epochs={tenant: one.epoch for tenant, one in tenants.items()},
        )
        return {
            **view,
            "blocked_by": [*view["blocked_by"], *self._judge.in_the_way.told(state)],
            "shadow": self._shadow(plan.name),
            "other_drops": self._other_drops(),
            "load": self._load(plan.name, (plan.baseline, plan.candidate)),
            "compared_environments": {
                pool: self._judge.desk.compared(plan.name, pool) for pool in (plan.baseline, plan.candidate)
            },
        }

    def _watched(self, pool: str) -> dict[str, Any] | None:
        """Whether it could take everything back, where a rollout would go back to it."""
        return None if self.pool_watch is None else self.pool_watch.view(pool)

    def _shadow(self, rollout: str) -> dict[str, Any] | None:
        """Queue and spending of a rollout's lane."""
        for status in self._mirror.status():
            if status.rollout == rollout:
                plain: dict[str, Any] = msgspec.to_builtins(status)
                return plain
        return None

    def _other_drops(self) -> dict[str, int]:
        """What the ledger has dropped and no rollout's lane here did: at the edges, or in an earlier life of
        the judge."""
        left = Counter(self._server.ledger.balance().dropped)
        for status in self._mirror.status():
            left.subtract(status.dropped)
        return {reason: count for reason, count in sorted(left.items()) if count}

    def _load(self, rollout: str, pools: tuple[str, str]) -> dict[str, int] | None:
        """What its shadow asks of the rollout's pools, beside what live traffic asks of them; since the judge
        started."""
        for status in self._mirror.status():
            if status.rollout == rollout:
                return {
                    "shadow_requests": sum(status.spent.requests_by_pool.values()),
                    "shadow_tokens": status.spent.total_tokens,
                    "live_requests": sum(self._judge.live_requests[pool] for pool in pools),
                }
        return None

    async def _evidence(self) -> dict[str, Any]:
        found: dict[str, Any] = {"path": str(self.evidence_path), "trouble": self._judge.writer.trouble}
        try:
            status = await self._judge.writer.status()
        except EvidenceError as error:
            return {**found, "trouble": str(error)}
        return {**found, **msgspec.to_builtins(status)}

    def _listen(self) -> list[str]:
        """Written by the supervisor that owns the sockets, before this judge was; empty when edges run
        elsewhere. Read once: neither outlives the other."""
        if not self._addresses:
            try:
                self._addresses = msgspec.json.decode(self._paths.listen.read_bytes())["addresses"]
            except (OSError, msgspec.DecodeError, KeyError):
                return []
        return self._addresses


def _word(
    verb: Verb, who: str, why: str, tenant: TenantName | None, unix_s: float, *, look: str | None
) -> Word:
    match verb:
        case Verb.PROMOTE:
            return Advance(who=who, why=why, look=look, unix_s=unix_s)
        case Verb.ROLLBACK:
            return RollBackNow(who=who, why=why, tenant=tenant, unix_s=unix_s)
        case Verb.LIFT:
            return Lift(who=who, why=why, tenant=tenant, unix_s=unix_s)
        case _:
            return _WORDS[verb](who=who, why=why, unix_s=unix_s)


_WORDS: dict[Verb, type[Start | Pause | Resume | Abort]] = {
    Verb.START: Start,
    Verb.PAUSE: Pause,
    Verb.RESUME: Resume,
    Verb.ABORT: Abort,
}


def _balance(balance: Balance) -> dict[str, Any]:
    return {
        "captured": balance.captured,
        "compared": balance.compared,
        "dropped": balance.dropped,
        "in_flight": balance.in_flight_edge + balance.in_flight_judge,
        "in_flight_edge": balance.in_flight_edge,
        "in_flight_judge": balance.in_flight_judge,
        "faults": balance.faults,
        "gap": balance.gap,
        "balanced": balance.balanced,
    }
