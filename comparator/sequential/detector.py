"""Has something broken *lately*? The e-detector of the observation window after a promotion.

An e-process that has watched a long equal past lies near 0 and would need as long a fault to come back. An
e-detector starts a fresh e-process at each observation and adds them up, so that the past weighs nothing.

Assumption: before a change, the mean given the past is on the null's side, as for
:mod:`comparator.sequential.mean`. Formula (Shiryaev-Roberts, one sum for each bet λ_k):

    M_n^k = (M_{n-1}^k + 1) · (1 ± λ_k (x_n - m)),   M_0 = 0,   M_n = Σ_k w_k M_n^k,   alarm at M_n ≥ c

Average run length: without a change, E[M_n | past] ≤ M_{n-1} + 1, so M_n - n is a supermartingale. Stopping
it at the alarm N gives E[N] ≥ E[M_N] ≥ c: a false alarm comes on average no sooner than after c observations.
Stopping it at min(N, w) gives c·P(N ≤ w) ≤ w: a window of w observations errs with probability at most w/c.

Source: Shin, Ramdas & Rinaldo, E-detectors: a nonparametric framework for sequential change detection
(NEJSDS 2024), sections 2 (the Shiryaev-Roberts e-detector) and 3 (mixtures).

The state depends on the order of observations and **cannot be merged**: shards each keep a detector with a
threshold of their own, or their observations are put in order before one detector. Replaying the same
observations in the same order gives the same bits.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential.elementary import exp, log, log1p, log_sum_exp, remembered_log
from comparator.sequential.errors import SequentialError
from comparator.sequential.levels import check_alpha
from comparator.sequential.mean import MeanTest


class DetectorState(msgspec.Struct, frozen=True, kw_only=True):
    """log M of each bet, in the order of the test's bets; None is log 0, before the first observation."""

    log_sums: tuple[float, ...] | None = None
    n: int = 0

    def __post_init__(self) -> None:
        if (self.log_sums is None) != (self.n == 0) or self.n < 0:
            raise SequentialError(f"detector state: {self.n} observations do not fit {self.log_sums}")
        if self.log_sums is not None and not all(math.isfinite(term) for term in self.log_sums):
            raise SequentialError(f"detector state: {self.log_sums} is not finite")


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    """Alarm when the mean has moved to where ``test`` grows."""

    test: MeanTest
    threshold: float
    """c > 1: the average run length to a false alarm is at least this many observations."""

    def __post_init__(self) -> None:
        if not 1.0 < self.threshold < math.inf:
            raise SequentialError(
                f"threshold: {self.threshold}; it is the average run length in observations, above 1"
            )

    @classmethod
    def for_window(cls, test: MeanTest, window: int, alpha: float) -> Detector:
        """A detector that errs within ``window`` observations with probability at most α: c = window/α.

        Raises:
            SequentialError: α outside (0, 1), or an empty window.
        """
        check_alpha(alpha)
        if window < 1:
            raise SequentialError(f"window: {window}; it holds at least one observation")
        return cls(test=test, threshold=window / alpha)

    @property
    def average_run_length(self) -> float:
        """Observations to a false alarm, on average, at least."""
        return self.threshold

    def step(self, state: DetectorState, value: float) -> DetectorState:
        """The state after one more observation. Never mutates ``state``.

        Raises:
            SequentialError: a value outside the test's range, or a state of another mixture.
        """
        factors = self.test.log_factors(value)
        if state.log_sums is None:
            return DetectorState(log_sums=factors, n=1)
        if len(state.log_sums) != len(factors):
            raise SequentialError(f"detector state: {len(state.log_sums)} sums for {len(factors)} bets")
        sums = tuple(
            _log_one_more(before) + factor for before, factor in zip(state.log_sums, factors, strict=True)
        )
        return DetectorState(log_sums=sums, n=state.n + 1)

    def log_statistic(self, state: DetectorState) -> float:
        """log M, nats; ``-inf`` before the first observation."""
        if state.log_sums is None:
            return -math.inf
        weights = self.test.bets.weights
        return log_sum_exp(
            [remembered_log(weight) + term for weight, term in zip(weights, state.log_sums, strict=True)]
        )

    def alarms(self, state: DetectorState) -> bool:
        """True once the statistic has reached the threshold."""
        return self.log_statistic(state) >= log(self.threshold)


def _log_one_more(log_sum: float) -> float:
    """log(M + 1) from log M."""
    return log_sum + log(1.0 + exp(-log_sum)) if log_sum > 0.0 else log1p(exp(log_sum))
