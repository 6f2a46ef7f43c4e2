"""A rollout's events as entries of the evidence store's journal, and back.

The store knows no policies: it keeps events and states as MessagePack. Here is who knows them. Every event
that may move a rollout is journalled with exactly what :func:`policies.rollout.step` was given, so that
stepping through the journal again gives the same states, effects and verdicts, bit for bit. Beside events
stand *snapshots*, the whole state at one place: where a judge starts, where gates start anew, where the stage
changes, and every :data:`SNAPSHOT_EVERY` items of evidence. They are what a replay goes on from where
entries are missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, get_args

import msgspec

from comparator.evidence import JournalEntry, PlanRow
from comparator.evidence.export import json_safe
from comparator.evidence.journal import JournalError
from comparator.evidence.rows import OBSERVED, STATE
from policies.rollout import Event, Lift, Observed, RolloutPlan, RolloutState, Start
from policies.verdict import Verdict

SNAPSHOT_EVERY = 10_000
"""Items of evidence between two snapshots: a gap costs the verdicts up to the next one, at most."""

EVENTS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event) if kind is not Observed}
"""Events that are kept whole, by the name that they are kept under."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


def entries_of(before: RolloutState, after: RolloutState, event: Event) -> tuple[JournalEntry, ...]:
    """What to keep of one step: the event, and a snapshot behind it where one is due.

    Args:
        before: the state that the event met.
        after: what :func:`policies.rollout.step` made of it.
        event: what it was given; its evidence concerns this rollout.
    """
    if after is before:
        return ()  # it told nothing new, and nobody has to know that it came
    if isinstance(event, Observed):
        if not before.listens or not event.items:
            return ()  # ignored by the table
        kind, items, body = OBSERVED, event.items, b""
    else:
        kind, items, body = type(event).__name__, (), _pack(msgspec.to_builtins(event))
    entry = JournalEntry(
        rollout=after.plan.name,
        sequence=after.sequence,
        before=before.evidence,
        after=after.evidence,
        unix_s=event.unix_s,
        kind=kind,
        items=items,
        body=body,
    )
    return (entry, snapshot(after, event.unix_s)) if _due(before, after, event) else (entry,)


def snapshot(state: RolloutState, unix_s: float) -> JournalEntry:
    """The whole state at this place."""
    plain = msgspec.to_builtins(state)
    plan = _pack(plain.pop("plan"))
    policy = state.plan.policy
    return JournalEntry(
        rollout=state.plan.name,
        sequence=state.sequence,
        before=state.evidence,
        after=state.evidence,
        unix_s=unix_s,
        kind=STATE,
        body=_pack(plain),
        plan=PlanRow(
            rollout=state.plan.name,
            digest="sha256:" + hashlib.sha256(plan).hexdigest(),
            unix_s=unix_s,
            policy_digest=policy.digest,
            policy=policy.canonical().decode(),
            body=plan,
        ),
    )


def event_of(kind: str, body: bytes) -> Event:
    """An event that was kept whole.

    Raises:
        JournalError: of a kind, or with fields, that this forkgate does not know.
    """
    known = EVENTS.get(kind)
    if known is None:
        raise JournalError(f"an event of unknown kind {kind!r}; a newer forkgate wrote it")
    try:
        event: Event = msgspec.convert(_unpack(body), known)
    except msgspec.MsgspecError as error:
        raise JournalError(f"an event of kind {kind} cannot be read: {error}") from error
    return event


def state_of(body: bytes, plan: bytes) -> RolloutState:
    """A snapshot's state.

    Raises:
        JournalError: not one that this forkgate knows.
    """
    try:
        plain: Mapping[str, Any] = {**_unpack(body), "plan": _unpack(plan)}
        return msgspec.convert(plain, RolloutState)
    except (msgspec.MsgspecError, TypeError) as error:
        raise JournalError(f"a state cannot be read, another forkgate wrote it: {error}") from error


def plan_of(body: bytes) -> RolloutPlan:
    """A stored plan. Raises JournalError."""
    try:
        return msgspec.convert(_unpack(body), RolloutPlan)
    except msgspec.MsgspecError as error:
        raise JournalError(f"a plan cannot be read, another forkgate wrote it: {error}") from error


def whole(verdict: Verdict) -> str:
    """All of a verdict as canonical JSON: equal texts, equal verdicts, to the last bit of every float."""
    plain = json_safe(msgspec.to_builtins(verdict))
    return msgspec.json.encode(plain, order="sorted").decode()


def _due(before: RolloutState, after: RolloutState, event: Event) -> bool:
    return (
        isinstance(event, Lift | Start)
        or before.place != after.place
        or before.plan is not after.plan
        or before.evidence // SNAPSHOT_EVERY != after.evidence // SNAPSHOT_EVERY
    )


__all__ = [
    "EVENTS",
    "SNAPSHOT_EVERY",
    "entries_of",
    "event_of",
    "plan_of",
    "snapshot",
    "state_of",
    "whole",
]
