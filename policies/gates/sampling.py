"""Sampling tasks: do candidate and baseline draw their answers from one distribution?

Several seeds an input, distributions compared, never one output. Two tests:

- *rollback* by :class:`comparator.sequential.mmd.MmdTest`: a wealth that grows only if the arms of a
  comparison can be told apart by what was learned from the comparisons before it.
  Its null is that the arms are alike, which is narrower than "within ``maximum_tv``": so it rolls back only
  while same-seed answers do not speak for the latter (log E of the promotion above 0). Of 40 simulated
  candidates within the limit (temperature .97), 2 went home before their pass came when it did not wait.
- *promotion* by how soon same-seed answers part, which bounds the total variation of the next token from
  above (:mod:`comparator.sequential.parting`): passes when "it is ``maximum_tv`` or more" is rejected. It
  wins over the first: a candidate that provably differs, by less than is allowed, is within the margin.

The same test runs on baseline and control. If it finds a difference there, then equal environments can be
told apart by how they are asked, the assumption does not hold, and no verdict on the candidate means
anything: error, and hold. It sees that only as soon as there are as many controls: with a control beside one
comparison in ten, a load that moves the candidate's answers alone is found in the candidate first, and
blamed on it.

Where samplers differ (another engine, or forks of class *sampling stream*), same-seed answers part at once,
the bound stays near 1 and the distribution test alone speaks. It can only find a difference, never exclude
one: no bound on total variation follows from a few thousand answers alone where more are possible. So the
gate then stays inconclusive at its maximum, for a person to decide, unless ``pass_without_bound_at`` says
that so many comparisons without a finding are enough.

State: sketches and wealths of both tests, about 60 kB as JSON. It depends on order and does not merge.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import PartingTest, rejects, threshold_nats
from comparator.sequential.mmd import MmdState, MmdTest
from policies.gates.base import Alpha, Evidence
from policies.gates.drawn import Agreement, answers_of, reads, usable
from policies.verdict import Answer, Verdict

_TEST = MmdTest()


class SamplingState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="sampling"):
    """Both tests, and how soon same-seed answers parted."""

    candidate: MmdState = MmdState()
    control: MmdState = MmdState()
    agreement: Agreement = Agreement()
    highest_id: str | None = None
    """The capture at which the candidate's wealth was at its highest so far."""


