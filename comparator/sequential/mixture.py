"""Several bets at once: points and their weights.

One bet grows fastest for one effect. A weighted mean of e-processes is an e-process again, and lies at most
log(1/weight) nats below the best of them; so a small grid is good for every effect within its range.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential.errors import SequentialError


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """Points (bets λ, or alternatives q), ascending, with weights that sum to 1."""

    points: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.points or len(self.points) != len(self.weights):
            raise SequentialError(
                f"mixture: {len(self.points)} points with {len(self.weights)} weights; "
                "each of at least one point has its weight"
            )
        last = -math.inf
        for point in self.points:
            if not last < point < math.inf:
                raise SequentialError(f"points: {point} after {last}; they must be finite and ascending")
            last = point
        for weight in self.weights:
            if not 0.0 < weight <= 1.0:
                raise SequentialError(f"weights: {weight} is outside (0, 1]")
        total = math.fsum(self.weights)
        if abs(total - 1.0) > 1e-12:
            raise SequentialError(f"weights: they sum to {total}, not to 1")

    @classmethod
    def even(cls, points: tuple[float, ...]) -> Mixture:
        """The same weight for each point."""
        if not points:
            raise SequentialError("points: empty; a mixture has at least one")
        return cls(points=points, weights=(1.0 / len(points),) * len(points))

    @classmethod
    def geometric(cls, low: float, high: float, size: int) -> Mixture:
        """``size`` points from low to high in equal ratios, evenly weighted.

        The ratio is found by bisection with IEEE operations alone, so the points have the same bits
        everywhere.
        """
        if not 0.0 < low < high < math.inf or size < 2:
            raise SequentialError(
                f"geometric({low}, {high}, {size}): needs 0 < low < high and at least two points"
            )
        return cls.even(tuple(low * root for root in _powers(high / low, size)))

    @classmethod
    def linear(cls, low: float, high: float, size: int) -> Mixture:
        """``size`` points from low to high at equal distances, evenly weighted."""
        if not -math.inf < low < high < math.inf or size < 2:
            raise SequentialError(f"linear({low}, {high}, {size}): needs low < high and at least two points")
        return cls.even(tuple(low + (high - low) * k / (size - 1) for k in range(size)))


def _powers(ratio: float, size: int) -> list[float]:
    """ratio^(k/(size-1)) for k = 0..size-1; the ends are exact."""
    low, high = 1.0, ratio
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        power = 1.0
        for _ in range(size - 1):
            power *= middle
        low, high = (middle, high) if power < ratio else (low, middle)
    powers = [1.0]
    for _ in range(size - 2):
        powers.append(powers[-1] * low)
    return [*powers, ratio]
