"""What goes into the store and what comes out, as values."""

from __future__ import annotations

import msgspec

from comparator.comparison import Comparison
from comparator.pair import Fork, ForkSeen
from comparator.records import CaptureId, Exchange


class ComparisonDone(msgspec.Struct, frozen=True, kw_only=True):
    """A finished comparison, and the captured request that it settles."""

    comparison: Comparison
    incarnation: str
    """UUIDv7 of the edge process that captured it."""
    sequence: int
    """The capture's number in that edge's own count, from 1."""


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """A captured request that ended without a comparison."""

    incarnation: str
    sequence: int
    rollout: str
    reason: str
    detail: str
    unix_s: float


class VerdictRow(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's answer when it was given, with the state that it follows from."""

    rollout: str
    unix_s: float
    policy_digest: str
    gate: str
    answer: str
    value: float | None
    limit: float | None
    n: int
    reason: str
    alpha: float | None = None
    deciding_id: str | None = None
    acted: str | None = None
    """What followed: ``rollback``, ``hold``, or nothing."""
    state: str = ""
    """The gate's state, JSON: verdict = gate(limits of the policy).verdict(state)."""
    evidence_sequence: int = 0
    """How many items of evidence the rollout had seen."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this capture's content whatever ``max_bytes`` says: a rollback rests on it."""

    capture_id: CaptureId
    rollout: str
    why: str
    unix_s: float


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one transaction keeps."""

    comparisons: tuple[ComparisonDone, ...] = ()
    forks: tuple[ForkSeen, ...] = ()
    """Forks seen before their pair is finished, so that a judge killed in between leaves its reason."""
    drops: tuple[Drop, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    pins: tuple[Pin, ...] = ()


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch changed in the store; ``pairs`` and ``drops`` count only what was new."""

    pairs: int
    drops: int
    repeated: tuple[tuple[str, int], ...]
    """(incarnation, sequence) that had been settled before; nothing was counted twice."""
    pruned_exchanges: int
    """Exchanges whose content made room."""


class StoredExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as kept. Where ``pruned``, prompt IDs and steps are gone (empty); their hashes remain."""

    exchange: Exchange
    pruned: bool
    prompt_tokens: int
    output_tokens: int
    prompt_sha256: str
    """SHA-256 over the prompt IDs, each as 8 bytes little-endian."""
    output_sha256: str


class StoredPair(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``evidence list``."""

    id: int
    """Order of evidence in the store."""
    capture_id: CaptureId
    rollout: str
    tenant: str
    request_id: str
    started_unix_s: float
    left_exchange_id: str
    right_exchange_id: str
    left_arm: str
    right_arm: str
    left_outcome: str
    right_outcome: str
    fork_index: int | None
    proper_prefix: bool
    max_error_nats: float | None
    set_aside: str | None
    set_aside_reason: str | None
    pinned: bool
    pruned: bool


class StoredFork(msgspec.Struct, frozen=True, kw_only=True):
    """One stored fork of two arms of a capture."""

    capture_id: CaptureId
    rollout: str
    tenant: str
    left_arm: str
    right_arm: str
    replicate: int
    fork: Fork


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """All that the store knows of one capture."""

    capture_id: CaptureId
    exchanges: tuple[StoredExchange, ...]
    pairs: tuple[StoredPair, ...]
    forks: tuple[StoredFork, ...]
    verdicts: tuple[VerdictRow, ...]
    """Verdicts that this capture tipped."""
    pinned: str | None
    """Why its content is kept; None when it may be pruned."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Stored pairs, newest first."""

    pairs: tuple[StoredPair, ...]
    cursor: str | None
    """Pass it on for the next page; None at the end."""


class LedgerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Captures of one edge incarnation that have ended, since its start; pruning lowers none of it."""

    compared: int
    dropped: dict[str, int]
    highest_sequence: int


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How full the store is, and of what."""

    schema_version: int
    used_bytes: int
    """Pages in use, without the write-ahead log."""
    max_bytes: int
    pairs: int
    forks: int
    pinned: int
    pruned_exchanges: int
    forgotten_captures: int
    """Captures whose rows went too, when content alone did not make enough room."""
