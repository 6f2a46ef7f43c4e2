"""What the demo saw, checked line by line and told in a few lines.

The demo succeeds only when every :class:`Check` holds: nothing is told that was not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from forkgate.cli.status import pairs_line
from forkgate.demo.traffic import Answer


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the demo looked at before it judged itself."""

    canary: str
    """The canary tenant."""
    fingerprints: dict[str, str | None]
    """Pool name to the ``system_fingerprint`` that its engine answers with."""
    baseline: str
    candidate: str
    before: Sequence[Answer]
    """Live answers from the first request until the rollback was seen."""
    after: Sequence[Answer]
    """Live answers asked for after it."""
    rollout: dict[str, Any]
    ledger: dict[str, Any]
    flips: Sequence[dict[str, Any]]
    explanation: dict[str, Any] | None
    """The deciding pair, explained."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One promise of the demo and whether it was kept."""

    promise: str
    kept: bool
    seen: str


def judge(seen: Seen) -> tuple[Check, ...]:
    """Hold what was seen against what the demo promises."""
    answers = [*seen.before, *seen.after]
    errors = [answer for answer in answers if answer.error is not None]
    canary_before = _fingerprints(seen.before, seen.canary)
    canary_after = _fingerprints(seen.after, seen.canary)
    latched = seen.rollout["latched"] or {}
    old, new = seen.fingerprints[seen.baseline], seen.fingerprints[seen.candidate]
    flip = seen.flips[-1] if seen.flips else None
    fork = (seen.explanation or {}).get("fork")
    ledger = seen.ledger
    return (
        Check(
            promise="the old and the new engine tell themselves apart",
            kept=None not in (old, new) and old != new,
            seen=f"{seen.baseline}: {old}, {seen.candidate}: {new}",
        ),
        Check(
            promise=f"{seen.canary} was answered by {seen.candidate} at first",
            kept=new in canary_before,
            seen=_names(canary_before),
        ),
        Check(promise="a fork was found and explained", kept=fork is not None, seen=str(fork)),
        Check(
            promise="the rollout rolled back by itself",
            kept=seen.rollout["state"] == "rolled_back" and latched.get("durable") is True,
            seen=f"{seen.rollout['state']}, latch {latched}",
        ),
        Check(
            promise="every edge acknowledged the flip",
            kept=flip is not None and flip["edges"] >= 1 and not flip["missing"],
            seen=str(flip),
        ),
        Check(
            promise=f"{seen.canary} is answered by {seen.baseline} again",
            kept=canary_after == {old},
            seen=_names(canary_after),
        ),
        Check(
            promise="captured = compared + dropped + in flight",
            kept=bool(ledger["balanced"]) and ledger["compared"] >= 1,
            seen=f"{ledger['captured']} = {ledger['compared']} + {ledger['dropped']} + {ledger['in_flight']}",
        ),
        Check(
            promise="no live request failed",
            kept=not errors,
            seen="; ".join(f"{answer.tenant}: {answer.error}" for answer in errors[:3]) or "0",
        ),
    )


def tell(seen: Seen, checks: Sequence[Check]) -> list[str]:
    """The story in a few lines."""
    lines = _fork_lines(seen)
    ledger, rollout = seen.ledger, seen.rollout
    reasons = ", ".join(f"{n} {reason}" for reason, n in ledger["dropped"].items() if n)
    dropped = f" ({reasons})" if reasons else ""
    lines.append(
        f"ledger     captured {ledger['captured']} = compared {ledger['compared']}"
        f" + dropped {sum(ledger['dropped'].values())}{dropped} + in flight {ledger['in_flight']}"
    )
    lines.append(f"rollout    {pairs_line(rollout)}")
    if rollout["latched"] is not None:
        lines.append(f"breach     {rollout['latched']['gate']}: {rollout['latched']['reason']}")
    if seen.flips:
        flip = seen.flips[-1]
        flip_ms, fsync_ms = flip["seconds"] * 1000, flip["fsync_s"] * 1000
        lines.append(
            f"rollback   {seen.canary}: {seen.candidate} → {seen.baseline}; the last of {flip['edges']} edge"
            f" workers {flip_ms:.1f} ms after the deciding token, {fsync_ms:.1f} ms of fsync not counted"
        )
    errors = sum(answer.error is not None for answer in [*seen.before, *seen.after])
    lines.append(f"clients    {len(seen.before) + len(seen.after)} live answers, errors {errors}")
    lines += [f"BROKEN     {check.promise}: saw {check.seen}" for check in checks if not check.kept]
    return lines


def _fork_lines(seen: Seen) -> list[str]:
    explanation = seen.explanation
    if explanation is None or explanation["fork"] is None:
        return []
    fork = explanation["fork"]
    lines = [
        f"first fork at output token {fork['fork_index']}, after “…{(explanation['before'] or '')[-60:]}”"
    ]
    for side in (fork["left"], fork["right"]):
        word = "(ended)" if side["token_id"] is None else repr(side["text"])
        margin = "unknown" if side["margin_nats"] is None else f"{side['margin_nats']:.4f} nats"
        pool = explanation["left" if side is fork["left"] else "right"]["pool"]
        lines.append(f"  {pool:<9}{word:<14} margin to its second choice: {margin}")
    if fork["max_error_nats"] is not None:
        lines.append(f"  largest logprob error up to there: {fork['max_error_nats']:.4f} nats")
    if explanation["fork_class"] is not None:
        lines.append(f"  class: {explanation['fork_class'].replace('_', ' ')}, {explanation['fork_reason']}")
    return [line.replace("\n", "\\n") for line in lines]


def _fingerprints(answers: Sequence[Answer], tenant: str) -> set[str | None]:
    return {answer.fingerprint for answer in answers if answer.tenant == tenant and answer.error is None}


def _names(values: set[str | None]) -> str:
    return ", ".join(sorted(str(value) for value in values)) or "nothing"
