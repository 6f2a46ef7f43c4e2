"""What can be told of a rollout, as values, and what differs between two looks at it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from forkgate.config.hooks import HookEvent
from policies.rollout import Latch, RolloutState, Stage

MAX_REASON_CHARS = 1_000


class Notice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened: the body of a webhook."""

    event: HookEvent
    rollout: str
    text: str
    """One sentence for people."""
    baseline: str
    candidate: str
    place: str
    """Where the rollout stands now: ``shadow``, ``canary step 2 of 3``."""
    before: str | None = None
    """Where it stood before."""
    to: str | None = None
    """Of ``before_step``: where the step leads."""
    tenant: str | None = None
    """Only this one is meant."""
    gate: str | None = None
    reason: str | None = None
    who: str | None = None
    """The person behind it."""
    deciding_id: str | None = None
    """For ``forkgate evidence show``."""
    epoch: int | None = None
    """Of ``rollback``: the route table that carried it."""
    edges: int | None = None
    """Of ``rollback``: edges that obeyed."""
    missing: int | None = None
    """Of ``rollback``: edges that had not said so in time."""
    durable: bool | None = None
    """Of ``rollback``: its latch was on disk before it was announced."""
    id: str = ""
    """UUIDv7 of this notice; the same in every attempt."""
    sidecar: str = ""
    unix_s: float = 0.0


def differences(before: RolloutState | None, now: RolloutState) -> Iterator[Notice]:
    """What there is to tell since the last look. Nothing at the first one: a restart is no event."""
    if before is None or before is now:
        return
    if now.latch is not None and before.latch is None:
        yield _breach(now, now.latch, before)
    for tenant, latch in now.sent_home.items():
        if tenant not in before.sent_home:
            yield _breach(now, latch, before)
    if now.held is not None and before.held is None:
        yield _made(
            now,
            HookEvent.HOLD,
            f"is held until a person has looked: {now.held.reason}",
            reason=now.held.reason,
        )
    if before.latch is not None and now.latch is None:
        yield _made(now, HookEvent.LIFT, "a person lifted the rollback, and it begins anew")
    elif before.held is not None and now.held is None and now.latch is None:
        yield _made(now, HookEvent.LIFT, f"is held no more, it goes on in {now.place}")
    for tenant in before.sent_home:
        if tenant not in now.sent_home and now.latch is None and before.latch is None:
            yield _made(now, HookEvent.LIFT, f"tenant {tenant} may leave home again", tenant=tenant)
    if before.place != now.place:
        yield _made(now, HookEvent.STAGE, f"{before.place} → {now.place}", before=before.place)
    yield from _old_pool(before, now)
    if now.stage is Stage.PROMOTED and before.stage is not Stage.PROMOTED:
        yield _made(
            now,
            HookEvent.PROMOTION,
            f"is promoted, home is {now.plan.candidate} now",
            before=before.place,
        )


def _old_pool(before: RolloutState, now: RolloutState) -> Iterator[Notice]:
    """News of the pool that the rollout would go back to; that it is fine from the start is none."""
    name = now.plan.baseline
    found, was = now.pools.get(name), before.pools.get(name)
    if found is None or (was is not None and was.ready == found.ready) or (was is None and found.ready):
        return
    said = "can take everything back again" if found.ready else "could not take everything back: no step"
    yield _made(now, HookEvent.POOL, f"pool {name} {said}. {found.reason}", reason=found.reason)


def before_step(state: RolloutState, to: str) -> Notice:
    """The question whether a step may be taken."""
    return _made(state, HookEvent.BEFORE_STEP, f"would go from {state.place} to {to}: may it?", to=to)


def rolled_back(
    state: RolloutState, *, tenant: str | None, epoch: int, edges: int, missing: int, durable: bool
) -> Notice:
    """A rollback that the edges have been told of."""
    whose = f"tenant {tenant} is" if tenant is not None else "all of its traffic is"
    late = f", {missing} edges have not said so yet" if missing else ""
    return msgspec.structs.replace(
        _made(
            state,
            HookEvent.ROLLBACK,
            f"{whose} at {state.plan.baseline} again, epoch {epoch}, {edges} edges obeyed{late}",
            tenant=tenant,
        ),
        epoch=epoch,
        edges=edges,
        missing=missing,
        durable=durable,
    )


def slack_text(notice: Notice) -> str:
    """The notice as one message; the three characters that Slack reads as markup are escaped."""
    marks = {HookEvent.BREACH: "BREACH ", HookEvent.HOLD: "HELD ", HookEvent.ROLLBACK: "ROLLED BACK "}
    text = f"{marks.get(notice.event, '')}forkgate {notice.sidecar}: {notice.text}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _breach(state: RolloutState, latch: Latch, before: RolloutState) -> Notice:
    whose = f" for tenant {latch.tenant}" if latch.tenant is not None else ""
    by = f"{latch.who} rolls it back" if latch.who is not None else f"{latch.verdict.gate} failed"
    return _made(
        state,
        HookEvent.BREACH,
        f"{by}{whose}: {latch.verdict.reason}",
        before=before.place,
        tenant=latch.tenant,
        gate=latch.verdict.gate,
        reason=latch.verdict.reason,
        who=latch.who,
        deciding_id=latch.verdict.deciding_id,
    )


def _made(
    state: RolloutState,
    event: HookEvent,
    text: str,
    *,
    before: str | None = None,
    to: str | None = None,
    tenant: str | None = None,
    gate: str | None = None,
    reason: str | None = None,
    who: str | None = None,
    deciding_id: str | None = None,
) -> Notice:
    plan = state.plan
    return Notice(
        event=event,
        rollout=plan.name,
        text=f"rollout {plan.name} ({plan.baseline} → {plan.candidate}): {_short(text)}",
        baseline=plan.baseline,
        candidate=plan.candidate,
        place=state.place,
        before=before,
        to=to,
        tenant=tenant,
        gate=gate,
        reason=None if reason is None else _short(reason),
        who=who,
        deciding_id=deciding_id,
    )


def _short(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 1] + "…"
