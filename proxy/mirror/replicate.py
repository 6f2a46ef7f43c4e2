"""One replicate of a question: baseline and candidate side by side, and the control where one was drawn.

::

    baseline ──────────┐             ├─ candidate pair     (absent when the baseline is compared with itself)
    candidate ─────────┤ as they come├
    control ───────────┘             └─ control pair       (absent when the control came to nothing)
        on another endpoint of the baseline's pool: beside the two
        on the same endpoint: once the baseline's arm has ended, so that they never share a batch

The baseline is the measure, so its trouble is never the candidate's: when it gives no token, there is no
pair; when it breaks off later, its pairs are set aside. The candidate's trouble is evidence, so then the
baseline runs on to its end. The control's trouble is neither: the comparison goes without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from comparator.align import PairAligner
from comparator.compare import compare
from comparator.comparison import CONCURRENCY
from comparator.pair import Fork, ForkSeen, Pair
from comparator.records import Arm, Exchange, Fact, Outcome, Step
from proxy.mirror.arm import ArmControl, ArmLimits, Sources, outcome_of, run_arm
from proxy.mirror.budget import TokenBudget
from proxy.mirror.encode import Encoded
from proxy.mirror.errors import Dropped
from proxy.mirror.pairing import ENDED, pairs_of
from proxy.mirror.places import Place
from proxy.mirror.pools import ShadowEndpoint, ShadowRollout
from proxy.mirror.ports import NoTracer, Tracer
from proxy.mirror.question import Question
from proxy.mirror.record import ArmPlan, make_exchange
from proxy.mirror.seeds import derive_seed

_LOG = logging.getLogger(__name__)


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What all questions of a rollout share."""

    rollout: ShadowRollout
    budget: TokenBudget
    fork_seen: Callable[[ForkSeen], None]
    sources: Sources
    tracer: Tracer = NoTracer()


