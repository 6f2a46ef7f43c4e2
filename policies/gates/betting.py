"""What gates that test share: differences that bet, the answer to two tests, and when to look at an interval.

A gate bets on D in [-1, 1], one number a cluster or a time block: the candidate's outcome minus the
baseline's, larger is better. Both tests of :mod:`comparator.sequential.mean` are kept up to date by the fold,
because log E depends on no alpha; a verdict only compares.

*Margins.* ``margin`` is what rollback tolerates, ``promotion_margin`` what promotion must rule out; without
the second, both are the first. Nothing shows "not worse at all", so promotion needs one above 0.

*Rounding.* D is counted on a grid, so that a state stays small. That moves its mean by at most half a step,
which a margin is widened (rollback) or narrowed (promotion) by. Only where arms that are equal can also be
swapped, so that D is as often d as -d, does margin 0 stay 0: rounding half to even leaves D symmetric. A
difference of two shares of unequal numbers of requests is fair, but not symmetric (a thousand requests tell
.0004, ten tell 0 or .1), and all that rounds to 0 would be taken from one side.

*Intervals.* A 95 % confidence sequence costs a hundred times a bet, so it is taken anew when there are half
as many observations again; between looks the last one stands, which holds at all n as the newest would.
"""

from __future__ import annotations

import functools

import msgspec

from comparator.sequential import (
    Counts,
    MeanTest,
    Mixture,
    mean_interval,
    on_grid,
    promotion,
    rejects,
    rollback,
)
from policies.gates.base import Alpha
from policies.verdict import Answer

INTERVAL_ALPHA = 0.05
"""Intervals beside a verdict are for people: 95 % at all looks together, whatever alpha the verdict has."""
FEWEST_SHOWN = 16
"""Under so many observations an interval says nothing, and is not shown."""
_INTERVAL_SHARES = Mixture.geometric(1.0 / 256.0, 0.9, 7)
_INTERVAL_BITS = 12
_MOST_MARGIN = 0.9

Span = tuple[float, float]


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The interval as of the last look, and at how many observations that was."""

    n: int = 0
    span: Span | None = None

    def due(self, n: int) -> bool:
        """Is it time to look again?"""
        return n >= FEWEST_SHOWN and 2 * n >= 3 * self.n


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """D so far, what it has won against either null, and the interval of its mean.

    All but ``look`` is a function of the counts: the same in any order of the same observations.
    """

    counts: Counts = Counts()
    n: int = 0
    rollback_nats: float = 0.0
    promotion_nats: float = 0.0
    look: Look = Look()

    @property
    def mean(self) -> float | None:
        """Of D; None before the first."""
        return self.counts.mean if self.n else None


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """Both tests of one gate, and the grid that they count on."""

    margin: float
    promotion_margin: float | None = None
    steps: int
    """Of the grid, to a unit."""
    symmetric: bool = True
    """Whether D of arms that are equal is as often d as -d; see *Rounding*."""

    @property
    def tests(self) -> tuple[MeanTest, MeanTest]:
        """Rollback and promotion."""
        return _tests(self.margin, self.promotion_margin, self.steps, self.symmetric)

    def add(self, so_far: Differences, value: float) -> Differences:
        """With one more D."""
        counts = so_far.counts.add(on_grid(value, self.steps))
        return self._with(counts, so_far.n + 1, so_far.look)

    def _with(self, counts: Counts, n: int, look: Look) -> Differences:
        against_within, against_beyond = self.tests
        if look.due(n):
            found = mean_interval(counts, INTERVAL_ALPHA, shares=_INTERVAL_SHARES, bits=_INTERVAL_BITS)
            assert found.low is not None
            assert found.high is not None
            look = Look(n=n, span=(found.low, found.high))
        return Differences(
            counts=counts,
            n=n,
            rollback_nats=against_within.log_e(counts),
            promotion_nats=against_beyond.log_e(counts),
            look=look,
        )


def share_span(ones: int, zeros: int) -> Span:
    """The 95 % confidence sequence of a share, to be read beside a verdict. At least one observation."""
    values = [(value, count) for value, count in ((0.0, zeros), (1.0, ones)) if count]
    counts = Counts(values=tuple(v for v, _ in values), counts=tuple(c for _, c in values))
    found = mean_interval(counts, INTERVAL_ALPHA, lower=0.0)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def check_margins(margin: float, promotion_margin: float | None, steps: int, unit: str) -> None:
    """Refuse margins that mean nothing, or that nothing could pass.

    Args:
        margin: what rollback tolerates.
        promotion_margin: what promotion must rule out; None: the same.
        steps: of the grid, which swallows a promotion margin under one step.
        unit: what the margins are, for the message.

    Raises:
        ValueError: naming the field, for the policy file's error.
    """
    least = max(0.001, 1.0 / steps)
    if not 0.0 <= margin <= _MOST_MARGIN:
        raise ValueError(f"margin: {margin} is outside 0-{_MOST_MARGIN} ({unit})")
    if promotion_margin is None:
        if margin < least:
            raise ValueError(
                f"promotion_margin: missing, and margin {margin} lets nothing pass, for no evidence shows "
                f"'not worse at all'; give one from {least:g} on"
            )
    elif not max(margin, least) <= promotion_margin <= _MOST_MARGIN:
        raise ValueError(
            f"promotion_margin: {promotion_margin} is outside {max(margin, least):g}-{_MOST_MARGIN} "
            f"({unit}, at least the margin)"
        )


def check_at_least(name: str, value: int, least: int, why: str) -> None:
    """Refuse a count under ``least``.

    Raises:
        ValueError: naming the field.
    """
    if value < least:
        raise ValueError(f"{name}: {value} is under {least}; {why}")


def answer_of(rollback_nats: float, promotion_nats: float, alpha: Alpha) -> Answer:
    """Two tests, three answers."""
    if rejects(rollback_nats, alpha.rollback):
        return Answer.FAIL
    return Answer.PASS if rejects(promotion_nats, alpha.promotion) else Answer.INCONCLUSIVE


def together(answers: list[Answer]) -> Answer:
    """Several questions of one gate: any fail fails, all must pass."""
    for answer in (Answer.FAIL, Answer.ERROR, Answer.INCONCLUSIVE):
        if answer in answers:
            return answer
    return Answer.PASS


def undecided(n: int, maximum_n: int, unit: str) -> str:
    """How far an undecided test is, for the end of its sentence."""
    if n >= maximum_n:
        return f"undecided at its maximum of {maximum_n} {unit}, for good"
    return f"undecided after {n} of at most {maximum_n} {unit}"


@functools.lru_cache(maxsize=256)
def _tests(
    margin: float, promotion_margin: float | None, steps: int, symmetric: bool
) -> tuple[MeanTest, MeanTest]:
    beyond = margin if promotion_margin is None else promotion_margin
    half_step = 0.5 / steps
    widened = 0.0 if margin == 0.0 and symmetric else margin + half_step
    bets = Mixture.geometric(0.05, 0.95 / (1.0 + widened), 6)
    return rollback(widened, bets), promotion(beyond - half_step, bets)
