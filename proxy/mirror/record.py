"""What an arm is to run, and the exchange that it leaves, with every fact known or unknown for a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from comparator.compare import COMPARED_DIGEST, DECLARED_DIGEST, DIGEST_BY
from comparator.comparison import CONCURRENCY
from comparator.records import (
    Arm,
    CaptureId,
    Digest,
    Exchange,
    ExchangeId,
    Fact,
    Outcome,
    Sampling,
    Step,
    Timing,
)
from engines.base import Call, Finish, Probe
from proxy.mirror.pools import ShadowEndpoint

# How the digest of an exchange is known: the value of its fact DIGEST_BY.
BY_ANSWER = Fact(value="answer")
"""The answer itself told it."""
BY_PROBE = Fact(value="probe")
"""The answer told none: it is what the endpoint's last probe found."""
BY_EARLIER_ANSWER = Fact(value="earlier answer")
"""No answer came: it is what the endpoint told last."""
_NO_LONGER_TOLD = Fact(unknown="its answers tell digests, and this one tells none")

NOT_COUNTED = Fact(unknown="the arm never ran, or nobody counted what ran beside it")

_PROBED_ANOTHER = Fact(unknown="the probe found it of another environment than the one that answered")
_TOLD_NOWHERE = Fact(unknown="neither the answer nor the probe tells it")
_R14 = (
    "attention_mask",
    "padding",
    "adapter",
    "processor_order",
    "batch_size",
    "batch_place",
    "system_fingerprint",
    "logprobs_mode",
)
"""Facts that every exchange must hold, be it as unknown."""


class ArmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm is to run, and as what it is to be recorded."""

    capture_id: CaptureId
    arm: Arm
    rollout: str
    tenant: str
    request_id: str
    pool: str
    declared_digest: Digest | None
    compared_digest: Digest | None = None
    """Where none is declared: the environment that the comparison began with."""
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    call: Call | None = None
    """Set when the request goes as itself."""
    token_only: bool = False
    facts: dict[str, Fact] = {}
    """Known before it runs: template_sha256 and the like."""
    replicate: int = 0
    trace: Mapping[str, str] = {}
    """Headers that name the arm's span to its engine."""

    @property
    def exchange_id(self) -> ExchangeId:
        return ExchangeId(f"{self.capture_id}/{self.arm}/{self.replicate}")


def make_exchange(
    plan: ArmPlan,
    endpoint: ShadowEndpoint,
    salt: str | None,
    *,
    outcome: Outcome,
    error: str | None,
    steps: tuple[Step, ...] = (),
    finish: Finish | None = None,
    environment: Fact | None = None,
    started_unix_s: float,
    total_s: float = 0.0,
) -> Exchange:
    """The record of an arm that ran, or of one that never got so far.

    Args:
        environment: what the answer's head told of who gave it; None where none came, or has none.
    """
    probe = endpoint.probe
    facts: dict[str, Fact] = dict.fromkeys(_R14, _TOLD_NOWHERE)
    digest, how = _who(endpoint, finish, environment)
    if probe is not None:
        facts |= _still_true(probe.facts, digest)
    facts |= plan.facts if finish is None else plan.facts | finish.facts
    facts.pop("environment_digest", None)
    facts[DIGEST_BY] = how
    facts["cache_salt"] = Fact(value=salt) if salt is not None else Fact(unknown="the arm never ran")
    facts.setdefault(CONCURRENCY, NOT_COUNTED)
    facts["logprobs_depth"] = Fact(value=plan.sampling.logprobs)
    if plan.declared_digest is not None:
        facts[DECLARED_DIGEST] = Fact(value=plan.declared_digest)
    if plan.compared_digest is not None:
        facts[COMPARED_DIGEST] = Fact(value=plan.compared_digest)
    prompt_token_ids = plan.prompt_token_ids
    if plan.call is not None and finish is not None and finish.prompt_token_ids is not None:
        prompt_token_ids = finish.prompt_token_ids
    return Exchange(
        exchange_id=plan.exchange_id,
        capture_id=plan.capture_id,
        arm=plan.arm,
        replicate=plan.replicate,
        rollout=plan.rollout,
        tenant=plan.tenant,
        request_id=plan.request_id,
        pool=plan.pool,
        endpoint=endpoint.engine.base_url,
        engine=_name(endpoint, probe),
        environment_digest=digest,
        prompt_token_ids=prompt_token_ids,
        sampling=plan.sampling,
        as_tokens=plan.call is None,
        token_only=plan.token_only,
        facts=facts,
        steps=steps,
        finish_reason=finish.finish_reason if finish is not None else None,
        stop_reason=finish.stop_reason if finish is not None else None,
        outcome=outcome,
        error=error,
        timing=Timing(
            started_unix_s=started_unix_s,
            ttft_s=steps[0].received_s if steps else None,
            last_token_s=steps[-1].received_s if steps else None,
            total_s=total_s,
            tokens=len(steps),
        ),
    )


def _who(endpoint: ShadowEndpoint, finish: Finish | None, head: Fact | None) -> tuple[Fact, Fact]:
    """The digest of the environment that answered, and how it is known."""
    told = finish.facts.get("environment_digest") if finish is not None else head
    if told is not None and told.value is not None:
        return told, BY_ANSWER
    known = endpoint.environment
    if finish is None and head is None:
        how = BY_EARLIER_ANSWER if endpoint.environment_in_answers else BY_PROBE
        return (known, how) if known.value is not None else (known, known)
    if endpoint.environment_in_answers:
        return _NO_LONGER_TOLD, _NO_LONGER_TOLD
    if known.value is not None:
        return known, BY_PROBE
    why = told if told is not None else known
    return why, why


def _still_true(probed: dict[str, Fact], now: Fact) -> dict[str, Fact]:
    """What the probe found, unless the answer proves that another environment answers there by now."""
    then = probed.get("environment_digest")
    if then is None or then.value is None or now.value is None or now == then:
        return probed
    return dict.fromkeys(probed, _PROBED_ANOTHER)


def _name(endpoint: ShadowEndpoint, probe: Probe | None) -> str:
    if probe is None:
        return endpoint.engine.name
    return f"{probe.engine} {probe.version}" if probe.version is not None else probe.engine


def plan_again(exchange: Exchange, model: str, **changes: Any) -> ArmPlan:
    """The plan to run a stored exchange once more: same tokens, parameters and seed, another salt.

    Raises:
        ValueError: it went as itself, and a client's own request is not kept as such.
    """
    if not exchange.as_tokens:
        raise ValueError(
            f"exchange {exchange.exchange_id} went as the client's own request, which is not stored; only "
            "exchanges that went as tokens can be run again"
        )
    declared = exchange.facts.get(DECLARED_DIGEST)
    plan = ArmPlan(
        capture_id=exchange.capture_id,
        arm=exchange.arm,
        rollout=exchange.rollout,
        tenant=exchange.tenant,
        request_id=exchange.request_id,
        pool=exchange.pool,
        declared_digest=declared.value if declared is not None else None,
        model=model,
        prompt_token_ids=exchange.prompt_token_ids,
        sampling=exchange.sampling,
        facts={name: fact for name, fact in exchange.facts.items() if name == "template_sha256"},
        replicate=exchange.replicate,
    )
    return msgspec.structs.replace(plan, **changes)
