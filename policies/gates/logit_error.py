"""How far the candidate's logprobs are from the baseline's before the first fork: three questions.

The *error* of a step is the largest |change of logprob| over tokens in both arms' top five; that of a pair is
its largest up to and including the fork step, whose prefix both arms share.

1. *Cap* (``maximum_nats``): does any valid pair's error exceed it? It acts on what was seen, live or of a
   suite, in mid-stream where a fork is told, and spends no alpha. It passes after ``minimum_pairs`` within.
2. *Exceedance* (``exceedance``): is the candidate's error over tau in a share of live requests that is larger
   by this than the share in which the control's is? Tau is the largest error of the first ``floor_requests``
   pairs of baseline and control, by engine path and band, and frozen then; they do not bet. D = share of a
   request's controls over tau - share of its candidates, through the core. The control beside it is what
   makes equal arms fair: held to a share of requests alone, a tau from a quiet hour is exceeded in a busy one
   by everybody (simulated with errors that drift over hours, 11 to 27 % of equal candidates at alpha .025).
3. *Sign* (``margin``): by request D = minus the mean sign of (candidate's error - control's error) over the
   steps up to the earlier fork, through the core. One number a request, not a token: tokens of one request
   agree. Needs a control in the candidate's band of concurrency.

Any question fails the gate, and all that are asked must pass it; null leaves one out. Of the gate's share of
alpha, questions 2 and 3 have one half each, or the one that is asked has it all. Leave 2 and 3 out where the
candidate is meant to compute otherwise (another precision): its error is larger than the control's then, as
it should be.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison, Triple
from comparator.floor import MOST_FLOORS, key_of
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import (
    Differences,
    Margins,
    answer_of,
    check_at_least,
    check_margins,
    together,
    undecided,
)
from policies.gates.step_errors import MOST_NATS, mean_sign, usable_nats
from policies.verdict import Answer, Verdict

_SIGN_STEPS = 32
_OVER_STEPS = 1024
_FEWEST_UNMEASURED = 10


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """The largest error between baseline and control, of so many pairs."""

    n: int
    nats: float


class LogitErrorState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="logit_error"):
    """The largest error, the ceilings, and both tests."""

    worst_nats: float | None = None
    worst_id: str | None = None
    measured: int = 0
    """Valid pairs of the candidate with an error."""
    unmeasured: int = 0
    """Those without one: no logprobs on both arms, or none that is a number."""
    ceilings: dict[str, Ceiling] = {}
    over: Differences = Differences()
    """D of question 2."""
    candidate_over: int = 0
    """Requests whose candidate was over its ceiling, in any replicate."""
    control_over: int = 0
    last_over_id: str | None = None
    signs: Differences = Differences()
    unmatched: int = 0
    """Triples whose candidate and control ran in different bands, or in unknown ones."""


class LogitError(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="logit_error"
):
    """Estimand: ``traffic``; the cap reads the samples of suites as well. Value: of the question that
    decided, else the mean sign (1: the candidate's error is the larger at every step)."""

    performance: ClassVar[bool] = False

    name: str = "logit_error"
    estimand: Literal["traffic"] = "traffic"
    maximum_nats: float | None = None
    minimum_pairs: int = 100
    """With an error, before the cap may say pass."""
    exceedance: float | None = 0.1
    """Tolerated share of live requests over tau, beyond the control's."""
    floor_requests: int = 100
    """Pairs of baseline and control that freeze tau, by engine path and band."""
    margin: float | None = 0.0
    """Mean sign that is tolerated: 0 is "no larger than the control's"."""
    promotion_margin: float | None = 0.2
    maximum_n: int = 10_000
    """Triples; then the tests stay as they are. The cap goes on."""

    def __post_init__(self) -> None:
        if self.maximum_nats is None and not self.spends_alpha:
            raise ValueError(
                "maximum_nats or exceedance: give at least one (or margin), or the gate limits nothing"
            )
        if self.maximum_nats is not None and not 0.0 < self.maximum_nats < MOST_NATS:
            raise ValueError(
                f"maximum_nats: {self.maximum_nats} is outside 0-{MOST_NATS:g} nats, both excluded"
            )
        check_at_least("minimum_pairs", self.minimum_pairs, 1, "no data is no pass")
        if self.exceedance is not None and not 0.001 <= self.exceedance <= 0.9:
            raise ValueError(f"exceedance: {self.exceedance} is outside 0.001-0.9 (a share of requests)")
        check_at_least("floor_requests", self.floor_requests, 10, "fewer show too little of a floor")
        if self.margin is not None:
            check_margins(self.margin, self.promotion_margin, _SIGN_STEPS, "a mean sign")
        check_at_least("maximum_n", self.maximum_n, 10, "fewer requests decide nothing")

    @property
    def spends_alpha(self) -> bool:
        """Only its tests do."""
        return self.exceedance is not None or self.margin is not None

    @property
    def margins(self) -> Margins:
        """Both tests on D, and the grid that it is counted on."""
        assert self.margin is not None
        return Margins(margin=self.margin, promotion_margin=self.promotion_margin, steps=_SIGN_STEPS)

    @property
    def over_margins(self) -> Margins:
        """Both tests of question 2."""
        assert self.exceedance is not None
        return Margins(margin=self.exceedance, steps=_OVER_STEPS)

    def initial(self) -> LogitErrorState:
        """Before any evidence."""
        return LogitErrorState()

    def fold(self, state: LogitErrorState, evidence: Evidence) -> LogitErrorState:
        """Cap every valid pair of the candidate; bet once on a live comparison whose cluster is new."""
        if isinstance(evidence, ForkSeen):
            if evidence.right_arm is not Arm.CANDIDATE or self.maximum_nats is None:
                return state
            seen = usable_nats(evidence.fork.max_error_nats)
            # It is counted when its pair ends; only one that decides is of interest before.
            if seen is None or seen <= self.maximum_nats:
                return state
            return _worst(state, seen, evidence.capture_id)
        if not isinstance(evidence, Comparison) or evidence.timing:  # those ran without logprobs
            return state
        errors = [usable_nats(pair.max_error_nats) for pair in evidence.candidates if pair.valid]
        if not errors and not evidence.controls:
            return state
        for error in errors:
            if error is not None:
                state = _worst(state, error, evidence.capture_id)
        measured = sum(error is not None for error in errors)
        state = msgspec.structs.replace(
            state,
            measured=state.measured + measured,
            unmeasured=state.unmeasured + len(errors) - measured,
        )
        if evidence.repeat or evidence.sample is not None:
            return state
        if self.exceedance is not None:
            state = self._over(state, evidence)
        return state if self.margin is None else self._signs(state, evidence)

    def _over(self, state: LogitErrorState, comparison: Comparison) -> LogitErrorState:
        """Question 2: both arms against the ceiling of the past; then the control raises it."""
        if state.over.n < self.maximum_n:
            state = self._bet_over(state, comparison)
        pair, error = _first_measured(comparison.controls)
        key = None if pair is None else key_of(pair)
        if key is None or error is None:
            return state
        ceiling = state.ceilings.get(key, Ceiling(n=0, nats=0.0))
        if ceiling.n >= self.floor_requests or (ceiling.n == 0 and len(state.ceilings) >= MOST_FLOORS):
            return state
        raised = Ceiling(n=ceiling.n + 1, nats=max(ceiling.nats, error))
        return msgspec.structs.replace(state, ceilings={**state.ceilings, key: raised})

    def _bet_over(self, state: LogitErrorState, comparison: Comparison) -> LogitErrorState:
        found = []
        for triple in comparison.triples:
            errors = _errors(triple)
            ceiling = state.ceilings.get(key_of(triple.control) or "")
            if errors is not None and ceiling is not None and ceiling.n >= self.floor_requests:
                found.append(tuple(error > ceiling.nats for error in errors))
        if not found:
            return state
        mine, other = sum(over for over, _ in found), sum(over for _, over in found)
        return msgspec.structs.replace(
            state,
            over=self.over_margins.add(state.over, (other - mine) / len(found)),
            candidate_over=state.candidate_over + (mine > 0),
            control_over=state.control_over + (other > 0),
            last_over_id=comparison.capture_id if mine else state.last_over_id,
        )

    def _signs(self, state: LogitErrorState, comparison: Comparison) -> LogitErrorState:
        """Question 3."""
        if state.signs.n >= self.maximum_n:
            return state
        signs, unmatched = [], 0
        for triple in comparison.triples:
            if triple.valid and triple.band is None:
                unmatched += 1
            elif triple.valid and (sign := mean_sign(triple)) is not None:
                signs.append(sign)
        if unmatched:
            state = msgspec.structs.replace(state, unmatched=state.unmatched + unmatched)
        if not signs:
            return state
        value = -math.fsum(signs) / len(signs)
        return msgspec.structs.replace(state, signs=self.margins.add(state.signs, value))

    def verdict(self, state: LogitErrorState, alpha: Alpha) -> Verdict:
        """All questions together: those that fail speak, else those that are still open, else all."""
        share = 0.5 * alpha.rollback if None not in (self.exceedance, self.margin) else alpha.rollback
        asked = []
        if self.maximum_nats is not None:
            asked.append(self._of_cap(state, self.maximum_nats))
        if self.exceedance is not None:
            asked.append(self._of_exceedance(state, self.exceedance, share, alpha.promotion))
        if self.margin is not None:
            asked.append(self._of_sign(state, self.margin, share, alpha.promotion))
        if not state.measured and state.unmeasured >= _FEWEST_UNMEASURED:
            reason = f"could not measure: none of {state.unmeasured} pairs has logprobs on both arms"
            return msgspec.structs.replace(asked[-1], answer=Answer.ERROR, reason=reason)
        answer = together([verdict.answer for verdict in asked])
        speakers = [verdict for verdict in asked if verdict.answer is answer]
        reason = "; ".join(verdict.reason for verdict in speakers)
        if state.unmeasured:
            reason += f"; {state.unmeasured} pairs without logprobs"
        return msgspec.structs.replace(speakers[0], reason=reason)

    def _of_cap(self, state: LogitErrorState, maximum_nats: float) -> Verdict:
        worst, n = state.worst_nats, state.measured
        over = worst is not None and worst > maximum_nats
        if over:
            answer = Answer.FAIL
            reason = (
                f"a logprob error of {worst:.4g} nats before the first fork, in capture {state.worst_id}, is "
                f"over the maximum of {maximum_nats:g}"
            )
        elif n < self.minimum_pairs:
            answer = Answer.INCONCLUSIVE
            reason = f"{n} pairs with a logprob error, none over {maximum_nats:g} nats; "
            reason += f"{self.minimum_pairs} are needed"
        else:
            answer = Answer.PASS
            reason = f"the largest logprob error of {n} pairs is {worst:.4g} nats, within {maximum_nats:g}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=worst,
            limit=maximum_nats,
            n=max(1, n) if over else n,  # a fork seen in mid-stream is counted when its pair ends
            reason=reason,
            deciding_id=state.worst_id if over else None,
            estimand=self.estimand,
        )

    def _of_exceedance(
        self, state: LogitErrorState, share: float, alpha: float, alpha_promotion: float
    ) -> Verdict:
        over = state.over
        frozen = any(ceiling.n >= self.floor_requests for ceiling in state.ceilings.values())
        excess = None if over.mean is None else 0.0 - over.mean
        span = over.look.span
        answer = answer_of(
            over.rollback_nats, over.promotion_nats, Alpha(rollback=alpha, promotion=alpha_promotion)
        )
        reason = (
            f"a larger logprob error than the first {self.floor_requests} of baseline and control in "
            f"{state.candidate_over} of {over.n} requests, in {state.control_over} for the control; a share "
            f"of {share:g} more may"
        )
        if not frozen:
            most = max((ceiling.n for ceiling in state.ceilings.values()), default=0)
            reason = f"{most} of {self.floor_requests} control pairs for a threshold of the logprob error"
        elif answer is Answer.INCONCLUSIVE:
            reason += f"; {undecided(over.n, self.maximum_n, 'triples')}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=excess,
            limit=share,
            n=over.n,
            reason=reason,
            alpha=alpha,
            deciding_id=state.last_over_id if answer is Answer.FAIL else None,
            estimand=self.estimand,
            rollback_nats=over.rollback_nats,
            promotion_nats=over.promotion_nats,
            interval=None if span is None else (0.0 - span[1], 0.0 - span[0]),  # of the excess, not of D
        )

    def _of_sign(
        self, state: LogitErrorState, margin: float, alpha: float, alpha_promotion: float
    ) -> Verdict:
        signs = state.signs
        mean = None if signs.mean is None else 0.0 - signs.mean
        span = signs.look.span
        answer = answer_of(
            signs.rollback_nats, signs.promotion_nats, Alpha(rollback=alpha, promotion=alpha_promotion)
        )
        reason = (
            f"mean sign of the candidate's logprob error against the control's: "
            f"{'unknown' if mean is None else f'{mean:.3f}'} in {signs.n} triples; {margin:g} may be"
        )
        if answer is Answer.INCONCLUSIVE:
            reason += f"; {undecided(signs.n, self.maximum_n, 'triples')}"
        if state.unmatched:
            reason += f"; {state.unmatched} triples in unmatched bands of concurrency"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=mean,
            limit=margin,
            n=signs.n,
            reason=reason,
            alpha=alpha,
            estimand=self.estimand,
            rollback_nats=signs.rollback_nats,
            promotion_nats=signs.promotion_nats,
            interval=None if span is None else (0.0 - span[1], 0.0 - span[0]),  # of the sign, not of D
        )


def _errors(triple: Triple) -> tuple[float, float] | None:
    """The candidate's error and the control's, where both count and ran in one band."""
    if not triple.valid or triple.band is None:
        return None
    mine, other = usable_nats(triple.candidate.max_error_nats), usable_nats(triple.control.max_error_nats)
    return None if mine is None or other is None else (mine, other)


def _first_measured(pairs: tuple[Pair, ...]) -> tuple[Pair | None, float | None]:
    """One request is one observation: the first replicate that has an error."""
    for pair in pairs:
        error = usable_nats(pair.max_error_nats) if pair.valid else None
        if error is not None:
            return pair, error
    return None, None


def _worst(state: LogitErrorState, nats: float, capture_id: str) -> LogitErrorState:
    if state.worst_nats is not None and nats <= state.worst_nats:
        return state
    return msgspec.structs.replace(state, worst_nats=nats, worst_id=capture_id)
