"""The A/A floor: how much an environment differs from itself.

From pairs of baseline and control, over positions up to and including each pair's fork (the prefix is
shared up to there):

- ``sigma_nats``: root mean square of the change of margin, zeros included.
- ``tv_q99``: 99 % quantile of the total variation distance, over pairs at a temperature above 0: at 0 nothing
  is drawn, and no rule asks for it (:mod:`comparator.taxonomy`).

An empty floor (no control) is zero on both: it excuses nothing.

:func:`floor_of` is the definition, over all pairs at once. :class:`FloorTally` is the same as pairs come, in
integer counts by bin, so that it stays small and shards merge exactly. Bins split each power of two into
:data:`STEPS` equal parts. What that costs, against :func:`floor_of`: ``sigma_nats`` takes each change at its
bin's middle and is off by at most 1/32 of itself and 2**-20 nats; ``tv_q99`` is its bin's upper edge, so
never too small, and at most 1/16 of itself, or 2**-14, too large. Changes over 128 nats count as 128.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from comparator.comparison import band_of, path_of
from comparator.distribution import step_tv
from comparator.fork import margin_nats
from comparator.pair import Pair

QUANTILE = 0.99
STEPS = 16
_MARGIN_EXPONENTS = (-20, 7)  # changes under 1e-6 nats are none: fp32 itself makes 2e-6
_TV_EXPONENTS = (-14, 0)
MOST_FLOORS = 32
"""Paths and bands that :class:`Floors` keeps apart: bands of a power of two, on a few roads."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment differs from itself by; both 0 without a control."""

    sigma_nats: float = 0.0
    tv_q99: float = 0.0
    n: int = 0
    """Pairs of baseline and control that it rests on."""


