"""One arm: one prompt on one endpoint, streamed to its end, as an :class:`Exchange`.

Whatever the endpoint does, an exchange comes of it: how it ended is its ``outcome``. An arm is bounded in
tokens, bytes and seconds, so an endpoint that stalls, trickles, lies or never ends costs no more than that.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec

from comparator.compare import DECLARED_DIGEST
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
from engines.base import (
    Call,
    CannotEncode,
    Capability,
    EngineError,
    EngineInvalid,
    EngineRefused,
    EngineTimeout,
    Finish,
    Probe,
    Prompt,
    Steps,
)
from proxy.mirror.pools import ShadowEndpoint, note_end
from proxy.mirror.soundness import fault_of

_LOG = logging.getLogger(__name__)

LOWEST_PRIORITY = 1_000_000_000
"""Engines with priorities take smaller numbers first; a shadow never displaces live work."""

NO_DIGEST = Fact(unknown="the engine tells no environment digest")

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


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Time and randomness, as arguments."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    salt: Callable[[], str] = lambda: secrets.token_hex(16)


class ArmLimits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float
    bytes: int
    """Text and top-k together."""


class ArmPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm is to run, and as what it is to be recorded."""

    capture_id: CaptureId
    arm: Arm
    rollout: str
    tenant: str
    request_id: str
    pool: str
    declared_digest: Digest | None
    model: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    call: Call | None = None
    """Set when the request goes as itself."""
    token_only: bool = False
    facts: dict[str, Fact] = {}
    """Known before it runs: template_sha256 and the like."""
    replicate: int = 0

    @property
    def exchange_id(self) -> ExchangeId:
        return ExchangeId(f"{self.capture_id}/{self.arm}/{self.replicate}")


class ArmControl:
    """How others stop an arm: at a number of tokens, or at once."""

    __slots__ = ("aborted", "cut_at")

    def __init__(self) -> None:
        self.cut_at: int | None = None
        """Stop once this many tokens are there; checked as they arrive."""
        self.aborted: str | None = None
        """Why the arm's task was cancelled by us; None when it was cancelled by somebody else."""


async def run_arm(
    endpoint: ShadowEndpoint,
    plan: ArmPlan,
    limits: ArmLimits,
    sources: Sources,
    *,
    control: ArmControl | None = None,
    on_steps: Callable[[tuple[Step, ...]], object] | None = None,
) -> Exchange:
    """Run it. Raises nothing but a cancellation that ``control`` does not explain.

    Args:
        on_steps: called with each piece as it arrives, before the next is awaited.
    """
    control = control if control is not None else ArmControl()
    probe = endpoint.probe
    salt = sources.salt()
    prompt = _prompt(plan, salt, probe)
    steps: list[Step] = []
    finish: Finish | None = None
    outcome, error = Outcome.INVALID, None
    started_unix_s, started_s = sources.unix(), sources.monotonic()
    try:
        async with asyncio.timeout(limits.timeout_s):
            finish = await _stream(endpoint, prompt, limits, steps, control, on_steps)
        outcome = Outcome.COMPLETED if finish is not None else Outcome.CUT
        note_end(endpoint, None)
    except TimeoutError:
        outcome = Outcome.TIMED_OUT
        error = f"{endpoint.engine.base_url}: not done after {limits.timeout_s:g} s, {len(steps)} tokens"
        if not steps:
            endpoint.not_answering(error)
    except EngineError as caught:
        outcome, error = outcome_of(caught), str(caught)
        note_end(endpoint, caught)
    except asyncio.CancelledError:
        if control.aborted is None:
            raise
        outcome, error = Outcome.ABORTED, control.aborted
    except Exception as caught:  # an adapter that raises anything else has a bug; the pair is set aside
        _LOG.exception("%s: not an engine error", endpoint.engine.base_url)
        outcome, error = Outcome.INVALID, f"{endpoint.engine.base_url}: {type(caught).__name__}: {caught}"
    return make_exchange(
        plan,
        endpoint,
        salt,
        outcome=outcome,
        error=error,
        steps=tuple(steps),
        finish=finish,
        started_unix_s=started_unix_s,
        total_s=sources.monotonic() - started_s,
    )


