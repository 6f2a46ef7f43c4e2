"""Why a captured request was not compared."""

from __future__ import annotations

import enum


class DropReason(enum.StrEnum):
    """Closed: the ledger has no 'other'."""

    # at the edge
    QUEUE_FULL = "queue_full"
    QUEUE_BYTES = "queue_bytes"
    QUEUE_AGE = "queue_age"
    BODY_TOO_LARGE = "body_too_large"
    CLIENT_ABORTED = "client_aborted"  # the request's body never arrived whole
    NO_JUDGE = "no_judge"  # nobody to hand it to: a dead consumer, not a full queue
    EDGE_LOST = "edge_lost"  # held by an edge that was killed
    # at the judge
    JUDGE_LOST = "judge_lost"  # held by a judge that was killed
    NOT_RECOGNISED = "not_recognised"  # body is no call of a known API
    UNSUPPORTED = "unsupported"  # cannot go as tokens nor as itself
    IN_FLIGHT_LIMIT = "in_flight_limit"
    TOKEN_RATE = "token_rate"  # noqa: S105 - no secret
    TOKEN_DAY = "token_day"  # noqa: S105 - no secret
    TENANT_BUDGET = "tenant_budget"
    TOO_OLD = "too_old"
    POOL_BUSY = "pool_busy"  # live work was waiting there, and there are no shadow endpoints
    BASELINE_UNAVAILABLE = "baseline_unavailable"  # encode or generation failed on the baseline itself
    ROLLED_BACK = "rolled_back"  # the rollout ended before its turn came
    SHUTDOWN = "shutdown"
    EVIDENCE_FAILED = "evidence_failed"  # compared, but the store could not keep it
