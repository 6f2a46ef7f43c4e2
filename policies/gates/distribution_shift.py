"""Do forks show another distribution, more often than the control's forks do?

Each fork of live traffic gets its class (:mod:`comparator.taxonomy`) from the gate's own noise floors, which
the rollout's controls have made so far, and from the arms' precision. Candidate and control of one comparison
are held against the same floors, those of the past, and only then does the control add to them; so neither
has an advantage. Per comparison with a control in the candidate's band:

    D = share of its control pairs that are a *distribution shift* - share of its candidate pairs that are

through the core. What else a candidate's forks show is counted and told, and decides nothing here:

- *precision drift* is a warning;
- *sampling stream* (another seed, generator, temperature, or a penalty at work on one arm) disables same-seed
  gates; the sampling gate decides;
- *unclassifiable* forks (no logprobs) are the fork-hazard gate's.

Pairs that were set aside (another encoding, another configuration) never count. A floor that is missing
excuses nothing, and is told.

Precision is the declared ``dtype``, else the lattice on which an arm's logprob differences lie; that is
looked for once, in the first answer of each pool that shows enough of them, and kept.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.floor import Floors
from comparator.pair import Pair
from comparator.precision import SPACING_NATS, declared_precision, lattice_step_nats
from comparator.records import Exchange, Outcome
from comparator.taxonomy import DEFAULT_CAP_NATS, Allowance, ForkClass, classify_fork
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import (
    Differences,
    Margins,
    answer_of,
    check_at_least,
    check_margins,
    undecided,
)
from policies.verdict import Answer, Verdict

_STEPS = 1024
_MOST_SPACINGS = 8
"""Arms by pool: two, and some for pools renamed."""
_ENOUGH_DIFFERENCES = 64
"""Of logprobs: an answer with so many shows the lattice, or that there is none."""


class DistributionShiftState(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="distribution_shift"
):
    """Floors, classes and the test. It depends on the order of evidence: a floor is of the past."""

    floors: Floors = Floors()
    spacings: dict[str, float] = {}
    """By pool, nats: as seen in its logprobs."""
    classes: dict[ForkClass, int] = {}
    """The candidate's pairs by class."""
    shifts: Differences = Differences()
    control_shifts: int = 0
    """Triples in which the control's fork was a shift."""
    unmatched: int = 0
    """Triples whose candidate and control ran in different bands, or in unknown ones."""
    missing: str | None = None
    """Why the last pair that was classed had no floor; None when it had."""
    last_id: str | None = None
    """The newest capture with a shift of the candidate."""
    why: str | None = None
    """What that shift showed."""