async def _stream(
    endpoint: ShadowEndpoint,
    prompt: Prompt,
    limits: ArmLimits,
    steps: list[Step],
    control: ArmControl,
    on_steps: Callable[[tuple[Step, ...]], object] | None,
) -> Finish | None:
    """Fill ``steps``; the finish, or None when the arm was cut."""
    where = endpoint.engine.base_url
    most_tokens, most_bytes = prompt.sampling.max_tokens, limits.bytes
    depth = prompt.sampling.logprobs
    size = 0
    # Leaving the block closes the generator, and that aborts the generation in the engine.
    async with aclosing(endpoint.engine.generate(prompt)) as stream:
        async for item in stream:
            if isinstance(item, Finish):
                _check_echo(where, prompt, item)
                return item
            assert isinstance(item, Steps)
            got = item.steps
            for place, step in enumerate(got):
                fault = fault_of(step, depth)
                if fault is not None:
                    raise EngineInvalid(where, f"token {len(steps) + place}: {fault}")
                size += 64 + 16 * len(step.top_ids) + (len(step.text) if step.text is not None else 0)
            # What is too much is not kept: a stored exchange holds exactly the steps that were compared.
            if len(steps) + len(got) > most_tokens:
                raise EngineInvalid(where, f"more than the {most_tokens} tokens that were allowed came")
            if size > most_bytes:
                raise EngineInvalid(where, f"more than {most_bytes} bytes came by token {len(steps)}")
            steps += got
            if on_steps is not None:
                on_steps(got)
            if control.cut_at is not None and len(steps) >= control.cut_at:
                return None
    raise EngineInvalid(where, f"the stream ended after {len(steps)} tokens without a finish")


def _check_echo(where: str, prompt: Prompt, finish: Finish) -> None:
    echo = finish.prompt_token_ids
    if prompt.call is None and echo is not None and echo != prompt.token_ids:
        raise EngineInvalid(
            where, f"it ran another prompt: {len(echo)} token IDs came back for {len(prompt.token_ids)} sent"
        )


def _prompt(plan: ArmPlan, salt: str, probe: Probe | None) -> Prompt:
    has_priority = probe is not None and Capability.PRIORITY in probe.has
    return Prompt(
        exchange_id=plan.exchange_id,
        model=plan.model,
        token_ids=plan.prompt_token_ids,
        sampling=plan.sampling,
        cache_salt=salt,
        priority=LOWEST_PRIORITY if has_priority else None,
        call=plan.call,
    )


def outcome_of(error: EngineError) -> Outcome:
    """How an exchange ended that ended with this error."""
    if isinstance(error, EngineTimeout):
        return Outcome.TIMED_OUT
    if isinstance(error, EngineRefused):
        return Outcome.REFUSED
    if isinstance(error, EngineInvalid | CannotEncode):
        return Outcome.INVALID
    return Outcome.FAILED


def make_exchange(
    plan: ArmPlan,
    endpoint: ShadowEndpoint,
    salt: str | None,
    *,
    outcome: Outcome,
    error: str | None,
    steps: tuple[Step, ...] = (),
    finish: Finish | None = None,
    started_unix_s: float,
    total_s: float = 0.0,
) -> Exchange:
    """The record of an arm that ran, or of one that never got so far."""
    probe = endpoint.probe
    facts: dict[str, Fact] = dict.fromkeys(_R14, _TOLD_NOWHERE)
    told = plan.facts if finish is None else plan.facts | finish.facts
    if probe is not None:
        facts |= _still_true(probe.facts, told)
    facts |= told
    digest = facts.pop("environment_digest", NO_DIGEST)
    facts["cache_salt"] = Fact(value=salt) if salt is not None else Fact(unknown="the arm never ran")
    facts.setdefault(CONCURRENCY, NOT_COUNTED)
    facts["logprobs_depth"] = Fact(value=plan.sampling.logprobs)
    if plan.declared_digest is not None:
        facts[DECLARED_DIGEST] = Fact(value=plan.declared_digest)
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


def _still_true(probed: dict[str, Fact], told: dict[str, Fact]) -> dict[str, Fact]:
    """What the probe found, unless the answer proves that another environment answers there by now."""
    then, now = probed.get("environment_digest"), told.get("environment_digest")
    if then is None or now is None or now.value is None or now == then:
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
