"""One captured request, run on baseline and candidate side by side, compared as the tokens arrive.

::

    decode ─▶ encode on both ─┬─ IDs equal ─▶ two arms at once ─▶ compare ─▶ Pair
                              ├─ IDs differ ─▶ no generation; the pair says what each arm would have read
                              └─ no token form ─▶ the request goes as itself, or is dropped with the reason

The baseline is the measure, so its trouble is never the candidate's: when it cannot encode or gives no token,
the capture is dropped; when it breaks off later, the pair is set aside. The candidate's trouble is
evidence, so then the baseline runs on to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from comparator.align import PairAligner
from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.pair import Fork, ForkSeen, Pair
from comparator.records import Arm, CaptureId, Exchange, Fact, Outcome, Step
from engines.base import Call, EngineError
from proxy.ledger import DropReason
from proxy.mirror.arm import ArmControl, ArmLimits, ArmPlan, Sources, make_exchange, outcome_of, run_arm
from proxy.mirror.budget import TokenBudget
from proxy.mirror.cluster import cluster_of
from proxy.mirror.decode import decode
from proxy.mirror.encode import Encoded, PairEncoder
from proxy.mirror.errors import Dropped
from proxy.mirror.pools import ShadowEndpoint, ShadowRollout
from proxy.mirror.queue import Waiting
from proxy.mirror.seeds import is_token_only

_LOG = logging.getLogger(__name__)

_THREAD_BYTES = 131_072
"""A larger body is decoded on a thread: a decompression must not hold up a flip."""
_ENDED = (Outcome.COMPLETED, Outcome.CUT)


class PairRun:
    """Runs one pair. :meth:`run` is called once; :meth:`abort` at any time, on the same loop."""

    def __init__(
        self,
        rollout: ShadowRollout,
        waiting: Waiting,
        baseline: ShadowEndpoint,
        candidate: ShadowEndpoint,
        budget: TokenBudget,
        fork_seen: Callable[[ForkSeen], None],
        sources: Sources,
    ) -> None:
        self._rollout = rollout
        self._settings = rollout.settings
        self._waiting = waiting
        self._capture = waiting.capture
        self._endpoints = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
        self._budget = budget
        self._fork_seen = fork_seen
        self._sources = sources
        self._limits = ArmLimits(timeout_s=rollout.settings.arm_timeout_s, bytes=rollout.settings.arm_bytes)
        self._token_only = is_token_only(
            rollout.name, self._capture.request_id, rollout.settings.token_only_percent
        )
        self._aligner = PairAligner()
        self._controls = {Arm.BASELINE: ArmControl(), Arm.CANDIDATE: ArmControl()}
        self._arms: dict[Arm, asyncio.Task[Exchange]] = {}
        self._encoding: asyncio.Task[Encoded] | None = None
        self._tell_early = False
        self._aborted: Dropped | None = None

    @property
    def capture_id(self) -> str:
        return self._capture.capture_id

    async def run(self) -> Comparison:
        """What came of the capture.

        Raises:
            Dropped: the capture ends without one.
        """
        call = await self._decode()
        self._raise_if_aborted()
        pair = await self._pair(call)
        return Comparison(
            capture_id=CaptureId(self._capture.capture_id),
            rollout=self._rollout.name,
            tenant=self._capture.tenant,
            cluster=cluster_of(call),
            pairs=(pair,),
            unix_s=self._sources.unix(),
        )

    async def _pair(self, call: Call) -> Pair:
        encoded = await self._encode(call)
        self._raise_if_aborted()
        plans = {arm: self._plan(arm, encoded) for arm in self._endpoints}
        if encoded.mismatch:
            left, right = (
                self._unrun(plan, Outcome.ABORTED, "not run: the arms' prompt token IDs differ")
                for plan in plans.values()
            )
            return compare(left, right)
        self._tell_early = encoded.as_tokens and all(
            _digest_as_declared(plan, self._endpoints[arm]) for arm, plan in plans.items()
        )
        left, right = await self._both(plans, encoded.candidate_error)
        self._check(left)
        if not encoded.as_tokens:
            left, right = _same_echo(left, right)
        return compare(left, right, self._aligner.alignment())

    def abort(self, reason: DropReason, detail: str) -> None:
        """Stop both arms. A pair whose fork is decided is finished all the same: it is evidence."""
        if self._aborted is not None:
            return
        self._aborted = Dropped(reason, detail)
        if self._encoding is not None:
            self._encoding.cancel()
        for arm in self._arms:
            self._stop(arm, str(self._aborted))

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    # -- before the arms ------------------------------------------------------------------------------

    async def _decode(self) -> Call:
        capture, kind, limit = self._capture, self._waiting.kind, self._settings.decoded_bytes
        if len(capture.body) > _THREAD_BYTES:
            return await asyncio.to_thread(decode, capture, kind, limit)
        return decode(capture, kind, limit)

    async def _encode(self, call: Call) -> Encoded:
        encoder = PairEncoder(
            self._rollout, self._endpoints[Arm.BASELINE], self._endpoints[Arm.CANDIDATE], self._capture
        )
        self._encoding = asyncio.create_task(encoder.encode(call), name="encode")
        try:
            return await self._encoding
        except asyncio.CancelledError:
            if self._aborted is None:
                raise
            raise self._aborted from None
        finally:
            self._encoding = None

    def _plan(self, arm: Arm, encoded: Encoded) -> ArmPlan:
        pool = self._rollout.baseline if arm is Arm.BASELINE else self._rollout.candidate
        mine = encoded.baseline if arm is Arm.BASELINE else encoded.candidate
        return ArmPlan(
            capture_id=CaptureId(self._capture.capture_id),
            arm=arm,
            rollout=self._rollout.name,
            tenant=self._capture.tenant,
            request_id=self._capture.request_id,
            pool=pool.name,
            declared_digest=pool.declared_digest,
            model=encoded.call.model,
            prompt_token_ids=mine.token_ids,
            sampling=encoded.sampling,
            call=None if encoded.as_tokens else encoded.call,
            token_only=self._token_only,
            facts=mine.facts,
        )

    # -- the arms -------------------------------------------------------------------------------------

    async def _both(
        self, plans: dict[Arm, ArmPlan], candidate_error: EngineError | None
    ) -> tuple[Exchange, Exchange]:
        right: Exchange | None = None
        if candidate_error is not None:
            # It refused or failed the client's own call: evidence, once the baseline has shown that it can.
            outcome = outcome_of(candidate_error)
            right = self._unrun(plans[Arm.CANDIDATE], outcome, f"encoding: {candidate_error}")
            self._aligner.finish(Arm.CANDIDATE, completed=False)
        for arm, plan in plans.items():
            if arm is Arm.BASELINE or right is None:
                self._budget.asked(plan.pool)
                self._budget.spend(len(plan.prompt_token_ids), self._capture.tenant, plan.pool)
                self._arms[arm] = asyncio.create_task(self._arm(plan), name=f"{arm} arm")
        await asyncio.wait(self._arms.values())
        ends = {arm: self._end(arm, plans[arm]) for arm in self._arms}
        return ends[Arm.BASELINE], right if right is not None else ends[Arm.CANDIDATE]

    async def _arm(self, plan: ArmPlan) -> Exchange:
        arm, tenant, pool = plan.arm, self._capture.tenant, plan.pool
        push, spend = self._aligner.push, self._budget.spend

        def feed(steps: tuple[Step, ...]) -> None:
            spend(len(steps), tenant, pool)
            fork = push(arm, steps)
            if fork is not None:
                self._forked(fork)

        exchange = await run_arm(
            self._endpoints[arm],
            plan,
            self._limits,
            self._sources,
            control=self._controls[arm],
            on_steps=feed,
        )
        if plan.call is not None:
            spend(len(exchange.prompt_token_ids), tenant, pool)
        fork = self._aligner.finish(arm, completed=exchange.outcome is Outcome.COMPLETED)
        if fork is not None:
            self._forked(fork)
        if arm is Arm.BASELINE and exchange.outcome not in _ENDED:
            self._stop(Arm.CANDIDATE, f"nothing to compare with: the baseline ended {exchange.outcome}")
        return exchange

    def _forked(self, fork: Fork) -> None:
        if self._token_only:
            cut_at = fork.fork_index + 1 + self._settings.token_only_tail_tokens
            for control in self._controls.values():
                control.cut_at = cut_at
        if not self._tell_early:
            return  # the finished pair will tell, once it is proved to be evidence
        try:
            self._fork_seen(
                ForkSeen(
                    capture_id=CaptureId(self._capture.capture_id),
                    rollout=self._rollout.name,
                    tenant=self._capture.tenant,
                    left_arm=Arm.BASELINE,
                    right_arm=Arm.CANDIDATE,
                    fork=fork,
                )
            )
        except Exception:  # the pair itself is sound, and is told again when it is finished
            _LOG.exception("a fork of capture %s could not be reported", self._capture.capture_id)

    def _stop(self, arm: Arm, why: str) -> None:
        task = self._arms.get(arm)
        if task is not None and not task.done() and self._controls[arm].aborted is None:
            self._controls[arm].aborted = why
            task.cancel()

    def _end(self, arm: Arm, plan: ArmPlan) -> Exchange:
        task, why = self._arms[arm], self._controls[arm].aborted
        if task.cancelled() and why is not None:  # stopped before its first step
            return self._unrun(plan, Outcome.ABORTED, why)
        return task.result()

    def _check(self, baseline: Exchange) -> None:
        """Raises Dropped for a pair that is worth nothing, not even as one set aside."""
        if self._aligner.fork is not None:
            return
        self._raise_if_aborted()
        if baseline.outcome in _ENDED or baseline.steps:
            return
        if baseline.outcome is Outcome.REFUSED:
            raise Dropped(DropReason.UNSUPPORTED, f"the baseline refuses it: {baseline.error}")
        raise Dropped(DropReason.BASELINE_UNAVAILABLE, f"{baseline.outcome}: {baseline.error}")

    def _unrun(self, plan: ArmPlan, outcome: Outcome, why: str) -> Exchange:
        return make_exchange(
            plan,
            self._endpoints[plan.arm],
            None,
            outcome=outcome,
            error=why,
            started_unix_s=self._sources.unix(),
        )


def _digest_as_declared(plan: ArmPlan, endpoint: ShadowEndpoint) -> bool:
    """Whether a fork there may be told at once: what the probe proved is what the pool declares.

    The answer's own proof comes with its end; a pair that it contradicts is set aside then.
    """
    if plan.declared_digest is None:
        return True
    proved = endpoint.probe.facts.get("environment_digest") if endpoint.probe is not None else None
    return proved is not None and proved.value == plan.declared_digest


def _same_echo(left: Exchange, right: Exchange) -> tuple[Exchange, Exchange]:
    """Requests that went as themselves: prompts are known by echo only, so both or neither."""
    if bool(left.prompt_token_ids) == bool(right.prompt_token_ids):
        return left, right
    fact = Fact(unknown="only one arm told the token IDs that it made of the request")
    blank = [
        msgspec.structs.replace(
            exchange, prompt_token_ids=(), facts={**exchange.facts, "prompt_token_ids": fact}
        )
        for exchange in (left, right)
    ]
    return blank[0], blank[1]
