"""What accuracy and structured output share: a score an answer, larger is better, two margins.

``suite``: the frozen samples that ask the question, all observed, judged once a stage
(:mod:`policies.gates.repeated`). ``traffic``: live requests that were given such a score, one bet a
comparison, through the paired betting core (:mod:`comparator.sequential.mean`).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import (
    Counts,
    MeanTest,
    mean_interval,
    on_grid,
    promotion,
    rejects,
    rollback,
    threshold_nats,
)
from policies.gates.base import Alpha
from policies.gates.passes import Passes, scored
from policies.gates.repeated import difference_of
from policies.verdict import Answer, Verdict

STEPS = 840
"""Averages are rounded to this part of a point, so that a state stays small. Yes-or-no scores of up to eight
replicates stay exact; of other scores a mean may move by 1/1680, which the margins do not allow for."""
LOOK_EVERY = 256
"""Live answers between two looks at a confidence sequence that decides nothing; a look is dear."""


StateT = TypeVar("StateT", bound="OutcomeState")


class OutcomeState(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of a suite, or differences of live requests; a gate fills one of the two."""

    passes: Passes = Passes()
    traffic: Counts = Counts()
    """Candidate's minus baseline's score, a comparison."""
    unscored: int = 0
    """Live comparisons that asked the question and have no score of either arm, or no valid pair."""
    one_armed: int = 0
    """Those with a score of one arm alone; the other's counts as 0."""

    def merge(self: StateT, other: StateT) -> StateT:
        """What both have seen: shards of one stage, in any order.

        Raises:
            ValueError: different stages or suites.
        """
        return type(self)(
            passes=self.passes.merge(other.passes),
            traffic=self.traffic.merge(other.traffic),
            unscored=self.unscored + other.unscored,
            one_armed=self.one_armed + other.one_armed,
        )


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's question, in its limits and its words."""

    gate: str
    question: str
    """Of :class:`comparator.comparison.Score`."""
    what: str
    """What the mean score is called, such as ``accuracy``."""
    estimand: str
    suite: str
    rollback_margin: float
    promotion_margin: float
    maximum_missing: float
    maximum_n: int

    @property
    def tests(self) -> tuple[MeanTest, MeanTest]:
        """Promotion and rollback of the estimand ``traffic``."""
        return promotion(self.promotion_margin), rollback(self.rollback_margin)

    def fold(self, state: StateT, comparison: Comparison) -> StateT:
        """With a comparison that this question is about; the state itself for any other."""
        if self.estimand == "suite":
            if comparison.sample is None or comparison.sample.suite != self.suite:
                return state
            values, why = scored(comparison, self.question)
            passes = state.passes.add(comparison, values, why)
            return state if passes is state.passes else msgspec.structs.replace(state, passes=passes)
        if comparison.sample is not None or comparison.repeat or state.traffic.n >= self.maximum_n:
            return state
        if not any(score.question == self.question for score in comparison.scores):
            return state
        values, _ = scored(comparison, self.question)
        assert values is not None
        mine, base = values
        if mine is None and base is None:
            return msgspec.structs.replace(state, unscored=state.unscored + 1)
        # To leave out what one arm could not answer would leave that arm its best answers.
        lost = mine is None or base is None
        difference = (mine or 0.0) - (base or 0.0)
        return msgspec.structs.replace(
            state,
            traffic=state.traffic.add(on_grid(difference, STEPS)),
            one_armed=state.one_armed + lost,
        )

    def verdict(self, state: OutcomeState, alpha: Alpha) -> Verdict:
        """By the estimand."""
        if self.estimand == "suite":
            return self._suite(state.passes, alpha)
        told = _told(state.unscored, state.one_armed)
        return self._traffic(state.traffic, told, alpha)

    def _suite(self, passes: Passes, alpha: Alpha) -> Verdict:
        cannot = passes.cannot(self.suite, self.what, self.maximum_missing)
        if cannot is not None:
            return self._says(Answer.ERROR, cannot, alpha)
        if not passes.progress.complete:
            told = f"{passes.progress.told(self.suite)}; {self.what} is judged once, when all are"
            return self._says(Answer.INCONCLUSIVE, told, alpha)
        asked = [pairs for _, pairs in passes.asked()]
        found = difference_of(asked)
        most, least = found.at_most(alpha.rollback), found.at_least(alpha.promotion)
        said = (
            f"{self.what} is {found.candidate:.4f} on the candidate, {found.baseline:.4f} on the baseline "
            f"over {len(asked)} samples in {passes.progress.passes} passes"
        )
        if found.unmeasured:
            said += f" ({found.unmeasured:.2%} of them unmeasured, counted at their worst)"
        if found.baseline <= self.promotion_margin:
            # Nothing is lower than nothing: a pass would come whatever the candidate answers.
            answer = Answer.ERROR
            said = (
                f"could not measure: {said}; where the baseline has no more than {self.promotion_margin:g}, "
                "no candidate could be seen to have less"
            )
        elif most < -self.rollback_margin:
            answer = Answer.FAIL
            said += (
                f": lower by at least {-most:.4f} (this gate's alpha {alpha.rollback:g}), "
                f"{_over(self.rollback_margin)}"
            )
        elif least > -self.promotion_margin:
            answer = Answer.PASS
            lower = f"lower by at most {-least:.4f}" if least < 0.0 else "not lower"
            said += f": {lower} (the rollout's alpha {alpha.promotion:g}), within {self.promotion_margin:g}"
        else:
            answer = Answer.INCONCLUSIVE
            said += (
                f": the difference lies between {least:.4f} and {most:.4f}, which neither shows that it is "
                f"within {self.promotion_margin:g} nor that it is beyond {self.rollback_margin:g}; "
                "more samples or passes would tell"
            )
        return self._says(answer, said, alpha, value=found.mean, n=len(asked), interval=(least, most))

    def _traffic(self, state: Counts, lost: str, alpha: Alpha) -> Verdict:
        n = state.n
        if not n:
            told = f"no live answer has been scored for {self.what} yet"
            return self._says(Answer.INCONCLUSIVE, told + lost, alpha)
        promote, back = self.tests
        promotion_nats, rollback_nats = promote.log_e(state), back.log_e(state)
        said = (
            f"{self.what} of the candidate minus the baseline's is {state.mean:+.4f} over {n} live requests"
        )
        if rejects(rollback_nats, alpha.rollback):
            answer = Answer.FAIL
            said += (
                f": lower by {_over(self.rollback_margin)} "
                f"(log E {rollback_nats:.2f}, this gate's alpha {alpha.rollback:g})"
            )
        elif rejects(promotion_nats, alpha.promotion):
            answer = Answer.PASS
            said += (
                f": lower by less than {self.promotion_margin:g} "
                f"(log E {promotion_nats:.2f}, the rollout's alpha {alpha.promotion:g})"
            )
        elif n >= self.maximum_n:
            answer = Answer.INCONCLUSIVE
            said += f": undecided at maximum_n, for good; a margin over {self.promotion_margin:g} needs fewer"
        else:
            answer = Answer.INCONCLUSIVE
            said += (
                f": undecided (log E {promotion_nats:.2f} of {threshold_nats(alpha.promotion):.2f} to pass, "
                f"{rollback_nats:.2f} of {threshold_nats(alpha.rollback):.2f} to fail)"
            )
        interval = None
        if answer is not Answer.INCONCLUSIVE or n % LOOK_EVERY == 0 or n >= self.maximum_n:
            look = mean_interval(state, alpha.promotion)
            assert look.low is not None
            assert look.high is not None
            interval = (look.low, look.high)
        return msgspec.structs.replace(
            self._says(answer, said + lost, alpha, value=state.mean, n=n, interval=interval),
            rollback_nats=rollback_nats,
            promotion_nats=promotion_nats,
        )

    def _says(
        self,
        answer: Answer,
        reason: str,
        alpha: Alpha,
        *,
        value: float | None = None,
        n: int = 0,
        interval: tuple[float, float] | None = None,
    ) -> Verdict:
        return Verdict(
            gate=self.gate,
            answer=answer,
            value=value,
            limit=-self.rollback_margin if answer is Answer.FAIL else -self.promotion_margin,
            n=n,
            reason=reason,
            alpha=alpha.rollback,
            estimand=self.estimand,
            interval=interval,
        )


def check_shares(**shares: float) -> None:
    """Margins and shares of a gate's limits.

    Raises:
        ValueError: one is outside 0-1, 1 excluded.
    """
    for name, share in shares.items():
        if not 0.0 <= share < 1.0:
            raise ValueError(f"{name}: {share:g} is outside 0-1 (1 excluded); half a point is 0.005")


def _over(margin: float) -> str:
    return f"more than the margin of {margin:g}" if margin else "more than nothing"


def _told(unscored: int, one_armed: int) -> str:
    told = f"; {unscored} could not be scored" if unscored else ""
    return told + (f"; {one_armed} on one arm alone, the other counted as 0" if one_armed else "")
