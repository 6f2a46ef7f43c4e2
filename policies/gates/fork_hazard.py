"""Does the candidate fork from the baseline earlier than the control does? Needs no logprobs.

One bet a comparison: the first of its replicates, in order, whose candidate and control forked at different
tokens. Candidate and control must have run in one band of concurrency, since how full a batch was alone makes
forks. Replicates are not added up: the majority of several would exceed the tolerated ratio where each of
them does not.

Above temperature 0 the comparison needs one sampler on both arms. A fork between equal distributions shows
another (:mod:`comparator.taxonomy`, *sampling stream*): a triple whose first fork is such does not bet, and
where a tenth of the triples are such, the gate is disabled with that reason; the sampling gate decides then.
Only the first fork is asked: what the slower arm shows later happens more often where the candidate's hazard
is the larger, so to leave triples out for it would take away those that the control had won.

An arm that was cut short without a fork (a failure, a timeout, an abort) is known to be equal as far as it
went: the order is taken where that settles it, and the triple left out where it does not.

Rollback: E against "the candidate's fork hazard is at most ``ratio`` times the control's"
(:func:`comparator.sequential.fork_hazard`). Promotion, the other way round: E against "it is at least
``promotion_ratio`` times, and the candidate is first in at least a share ``negligible`` of all triples, ties
included", which is the mean of an e-process against either half (:func:`comparator.sequential.shortfall`,
same ground). Without the second half, arms that never fork could never pass: a ratio of nothing is not known.
"""

from __future__ import annotations

import enum
import functools
import math
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison, Triple
from comparator.pair import Pair
from comparator.records import Outcome
from comparator.sequential import BernoulliTest, Mixture, Tally, shortfall
from comparator.sequential import fork_hazard as earlier_than
from comparator.sequential.elementary import log, log_sum_exp
from comparator.taxonomy import drawn_by_another
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import Look, answer_of, check_at_least, share_span, undecided
from policies.verdict import Answer, Verdict

_MOST_RATIO = 100.0
_FEWEST_STREAMS = 3
_SHARES = Mixture.geometric(0.02, 0.6, 6)
"""Alternatives of promotion: hazards from just under the ratio to well under it."""


class ForkHazardState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fork_hazard"):
    """Who forked first, and what could not be asked."""

    first: Tally = Tally()
    """Ones: the candidate. Zeros: the control. Ties: both at one token, or neither."""
    unsettled: int = 0
    """Comparisons with an arm that broke off before the order was known."""
    unmatched: int = 0
    """Comparisons whose candidate and control ran in different bands, or in unknown ones."""
    without_control: int = 0
    """Comparisons without a valid pair of either."""
    streams: int = 0
    """Comparisons whose arms drew from equal distributions by another sampler or seed."""
    look: Look = Look()
    """Of the probability that the candidate forks first, ties apart."""
    last_id: str | None = None
    """The newest capture whose candidate forked first."""

    def merge(self, other: ForkHazardState) -> ForkHazardState:
        """Counts of both, exactly; interval and capture are this one's where it has any."""
        return ForkHazardState(
            first=self.first.merge(other.first),
            unsettled=self.unsettled + other.unsettled,
            unmatched=self.unmatched + other.unmatched,
            without_control=self.without_control + other.without_control,
            streams=self.streams + other.streams,
            look=self.look if self.look.n >= other.look.n else other.look,
            last_id=self.last_id or other.last_id,
        )


