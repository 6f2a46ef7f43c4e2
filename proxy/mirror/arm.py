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

import msgspec

from comparator.records import (
    Exchange,
    Fact,
    Outcome,
    Step,
)
from engines.base import (
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
from proxy.mirror.record import ArmPlan, make_exchange
from proxy.mirror.soundness import fault_of

_LOG = logging.getLogger(__name__)

LOWEST_PRIORITY = 1_000_000_000
"""Engines with priorities take smaller numbers first; a shadow never displaces live work."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Time and randomness, as arguments."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    salt: Callable[[], str] = lambda: secrets.token_hex(16)


class ArmLimits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_s: float
    bytes: int
    """Text and top-k together."""


class ArmControl:
    """How others stop an arm, at a number of tokens or at once; and who is found to answer it."""

    __slots__ = ("aborted", "cut_at", "environment")

    def __init__(self) -> None:
        self.cut_at: int | None = None
        """Stop once this many tokens are there; checked as they arrive."""
        self.aborted: str | None = None
        """Why the arm's task was cancelled by us; None when it was cancelled by somebody else."""
        self.environment: Fact | None = None
        """What the head of the answer told of who gives it, known with its first tokens."""


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
        _LOG.exception("not an engine error", extra={"endpoint": endpoint.engine.base_url})
        outcome, error = Outcome.INVALID, f"{endpoint.engine.base_url}: {type(caught).__name__}: {caught}"
    return make_exchange(
        plan,
        endpoint,
        salt,
        outcome=outcome,
        error=error,
        steps=tuple(steps),
        finish=finish,
        environment=control.environment,
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
            control.environment = item.environment
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
        trace=plan.trace,
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
