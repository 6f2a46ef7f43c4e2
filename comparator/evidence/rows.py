"""What goes into the store and what comes out, as values."""

from __future__ import annotations

import msgspec

from comparator.comparison import Comparison, SampleRef, Score
from comparator.pair import Fork, ForkSeen
from comparator.records import CaptureId, EngineSample, Exchange, LiveRecord


class ComparisonDone(msgspec.Struct, frozen=True, kw_only=True):
    """A finished comparison, and the captured request that it settles, if it was one."""

    comparison: Comparison
    incarnation: str | None
    """UUIDv7 of the edge process that captured it; None for a suite's sample, which settles no capture."""
    sequence: int | None
    """The capture's number in that edge's own count, from 1; None as above."""

    def __post_init__(self) -> None:
        if (self.incarnation is None) != (self.sequence is None):
            raise ValueError("a comparison settles a capture by incarnation and sequence, or none by neither")


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
    """How many items of evidence the rollout had folded when it was given."""
    estimand: str = "traffic"
    rollback_nats: float | None = None
    promotion_nats: float | None = None
    interval: tuple[float, float] | None = None
    hold: bool = False
    verdict: str = ""
    """The whole verdict as canonical JSON, whatever fields it has: what a recomputation is held against."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this capture's content whatever ``max_bytes`` says: a rollback rests on it."""

    capture_id: CaptureId
    rollout: str
    why: str
    unix_s: float


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout was to do, frozen: kept once for each plan that a rollout ever had, and never pruned."""

    rollout: str
    digest: str
    """``sha256:`` over :attr:`body`."""
    unix_s: float
    """When it was first seen."""
    policy_digest: str
    policy: str
    """The policy's canonical JSON: its text for people and auditors."""
    body: bytes
    """The whole plan (canary tenants, stages, policy...), MessagePack by whoever knows plans."""


JournalItem = Comparison | ForkSeen | LiveRecord | EngineSample
"""What gates fold."""

OBSERVED = "observed"
STATE = "state"
LOST = "lost"


class RecordSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint is, as it said or as the configuration declares: a record, whole."""

    kind: str
    """``environment/1`` or ``artifact/1``: the document's own ``record``."""
    digest: str
    """The document's own, checked by whoever hands it in; the store never looks inside."""
    document: bytes
    """JSON, as it was captured."""
    pool: str
    endpoint: str
    """Base URL; ``configuration`` where a file in the configuration declares it."""
    unix_s: float


class RecordSight(msgspec.Struct, frozen=True, kw_only=True):
    """Where a record's digest was seen."""

    pool: str
    endpoint: str
    first_unix_s: float
    last_unix_s: float


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as kept."""

    kind: str
    digest: str
    document: bytes
    first_seen_unix_s: float
    seen: tuple[RecordSight, ...]


class ErasureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the erasure log."""

    erasure: int
    """Its number; they only rise."""
    unix_s: float
    """When it was asked for."""
    done_unix_s: float
    who: str
    scope: str
    """``tenant`` or ``capture``."""
    name: str
    reason: str
    captures: int
    exchanges: int
    previous: str
    """:attr:`hash` of the line before; 64 zeros before the first."""
    hash: str
    """SHA-256 over the canonical JSON of all other fields."""


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One event that a rollout took in, in the order in which it took them in.

    Entries of a rollout follow each other: ``before`` of one is ``after`` of the one before it. Where it is
    not, something is missing. Comparisons and forks are kept by reference, all else as it is.
    """

    rollout: str
    sequence: int
    """Events that the rollout had taken in, this one included."""
    before: int
    """Items of evidence folded before it."""
    after: int
    """And after it: more by its items, but for those that came after a rollback in the same event."""
    unix_s: float
    """The event's time, by the judge's clock."""
    kind: str
    """:data:`OBSERVED` (evidence), :data:`STATE` (no event: the whole state at this place), :data:`LOST`
    (could not be kept), or the name of another event."""
    items: tuple[JournalItem, ...] = ()
    """Of :data:`OBSERVED`."""
    body: bytes = b""
    """Of any other kind, MessagePack by whoever knows rollouts."""
    plan: PlanRow | None = None
    """Of a :data:`STATE`, whose body does not repeat it."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Live records of this edge's batches, up to this one, are in the journal: not to be folded again."""

    incarnation: str
    batch: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one transaction keeps."""

    comparisons: tuple[ComparisonDone, ...] = ()
    forks: tuple[ForkSeen, ...] = ()
    """Forks seen before their pair is finished, so that a judge killed in between leaves its reason."""
    drops: tuple[Drop, ...] = ()
    verdicts: tuple[VerdictRow, ...] = ()
    pins: tuple[Pin, ...] = ()
    journal: tuple[JournalEntry, ...] = ()
    taken: tuple[Taken, ...] = ()
    records: tuple[RecordSeen, ...] = ()


class Added(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch changed in the store; ``pairs`` and ``drops`` count only what was new."""

    pairs: int
    drops: int
    repeated: tuple[tuple[str, int], ...]
    """(incarnation, sequence) that had been settled before; nothing was counted twice."""
    pruned_exchanges: int
    """Exchanges whose content made room."""
    lost: tuple[str, ...] = ()
    """Why journal entries could not be kept, each of which left a :data:`LOST` in its place, and why records
    could not."""
    refused: int = 0
    """Comparisons of captures that were erased before they were finished: not kept."""


class StoredExchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as kept. Where ``pruned``, prompt IDs and steps are gone (empty); their hashes remain."""

    exchange: Exchange
    pruned: bool
    prompt_tokens: int
    output_tokens: int
    prompt_sha256: str
    """SHA-256 over the prompt IDs, each as 8 bytes little-endian; HMAC-SHA256 where ``hashed``."""
    output_sha256: str
    hashed: bool = False
    """Keyed hashes stand in the place of token IDs, and text was not kept."""


class StoredComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a comparison beside its pairs and scores."""

    id: int
    capture_id: CaptureId
    rollout: str
    tenant: str
    cluster: str
    repeat: bool
    timing: bool
    sample: SampleRef | None
    unix_s: float
    incarnation: str | None
    sequence: int | None
    pairs: int
    """How many it had when it was kept."""
    scores: int


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
    replicate: int
    repeat: bool
    timing: bool
    suite: str | None
    """Of a suite's sample; None for live traffic."""
    sample_id: str | None
    passage: int | None


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
    comparison: StoredComparison | None
    """None before its comparison is finished."""
    scores: tuple[Score, ...]
    exchanges: tuple[StoredExchange, ...]
    pairs: tuple[StoredPair, ...]
    forks: tuple[StoredFork, ...]
    verdicts: tuple[VerdictRow, ...]
    """Verdicts that this capture tipped."""
    pinned: str | None
    """Why its content is kept; None when it may be pruned."""


class JournalRow(msgspec.Struct, frozen=True, kw_only=True):
    """A :class:`JournalEntry` as kept: ``items`` and ``plan`` are read by who needs them."""

    id: int
    rollout: str
    sequence: int
    before: int
    after: int
    unix_s: float
    kind: str
    body: bytes
    plan_digest: str | None


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
    journal: int
    """Entries of the journal."""
    pruned_journal: int
    """Entries of the journal that made room: their verdicts cannot be computed again."""
    sealed_with: str | None = None
    """ID of the key that new values are sealed with; None: they are written as they are."""
    key_ids: tuple[str, ...] = ()
    """Keys that something in the file may still need."""
    kept: str = "full"
    """``full``, or ``hashes``: keyed hashes in the place of token IDs."""
    erasures: int = 0
    records: int = 0
