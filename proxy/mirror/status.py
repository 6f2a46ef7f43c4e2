"""What a rollout's lane tells of itself."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from proxy.mirror.budget import Spent


class LaneState(StrEnum):
    OPEN = "open"
    STOPPED = "stopped"  # the rollout was rolled back; a person may resume it
    CLOSED = "closed"


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """For `status` and metrics."""

    rollout: str
    state: LaneState
    queued: int
    running: int
    """Captures whose arms run."""
    samples: int
    """Samples of suites whose arms run."""
    storing: int
    """Comparisons that wait for the evidence store."""
    controls: int
    """Pairs of baseline and control since the judge started."""
    replicates: int
    """Pairs of baseline and candidate beyond the first of their capture, since the judge started."""
    blocked: str | None
    """What keeps the queue's head waiting."""
    dropped: dict[str, int]
    """Its captures that ended here without a comparison, by reason, since the judge started; each stands in
    the ledger too, which also has what edges dropped."""
    drop_details: dict[str, str]
    """The last one of each reason, in words, where these are our own: no client's and no engine's."""
    refused: dict[str, int]
    """Questions (captures, replicates, samples) whose start was put off or refused, by
    :class:`proxy.mirror.refusals.Refusal`, since the judge started. Each counts once for each."""
    spent: Spent
