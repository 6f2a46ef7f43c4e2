"""One prompt of a check on one endpoint: asked of the engine itself, beside the mirror and its budgets.

A check costs a few thousand tokens at most, one request at a time on each endpoint, at the lowest priority
where an engine has one. It waits a moment for live work that queues there, and then no longer: a pool that
never has a lull is looked at all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from comparator.records import Arm, CaptureId, Exchange, Fact, Outcome, Sampling
from engines.base import Call, CallKind, CannotEncode, EngineError, EngineRefused
from forkgate.checks.progress import Progress
from forkgate.checks.prompts import CheckPrompt
from forkgate.checks.report import text_of
from proxy.mirror import ArmLimits, ArmPlan, ShadowEndpoint, ShadowPool, Sources, derive_seed, run_arm
from proxy.mirror.arm import outcome_of
from proxy.mirror.pools import logprobs_depth
from proxy.mirror.record import make_exchange

LIMITS = ArmLimits(timeout_s=120.0, bytes=16_777_216)
"""Of one answer."""
LOGPROBS = 20
"""Top-k asked for; a smaller one of any endpoint wins."""
LULL_S = 20.0
"""How long a check waits, in all, for queues of live work to empty."""
LULL_STEP_S = 0.5
SETTLE_S = 0.05
"""How long an engine may go on counting an answer that has ended."""
TENANT = "-"
"""No client's: the tenant of a check's exchanges."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint makes of one prompt."""

    token_ids: tuple[int, ...]
    facts: dict[str, Fact]
    error: EngineError | None = None
    """It could not encode; ``token_ids`` is empty then."""