class FloorTally(msgspec.Struct, frozen=True, kw_only=True):
    """A floor as it grows: counts by bin. Bounded (at most 657 bins), exactly mergeable in any order."""

    margins: dict[int, int] = {}
    """Steps by bin of |change of margin|."""
    distances: dict[int, int] = {}
    """Steps of pairs at a temperature above 0, by bin of total variation."""
    n: int = 0
    """Pairs that gave a step to either."""

    def add(self, pair: Pair) -> FloorTally:
        """With one more pair of baseline and control; one that was set aside, or has no logprobs, is none."""
        if not pair.valid:
            return self
        margins, distances = dict(self.margins), dict(self.distances)
        seen = False
        for change, distance in _steps_of(pair):
            if change is not None:
                index = _bin_of(change, _MARGIN_EXPONENTS)
                margins[index] = margins.get(index, 0) + 1
            if distance is not None:
                index = _bin_of(distance, _TV_EXPONENTS)
                distances[index] = distances.get(index, 0) + 1
            seen = seen or change is not None or distance is not None
        return FloorTally(margins=margins, distances=distances, n=self.n + 1) if seen else self

    def merge(self, other: FloorTally) -> FloorTally:
        """Counts of both; associative and commutative, exactly."""
        return FloorTally(
            margins=_sum(self.margins, other.margins),
            distances=_sum(self.distances, other.distances),
            n=self.n + other.n,
        )

    def floor(self) -> Floor:
        """The floor so far: the same bits for the same counts."""
        sigma = tv = 0.0
        steps = sum(self.margins.values())
        if steps:
            squares = (count * _middle(index) ** 2 for index, count in self.margins.items())
            sigma = math.sqrt(math.fsum(squares) / steps)
        rank = max(1, math.ceil(QUANTILE * sum(self.distances.values())))
        for index in sorted(self.distances):
            rank -= self.distances[index]
            if rank <= 0:
                tv = _upper(index)
                break
        return Floor(sigma_nats=sigma, tv_q99=tv, n=self.n)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a look-up gave: a floor, or the empty one and why."""

    floor: Floor = Floor()
    missing: str | None = None
    """Why there is no floor; None when there is."""


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """Floors by the baseline's path through its engine and the other arm's band of concurrency.

    The path is the baseline's because a candidate of another engine is compared with the same baseline as
    the control; the band is that of the arm compared (control when a floor is counted, candidate when one is
    looked up), since how full a batch was is what makes the noise.
    """

    tallies: dict[str, FloorTally] = {}
    left_out: int = 0
    """Control pairs without a known band, or of one path or band too many: counted nowhere else."""

    def add(self, pair: Pair) -> Floors:
        """With one more pair of baseline and control."""
        if not pair.valid:
            return self
        key = key_of(pair)
        if key is None or (key not in self.tallies and len(self.tallies) >= MOST_FLOORS):
            return Floors(tallies=self.tallies, left_out=self.left_out + 1)
        before = self.tallies.get(key, FloorTally())
        after = before.add(pair)
        if after is before:
            return self
        return Floors(tallies={**self.tallies, key: after}, left_out=self.left_out)

    def merge(self, other: Floors) -> Floors:
        """Counts of both, exactly and in any order, while both together hold at most ``MOST_FLOORS`` keys.

        Beyond that the keys that sort last are left out and their pairs counted so.
        """
        tallies = dict(self.tallies)
        for key, tally in other.tallies.items():
            tallies[key] = tallies[key].merge(tally) if key in tallies else tally
        kept = sorted(tallies)[:MOST_FLOORS]
        lost = sum(tallies[key].n for key in sorted(tallies)[MOST_FLOORS:])
        return Floors(
            tallies={key: tallies[key] for key in kept}, left_out=self.left_out + other.left_out + lost
        )

    def of(self, pair: Pair) -> Found:
        """The floor that a pair of baseline and candidate is held against."""
        key = key_of(pair)
        if key is None:
            return Found(missing=f"no noise floor: the {pair.right.arm}'s concurrency is unknown")
        if key not in self.tallies:
            full = len(self.tallies) >= MOST_FLOORS
            return Found(
                missing=f"no noise floor for {key}: "
                + (f"{MOST_FLOORS} others are kept, no more" if full else "no control ran there yet")
            )
        return Found(floor=self.tallies[key].floor())


def floor_of(pairs: Iterable[Pair]) -> Floor:
    """The floor of baseline-control pairs; pairs that were set aside are left out."""
    squares: list[float] = []
    distances: list[float] = []
    n = 0
    for pair in pairs:
        if not pair.valid:
            continue
        before = len(squares) + len(distances)
        for change, distance in _steps_of(pair):
            if change is not None:
                squares.append(change**2)
            if distance is not None:
                distances.append(distance)
        n += len(squares) + len(distances) > before
    distances.sort()
    rank = max(1, math.ceil(QUANTILE * len(distances)))
    return Floor(
        sigma_nats=math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0,
        tv_q99=distances[rank - 1] if distances else 0.0,
        n=n,
    )


def _steps_of(pair: Pair) -> Iterator[tuple[float | None, float | None]]:
    """|change of margin| and total variation of each step up to and including the fork."""
    drawn = pair.left.sampling.temperature > 0
    last = len(pair.left.steps) if pair.fork is None else pair.fork.fork_index + 1
    for left, right in zip(pair.left.steps[:last], pair.right.steps[:last], strict=False):
        if len(left.top_ids) < 2 or len(right.top_ids) < 2:
            yield None, None
            continue
        mine, other = margin_nats(left), margin_nats(right)
        change = None
        if mine is not None and other is not None and math.isfinite(mine) and math.isfinite(other):
            change = abs(mine - other)
        distance = step_tv(left, right, pair.left.sampling) if drawn else None
        yield change, distance if distance is not None and distance >= 0.0 else None  # NaN measures nothing


def key_of(pair: Pair) -> str | None:
    """The floor that a pair belongs to, as :class:`Floors` has it; None where its band is not known."""
    band = band_of(pair.right)
    return None if band is None else f"{path_of(pair.left)} band {band}"


_ZERO = -1_000
"""The bin of nothing at all."""


def _bin_of(value: float, exponents: tuple[int, int]) -> int:
    """The bin of a finite value >= 0.

    ``frexp`` is exact, so that a value falls into one bin everywhere; a logarithm does not promise that.
    """
    if value == 0.0:
        return _ZERO
    lowest, highest = exponents
    if value <= 2.0**lowest:
        return lowest * STEPS + STEPS - 1
    fraction, exponent = math.frexp(value)  # value = fraction * 2**exponent, fraction in [.5, 1)
    if exponent > highest:
        return highest * STEPS + STEPS - 1
    return exponent * STEPS + int((fraction - 0.5) * 2 * STEPS)


def _middle(index: int) -> float:
    if index == _ZERO:
        return 0.0
    exponent, part = divmod(index, STEPS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * STEPS), exponent)


def _upper(index: int) -> float:
    if index == _ZERO:
        return 0.0
    exponent, part = divmod(index, STEPS)
    return min(1.0, math.ldexp(0.5 + (part + 1) / (2 * STEPS), exponent))


def _sum(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    total = dict(left)
    for index, count in right.items():
        total[index] = total.get(index, 0) + count
    return total
