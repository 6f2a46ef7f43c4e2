"""Every rollout's state, the evidence that moves it, and what has to be done about it.

The rules are ``policies.rollout``'s; this holds the states, turns configuration into plans, and hands
effects on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import VerdictRow
from comparator.pair import ForkSeen, Pair
from comparator.records import Outcome
from forkgate.config.model import Config, RolloutSection
from forkgate.state.latch import Latch
from policies.gates.base import Evidence
from policies.policy import Policy
from policies.rollout import (
    Effect,
    Lift,
    Log,
    Observed,
    RollBack,
    RolloutPlan,
    RolloutState,
    Stage,
    start,
    step,
)
from policies.rollout import Latch as Rollback

log = logging.getLogger(__name__)


class Tally(msgspec.Struct, kw_only=True):
    """What a rollout has seen in this judge's life, for people."""

    pairs: int = 0
    """Finished pairs: the three below together."""
    compared: int = 0
    """To the end, or to a fork."""
    failed: int = 0
    """The candidate failed before either."""
    set_aside: int = 0
    """Worth nothing as evidence, by reason in :attr:`reasons`."""
    reasons: dict[str, int] = {}
    forks: int = 0

    def add(self, pair: Pair) -> None:
        self.pairs += 1
        if pair.set_aside is not None:
            self.set_aside += 1
            self.reasons[pair.set_aside.value] = self.reasons.get(pair.set_aside.value, 0) + 1
        elif pair.fork is not None or pair.right.outcome in (Outcome.COMPLETED, Outcome.CUT):
            self.compared += 1
        else:
            self.failed += 1


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one event."""

    effects: tuple[Effect, ...]
    verdicts: tuple[VerdictRow, ...]
    """Changed answers, to be kept."""


class Desk:
    """All rollouts of one judge."""

    def __init__(self, config: Config, policies: Mapping[str, Policy], latch: Latch) -> None:
        self._states: dict[str, RolloutState] = {}
        self.tallies: dict[str, Tally] = {}
        for section in config.rollouts:
            latched = latch.latched.get(section.name)
            state = start(plan_of(section, policies[section.name]), latched.rollback if latched else None)
            self._states[section.name] = state
            self.tallies[section.name] = Tally()

    def states(self) -> Sequence[RolloutState]:
        """In the configuration's order."""
        return tuple(self._states.values())

    def state(self, name: str) -> RolloutState:
        """Raises KeyError."""
        return self._states[name]

    def restore(self, state: RolloutState) -> None:
        """Take over what an earlier judge knew of a rollout that is not latched."""
        self._states[state.plan.name] = state

    def observe(self, item: Evidence, unix_s: float) -> Asked:
        """One pair or fork: only its own rollout reads it."""
        assert isinstance(item, Comparison | ForkSeen)
        name = item.rollout
        if name not in self._states:
            return Asked(effects=(), verdicts=())  # of a rollout that the configuration no longer names
        tally = self.tallies[name]
        if isinstance(item, ForkSeen):
            tally.forks += 1
        else:
            for pair in item.candidates:
                tally.add(pair)
        return self._step(name, Observed(items=(item,), unix_s=unix_s))

    def observe_live(self, items: Sequence[Evidence], unix_s: float) -> Asked:
        """Live records: every rollout reads those that concern it."""
        effects: list[Effect] = []
        verdicts: list[VerdictRow] = []
        for name in self._states:
            asked = self._step(name, Observed(items=tuple(items), unix_s=unix_s))
            effects += asked.effects
            verdicts += asked.verdicts
        return Asked(effects=tuple(effects), verdicts=tuple(verdicts))

    def lift(self, name: str, who: str, why: str, unix_s: float) -> Asked:
        """Raises KeyError for an unknown rollout."""
        if self._states[name].stage is Stage.ROLLED_BACK:
            self.tallies[name] = Tally()
        return self._step(name, Lift(who=who, why=why, unix_s=unix_s))

    def latched(self, rollback: Rollback) -> None:
        """A rollback that an earlier judge announced: the rollout stands rolled back from now on."""
        plan = self._states[rollback.rollout].plan
        self._states[rollback.rollout] = start(plan, msgspec.structs.replace(rollback, durable=False))

    def mark_durable(self, name: str, durable: bool) -> None:
        """What became of the latch's write."""
        state = self._states[name]
        if state.latch is not None and state.latch.durable != durable:
            latch = msgspec.structs.replace(state.latch, durable=durable)
            self._states[name] = msgspec.structs.replace(state, latch=latch)

    def _step(self, name: str, event: Observed | Lift) -> Asked:
        state, effects = step(self._states[name], event)
        self._states[name] = state
        return Asked(effects=effects, verdicts=tuple(self._rows(state, effects, event.unix_s)))

    def _rows(self, state: RolloutState, effects: Iterable[Effect], unix_s: float) -> Iterable[VerdictRow]:
        rolled_back = {effect.latch.verdict.gate for effect in effects if isinstance(effect, RollBack)}
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
                acted="rollback" if verdict.gate in rolled_back else None,
                state=msgspec.json.encode(state.gates[verdict.gate]).decode()
                if verdict.gate in state.gates
                else "",
                evidence_sequence=state.evidence,
            )


def plan_of(section: RolloutSection, policy: Policy) -> RolloutPlan:
    """What the configuration says of a rollout."""
    return RolloutPlan(
        name=section.name,
        baseline=section.baseline,
        candidate=section.candidate,
        policy=policy,
        percent=section.shadow.percent,
        canary_tenants=section.canary.tenants,
    )