class DistributionShift(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="distribution_shift",
):
    """Estimand: ``traffic``. Value: share of candidate pairs that are a shift, minus the control's share."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "distribution_shift"
    estimand: Literal["traffic"] = "traffic"
    margin: float = 0.01
    """Tolerated share of pairs beyond the control's."""
    promotion_margin: float | None = 0.02
    cap_nats: float = DEFAULT_CAP_NATS
    """Largest logprob error up to a fork that is still drift."""
    maximum_n: int = 10_000
    """Comparisons that bet; then the gate stays as it is."""

    def __post_init__(self) -> None:
        check_margins(self.margin, self.promotion_margin, _STEPS, "a share of pairs")
        if not 0.0 < self.cap_nats <= 100.0:
            raise ValueError(f"cap_nats: {self.cap_nats} is outside 0-100 nats, 0 excluded; 1 is usual")
        check_at_least("maximum_n", self.maximum_n, 10, "fewer comparisons decide nothing")

    @property
    def margins(self) -> Margins:
        """Both tests."""
        return Margins(margin=self.margin, promotion_margin=self.promotion_margin, steps=_STEPS)

    def initial(self) -> DistributionShiftState:
        """Before any evidence."""
        return DistributionShiftState()

    def fold(self, state: DistributionShiftState, evidence: Evidence) -> DistributionShiftState:
        """Class a live comparison's forks, bet once where its cluster is new, then take its controls in."""
        if not isinstance(evidence, Comparison) or evidence.sample is not None or evidence.timing:
            return state
        if evidence.repeat or state.shifts.n >= self.maximum_n:
            return state
        state = _learn_spacings(state, evidence)
        found = {}
        for pair in evidence.candidates:
            said = self._classed(state, pair)
            if said is not None:
                found[pair.left.replicate] = said.fork_class
                state = _counted(state, pair, said)
        state = self._bet(state, evidence, found)
        floors = state.floors
        for pair in evidence.controls:
            floors = floors.add(pair)
        return state if floors is state.floors else msgspec.structs.replace(state, floors=floors)

    def _classed(self, state: DistributionShiftState, pair: Pair) -> _Class | None:
        if not pair.valid:
            return None
        if pair.fork is None:
            # An arm that broke off was equal as far as it went, which shows nothing.
            completed = pair.right.outcome is Outcome.COMPLETED
            return _Class(fork_class=ForkClass.NONE) if completed else None
        found = state.floors.of(pair)
        spacing = max(_spacing(state, pair.left), _spacing(state, pair.right))
        allowance = Allowance(spacing_nats=spacing, floor=found.floor, cap_nats=self.cap_nats)
        said = classify_fork(pair.fork, pair.left.sampling, allowance)
        return _Class(fork_class=said.fork_class, reason=said.reason, missing=found.missing)

    def _bet(
        self, state: DistributionShiftState, comparison: Comparison, found: dict[int, ForkClass]
    ) -> DistributionShiftState:
        candidate = control = triples = unmatched = 0
        for triple in comparison.triples:
            mine = found.get(triple.candidate.left.replicate)
            if mine is None or not triple.control.valid:
                continue
            if triple.band is None:
                unmatched += 1
                continue
            said = self._classed(state, triple.control)
            if said is None or ForkClass.UNCLASSIFIABLE in (mine, said.fork_class):
                continue
            triples += 1
            candidate += mine is ForkClass.DISTRIBUTION_SHIFT
            control += said.fork_class is ForkClass.DISTRIBUTION_SHIFT
        if unmatched:
            state = msgspec.structs.replace(state, unmatched=state.unmatched + unmatched)
        if not triples:
            return state
        return msgspec.structs.replace(
            state,
            shifts=self.margins.add(state.shifts, (control - candidate) / triples),
            control_shifts=state.control_shifts + control,
        )

    def verdict(self, state: DistributionShiftState, alpha: Alpha) -> Verdict:
        """Fail when shifts go beyond the control's by more than the margin, pass when that is ruled out."""
        shifts = state.shifts
        answer = answer_of(shifts.rollback_nats, shifts.promotion_nats, alpha)
        excess = None if shifts.mean is None else 0.0 - shifts.mean
        span = shifts.look.span
        classed = sum(state.classes.values())
        said = (
            f"{state.classes.get(ForkClass.DISTRIBUTION_SHIFT, 0)} of {classed} pairs of the candidate are a "
            f"distribution shift, beyond the control's "
            f"{'by an unknown share' if excess is None else f'by a share of {excess:.4f}'} in {shifts.n} "
            f"comparisons; {self.margin:g} may be"
        )
        if answer is Answer.INCONCLUSIVE:
            said += f"; {undecided(shifts.n, self.maximum_n, 'comparisons with a control')}"
        if answer is Answer.FAIL and state.why is not None:
            said += f"; the last: {state.why}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=excess,
            limit=self.margin,
            n=shifts.n,
            reason=said + self._told(state),
            alpha=alpha.rollback,
            deciding_id=state.last_id if answer is Answer.FAIL else None,
            estimand=self.estimand,
            rollback_nats=shifts.rollback_nats,
            promotion_nats=shifts.promotion_nats,
            interval=None if span is None else (0.0 - span[1], 0.0 - span[0]),
        )

    def _told(self, state: DistributionShiftState) -> str:
        said = ""
        if drift := state.classes.get(ForkClass.PRECISION_DRIFT, 0):
            said += f"; warning: {drift} pairs drift in precision"
        if streams := state.classes.get(ForkClass.SAMPLING_STREAM, 0):
            said += f"; {streams} pairs draw from another sampling stream, which disables same-seed gates"
        if blind := state.classes.get(ForkClass.UNCLASSIFIABLE, 0):
            said += f"; {blind} pairs without logprobs cannot be classed"
        if state.unmatched:
            said += f"; {state.unmatched} triples in unmatched bands of concurrency"
        if state.missing is not None:
            said += f"; {state.missing}"
        return said


class _Class(msgspec.Struct, frozen=True, kw_only=True):
    fork_class: ForkClass
    reason: str | None = None
    missing: str | None = None


def _counted(state: DistributionShiftState, pair: Pair, said: _Class) -> DistributionShiftState:
    shift = said.fork_class is ForkClass.DISTRIBUTION_SHIFT
    return msgspec.structs.replace(
        state,
        classes={**state.classes, said.fork_class: state.classes.get(said.fork_class, 0) + 1},
        missing=state.missing if pair.fork is None else said.missing,
        last_id=pair.capture_id if shift else state.last_id,
        why=said.reason if shift else state.why,
    )


def _learn_spacings(state: DistributionShiftState, comparison: Comparison) -> DistributionShiftState:
    for pair in comparison.candidates:
        for exchange in (pair.left, pair.right):
            if (
                exchange.pool in state.spacings
                or len(state.spacings) >= _MOST_SPACINGS
                or _declared(exchange) is not None
                or sum(max(0, len(step.top_ids) - 1) for step in exchange.steps) < _ENOUGH_DIFFERENCES
            ):
                continue
            seen = lattice_step_nats(exchange.steps)
            spacing = SPACING_NATS["fp32"] if seen is None else seen
            state = msgspec.structs.replace(state, spacings={**state.spacings, exchange.pool: spacing})
    return state


def _spacing(state: DistributionShiftState, exchange: Exchange) -> float:
    declared = _declared(exchange)
    if declared is not None:
        return declared
    return state.spacings.get(exchange.pool, SPACING_NATS["fp32"])


def _declared(exchange: Exchange) -> float | None:
    name = declared_precision(exchange)
    return None if name is None else SPACING_NATS[name]