class Asker:
    """Asks the prompts of one check. One object a check, on one event loop."""

    def __init__(
        self,
        *,
        rollout: str,
        global_seed: str,
        tokens: int,
        endpoints: Iterable[ShadowEndpoint],
        sources: Sources,
        progress: Progress,
    ) -> None:
        """
        Args:
            endpoints: all that take part: each answer asks for the depth of top-k that they all give.
            progress: counts its answers, those that did not come included.
        """
        self._rollout = rollout
        self._seed = global_seed
        self._tokens = tokens
        self._depth = logprobs_depth(LOGPROBS, [one.probe for one in endpoints])
        self._sources = sources
        self._progress = progress
        self._kind = CallKind.CHAT
        self._waited_s = 0.0
        self.shared = 0
        """Answers that began while the endpoint ran other requests."""
        self.notes: list[str] = []

    async def choose_kind(self, endpoint: ShadowEndpoint, prompt: CheckPrompt) -> None:
        """Chat where the engine has a chat template, else plain completions; a note says which and why."""
        asked = await self.encode(endpoint, prompt)
        if isinstance(asked.error, CannotEncode | EngineRefused):
            self._kind = CallKind.COMPLETION
            again = await self.encode(endpoint, prompt)
            if again.error is None:
                self.notes.append(f"asked as plain completions, without a chat template: {asked.error}")
            else:
                self._kind = CallKind.CHAT

    async def encode(self, endpoint: ShadowEndpoint, prompt: CheckPrompt) -> Asked:
        """The prompt as this endpoint's own tokenizer and template see it. Never raises an engine's error."""
        call = self._call(endpoint, prompt)
        try:
            async with asyncio.timeout(LIMITS.timeout_s):
                encoding = await endpoint.engine.encode(call)
        except TimeoutError:
            error = EngineError(endpoint.engine.base_url, f"not encoded within {LIMITS.timeout_s:g} s")
            return Asked(token_ids=(), facts={}, error=error)
        except EngineError as error:
            return Asked(token_ids=(), facts={}, error=error)
        return Asked(token_ids=encoding.token_ids, facts={"template_sha256": encoding.template_sha256})

    async def answer(
        self,
        pool: ShadowPool,
        endpoint: ShadowEndpoint,
        prompt: CheckPrompt,
        asked: Asked,
        *,
        arm: Arm,
        run: int = 0,
    ) -> Exchange:
        """The prompt's answer there, greedy. How it ended is its outcome; nothing is raised."""
        exchange = await self._answer(endpoint, asked, self._plan(pool, endpoint, prompt, asked, arm, run))
        self._progress.answers += 1
        return exchange

    async def _answer(self, endpoint: ShadowEndpoint, asked: Asked, plan: ArmPlan) -> Exchange:
        if asked.error is not None:
            return make_exchange(
                plan,
                endpoint,
                None,
                outcome=outcome_of(asked.error),
                error=f"encoding: {asked.error}",
                started_unix_s=self._sources.unix(),
            )
        busy = await self._lull(endpoint)
        exchange = await run_arm(endpoint, plan, LIMITS, self._sources)
        self.shared += _shared(exchange, busy)
        return exchange

    def unrun(
        self, pool: ShadowPool, endpoint: ShadowEndpoint, prompt: CheckPrompt, asked: Asked, *, arm: Arm
    ) -> Exchange:
        """The same, of a prompt whose answers could not be compared."""
        self._progress.answers += 1
        return make_exchange(
            self._plan(pool, endpoint, prompt, asked, arm, 0),
            endpoint,
            None,
            outcome=Outcome.ABORTED,
            error="not run: the arms' prompt token IDs differ",
            started_unix_s=self._sources.unix(),
        )

    def _plan(
        self,
        pool: ShadowPool,
        endpoint: ShadowEndpoint,
        prompt: CheckPrompt,
        asked: Asked,
        arm: Arm,
        run: int,
    ) -> ArmPlan:
        request_id = f"check/{prompt.id}"
        return ArmPlan(
            capture_id=CaptureId(request_id),
            arm=arm,
            rollout=self._rollout,
            tenant=TENANT,
            request_id=request_id,
            pool=pool.name,
            declared_digest=pool.declared_digest,
            model=_model(endpoint),
            prompt_token_ids=asked.token_ids,
            sampling=Sampling(
                max_tokens=self._tokens,
                temperature=0.0,
                seed=derive_seed(self._seed, request_id),
                logprobs=self._depth,
            ),
            facts=asked.facts,
            replicate=run,
        )

    def _call(self, endpoint: ShadowEndpoint, prompt: CheckPrompt) -> Call:
        body = {"model": _model(endpoint), "max_tokens": self._tokens, "temperature": 0.0}
        said = {"messages": prompt.messages} if self._kind is CallKind.CHAT else {"prompt": prompt.text}
        return Call(kind=self._kind, body={**body, **said}, model=_model(endpoint))

    async def _lull(self, endpoint: ShadowEndpoint) -> bool:
        """Let live work that waits there go first, within what is left of :data:`LULL_S`. Whether requests
        run there now; unknown is no."""
        looks = 0
        while True:
            try:
                load = await endpoint.engine.load()
            except EngineError:
                return False  # the answer itself will show what is wrong
            looks += 1
            if load.waiting == 0 or self._waited_s >= LULL_S:
                if load.running == 0 or looks > 1:
                    return load.running > 0
                await asyncio.sleep(SETTLE_S)  # the answer before may still be counted
                continue
            self._waited_s += LULL_STEP_S
            await asyncio.sleep(LULL_STEP_S)


def _shared(exchange: Exchange, busy: bool) -> bool:
    """Whether others shared the answer's batches: as the engine tells, else whether any ran when it began."""
    fact = exchange.facts.get("batch_size")
    told = fact.value if fact is not None else None
    if isinstance(told, int):
        return told > 1
    if isinstance(told, list) and told:
        return bool(max(told) > 1)
    return busy


def answering(pool: ShadowPool) -> tuple[ShadowEndpoint, ...]:
    """The pool's endpoints that have been probed."""
    return tuple(one for one in pool.endpoints if one.probe is not None)


def trouble(pool: ShadowPool) -> str:
    """Why none of them is, in words."""
    errors = [one.error for one in pool.endpoints if one.error]
    return f"pool {pool.name}: {errors[0] if errors else 'no endpoint has answered a probe'}"


def failure(exchange: Exchange) -> str | None:
    """How an answer failed to come, in words; None when it came."""
    if exchange.outcome is Outcome.COMPLETED:
        return None
    return f"{exchange.arm.value} on {exchange.endpoint}: {exchange.outcome.value}: {exchange.error}"


def said(exchanges: Sequence[Exchange]) -> str:
    """How the first answer reads."""
    return text_of(exchanges[0]) if exchanges else ""


def _model(endpoint: ShadowEndpoint) -> str:
    """What to ask for where the pool configures no model of its own: what the endpoint serves."""
    probe = endpoint.probe
    return probe.model if probe is not None and probe.model is not None else ""