class ForkHazard(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="fork_hazard"
):
    """Estimand: ``traffic``. Value: how often the candidate is first, of the triples in which one is."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "fork_hazard"
    estimand: Literal["traffic"] = "traffic"
    ratio: float = 1.5
    """Tolerated: how many times as likely the candidate is to fork at a token as the control is."""
    promotion_ratio: float | None = None
    """What promotion must rule out; the same where it is not given."""
    negligible: float = 0.02
    """Share of triples in which the candidate may be first whatever the control does."""
    maximum_n: int = 10_000
    """Triples, ties included; then the gate stays as it is."""

    def __post_init__(self) -> None:
        if not 1.0 <= self.ratio <= _MOST_RATIO:
            raise ValueError(
                f"ratio: {self.ratio} is outside 1-{_MOST_RATIO:g}; 1 is the control's own hazard"
            )
        if self.promotion_ratio is None:
            if self.ratio < 1.01:
                raise ValueError(
                    f"promotion_ratio: missing, and ratio {self.ratio} lets nothing pass, for no evidence "
                    "shows 'not earlier at all'; give one above 1, such as 1.5"
                )
        elif not max(self.ratio, 1.01) <= self.promotion_ratio <= _MOST_RATIO:
            raise ValueError(
                f"promotion_ratio: {self.promotion_ratio} is outside {max(self.ratio, 1.01):g}-"
                f"{_MOST_RATIO:g} (at least the ratio)"
            )
        if not 0.0 < self.negligible < 1.0:
            raise ValueError(
                f"negligible: {self.negligible} is outside 0-1, both excluded (a share of triples)"
            )
        check_at_least("maximum_n", self.maximum_n, 10, "fewer triples decide nothing")

    def initial(self) -> ForkHazardState:
        """Before any evidence."""
        return ForkHazardState()

    def fold(self, state: ForkHazardState, evidence: Evidence) -> ForkHazardState:
        """Bet once on a comparison of live traffic whose cluster is new; all else leaves the state alone."""
        if not isinstance(evidence, Comparison) or evidence.repeat or evidence.sample is not None:
            return state
        if self._triples(state) >= self.maximum_n:
            return state
        valid = [triple for triple in evidence.triples if triple.valid]
        if not valid:
            return msgspec.structs.replace(state, without_control=state.without_control + 1)
        coupled = [triple for triple in valid if not _other_stream(triple)]
        if not coupled:
            return msgspec.structs.replace(state, streams=state.streams + 1)
        matched = [triple for triple in coupled if triple.band is not None]
        if not matched:
            return msgspec.structs.replace(state, unmatched=state.unmatched + 1)
        settled = [order for order in map(order_of, matched) if order is not Order.UNKNOWN]
        if not settled:
            return msgspec.structs.replace(state, unsettled=state.unsettled + 1)
        found = next((order for order in settled if order is not Order.TIE), Order.TIE)
        x = None if found is Order.TIE else found is Order.CANDIDATE
        first = state.first.add(x)
        look = state.look
        if x is not None and look.due(first.n):
            look = Look(n=first.n, span=share_span(first.ones, first.zeros))
        last_id = evidence.capture_id if x else state.last_id
        return msgspec.structs.replace(state, first=first, look=look, last_id=last_id)

    @property
    def tests(self) -> tuple[BernoulliTest, BernoulliTest]:
        """Rollback and promotion by ratio, over the triples in which one of the arms is first."""
        return _tests(self.ratio, self.promotion_ratio)

    def _triples(self, state: ForkHazardState) -> int:
        return state.first.n + state.first.ties + state.streams

    def verdict(self, state: ForkHazardState, alpha: Alpha) -> Verdict:
        """Fail when the candidate is first too often, pass when that is ruled out."""
        test, other_way = self.tests
        first = state.first
        of_all = Tally(ones=first.ones, zeros=first.zeros + first.ties)
        rollback_nats = test.log_e(first)
        halves = (other_way.log_e(first), _seldom(self.negligible).log_e(of_all))
        promotion_nats = log_sum_exp(halves) - log(2.0)
        answer = answer_of(rollback_nats, promotion_nats, alpha)
        n = first.n
        said = (
            f"the candidate forked before the control in {first.ones} of {n} triples, {first.ties} ties; "
            f"{test.p0 * n:.1f} would be {self.ratio:g} times the control's hazard"
        )
        triples = self._triples(state)
        if state.streams >= _FEWEST_STREAMS and 10 * state.streams >= triples:
            answer = Answer.INCONCLUSIVE
            said = (
                f"disabled: in {state.streams} of {triples} comparisons the arms drew from equal "
                "distributions by another sampler or seed, so forks tell nothing; the sampling gate decides"
            )
        elif answer is Answer.INCONCLUSIVE:
            said += f"; {undecided(triples, self.maximum_n, 'triples')}"
        if state.unmatched or state.unsettled or (state.without_control and not triples):
            said += (
                f"; left out: {state.unmatched} comparisons in unmatched bands of concurrency, "
                f"{state.unsettled} broken off before a fork, {state.without_control} without a control"
            )
        return Verdict(
            gate=self.name,
            answer=answer,
            value=first.ones / n if n else None,
            limit=test.p0,
            n=n,
            reason=said,
            alpha=alpha.rollback,
            deciding_id=state.last_id if answer is Answer.FAIL else None,
            estimand=self.estimand,
            rollback_nats=rollback_nats,
            promotion_nats=promotion_nats,
            interval=state.look.span,
        )


class Order(enum.Enum):
    """Which of a triple's arms forked from the baseline first."""

    CANDIDATE = enum.auto()
    CONTROL = enum.auto()
    TIE = enum.auto()
    UNKNOWN = enum.auto()


def order_of(triple: Triple) -> Order:
    """Who forked first, as far as both arms went."""
    mine, mine_known = _forked_at(triple.candidate)
    other, other_known = _forked_at(triple.control)
    if mine == other and mine_known and other_known:
        return Order.TIE
    if mine < other and mine_known:
        return Order.CANDIDATE
    if other < mine and other_known:
        return Order.CONTROL
    return Order.UNKNOWN


def _other_stream(triple: Triple) -> bool:
    """Is the first fork one between equal distributions, above temperature 0?"""
    forked = [
        (pair.fork, pair.left.sampling)
        for pair in (triple.candidate, triple.control)
        if pair.fork is not None
    ]
    first = min((fork.fork_index for fork, _ in forked), default=None)
    return any(
        fork.fork_index == first and sampling.temperature > 0 and drawn_by_another(fork, sampling)
        for fork, sampling in forked
    )


def _forked_at(pair: Pair) -> tuple[float, bool]:
    """(index, True) of a fork, infinite for none; (tokens, False) of an arm equal until it broke off."""
    if pair.fork is not None:
        return float(pair.fork.fork_index), True
    if pair.right.outcome is Outcome.COMPLETED:
        return math.inf, True
    return float(min(len(pair.left.steps), len(pair.right.steps))), False


@functools.lru_cache(maxsize=64)
def _seldom(negligible: float) -> BernoulliTest:
    return shortfall(negligible)


@functools.lru_cache(maxsize=64)
def _tests(ratio: float, promotion_ratio: float | None) -> tuple[BernoulliTest, BernoulliTest]:
    beyond = ratio if promotion_ratio is None else promotion_ratio
    return earlier_than(ratio), shortfall(beyond / (1.0 + beyond), _SHARES)