class Sampling(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sampling"
):
    """Estimand: ``traffic``, the distribution of the first ``tokens`` tokens of live answers."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "sampling"
    estimand: Literal["traffic"] = "traffic"
    maximum_tv: float = 0.05
    """Total variation distance of the next token, on average, that promotion must exclude, 0 to 1. Equal
    bfloat16 servers may be .03 apart by their batches alone: see what the control's answers do."""
    tokens: int = 32
    """Of each answer, from its first."""
    maximum_n: int = 5_000
    """Comparisons; from there on the answer stands."""
    pass_without_bound_at: int | None = None
    """Comparisons without a finding that count as a pass where samplers differ, so that no bound can be had.
    None: never. How many a known change takes to be found, ``python -m bench.sampling`` prints."""

    def __post_init__(self) -> None:
        if not 0.001 <= self.maximum_tv <= 0.9:
            raise ValueError(f"maximum_tv: {self.maximum_tv} is outside 0.001-0.9 (0 cannot be proved)")
        if not 1 <= self.tokens <= 512:
            raise ValueError(f"tokens: {self.tokens} is outside 1-512")
        if not 1 <= self.maximum_n <= 1_000_000:
            raise ValueError(f"maximum_n: {self.maximum_n} is outside 1-1000000 comparisons")
        if self.pass_without_bound_at is not None and not 1 <= self.pass_without_bound_at <= self.maximum_n:
            raise ValueError(
                f"pass_without_bound_at: {self.pass_without_bound_at} is outside 1-{self.maximum_n}"
            )

    @property
    def _parting(self) -> PartingTest:
        return _parting(self.maximum_tv)

    def initial(self) -> SamplingState:
        """Before any evidence."""
        return SamplingState()

    def fold(self, state: SamplingState, evidence: Evidence) -> SamplingState:
        """Bet on a comparison with drawn answers; all else, and all beyond the maximum, leaves the state
        alone."""
        if not isinstance(evidence, Comparison) or not reads(evidence) or state.candidate.n >= self.maximum_n:
            return state
        pairs, controls = usable(evidence.candidates), usable(evidence.controls)
        if pairs:
            answers, other = answers_of(pairs, self.tokens)
            candidate = _TEST.step(state.candidate, answers, other)
            higher = candidate.highest_nats > state.candidate.highest_nats
            state = msgspec.structs.replace(
                state,
                candidate=candidate,
                agreement=state.agreement.add(self._parting, pairs, answers, other),
                highest_id=evidence.capture_id if higher else state.highest_id,
            )
        if controls:
            answers, other = answers_of(controls, self.tokens)
            state = msgspec.structs.replace(
                state,
                control=_TEST.step(state.control, answers, other),
                agreement=state.agreement.add_control(self._parting, answers, other),
            )
        return state

    def verdict(self, state: SamplingState, alpha: Alpha) -> Verdict:
        """Always with the upper bound on total variation: in the interval and in the reason."""
        agreement, n = state.agreement, state.candidate.n
        bound = self._parting.bound(agreement.candidate, alpha.promotion)
        promotion_nats = self._parting.log_e(agreement.candidate)
        answer, said, hold = self._answer(state, alpha, promotion_nats)
        return Verdict(
            gate=self.name,
            answer=answer,
            value=agreement.rate,
            limit=self.maximum_tv,
            n=n,
            reason=f"first {self.tokens} tokens of {n} prompts: {said}; {agreement.said(bound)}",
            alpha=alpha.rollback,
            deciding_id=state.highest_id if answer is Answer.FAIL else None,
            estimand=self.estimand,
            rollback_nats=state.candidate.highest_nats,
            promotion_nats=promotion_nats,
            interval=(0.0, bound),
            hold=hold,
        )

    def _answer(self, state: SamplingState, alpha: Alpha, promotion_nats: float) -> tuple[Answer, str, bool]:
        n, bar = state.candidate.n, threshold_nats(alpha.rollback)
        found = f"log E {state.candidate.highest_nats:.1f}, {bar:.1f} needed"
        if rejects(state.control.highest_nats, alpha.rollback):
            said = (
                f"baseline and control, one environment, are told apart (log E "
                f"{state.control.highest_nats:.1f} over {state.control.n} comparisons, {bar:.1f} needed), so "
                "nothing follows for the candidate; look whether one of them is asked under another load, in "
                "another batch size or by another configuration"
            )
            return Answer.ERROR, said, True
        if rejects(promotion_nats, alpha.promotion):
            return Answer.PASS, f"what difference there is, is under {self.maximum_tv:g}", False
        differ = rejects(state.candidate.highest_nats, alpha.rollback)
        if differ and promotion_nats <= 0.0:
            return Answer.FAIL, f"candidate and baseline draw from different distributions ({found})", False
        uncoupled = state.agreement.uncoupled
        enough = self.pass_without_bound_at
        if uncoupled is not None and enough is not None and n >= enough:
            said = (
                f"no difference found in {n} comparisons ({found}), which the policy takes for a pass where "
                f"seeds do not tie the arms together: {uncoupled}"
            )
            return Answer.PASS, said, False
        said = f"no difference found ({found})"
        if differ:
            said = (
                f"candidate and baseline draw from different distributions ({found}), but same-seed answers "
                f"speak for less than {self.maximum_tv:g} (log E {promotion_nats:.1f})"
            )
        if uncoupled is not None:
            said += f", and none can be excluded by seeds: {uncoupled}"
        if n >= self.maximum_n:
            said += f"; undecided at its maximum of {self.maximum_n} comparisons, for good"
        return Answer.INCONCLUSIVE, said, False


@functools.lru_cache(maxsize=64)
def _parting(maximum_tv: float) -> PartingTest:
    return PartingTest(limit=maximum_tv)
