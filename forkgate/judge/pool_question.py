"""The question that an old pool's endpoint is asked: a short one, answered by its model to the end.

A port that is open and a ``/health`` that says 200 are no proof: an engine whose worker hangs has both.
"""

from __future__ import annotations

import asyncio

import msgspec

from comparator.records import Arm, CaptureId, Outcome, Sampling
from engines.base import Call, CallKind, CannotEncode, Encoding, EngineError, EngineRefused
from engines.calls import sampling_said
from forkgate.config.pool_watch import PoolWatchSettings
from proxy.mirror import ArmLimits, ArmPlan, ShadowEndpoint, Sources, run_arm

TEXT = "Count slowly from one to twenty."
TENANT = "-"
_BYTES = 1_048_576
_ENDED = (Outcome.COMPLETED, Outcome.CUT)


class Question:
    """Asked of one endpoint, by token IDs that its own tokenizer made of it once."""

    def __init__(self, pool: str, endpoint: ShadowEndpoint, sources: Sources) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._sources = sources
        self._made: tuple[Call, Encoding | None] | None = None

    async def ask(self, settings: PoolWatchSettings) -> str | None:
        """Ask it. None once the whole answer is there, else why it is not, in words; raises nothing."""
        where = self._endpoint.engine.base_url
        try:
            async with asyncio.timeout(settings.slowest_s):
                if self._made is None:
                    self._made = await self._encode(settings)
                call, encoding = self._made
                return await self._answer(settings, call, encoding)
        except TimeoutError:
            self._made = None
            return f"{where} gave no whole answer of {settings.tokens} tokens within {settings.slowest_s:g} s"
        except EngineError as error:
            self._made = None
            return f"{error}"

    async def _encode(self, settings: PoolWatchSettings) -> tuple[Call, Encoding | None]:
        """As a chat where the model has a template, else as plain text; as itself where nothing encodes."""
        model = self._endpoint.probe.model if self._endpoint.probe is not None else None
        body = {"model": model or "", "max_tokens": settings.tokens, "temperature": 0.0}
        chat = {**body, "messages": [{"role": "user", "content": TEXT}]}
        plain = {**body, "prompt": TEXT}
        calls = [
            Call(kind=kind, body=said, model=model or "")
            for kind, said in ((CallKind.CHAT, chat), (CallKind.COMPLETION, plain))
        ]
        last: EngineError | None = None
        for call in calls:
            try:
                return call, await self._endpoint.engine.encode(call)
            except (CannotEncode, EngineRefused) as error:
                last = error
        if isinstance(last, CannotEncode) and last.goes_as_itself:
            return calls[-1], None
        assert last is not None
        raise last

    async def _answer(self, settings: PoolWatchSettings, call: Call, encoding: Encoding | None) -> str | None:
        said = sampling_said(call, room_tokens=settings.tokens) if encoding is None else encoding.sampling
        sampling: Sampling = msgspec.structs.replace(
            said, max_tokens=settings.tokens, min_tokens=0, temperature=0.0, seed=0, logprobs=0
        )
        plan = ArmPlan(
            capture_id=CaptureId(f"old-pool/{self._pool}"),
            arm=Arm.BASELINE,
            rollout="-",
            tenant=TENANT,
            request_id=f"old-pool/{self._pool}",
            pool=self._pool,
            declared_digest=None,
            model=call.model,
            prompt_token_ids=encoding.token_ids if encoding is not None else (),
            sampling=sampling,
            call=call if encoding is None else None,
        )
        limits = ArmLimits(timeout_s=settings.slowest_s, bytes=_BYTES)
        exchange = await run_arm(self._endpoint, plan, limits, self._sources)
        if exchange.outcome in _ENDED and exchange.steps:
            return None
        self._made = None
        return exchange.error or f"{self._endpoint.engine.base_url} answered without a token"
