"""One rollout as plain data, for ``/v1/status`` and its readers: where it stands, why, and what each gate
says with all that is needed to follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from comparator.evidence.export import json_safe
from forkgate.checks.progress import CheckProgress
from forkgate.judge.plan_view import next_command
from forkgate.judge.ports import SuiteProgress
from forkgate.judge.starts import Starts
from forkgate.judge.tally import Tally
from forkgate.telemetry import RolloutObserved
from policies.rollout import JUDGED_STAGES, CheckKind, Latch, PoolFound, RolloutState, Stage, blocked_by
from policies.routes import TenantName

_NO_EPOCHS: Mapping[str, int] = {}


def rollout_view(
    state: RolloutState,
    tally: Tally,
    unix_s: float,
    *,
    progress: Sequence[SuiteProgress] = (),
    checking: bool = False,
    check: CheckProgress | None = None,
    too_early: Sequence[str] = (),
    latch_epoch: int | None = None,
    tenant_epochs: Mapping[str, int] = _NO_EPOCHS,
) -> dict[str, Any]:
    """
    Args:
        unix_s: now, by the judge's clock.
        progress: of the suites that are under way.
        checking: a check runs.
        check: how far it is.
        too_early: why a lift should wait.
        latch_epoch: under which its rollback was announced.
        tenant_epochs: under which tenants were sent home.
    """
    plan = state.plan
    return {
        "name": plan.name,
        "state": state.stage.value,
        "place": state.place,
        "look": state.look,
        "paused": msgspec.to_builtins(state.paused),
        "ended": msgspec.to_builtins(state.ended),
        "blocked_by": list(blocked_by(state, unix_s)),
        "next": next_command(state, unix_s),
        "too_early": list(too_early),
        "held": None if state.held is None else state.held.reason,
        "hold": msgspec.to_builtins(state.held),
        "baseline": plan.baseline,
        "candidate": plan.candidate,
        "policy": {
            "name": plan.policy.name,
            "digest": plan.policy.digest,
            "level": plan.policy.level.value,
            "alpha": plan.policy.alpha,
            "on_fail": plan.policy.on_fail.value,
        },
        "canary_tenants": list(plan.tenants),
        "on_candidate": list(state.routed),
        "home": state.home,
        "tenants_home": [
            _latched(latch, tenant_epochs.get(tenant)) for tenant, latch in state.sent_home.items()
        ],
        "old_pool": msgspec.to_builtins(_old_pool(state)),
        "checks": _checks(state, checking, check),
        "suites": _suites(state, progress),
        "comparisons": tally.comparisons,
        "samples": tally.samples,
        "repeats": tally.repeats,
        "pairs": tally.pairs,
        "forks": tally.forks,
        "compared": tally.compared,
        "candidate_failed": tally.failed,
        "set_aside": tally.set_aside,
        "set_aside_reasons": dict(tally.reasons),
        "live_set_aside": dict(tally.live_set_aside),
        "samples_set_aside": tally.samples_set_aside,
        "controls": tally.controls,
        "control_forks": tally.control_forks,
        "fork_classes": {arm: dict(classes) for arm, classes in tally.by_class.classes.items()},
        "floors": {
            key: msgspec.to_builtins(one.floor()) for key, one in tally.by_class.floors.tallies.items()
        },
        "encoding_mismatches": state.encoding_mismatches,
        "evidence": state.evidence,
        "latched": None if state.latch is None else _latched(state.latch, latch_epoch),
        "verdicts": [_verdict(state, name) for name in plan.policy.gates],
        "tenant_verdicts": [
            _verdict(state, name, tenant) for name in plan.policy.tenant_gates for tenant in state.counted
        ],
    }


def _old_pool(state: RolloutState) -> PoolFound | None:
    """What was seen of it last; None in stages in which nobody looks, where that would tell of days ago."""
    if state.stage not in (*JUDGED_STAGES, Stage.PROMOTED):
        return None
    return state.pools.get(state.plan.baseline)


def rollout_observed(state: RolloutState, starts: Starts) -> RolloutObserved:
    """The same for metrics."""
    progress = starts.progress(state.plan.name)
    return RolloutObserved(
        name=state.plan.name,
        stage=state.stage.value,
        held=None if state.held is None else state.held.cause.value,
        verdicts=state.verdicts,
        tenants_home=len(state.sent_home),
        suites={one.suite: (one.run, one.asked) for one in progress if one.stage == state.look},
    )


def _checks(state: RolloutState, checking: bool, progress: CheckProgress | None) -> list[dict[str, Any]]:
    told = []
    for kind in CheckKind:
        here = state.stage == kind.value  # made to its end, also where an edit took it out of the plan
        if not here and kind not in state.plan.checks:
            continue
        found = state.checks.get(kind)
        runs = checking and here
        told.append(
            {
                "check": kind.value,
                "answer": "running" if runs else "to do" if found is None else found.answer.value,
                "summary": None if found is None else found.summary,
                "facts": {} if found is None else dict(found.facts),
                "unix_s": None if found is None else found.unix_s,
                "progress": msgspec.to_builtins(progress) if runs else None,
            }
        )
    return told


def _suites(state: RolloutState, progress: Sequence[SuiteProgress]) -> list[dict[str, Any]]:
    under_way = {one.suite: one for one in progress if one.stage == state.look}
    told = []
    for name, digest in state.plan.suites.items():
        found, one = state.suites.get(name), under_way.get(name)
        told.append(
            {
                "suite": name,
                "digest": digest,
                "passes": state.plan.policy.suites[name].passes,
                "answers": None if one is None else one.run,
                "wanted": None if one is None else one.asked,
                "passage": None if one is None else one.passage,
                "waiting": None if one is None else one.waiting,
                "done": found is not None,
                "summary": None if found is None else found.summary,
            }
        )
    return told


def _latched(latch: Latch, epoch: int | None) -> dict[str, Any]:
    return {
        "tenant": latch.tenant,
        "who": latch.who,
        "reason": latch.verdict.reason,
        "gate": latch.verdict.gate,
        "deciding_id": latch.verdict.deciding_id,
        "policy_digest": latch.policy_digest,
        "from_stage": latch.from_stage.value,
        "unix_s": latch.unix_s,
        "epoch": epoch,
        "durable": latch.durable,
    }


def _verdict(state: RolloutState, name: str, tenant: TenantName | None = None) -> dict[str, Any]:
    verdict = state.verdict(name, tenant)
    whose = None if verdict.tenant is None else TenantName(verdict.tenant)
    alpha = state.alpha(name, whose)
    told: dict[str, Any] = json_safe(msgspec.to_builtins(verdict))
    told["rollback_threshold_nats"] = _threshold(verdict.rollback_nats, alpha.rollback)
    told["promotion_threshold_nats"] = _threshold(verdict.promotion_nats, alpha.promotion)
    return told


def _threshold(log_e: float | None, alpha: float) -> float | None:
    """Where a log e-value decides; None for a gate that has none."""
    return None if log_e is None or alpha <= 0.0 else -math.log(alpha)
