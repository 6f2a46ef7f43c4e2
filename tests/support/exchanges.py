"""Exchanges, steps and pairs for tests, as short as a test wants to write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.evidence import ComparisonDone
from comparator.pair import Pair
from comparator.records import (
    Arm,
    CaptureId,
    Exchange,
    ExchangeId,
    Fact,
    LiveRecord,
    Outcome,
    Sampling,
    Step,
    Timing,
)

_numbers = itertools.count(1)


def step(
    token_id: int,
    top: Sequence[tuple[int, float]] = (),
    *,
    logprob: float | None = None,
    received_s: float = 0.0,
    text: str | None = None,
) -> Step:
    """A step from (token ID, logprob) pairs, in the order given."""
    return Step(
        token_id=token_id,
        logprob=logprob if logprob is not None else dict(top).get(token_id),
        top_ids=tuple(i for i, _ in top),
        top_logprobs=tuple(x for _, x in top),
        received_s=received_s,
        text=text,
    )


def plain_steps(token_ids: Sequence[int], *, shift_nats: float = 0.0, k: int = 6) -> tuple[Step, ...]:
    """Steps whose first choice is the token drawn; ``shift_nats`` moves the second choice."""
    return tuple(
        step(
            token_id,
            [(token_id, -0.25)]
            + [(token_id + 1 + j, -1.0 - j - (shift_nats if j == 0 else 0.0)) for j in range(k - 1)],
            received_s=0.1 + 0.01 * i,
            text=f"<{token_id}>",
        )
        for i, token_id in enumerate(token_ids)
    )


def exchange(
    token_ids: Sequence[int] = (1, 2, 3),
    *,
    arm: Arm = Arm.BASELINE,
    capture_id: str = "capture",
    steps: Sequence[Step] | None = None,
    prompt: Sequence[int] = (7, 8, 9),
    sampling: Sampling | None = None,
    outcome: Outcome = Outcome.COMPLETED,
    finish_reason: str | None = "stop",
    digest: Fact | None = None,
    facts: dict[str, Fact] | None = None,
    started_unix_s: float = 1_700_000_000.0,
    ttft_s: float | None = None,
    **other: Any,
) -> Exchange:
    """One exchange; ``steps`` wins over ``token_ids``."""
    made = tuple(steps) if steps is not None else plain_steps(token_ids)
    first = made[0].received_s if made else None
    last = made[-1].received_s if made else None
    fields: dict[str, Any] = {
        "exchange_id": ExchangeId(f"{capture_id}/{arm}/{next(_numbers)}"),
        "capture_id": CaptureId(capture_id),
        "arm": arm,
        "rollout": "old-to-new",
        "tenant": "acme",
        "request_id": "request-1",
        "pool": "old" if arm is not Arm.CANDIDATE else "new",
        "endpoint": "http://127.0.0.1:9001",
        "engine": "vllm 0.32.0",
        "environment_digest": digest or Fact(unknown="the engine tells none"),
        "prompt_token_ids": tuple(prompt),
        "sampling": sampling or Sampling(max_tokens=16, temperature=0.0, seed=5, logprobs=20),
        "as_tokens": True,
        "token_only": False,
        "facts": facts or {},
        "steps": made,
        "finish_reason": finish_reason,
        "outcome": outcome,
        "timing": Timing(
            started_unix_s=started_unix_s,
            ttft_s=ttft_s if ttft_s is not None else first,
            last_token_s=last,
            total_s=(last or 0.0) + 0.05,
            tokens=len(made),
        ),
    }
    fields.update(other)
    return Exchange(**fields)


def pair(
    left_ids: Sequence[int] = (1, 2, 3),
    right_ids: Sequence[int] = (1, 2, 3),
    *,
    capture_id: str = "capture",
    right_arm: Arm = Arm.CANDIDATE,
    left: dict[str, Any] | None = None,
    right: dict[str, Any] | None = None,
) -> Pair:
    """A compared pair; ``left`` and ``right`` are further arguments of :func:`exchange`."""
    return compare(
        exchange(left_ids, capture_id=capture_id, **(left or {})),
        exchange(right_ids, capture_id=capture_id, arm=right_arm, **(right or {})),
    )


def live(
    *,
    sequence: int = 1,
    status: int = 200,
    canary: bool = False,
    pool: str | None = None,
    tenant: str = "acme",
    first_byte_s: float = 0.2,
    started_unix_s: float = 1_700_000_000.0,
    aborted_by: str = "",
    retried: bool = False,
    streamed: bool = True,
) -> LiveRecord:
    """One live record."""
    return LiveRecord(
        sequence=sequence,
        started_unix_s=started_unix_s,
        tenant=tenant,
        pool=pool if pool is not None else ("new" if canary else "old"),
        endpoint="http://127.0.0.1:9001",
        status=status,
        first_byte_s=first_byte_s,
        total_s=first_byte_s + 1.0,
        request_bytes=100,
        response_bytes=1_000,
        aborted_by=aborted_by,
        retried=retried,
        canary=canary,
        sampled=False,
        streamed=streamed,
    )


def comparison(*pairs: Pair, **changes: Any) -> Comparison:
    """All pairs of one capture; ``changes`` are further fields."""
    first = pairs[0]
    values: dict[str, Any] = {
        "capture_id": first.capture_id,
        "rollout": first.right.rollout,
        "tenant": first.right.tenant,
        "cluster": f"cluster of {first.capture_id}",
        "pairs": pairs,
        "unix_s": first.right.timing.started_unix_s,
    }
    return Comparison(**(values | changes))


def done(*pairs: Pair, sequence: int = 1, incarnation: str = "e") -> ComparisonDone:
    """A comparison that settles a capture."""
    return ComparisonDone(comparison=comparison(*pairs), incarnation=incarnation, sequence=sequence)
