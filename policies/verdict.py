"""What a gate says of its evidence, and all that is needed to check it."""

from __future__ import annotations

import enum

import msgspec


class Answer(enum.StrEnum):
    """What a gate says; only PASS is a pass."""

    PASS = "pass"  # noqa: S105 - an answer, not a secret
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"  # too little evidence yet; never counts as pass
    ERROR = "error"  # could not measure; never counts as pass


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer, with value, limit and sample size, so that a log line alone explains it."""

    gate: str
    answer: Answer
    value: float | None
    limit: float | None
    n: int
    reason: str
    """One sentence for a person on call."""
    alpha: float | None = None
    """The level that a fail was held to; None for a gate that tests no hypothesis."""
    deciding_id: str | None = None
    """The exchange pair (capture ID) that tipped it, if one did."""
    estimand: str = "traffic"
    """What it is about: ``suite``, the frozen samples of one, all of them observed, so that only run-to-run
    noise is left; or ``traffic``, live requests, now and to come."""
    rollback_nats: float | None = None
    """log E against "within the margin"; fails at log(1/alpha)."""
    promotion_nats: float | None = None
    """log E against "beyond the margin"; passes at log(1/rollout's alpha)."""
    interval: tuple[float, float] | None = None
    """Around :attr:`value`, to be read beside the answer."""
    hold: bool = False
    """Whatever the answer, nothing advances until a person has looked; no rollback follows from it."""
    tenant: str | None = None
    """Whose it is, of a gate that is kept by tenant."""
