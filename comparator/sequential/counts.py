"""All that a test remembers: how often each value came."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

import msgspec

from comparator.sequential.errors import SequentialError

MOST_DISTINCT = 4096
"""A state stays small: more distinct values than this are refused; round them with :func:`on_grid`."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """An integer count for each distinct observed value, values ascending.

    A product over observations in which each factor depends on its own observation alone does not care for
    their order; so these counts replay every fixed-bet process exactly, and the counts of shards add up to
    those of the whole, in any order. What they cannot do is give back the path between, or a process whose
    bets looked at the past.

    The caller bets once a cluster (prompt, conversation, time block): the same prompt again is not new
    evidence, and nothing here can tell. When shards are merged late, what is late must not depend on the
    values themselves.
    """

    values: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.values) != len(self.counts):
            raise SequentialError(f"counts: {len(self.counts)} of them for {len(self.values)} values")
        if len(self.values) > MOST_DISTINCT:
            raise SequentialError(
                f"values: {len(self.values)} distinct ones are more than {MOST_DISTINCT}; "
                "round observations with on_grid(value, steps) before they are counted"
            )
        last = -math.inf
        for value, count in zip(self.values, self.counts, strict=True):
            if not last < value < math.inf:
                raise SequentialError(f"values: {value} after {last}; they must be finite and ascending")
            if count < 1:
                raise SequentialError(f"counts: {count} for value {value}; a value that is kept came once")
            last = value

    @classmethod
    def of(cls, observations: Iterable[float]) -> Counts:
        """The counts of a whole series."""
        found: dict[float, int] = {}
        for value in observations:
            key = _key(value)
            found[key] = found.get(key, 0) + 1
        order = sorted(found)
        return cls(values=tuple(order), counts=tuple(found[value] for value in order))

    def add(self, value: float, times: int = 1) -> Counts:
        """These counts and ``times`` more observations of ``value``.

        Raises:
            SequentialError: a value that is not finite, ``times`` under 1, or one distinct value too many.
        """
        value = _key(value)
        if times < 1:
            raise SequentialError(f"times: {times}; an observation is added at least once")
        at = bisect.bisect_left(self.values, value)
        if at < len(self.values) and self.values[at] == value:
            counts = (*self.counts[:at], self.counts[at] + times, *self.counts[at + 1 :])
            return Counts(values=self.values, counts=counts)
        return Counts(
            values=(*self.values[:at], value, *self.values[at:]),
            counts=(*self.counts[:at], times, *self.counts[at:]),
        )

    def merge(self, other: Counts) -> Counts:
        """The counts of both, as if one had seen everything. Commutative and associative, exactly."""
        found = dict(zip(self.values, self.counts, strict=True))
        for value, count in zip(other.values, other.counts, strict=True):
            found[value] = found.get(value, 0) + count
        order = sorted(found)
        return Counts(values=tuple(order), counts=tuple(found[value] for value in order))

    @property
    def n(self) -> int:
        """Observations counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """The observations' mean.

        Raises:
            SequentialError: there is none.
        """
        if not self.values:
            raise SequentialError("mean: no observation yet")
        terms = (value * count for value, count in zip(self.values, self.counts, strict=True))
        return math.fsum(terms) / self.n

    def within(self, low: float, high: float) -> None:
        """Check that every value lies in [low, high].

        Raises:
            SequentialError: one does not; the bound is an assumption of the test, not a clip.
        """
        if self.values and not (low <= self.values[0] and self.values[-1] <= high):
            wrong = self.values[0] if self.values[0] < low else self.values[-1]
            raise SequentialError(f"value {wrong} is outside [{low}, {high}], which this test assumes")


def on_grid(value: float, steps: int) -> float:
    """``value`` rounded to the nearest multiple of 1/steps, halves to even.

    Keeps a state of averages small. It may move a mean by up to 1/(2·steps), which a margin must allow for.
    """
    if steps < 1:
        raise SequentialError(f"steps: {steps}; a grid has at least one step to a unit")
    return _key(round(_key(value) * steps) / steps)


def _key(value: float) -> float:
    if not math.isfinite(value):
        raise SequentialError(f"observation: {value} is not finite; set it aside with its reason instead")
    return float(value) + 0.0  # one zero only: -0.0 + 0.0 is 0.0
