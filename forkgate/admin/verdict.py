"""One rollout's verdict in one word, for other tools' gates.

Argo Rollouts asks with GET and reads the word (``$.verdict``) or the number; Flagger asks with POST and reads
the status alone. Nothing here ever says ``pass`` without evidence: a rollout whose gates have seen nothing,
whose checks still run, that is held or paused, is ``inconclusive``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from policies.verdict import Answer

NUMBERS = {Answer.PASS: 1, Answer.INCONCLUSIVE: 0, Answer.FAIL: -1, Answer.ERROR: -2}
"""For tools that compare numbers: only a pass is above 0, only fail and error are below."""
_BEFORE_TRAFFIC = ("pending", "self_check", "quick_check")


class GateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer with its numbers."""

    gate: str
    answer: str
    value: float | None
    limit: float | None
    n: int
    reason: str


class VerdictAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    rollout: str
    verdict: Answer
    """``pass``, ``fail``, ``inconclusive`` or ``error``."""
    number: int
    """1, -1, 0 or -2 in the same order."""
    reason: str
    """One sentence."""
    state: str
    held: bool
    comparisons: int
    counts: dict[str, int]
    """Gates by answer; all four words are there."""
    gates: list[GateFigures]


def verdict_of(rollout: Mapping[str, Any]) -> VerdictAnswer:
    """
    Args:
        rollout: as ``GET /v1/rollouts/NAME`` tells it.
    """
    gates = [
        GateFigures(
            gate=one["gate"],
            answer=one["answer"],
            value=_number(one["value"]),
            limit=_number(one["limit"]),
            n=one["n"],
            reason=one["reason"],
        )
        for one in rollout["verdicts"]
    ]
    answers = Counter(one.answer for one in gates)
    answer, reason = _whole(rollout, gates, answers)
    return VerdictAnswer(
        rollout=rollout["name"],
        verdict=answer,
        number=NUMBERS[answer],
        reason=reason,
        state=rollout["state"],
        held=rollout["held"] is not None,
        comparisons=rollout["comparisons"],
        counts={one.value: answers[one.value] for one in Answer},
        gates=gates,
    )


def _whole(rollout: Mapping[str, Any], gates: list[GateFigures], answers: Counter[str]) -> tuple[Answer, str]:
    state = rollout["state"]
    if rollout["latched"] is not None or state == "rolled_back":
        why = rollout["latched"]["reason"] if rollout["latched"] is not None else "its latch is set"
        return Answer.FAIL, f"rolled back: {why}"
    if state == "aborted":
        return Answer.FAIL, "aborted by a person"
    for answer in (Answer.FAIL, Answer.ERROR):
        if answers[answer]:
            first = next(one for one in gates if one.answer == answer)
            return answer, f"{first.gate}: {first.reason}"
    if rollout["held"] is not None:
        return Answer.INCONCLUSIVE, f"held: {rollout['held']}"
    if rollout.get("paused"):
        return Answer.INCONCLUSIVE, "paused by a person"
    if state in _BEFORE_TRAFFIC:
        return Answer.INCONCLUSIVE, f"in {state}, nothing has been compared"
    if not gates or not rollout["comparisons"]:
        return Answer.INCONCLUSIVE, "nothing has been compared yet"
    if answers[Answer.INCONCLUSIVE]:
        first = next(one for one in gates if one.answer == Answer.INCONCLUSIVE)
        return Answer.INCONCLUSIVE, f"{first.gate}: {first.reason}"
    return Answer.PASS, f"all {len(gates)} gates pass"


def _number(value: Any) -> float | None:
    """NaN and infinities are words in our JSON, and no figures."""
    return float(value) if isinstance(value, int | float) else None
