"""Every rollout's state, the evidence that moves it, and what has to be done about it.

The rules are ``policies.rollout``'s; this holds the states, turns configuration into plans, and hands
effects on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import JournalEntry, VerdictRow
from comparator.pair import ForkSeen
from comparator.records import EngineSample, LiveRecord
from forkgate.config.model import Config, RolloutSection
from forkgate.judge.clusters import Clusters
from forkgate.judge.forks import Classified, Classifier
from forkgate.judge.journal import entries_of, whole
from forkgate.judge.provenance import is_foreign, most_met
from forkgate.judge.tally import Tally
from forkgate.state.latch import Latch
from policies.policy import Policy
from policies.rollout import (
    CheckKind,
    ClockStepped,
    Effect,
    EnvironmentSeen,
    Event,
    Hold,
    HomeMoved,
    Log,
    Moved,
    Observed,
    PoolSeen,
    Restarted,
    RollBack,
    RolloutPlan,
    RolloutState,
    SendHome,
    Tick,
    come_home,
    concerns,
    resume,
    start,
    step,
    steps_of,
    to_do,
)
from policies.rollout import Latch as Rollback
from policies.routes import PoolName, RolloutName, TenantName

__all__ = ["Asked", "Desk", "Tally", "plan_of"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one event."""

    effects: tuple[Effect, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    """Changed answers, to be kept."""
    journal: tuple[JournalEntry, ...] = ()
    """The event itself, to be kept in the order in which it was taken in."""
    forks: tuple[Classified, ...] = ()
    """Forks of a finished comparison, with their classes."""

    @property
    def notes(self) -> tuple[JournalEntry | VerdictRow, ...]:
        """All that is to be kept, in one transaction with what caused it."""
        return (*self.journal, *self.verdicts)

    def and_then(self, other: Asked) -> Asked:
        """Both, in order."""
        return Asked(
            effects=self.effects + other.effects,
            verdicts=self.verdicts + other.verdicts,
            journal=self.journal + other.journal,
            forks=self.forks + other.forks,
        )


class Desk:
    """All rollouts of one judge."""

    def __init__(self, config: Config, policies: Mapping[str, Policy], latch: Latch) -> None:
        self.latch = latch
        """As it was read when this judge started."""
        self._states: dict[str, RolloutState] = {}
        self.tallies: dict[str, Tally] = {}
        self.clusters: dict[str, Clusters] = {}
        self._classifier = Classifier()
        self._declared: dict[str, str | None] = {pool.name: pool.environment_digest for pool in config.pools}
        for section in config.rollouts:
            plan = plan_of(section, policies[section.name], config)
            self._states[section.name] = begun(plan, latch, config)
            self.tallies[section.name] = Tally()
            self.clusters[section.name] = Clusters()

    def states(self) -> Sequence[RolloutState]:
        """In the configuration's order."""
        return tuple(self._states.values())

    def state(self, name: str) -> RolloutState:
        """Raises KeyError."""
        return self._states[name]

    def restore(self, state: RolloutState) -> None:
        """Take over what an earlier judge knew of a rollout that is not latched."""
        self._states[state.plan.name] = state

    def resume(self, name: str, plan: RolloutPlan, unix_s: float) -> Asked:
        """Go on with a rollout that was taken over under what the configuration says now."""
        before = self._states[name]
        state, effects = resume(before, plan, unix_s)
        self._states[name] = state
        if state.plan.policy.digest != before.plan.policy.digest or not _same_pools(state.plan, before.plan):
            self.tallies[name] = Tally()
            self.clusters[name] = Clusters()
        return Asked(effects=effects)

    def begin(self) -> tuple[Effect, ...]:
        """What has to be started for the rollouts as they stand: a check or a suite that no judge ended."""
        return tuple(effect for state in self._states.values() for effect in to_do(state))

    # -- evidence -----------------------------------------------------------------------------------------

    def arrived(self, comparison: Comparison) -> Comparison:
        """A comparison as it is to be folded and kept: marked where its prompt has been met before.

        One whose pairs were all set aside bet nothing, so its prompt is still new.
        """
        seen = self.clusters.get(comparison.rollout)
        if seen is None or not any(pair.valid for pair in comparison.candidates):
            return comparison
        met = seen.add(comparison.cluster)
        return msgspec.structs.replace(comparison, repeat=True) if met else comparison

    def observe(self, item: Comparison | ForkSeen | EngineSample, unix_s: float) -> Asked:
        """One comparison, fork or engine sample: only its own rollout reads it."""
        name = item.rollout
        if name not in self._states:
            return Asked()  # of a rollout that the configuration no longer names
        if isinstance(item, EngineSample) and is_foreign(item, self.compared(name, item.pool)):
            self.tallies[name].samples_set_aside += 1
            return Asked()
        asked = self._step(name, Observed(items=(item,), unix_s=unix_s))
        # Counted after the gates were asked: what is for people holds up no rollback.
        return msgspec.structs.replace(asked, forks=self._count(name, (item,)))

    def observe_live(self, items: Sequence[LiveRecord], unix_s: float) -> Asked:
        """Live records: every rollout reads those that concern it."""
        asked = Asked()
        for name, state in self._states.items():
            mine = self._of_the_compared(name, [item for item in items if concerns(state.plan, item)])
            if mine:
                asked = asked.and_then(self._step(name, Observed(items=mine, unix_s=unix_s)))
        return asked

    def compared(self, name: str, pool: str) -> str | None:
        """The environment that a rollout compares of one of its pools; None while it knows none. Raises
        KeyError."""
        state, tally = self._states[name], self.tallies[name]
        if pool not in (state.plan.baseline, state.plan.candidate):
            return None
        found = self._declared.get(pool) or tally.environments.get(pool)
        if found is None:
            found = most_met(state.environments.get(pool, {}))
            if found is not None and state.mirrors:
                tally.environments[pool] = found
        return found

    def _of_the_compared(self, name: str, records: Sequence[LiveRecord]) -> tuple[LiveRecord, ...]:
        compared = {pool: self.compared(name, pool) for pool in {record.pool for record in records}}
        mine = []
        for record in records:
            if is_foreign(record, compared[record.pool]):
                self.tallies[name].record_set_aside(record.pool)
            else:
                mine.append(record)
        return tuple(mine)

    def again(self, name: str, event: Event, unix_s: float) -> Asked:
        """An event that an earlier judge took in and kept, for the state that misses it. What it told is kept
        already; its effects are still to be obeyed."""
        if isinstance(event, Observed):
            self._count(name, event.items)
        return msgspec.structs.replace(self._step(name, event), verdicts=(), journal=())

    # -- what else happens --------------------------------------------------------------------------------

    def take(self, name: str, event: Event) -> Asked:
        """Something happened to one rollout. Raises KeyError for an unknown one."""
        return self._step(name, event)

    def would(self, name: str, event: Event) -> tuple[Effect, ...]:
        """What :meth:`take` would ask for. Raises KeyError."""
        return step(self._states[name], event)[1]

    def tick(self, unix_s: float, withheld: Callable[[RolloutState], bool] = lambda _: False) -> Asked:
        """Time has passed: a stage whose conditions hold by now is left. Most seconds change nothing, and
        leave nothing behind.

        Args:
            withheld: asked of a rollout that would be moved by it; true, and it is not told.
        """
        asked, event = Asked(), Tick(unix_s=unix_s)
        for name, state in self._states.items():
            moves = any(isinstance(effect, Moved) for effect in self.would(name, event))
            if not moves or not withheld(state):
                asked = asked.and_then(self._step(name, event))
        return asked

    def clock_stepped(self, by_s: float, unix_s: float) -> Asked:
        """The clock was set; the times that stages have lasted stay what they were."""
        return self._all(ClockStepped(by_s=by_s, unix_s=unix_s))

    def home_moved(self, by: RolloutName | None, unix_s: float, *, but: str) -> Asked:
        """Rollout ``but`` moved home, or put it back: every other one is told."""
        return self._all(HomeMoved(by=by, unix_s=unix_s), but=but)

    def pool_seen(self, pool: str, ready: bool, reason: str, unix_s: float) -> Asked:
        """A pool was probed for what a rollback would need of it."""
        return self._all(PoolSeen(pool=PoolName(pool), ready=ready, reason=reason, unix_s=unix_s))

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str], unix_s: float) -> Asked:
        """An engine has told what it is; only what is new is an event."""
        self._classifier.forget(endpoint)
        asked = Asked()
        event = EnvironmentSeen(pool=PoolName(pool), endpoint=endpoint, facts=facts, unix_s=unix_s)
        for name, state in self._states.items():
            known = state.environments.get(pool, {}).get(endpoint)
            if pool in (state.plan.baseline, state.plan.candidate) and known != {**(known or {}), **facts}:
                asked = asked.and_then(self._step(name, event))
        return asked

    def latched(self, rollback: Rollback) -> None:
        """A rollback that an earlier judge announced: the rollout, or its tenant, is home from now on."""
        state = self._states[rollback.rollout]
        rollback = msgspec.structs.replace(rollback, durable=False)
        if rollback.tenant is not None:
            home = {**state.sent_home, rollback.tenant: rollback}
            state = msgspec.structs.replace(state, sent_home=home)
        else:
            state = come_home(state, rollback)
        self._states[rollback.rollout] = state

    def mark_durable(self, name: str, durable: bool, tenant: str | None = None) -> None:
        """What became of a latch's write."""
        state = self._states[name]
        latch = state.latch if tenant is None else state.sent_home.get(TenantName(tenant))
        if latch is None or latch.durable == durable:
            return
        latch = msgspec.structs.replace(latch, durable=durable)
        if tenant is None:
            state = msgspec.structs.replace(state, latch=latch)
        else:
            state = msgspec.structs.replace(state, sent_home={**state.sent_home, TenantName(tenant): latch})
        self._states[name] = state

    # -- steps --------------------------------------------------------------------------------------------

    def _all(self, event: Event, but: str | None = None) -> Asked:
        asked = Asked()
        for name in self._states:
            if name != but:
                asked = asked.and_then(self._step(name, event))
        return asked

    def _step(self, name: str, event: Event) -> Asked:
        before = self._states[name]
        if isinstance(event, EnvironmentSeen):
            self.compared(name, event.pool)  # what was met before it stays what is compared
        state, effects = step(before, event)
        if state is before and not effects:
            return Asked()
        self._states[name] = state
        if any(isinstance(effect, Restarted) for effect in effects):
            # Gates that know nothing may learn from a prompt that older ones had met.
            self.tallies[name] = Tally()
            self.clusters[name] = Clusters()
        return Asked(
            effects=effects,
            verdicts=tuple(self._rows(state, effects, event.unix_s)),
            journal=entries_of(before, state, event),
        )

    def _count(self, name: str, items: Iterable[object]) -> tuple[Classified, ...]:
        tally = self.tallies[name]
        forks: list[Classified] = []
        for item in items:
            if isinstance(item, ForkSeen):
                tally.fork(item)
            elif isinstance(item, Comparison):
                forks += tally.comparison(item, self._classifier)
        return tuple(forks)

    def _rows(self, state: RolloutState, effects: Iterable[Effect], unix_s: float) -> Iterable[VerdictRow]:
        acted = {}
        for effect in effects:
            if isinstance(effect, RollBack):
                acted[effect.latch.verdict.gate] = "rollback"
            elif isinstance(effect, SendHome):
                acted[effect.latch.verdict.gate] = "send home"
            elif isinstance(effect, Hold) and effect.verdict is not None:
                acted[effect.verdict.gate] = "hold"
        for effect in effects:
            if not isinstance(effect, Log) or effect.verdict is None:
                continue
            verdict = effect.verdict
            yield VerdictRow(
                rollout=state.plan.name,
                unix_s=unix_s,
                policy_digest=state.plan.policy.digest,
                gate=verdict.gate,
                answer=verdict.answer.value,
                value=verdict.value,
                limit=verdict.limit,
                n=verdict.n,
                reason=verdict.reason,
                alpha=verdict.alpha,
                deciding_id=verdict.deciding_id,
                acted=acted.get(verdict.gate),
                state=msgspec.json.encode(effect.gate_state).decode(),
                evidence_sequence=effect.evidence,
                estimand=verdict.estimand,
                rollback_nats=verdict.rollback_nats,
                promotion_nats=verdict.promotion_nats,
                interval=verdict.interval,
                hold=verdict.hold,
                verdict=whole(verdict),
            )


