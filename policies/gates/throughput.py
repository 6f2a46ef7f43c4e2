"""Output tokens a second of the candidate against the baseline's, by blocks of time.

From the arms of comparisons that ran without logprobs, as live traffic does: in each block
(:mod:`policies.gates.blocks`) an arm's rate is all its output tokens over all its seconds, from the last
byte of a request to the end of its answer. Engines' own token counters are not read: what they count is the
load that was offered, and a candidate is offered less.

One bet a block: x = 1 if the candidate's rate is under (1 - ``maximum_loss``) times the baseline's, through
the sign test of :mod:`comparator.sequential.bernoulli`. Rollback: E against "that happens in at most half of
the blocks"; promotion: against "in at least half". So what is held is the median block's ratio, which one
stalled block cannot move. Assumption: given the past, a block's chance of being under is on the null's side
of a half. In shadow the candidate bears the copies alone: a pass is one at that load, and says nothing of all
the traffic.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.records import Exchange
from comparator.sequential import BernoulliTest, Tally, exceedance, shortfall
from comparator.sequential.sign import SIGN_SHARES
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import answer_of, check_at_least, undecided
from policies.gates.blocks import Blocks, Sums, check_block_s
from policies.gates.timing import timed_pairs
from policies.verdict import Answer, Verdict

_MICROSECONDS = 1_000_000
_MOST_S = 86_400.0
_SLOWER, _NOT_SLOWER = exceedance(0.5, SIGN_SHARES), shortfall(0.5, SIGN_SHARES)


class ThroughputState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="throughput"):
    """Blocks under the limit and not, and the totals of all that bet."""

    blocks: Blocks = Blocks()
    """Sums are (output tokens, microseconds)."""
    under: Tally = Tally()
    """Ones: blocks whose candidate was under the limit."""
    totals: Sums = Sums()
    """Of the blocks that bet."""
    one_armed: int = 0
    """Closed blocks in which an arm made no token: they do not bet."""
    unmeasured: int = 0
    """Pairs of which an arm made no token, or has no length."""


class Throughput(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="throughput"
):
    """Estimand: ``traffic``. Value: the candidate's rate over the baseline's, of all blocks that bet."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = True

    name: str = "throughput"
    estimand: Literal["traffic"] = "traffic"
    maximum_loss: float = 0.1
    """Tolerated share of the baseline's rate: .1 lets the candidate make nine tokens where it makes ten."""
    block_s: float = 60.0
    """Longer than a load peak lasts."""
    maximum_n: int = 5_000
    """Blocks; then the gate stays as it is."""

    def __post_init__(self) -> None:
        if not 0.0 < self.maximum_loss < 1.0:
            raise ValueError(
                f"maximum_loss: {self.maximum_loss} is outside 0-1, both excluded (a share of the baseline's "
                "rate; at 0 equal arms are under every other time)"
            )
        check_at_least("maximum_n", self.maximum_n, 10, "fewer blocks decide nothing")
        check_block_s(self.block_s)

    def initial(self) -> ThroughputState:
        """Before any evidence."""
        return ThroughputState()

    def fold(self, state: ThroughputState, evidence: Evidence) -> ThroughputState:
        """Add both arms of a timing comparison to their block, or neither; all else leaves it alone."""
        if not isinstance(evidence, Comparison) or state.under.n >= self.maximum_n:
            return state
        for pair in timed_pairs(evidence):
            mine, other = _amounts(pair.right), _amounts(pair.left)
            if mine is None or other is None or not math.isfinite(evidence.unix_s):
                state = msgspec.structs.replace(state, unmeasured=state.unmeasured + 1)
                continue
            state = self._add(state, evidence.unix_s, False, other)
            state = self._add(state, evidence.unix_s, True, mine)
        return state

    def _add(
        self, state: ThroughputState, unix_s: float, candidate: bool, amounts: tuple[int, int]
    ) -> ThroughputState:
        blocks, closed = state.blocks.add(unix_s, self.block_s, candidate=candidate, amounts=amounts)
        under, totals, one_armed = state.under, state.totals, state.one_armed
        for sums in closed:
            ratio = _ratio(sums)
            if ratio is None:
                one_armed += 1
                continue
            under = under.add(ratio < 1.0 - self.maximum_loss)
            totals = Sums(
                baseline=_plus(totals.baseline, sums.baseline),
                candidate=_plus(totals.candidate, sums.candidate),
            )
        return msgspec.structs.replace(state, blocks=blocks, under=under, totals=totals, one_armed=one_armed)

    @property
    def tests(self) -> tuple[BernoulliTest, BernoulliTest]:
        """Rollback and promotion, over blocks."""
        return _SLOWER, _NOT_SLOWER

    def verdict(self, state: ThroughputState, alpha: Alpha) -> Verdict:
        """Fail when more than half of the blocks are under the limit, pass when fewer are."""
        under = state.under
        rollback_nats, promotion_nats = _SLOWER.log_e(under), _NOT_SLOWER.log_e(under)
        answer = answer_of(rollback_nats, promotion_nats, alpha)
        reason = f"in {under.ones} of {under.n} blocks of {self.block_s:g} s the candidate made under "
        reason += f"{1.0 - self.maximum_loss:g} of the baseline's output tokens a second; half of them may"
        if under.n:
            mine, other = _rate(state.totals.candidate), _rate(state.totals.baseline)
            reason += f"; in all {mine:.4g} against {other:.4g} a second and request"
        if answer is Answer.INCONCLUSIVE:
            reason += f"; {undecided(under.n, self.maximum_n, 'blocks')}"
        if state.one_armed:
            reason += f"; {state.one_armed} blocks without one of the arms"
        if state.blocks.late:
            reason += f"; {state.blocks.late} answers came late"
        if state.unmeasured:
            reason += f"; {state.unmeasured} pairs without tokens or length"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=_ratio(state.totals),
            limit=1.0 - self.maximum_loss,
            n=under.n,
            reason=reason,
            alpha=alpha.rollback,
            estimand=self.estimand,
            rollback_nats=rollback_nats,
            promotion_nats=promotion_nats,
        )


def _amounts(exchange: Exchange) -> tuple[int, int] | None:
    total_s, tokens = exchange.timing.total_s, exchange.timing.tokens
    if tokens < 1 or not 0.0 < total_s <= _MOST_S:  # also NaN
        return None
    return tokens, max(1, round(total_s * _MICROSECONDS))


def _rate(arm: tuple[int, int]) -> float:
    return arm[0] * _MICROSECONDS / arm[1]


def _ratio(sums: Sums) -> float | None:
    if not sums.baseline[0] or not sums.candidate[0]:
        return None
    return _rate(sums.candidate) / _rate(sums.baseline)


def _plus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]
