"""Two exchanges of one captured request, and what a comparison of them found."""

from __future__ import annotations

import enum

import msgspec

from comparator.records import Arm, CaptureId, Exchange


class SetAside(enum.StrEnum):
    """Why a pair is no evidence about the candidate's numbers. It is stored and counted all the same."""

    ENCODING_MISMATCH = "encoding_mismatch"  # the arms' prompt token IDs differ
    CONFIGURATION_MISMATCH = "configuration_mismatch"  # sampling parameters, stop set or limits differ
    DIGEST_MISMATCH = "digest_mismatch"  # an arm was answered by an environment that was not declared
    INVALID_ANSWER = "invalid_answer"  # an arm broke its engine's contract
    BASELINE_FAILED = "baseline_failed"  # nothing to compare with; never blamed on the candidate


class ForkSide(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at the fork step. ``token_id`` is None where that arm had already ended."""

    arm: Arm
    token_id: int | None
    text: str | None
    logprob: float | None
    margin_nats: float | None
    """First minus second logprob of the step's top-k; None without two entries."""
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """First output position where two token streams differ.

    ``max_error_nats`` is the largest |Δ logprob| over tokens in both arms' top 5, over all steps up to and
    *including* the fork step: both arms share that step's prefix. None when no step had logprobs on both.
    """

    fork_index: int
    left: ForkSide
    right: ForkSide
    max_error_nats: float | None
    max_error_index: int | None
    proper_prefix: bool
    """True when one stream simply ended where the other went on."""


class ForkSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A fork, reported the moment its deciding token arrived, long before the pair is done."""

    capture_id: CaptureId
    rollout: str
    tenant: str
    left_arm: Arm
    right_arm: Arm
    fork: Fork
    replicate: int = 0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A finished comparison."""

    capture_id: CaptureId
    left: Exchange
    right: Exchange
    fork: Fork | None
    """None when the streams are equal to the end, or the pair could not be aligned."""
    max_error_nats: float | None
    set_aside: SetAside | None
    set_aside_reason: str | None

    @property
    def valid(self) -> bool:
        """True when the pair counts for a verdict: it was not set aside."""
        return self.set_aside is None
