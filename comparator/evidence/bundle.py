"""The lines that an export begins with: who answered, what was asked of them, and what was erased. Pure.

``docs/evidence-format.md`` has their form. A line is told by its first key: ``bundle`` (the head),
``record``,
``erasure``; a line with none of these is a comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from comparator.evidence.export import json_safe
from comparator.evidence.rows import ErasureRow, PlanRow, StoredRecord, VerdictRow
from comparator.records import Arm

BUNDLE = "evidence/1"
ARTIFACT = "artifact/"


def head_line(
    rollout: str | None,
    answered: Iterable[tuple[str, str, str | None]],
    records: Sequence[StoredRecord],
    plan: PlanRow | None,
    verdicts: Sequence[VerdictRow],
) -> bytes:
    """The first line.

    Args:
        answered: arm, pool and environment digest (None: unknown) of the exchanges that follow.
        records: an arm's artifacts are those seen in its pools.
        plan: the newest of the rollout.
        verdicts: the newest of each gate.
    """
    arms: dict[str, dict[str, set[str]]] = {
        arm.value: {"pools": set(), "environments": set(), "artifacts": set()} for arm in Arm
    }
    for arm, pool, digest in answered:
        arms[arm]["pools"].add(pool)
        if digest is not None:
            arms[arm]["environments"].add(digest)
    for one in records:
        if one.kind.startswith(ARTIFACT):
            for its in arms.values():
                if any(sight.pool in its["pools"] for sight in one.seen):
                    its["artifacts"].add(one.digest)
    plain = {arm: {name: sorted(found) for name, found in its.items()} for arm, its in arms.items()}
    return _line(
        {
            "bundle": BUNDLE,
            "rollout": rollout,
            "arms": plain,
            "baseline": plain[Arm.BASELINE.value],
            "candidate": plain[Arm.CANDIDATE.value],
            "policy": None if plan is None else _policy(plan),
            "verdicts": [json_safe(msgspec.to_builtins(one)) for one in verdicts],
        }
    )


def record_line(record: StoredRecord) -> bytes:
    """One record, whole. Its text is written as it came, on one line: only space between values may go, which
    no digest counts."""
    return msgspec.json.format(record.document, indent=-1) + b"\n"


def erasure_line(line: ErasureRow) -> bytes:
    """One line of the erasure log."""
    return _line(msgspec.to_builtins(line))


def _policy(plan: PlanRow) -> dict[str, Any]:
    policy = msgspec.json.decode(plan.policy)
    return {
        "name": policy.get("name"),
        "digest": plan.policy_digest,
        "level": policy.get("level"),
        "gates": sorted(policy.get("gates", {})),
    }


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"
