"""How far the candidate's logprobs are from the baseline's before the first fork (R22): three questions.

The *error* of a step is the largest |change of logprob| over tokens in both arms' top five; that of a pair is
its largest up to and including the fork step, whose prefix both arms share.

1. *Cap*: does any valid pair's error exceed ``maximum_nats``? It acts on what was seen, live or of a suite,
   in mid-stream where a fork is told, and spends no alpha. Without a maximum it is not asked.
2. *Exceedance*: of live requests, do more than a share ``exceedance`` have an error over tau? Tau is the
   largest error of the first ``floor_requests`` pairs of baseline and control, by engine path and band, and
   frozen then. Chance may have made it low: with probability (1 - exceedance)^floor_requests equal arms
   exceed one tau more often. So much is spent on each frozen tau, and the e-process is held to the rest of
   alpha; where nothing is left, the question is not asked, and the verdict says so.
3. *Sign*: by request D = minus the mean sign of (candidate's error - control's error) over the steps up to
   the earlier fork, through the core. One number a request, not a token: tokens of one request agree. Needs a
   control in the candidate's band of concurrency.

Of the gate's share of alpha, question 2 has one half and question 3 the other. Promotion rests on the sign
(``promotion_margin``) while nothing fails; exceedance alone shows no equality.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison, Triple
from comparator.floor import MOST_FLOORS, key_of
from comparator.fork import quick_error_nats, step_error_nats
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, Step
from comparator.sequential import Tally, exceedance, rejects
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import Differences, Margins, check_at_least, check_margins, undecided
from policies.verdict import Answer, Verdict

MOST_NATS = 1_000.0
"""Errors count as this at most: an arm that calls a token impossible is infinitely wrong about it."""
_SIGN_STEPS = 32
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
    over: Tally = Tally()
    """Live requests over their ceiling, and not."""
    last_over_id: str | None = None
    signs: Differences = Differences()
    unmatched: int = 0
    """Triples whose candidate and control ran in different bands, or in unknown ones."""


class LogitError(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="logit_error"
):
    """Estimand: ``traffic``; the cap reads the samples of suites as well. Value: of the question that
    decided, else the mean sign (1: the candidate's error is the larger at every step)."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "logit_error"
    estimand: Literal["traffic"] = "traffic"
    maximum_nats: float | None = None
    exceedance: float = 0.1
    """Tolerated share of live requests over tau."""
    floor_requests: int = 100
    """Pairs of baseline and control that freeze tau, by engine path and band."""
    margin: float = 0.0
    """Mean sign that is tolerated: 0 is "no larger than the control's"."""
    promotion_margin: float | None = 0.2
    maximum_n: int = 10_000
    """Triples and requests, each; then the tests stay as they are. The cap goes on."""

    def __post_init__(self) -> None:
        if self.maximum_nats is not None and not 0.0 < self.maximum_nats < MOST_NATS:
            raise ValueError(
                f"maximum_nats: {self.maximum_nats} is outside 0-{MOST_NATS:g} nats, both excluded"
            )
        if not 0.0 < self.exceedance < 1.0:
            raise ValueError(
                f"exceedance: {self.exceedance} is outside 0-1, both excluded (a share of requests)"
            )
        check_at_least("floor_requests", self.floor_requests, 10, "fewer show too little of a floor")
        check_margins(self.margin, self.promotion_margin, _SIGN_STEPS, "a mean sign")
        check_at_least("maximum_n", self.maximum_n, 10, "fewer requests decide nothing")

    @property
    def _margins(self) -> Margins:
        return Margins(margin=self.margin, promotion_margin=self.promotion_margin, steps=_SIGN_STEPS)

    def _luck(self, state: LogitErrorState) -> float:
        """Probability that equal arms exceed some frozen tau more often than tolerated."""
        frozen = sum(ceiling.n >= self.floor_requests for ceiling in state.ceilings.values())
        return max(1, frozen) * math.prod([1.0 - self.exceedance] * self.floor_requests)

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
        return self._signs(self._over(state, evidence), evidence)

    def _over(self, state: LogitErrorState, comparison: Comparison) -> LogitErrorState:
        """Question 2: the candidate's request against the ceiling of the past; then the control raises it."""
        pair, error = _first_measured(comparison.candidates)
        if pair is not None and error is not None and state.over.n < self.maximum_n:
            ceiling = state.ceilings.get(key_of(pair) or "")
            if ceiling is not None and ceiling.n >= self.floor_requests:
                over = error > ceiling.nats
                state = msgspec.structs.replace(
                    state,
                    over=state.over.add(over),
                    last_over_id=comparison.capture_id if over else state.last_over_id,
                )
        pair, error = _first_measured(comparison.controls)
        key = None if pair is None else key_of(pair)
        if key is None or error is None:
            return state
        ceiling = state.ceilings.get(key, Ceiling(n=0, nats=0.0))
        if ceiling.n >= self.floor_requests or (ceiling.n == 0 and len(state.ceilings) >= MOST_FLOORS):
            return state
        raised = Ceiling(n=ceiling.n + 1, nats=max(ceiling.nats, error))
        return msgspec.structs.replace(state, ceilings={**state.ceilings, key: raised})

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
        return msgspec.structs.replace(state, signs=self._margins.add(state.signs, value))

    def verdict(self, state: LogitErrorState, alpha: Alpha) -> Verdict:
        """The cap first, then exceedance, then sign; fail where one of them fails."""
        half = 0.5 * alpha.rollback
        verdict = self._of_sign(state, half, alpha.promotion)
        worst, over = state.worst_nats, state.over
        if self.maximum_nats is not None and worst is not None and worst > self.maximum_nats:
            return msgspec.structs.replace(
                verdict,
                answer=Answer.FAIL,
                value=worst,
                limit=self.maximum_nats,
                n=max(1, state.measured),
                reason=f"a logprob error of {worst:.4g} nats before the first fork, in capture "
                f"{state.worst_id}, is over the maximum of {self.maximum_nats:g}",
                deciding_id=state.worst_id,
            )
        rest = half - self._luck(state)
        over_nats = exceedance(self.exceedance).log_e(over)
        if rest > 0.0 and rejects(over_nats, rest):
            return msgspec.structs.replace(
                verdict,
                answer=Answer.FAIL,
                value=over.ones / over.n,
                limit=self.exceedance,
                n=over.n,
                alpha=rest,
                rollback_nats=over_nats,
                reason=f"{over.ones} of {over.n} requests had a larger logprob error than the first "
                f"{self.floor_requests} of baseline and control; a share of {self.exceedance:g} may",
                deciding_id=state.last_over_id,
            )
        nothing = not state.measured and state.unmeasured >= _FEWEST_UNMEASURED
        return msgspec.structs.replace(
            verdict,
            answer=Answer.ERROR if nothing else verdict.answer,
            reason=verdict.reason + self._missing(state, rest),
        )

    def _of_sign(self, state: LogitErrorState, alpha: float, alpha_promotion: float) -> Verdict:
        signs = state.signs
        mean = None if signs.mean is None else 0.0 - signs.mean
        span = signs.look.span
        reason = (
            f"mean sign of the candidate's logprob error against the control's: "
            f"{'unknown' if mean is None else f'{mean:.3f}'} in {signs.n} triples; {self.margin:g} may be"
        )
        if rejects(signs.rollback_nats, alpha):
            answer = Answer.FAIL
        elif rejects(signs.promotion_nats, alpha_promotion):
            answer = Answer.PASS
        else:
            answer = Answer.INCONCLUSIVE
            reason += f"; {undecided(signs.n, self.maximum_n, 'triples')}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=mean,
            limit=self.margin,
            n=signs.n,
            reason=reason,
            alpha=alpha,
            estimand=self.estimand,
            rollback_nats=signs.rollback_nats,
            promotion_nats=signs.promotion_nats,
            interval=None if span is None else (0.0 - span[1], 0.0 - span[0]),  # of the sign, not of D
        )

    def _missing(self, state: LogitErrorState, rest: float) -> str:
        """What was not asked, and why."""
        said = ""
        if rest <= 0.0:
            said += (
                f"; exceedance is not asked: {self.floor_requests} floor_requests miss the floor with "
                f"probability {self._luck(state):.2g}, more than this gate's share of alpha"
            )
        elif not state.over.n:
            most = max((ceiling.n for ceiling in state.ceilings.values()), default=0)
            said += f"; {most} of {self.floor_requests} control pairs for a threshold"
        if state.unmeasured:
            said += f"; {state.unmeasured} pairs without logprobs"
        if state.unmatched:
            said += f"; {state.unmatched} triples in unmatched bands of concurrency"
        return said


def usable_nats(error: float | None) -> float | None:
    """An error that can be compared: NaN is none, and more than :data:`MOST_NATS` counts as that."""
    if error is None or error != error:
        return None
    return min(error, MOST_NATS)


def mean_sign(triple: Triple) -> float | None:
    """Mean sign of (candidate's error - control's) over steps up to the earlier fork; None without any."""
    candidate, control = triple.candidate, triple.control
    ends = [pair.fork.fork_index + 1 for pair in (candidate, control) if pair.fork is not None]
    last = min(ends, default=len(candidate.left.steps))
    total = steps = 0
    for baseline, mine, other in zip(
        candidate.left.steps[:last], candidate.right.steps[:last], control.right.steps[:last], strict=False
    ):
        error, floor = _step_nats(baseline, mine), _step_nats(baseline, other)
        if error is None or floor is None:
            continue
        total += (error > floor) - (error < floor)
        steps += 1
    return total / steps if steps else None


def _step_nats(left: Step, right: Step) -> float | None:
    error = quick_error_nats(left, right)
    return usable_nats(step_error_nats(left, right) if error is None else error)


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
