"""What the judge tells at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from policies.verdict import Verdict


class RolloutObserved(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout at the moment of a scrape."""

    name: str
    stage: str
    held: str | None
    """What kind of thing holds it; None when nothing does."""
    verdicts: Callable[[], Sequence[Verdict]] = tuple
    """Asked for once an instrument that shows them."""
    suites: Mapping[str, tuple[int, int]] = {}
    """Suite → answers there, answers wanted, in the present stage."""
    tenants_home: int = 0
    """Tenants of its that were sent home while the others stay."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What is read at the moment of a scrape."""

    edges: int
    epoch: int
    captured: int
    compared: int
    dropped: Mapping[str, int]
    in_flight: int
    rolled_back: Mapping[str, bool]
    """Rollout → latched."""
    evidence_bytes: int
    shadow_tokens: Mapping[tuple[str, str], int] = {}
    """(rollout, pool) → prompt and output tokens of its arms since the judge started."""
    shadow_requests: Mapping[tuple[str, str], int] = {}
    """(rollout, pool) → generations asked for since the judge started."""
    rollout_drops: Mapping[tuple[str, str], int] = {}
    """(rollout, reason) → its captures that ended at the judge without a comparison since it started."""
    shadow_refused: Mapping[tuple[str, str], int] = {}
    """(rollout, refusal) → questions whose start was put off or refused since the judge started."""
    live_set_aside: Mapping[tuple[str, str], int] = {}
    """(rollout, pool) → live records of another environment than the one compared."""
    environments: Mapping[tuple[str, str], int] = {}
    """(pool, digest) → endpoints that answer from it now; an empty digest where nobody tells one."""
    pools_ready: Mapping[str, bool] = {}
    """Pool that a rollout would go back to → whether it could take everything back now."""
    pools_silent: Mapping[str, int] = {}
    """Pool of a rollout that a step or a rollback could move now → live endpoints that do not answer."""
    hooks_waiting: Mapping[str, int] = {}
    """Hook → notices that are not delivered yet."""
    hook_deliveries: Mapping[tuple[str, str], int] = {}
    """(hook, what became of them) → notices."""
    hook_answers: Mapping[tuple[str, str], int] = {}
    """(hook, answer) → answers to ``before_step``."""
    exports: Mapping[tuple[str, str], int] = {}
    """(signal, what became of it) → spans, log records, or exports of metrics."""
