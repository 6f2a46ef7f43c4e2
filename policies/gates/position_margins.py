"""Sampling tasks: at which output position has the distribution of tokens moved?

One e-process a position (:mod:`comparator.sequential.positions`), corrected for how many there are. It names
the earliest position that moved, which :mod:`policies.gates.sampling` cannot: a template, a grammar or a
banned first token moves one position and everything after it. It finds less than that gate's test, since it
looks at one position at a time.

Passes by the same bound as that gate: given the same beginning, the next token's distribution has not moved
by ``maximum_tv``, *on average* over positions. One position that moved alone hides in that average, so a
finding comes first: it fails where the tokens seen there differ by ``maximum_tv`` or more as well, as half
the summed differences of their shares, which noise makes larger, never smaller, on average. A position that
moved by less is told. The same test runs on baseline and control; a finding there is an error and holds.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import PartingTest, rejects
from comparator.sequential.positions import PositionsState, PositionsTest
from policies.gates.base import Alpha, Evidence
from policies.gates.drawn import Agreement, answers_of, reads, usable
from policies.verdict import Answer, Verdict

_SHOWN = 4
"""Positions named in a reason."""


class PositionMarginsState(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="position_margins"
):
    """Both tests, and how soon same-seed answers parted."""

    candidate: PositionsState
    control: PositionsState
    agreement: Agreement = Agreement()


class PositionMargins(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="position_margins",
):
    """Estimand: ``traffic``, the distribution of the token at each of the first ``positions`` of an
    answer."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "position_margins"
    estimand: Literal["traffic"] = "traffic"
    maximum_tv: float = 0.05
    """Total variation distance of the next token, on average, that promotion must exclude."""
    positions: int = 16
    """From the first token of an answer."""
    maximum_n: int = 5_000
    """Comparisons; from there on the answer stands."""

    def __post_init__(self) -> None:
        if not 0.001 <= self.maximum_tv <= 0.9:
            raise ValueError(f"maximum_tv: {self.maximum_tv} is outside 0.001-0.9 (0 cannot be proved)")
        if not 1 <= self.positions <= 64:
            raise ValueError(f"positions: {self.positions} is outside 1-64")
        if not 1 <= self.maximum_n <= 1_000_000:
            raise ValueError(f"maximum_n: {self.maximum_n} is outside 1-1000000 comparisons")

    @property
    def _test(self) -> PositionsTest:
        return PositionsTest(positions=self.positions)

    @property
    def _parting(self) -> PartingTest:
        return _parting(self.maximum_tv)

    def initial(self) -> PositionMarginsState:
        """Before any evidence."""
        empty = self._test.initial()
        return PositionMarginsState(candidate=empty, control=empty)

    def fold(self, state: PositionMarginsState, evidence: Evidence) -> PositionMarginsState:
        """Bet on a comparison with drawn answers; all else, and all beyond the maximum, leaves the state
        alone."""
        if not isinstance(evidence, Comparison) or not reads(evidence) or state.candidate.n >= self.maximum_n:
            return state
        pairs, controls = usable(evidence.candidates), usable(evidence.controls)
        if pairs:
            answers, other = answers_of(pairs, self.positions)
            state = msgspec.structs.replace(
                state,
                candidate=self._test.step(state.candidate, answers, other),
                agreement=state.agreement.add(self._parting, pairs, answers, other),
            )
        if controls:
            answers, other = answers_of(controls, self.positions)
            state = msgspec.structs.replace(
                state,
                control=self._test.step(state.control, answers, other),
                agreement=state.agreement.add_control(self._parting, answers, other),
            )
        return state

    def verdict(self, state: PositionMarginsState, alpha: Alpha) -> Verdict:
        """``rollback_nats`` is that of the position with the most evidence, less log of their number."""
        agreement, n = state.agreement, state.candidate.n
        bound = self._parting.bound(agreement.candidate, alpha.promotion)
        promotion_nats = self._parting.log_e(agreement.candidate)
        moved = self._test.moved(state.candidate, alpha.rollback)
        far = tuple(
            position
            for position in moved
            if self._test.share_moved(state.candidate, position) >= self.maximum_tv
        )
        unfair = self._test.moved(state.control, alpha.rollback)
        hold = False
        if unfair:
            answer, hold = Answer.ERROR, True
            said = f"baseline and control, one environment, differ at {self._named(state.control, unfair)}"
        elif far:
            answer, said = Answer.FAIL, f"tokens have moved at {self._named(state.candidate, far)}"
        elif rejects(promotion_nats, alpha.promotion):
            answer = Answer.PASS
            said = f"given its beginning, a token has moved by less than {self.maximum_tv:g} on average"
        else:
            answer, said = Answer.INCONCLUSIVE, f"no move found at any of {self.positions} positions"
            if moved:
                said = f"tokens have moved by less than {self.maximum_tv:g} at "
                said += self._named(state.candidate, moved)
            if n >= self.maximum_n:
                said += f"; undecided at its maximum of {self.maximum_n} comparisons, for good"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=agreement.rate,
            limit=self.maximum_tv,
            n=n,
            reason=f"{said}; {agreement.said(bound)}",
            alpha=alpha.rollback,
            estimand=self.estimand,
            rollback_nats=self._test.corrected_nats(state.candidate),
            promotion_nats=promotion_nats,
            interval=(0.0, bound),
            hold=hold,
        )

    def _named(self, state: PositionsState, moved: tuple[int, ...]) -> str:
        shown = ", ".join(
            f"{position} (log E {state.highest_nats[position]:.1f}, "
            f"{self._test.share_moved(state, position):.0%} of the tokens seen there)"
            for position in moved[:_SHOWN]
        )
        more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
        return f"output position {shown}{more}"


@functools.lru_cache(maxsize=64)
def _parting(maximum_tv: float) -> PartingTest:
    return PartingTest(limit=maximum_tv)