class ReplicateRun:
    """Runs the arms of one seed. :meth:`run` is called once; the others at any time, on the same loop."""

    def __init__(
        self, shared: Shared, question: Question, encoded: Encoded, places: Mapping[Arm, Place], index: int
    ) -> None:
        """
        Args:
            places: of the arms that are wanted. A control with the baseline's own place is staggered.
            index: of the replicate, from 0.
        """
        self._shared = shared
        self._question = question
        self._encoded = encoded
        self._places = places
        self._plans = {arm: self._plan(arm, index) for arm in places}
        settings = shared.rollout.settings
        self._tail_tokens = settings.token_only_tail_tokens
        self._limits = ArmLimits(timeout_s=settings.arm_timeout_s, bytes=settings.arm_bytes)
        self._controls = {arm: ArmControl() for arm in places}
        self._arms: dict[Arm, asyncio.Task[Exchange]] = {}
        self._aligners: dict[Arm, PairAligner] = {
            arm: PairAligner(Arm.BASELINE, arm) for arm in places if arm is not Arm.BASELINE
        }
        self._aborted: Dropped | None = None
        self._closing = False
        self.ends: dict[Arm, Exchange] = {}
        """Exchanges of all arms that were asked, once :meth:`run` has returned."""

    async def run(self) -> tuple[Pair, ...]:
        """Baseline and candidate first, then baseline and control.

        Raises:
            Dropped: nothing came of it.
        """
        if self._encoded.mismatch and Arm.CANDIDATE in self._places:
            why = "not run: the arms' prompt token IDs differ"
            for arm in (Arm.BASELINE, Arm.CANDIDATE):
                self.ends[arm] = self._unrun(arm, Outcome.ABORTED, why)
            return (compare(self.ends[Arm.BASELINE], self.ends[Arm.CANDIDATE]),)
        try:
            await self._run_arms()
        finally:  # all have ended, unless this task itself was cancelled
            left = [task for task in self._arms.values() if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
        alignments = {arm: aligner.alignment() for arm, aligner in self._aligners.items()}
        return pairs_of(self.ends, alignments, self._aborted)

    def abort(self, end: Dropped) -> None:
        """Stop all arms. What is decided by then is kept: it is evidence."""
        if self._aborted is None:
            self._aborted = end
            for arm in self._arms:
                self._stop(arm, str(end))

    def finish_up(self) -> None:
        """Start no further arm; those that run go on to their end."""
        self._closing = True

    @property
    def went_well(self) -> bool:
        """Baseline and candidate ended by themselves: another seed is worth its price."""
        return all(end.outcome in ENDED for arm, end in self.ends.items() if arm is not Arm.CONTROL)

    # -- the arms -------------------------------------------------------------------------------------

    def _plan(self, arm: Arm, index: int) -> ArmPlan:
        rollout, question, encoded = self._shared.rollout, self._question, self._encoded
        pool = self._places[arm].pool
        mine = encoded.candidate if arm is Arm.CANDIDATE else encoded.baseline
        seed = derive_seed(rollout.global_seed, question.request_id, index)
        return ArmPlan(
            capture_id=question.capture_id,
            arm=arm,
            rollout=rollout.name,
            tenant=question.tenant,
            request_id=question.request_id,
            pool=pool.name,
            declared_digest=pool.declared_digest,
            compared_digest=pool.compared_digest() if pool.declared_digest is None else None,
            model=encoded.call.model,
            prompt_token_ids=mine.token_ids,
            sampling=msgspec.structs.replace(encoded.sampling, seed=seed),
            call=None if encoded.as_tokens else encoded.call,
            token_only=question.token_only,
            facts=mine.facts,
            replicate=index,
        )

    async def _run_arms(self) -> None:
        at, failed = self._places, self._encoded.candidate_error
        staggered = Arm.CONTROL in at and at[Arm.CONTROL] is at[Arm.BASELINE]
        if failed is not None and Arm.CANDIDATE in at:
            # It refused or failed the client's own call: evidence, once the baseline has shown that it can.
            unrun = self._unrun(Arm.CANDIDATE, outcome_of(failed), f"encoding: {failed}")
            self.ends[Arm.CANDIDATE] = unrun
            self._aligners[Arm.CANDIDATE].finish(Arm.CANDIDATE, completed=False)
        for arm in at:
            if arm not in self.ends and not (arm is Arm.CONTROL and staggered):
                self._start(arm)
        if staggered:
            await asyncio.wait({self._arms[Arm.BASELINE]})
            well = self._end_of(Arm.BASELINE).outcome in ENDED
            if well and self._aborted is None and not self._closing:
                self._start(Arm.CONTROL)
        await asyncio.wait(self._arms.values())
        self.ends |= {arm: self._end_of(arm) for arm in self._arms}

    def _start(self, arm: Arm) -> None:
        plan, budget = self._plans[arm], self._shared.budget
        budget.asked(plan.pool)
        budget.spend(len(plan.prompt_token_ids), plan.tenant, plan.pool)
        self._arms[arm] = asyncio.create_task(self._arm(arm, plan), name=f"{arm} arm")

    async def _arm(self, arm: Arm, plan: ArmPlan) -> Exchange:
        tenant, pool, spend = plan.tenant, plan.pool, self._shared.budget.spend
        sides = [side for side in self._aligners.items() if arm in (Arm.BASELINE, side[0])]

        def feed(steps: tuple[Step, ...]) -> None:
            spend(len(steps), tenant, pool)
            for other, aligner in sides:
                fork = aligner.push(arm, steps)
                if fork is not None:
                    self._forked(other, fork)

        place = self._places[arm]
        facts = {**plan.facts, CONCURRENCY: place.arm_starts()}
        try:
            exchange = await run_arm(
                place.endpoint,
                msgspec.structs.replace(plan, facts=facts, trace=self._shared.tracer.arm(plan)),
                self._limits,
                self._shared.sources,
                control=self._controls[arm],
                on_steps=feed,
            )
        finally:
            place.arm_ends()
        if plan.call is not None:
            spend(len(exchange.prompt_token_ids), tenant, pool)
        for other, aligner in sides:
            fork = aligner.finish(arm, completed=exchange.outcome is Outcome.COMPLETED)
            if fork is not None:
                self._forked(other, fork)
        if arm is Arm.BASELINE and exchange.outcome not in ENDED:
            for other in self._aligners:
                self._stop(other, f"nothing to compare with: the baseline ended {exchange.outcome}")
        return exchange

    def _stop(self, arm: Arm, why: str) -> None:
        task = self._arms.get(arm)
        if task is not None and not task.done() and self._controls[arm].aborted is None:
            self._controls[arm].aborted = why
            task.cancel()

    def _end_of(self, arm: Arm) -> Exchange:
        task, why = self._arms[arm], self._controls[arm].aborted
        if task.cancelled() and why is not None:  # stopped before its first step
            return self._unrun(arm, Outcome.ABORTED, why)
        return task.result()

    def _unrun(self, arm: Arm, outcome: Outcome, why: str) -> Exchange:
        return make_exchange(
            self._plans[arm],
            self._places[arm].endpoint,
            None,
            outcome=outcome,
            error=why,
            started_unix_s=self._shared.sources.unix(),
        )

    # -- forks ----------------------------------------------------------------------------------------

    def _forked(self, other: Arm, fork: Fork) -> None:
        if self._question.token_only:
            cut_at = fork.fork_index + 1 + self._tail_tokens
            for control in self._controls.values():
                control.cut_at = cut_at
        if not self._told_early(other):
            return  # the finished pair will tell, once it is proved to be evidence
        plan = self._plans[other]
        try:
            self._shared.fork_seen(
                ForkSeen(
                    capture_id=plan.capture_id,
                    rollout=plan.rollout,
                    tenant=plan.tenant,
                    left_arm=Arm.BASELINE,
                    right_arm=other,
                    fork=fork,
                    replicate=plan.replicate,
                )
            )
        except Exception:  # the pair itself is sound, and is told again when it is finished
            _LOG.exception("a fork could not be reported", extra={"capture_id": plan.capture_id})

    def _told_early(self, other: Arm) -> bool:
        """Only live traffic's, and only where the pair's end cannot show that it is no evidence."""
        return (
            self._question.sample is None
            and self._encoded.as_tokens
            and all(
                _as_compared(self._plans[arm], self._controls[arm].environment, self._places[arm].endpoint)
                for arm in (Arm.BASELINE, other)
            )
        )


def _as_compared(plan: ArmPlan, head: Fact | None, endpoint: ShadowEndpoint) -> bool:
    """Whether a fork there may be told at once: who answers is who is to be compared.

    The answer's head tells before its first token does, so an engine that was put in place of another rolls
    nothing back by its first fork. Where it tells none, what is known of the endpoint counts.
    """
    wanted = plan.declared_digest or plan.compared_digest
    if wanted is None:
        return True
    if head is not None and (head.value is not None or endpoint.environment_in_answers):
        return bool(head.value == wanted)
    return bool(endpoint.environment.value == wanted)