def _same_pools(one: RolloutPlan, other: RolloutPlan) -> bool:
    return (one.baseline, one.candidate) == (other.baseline, other.candidate)


def begun(plan: RolloutPlan, latch: Latch, config: Config) -> RolloutState:
    """The state of a rollout that no judge knew before, as far as the latch's file tells."""
    latched = latch.latched.get(plan.name)
    named = {one.name: (one.baseline, one.candidate) for one in config.rollouts}
    others = latch.elsewhere(plan.name, (plan.baseline, plan.candidate), named)
    state = start(plan, latched.rollback if latched else None, others)
    home = {
        TenantName(name): msgspec.structs.replace(one.rollback, tenant=TenantName(name))
        for name, one in latch.tenants.get(plan.name, {}).items()
    }
    return msgspec.structs.replace(state, sent_home=home)


def plan_of(section: RolloutSection, policy: Policy, config: Config) -> RolloutPlan:
    """What the configuration says of a rollout, every tenant by name."""
    wanted = {
        CheckKind.SELF_CHECK: section.checks.self_check,
        CheckKind.QUICK_CHECK: section.checks.quick_check,
    }
    declared = {
        pool.name: pool.environment_digest
        for pool in config.pools
        if pool.environment_digest is not None and pool.name in (section.baseline, section.candidate)
    }
    return RolloutPlan(
        name=section.name,
        baseline=section.baseline,
        candidate=section.candidate,
        policy=policy,
        percent=section.shadow.percent,
        checks=tuple(kind for kind, is_wanted in wanted.items() if is_wanted),
        start=section.start,
        shadow_stage=section.shadow_stage,
        steps=steps_of(
            section.steps, rollout=section.name, configured=[tenant.name for tenant in config.tenants]
        ),
        observe=section.observe,
        max_tenants_home=section.max_tenants_home,
        flip_in_flight=section.flip_in_flight,
        endpoints={
            pool.name: tuple(url.rstrip("/") for url in (*pool.endpoints, *pool.shadow_endpoints))
            for pool in config.pools
            if pool.name in (section.baseline, section.candidate)
        },
        declared=declared,
        pool_proof=True,
    )
