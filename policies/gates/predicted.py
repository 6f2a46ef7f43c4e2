"""Is a candidate's mean over a frozen suite where the baseline's own runs would put it?

The question: is the mean length, or the rate of refusals, of N fixed samples inside the interval in
which a run of the *old* environment falls 95 times in 100? History is the baseline's own m passes of this
stage, frozen once they are all there, or a mean and spread between runs that the policy states.

From passes. Pass r gives the mean H_r of its N numbers. Two spreads are at work. What another N samples of
this kind would change, s²/N with s² the variance between the samples of a pass (averaged over passes): the
tolerance that is wanted, since a candidate that forks harmlessly trades some answers for
others of the same kind, and its mean moves by about that much, whereas the baseline's own greedy passes may
not move at all. And what differs from run to run, S² = variance of the H_r, which is larger when a whole
pass shares something, such as the load it ran under. With overdispersion φ = max(1, S²/(s²/N)), a pass has
variance V = φ s²/N, and the mean of the history adds V/m to the error of predicting one more pass mean:

    half-width = t_{ν, 1 - a/4} √(V (1 + 1/m)) + span · log(4/a)/N,     a = 1 - coverage,

with ν = N - 1 where φ = 1 and V is a variance between samples, and ν = m - 1 where V came from m pass
means. The factor 1 + 1/m, not 1/m + 1/m, holds for the candidate's mean over several passes too: passes of
one run share that run, so that averaging them need not help. The last term is for what never varied, as in
:mod:`policies.gates.repeated`: when no sample refuses, s² = 0, yet a share up to log(1/a)/N of such samples
could have; ``span`` is how far one sample can move (1 for a rate, the mean itself for a length). Each of
the two errors and each of the two sides has a/4.

Errors: a candidate equal to the baseline is outside with probability at most a, and less where samples are
fixed and runs repeat well. What moves a whole run of one arm, and so differs from run to run but not from
pass to pass, is in no pass of one stage: where it moved lengths by a tenth, 16 % of equal candidates were
outside in simulation. Runs that vary so need a stated history. Such an interval errs 1 time in 20 by
construction: outside is a reason to look, never to roll back.

From a stated history: runs of the suite on the old environment with mean μ and standard deviation σ
*between run means*, k of them: μ ± t_{k - 1, 1 - a/2} σ √(1 + 1/k), the usual prediction interval of a
normal mean.

Source: Hahn & Meeker, Statistical Intervals (1991), chapter 4 (prediction intervals); overdispersion as in
McCullagh & Nelder, Generalized Linear Models (1989), section 4.5.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential import threshold_nats
from policies.gates.passes import Values, mean_of
from policies.gates.student import t_quantile


class History(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What earlier runs of the suite on the old environment came to."""

    mean: float
    """Of the run means."""
    sd: float
    """Standard deviation between run means (not between samples)."""
    runs: int
    """How many runs both come from."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean) or self.mean < 0.0:
            raise ValueError(f"mean: {self.mean} is not a finite number of at least 0")
        if not math.isfinite(self.sd) or self.sd < 0.0:
            raise ValueError(f"sd: {self.sd} is not a finite number of at least 0")
        if self.runs < 2:
            raise ValueError(f"runs: {self.runs}; a spread between runs needs at least 2")


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run of the old environment would fall."""

    mean: float
    low: float
    high: float
    overdispersion: float
    """φ; 1 for a stated history."""


def stated(history: History, coverage: float) -> Prediction:
    """From what the policy says."""
    error = 1.0 - coverage
    half = t_quantile(0.5 * error, history.runs - 1.0) * history.sd * math.sqrt(1.0 + 1.0 / history.runs)
    return Prediction(
        mean=history.mean, low=history.mean - half, high=history.mean + half, overdispersion=1.0
    )


def from_passes(passes: list[list[float]], *, coverage: float, span: float | None) -> Prediction:
    """From the baseline's passes.

    Args:
        passes: m lists, each of one pass's numbers by sample; at least 2, each with at least 2 numbers.
        span: how far one sample can move the number; None for the mean itself.

    Raises:
        ValueError: too few passes or numbers.
    """
    m, n = len(passes), min((len(each) for each in passes), default=0)
    if m < 2 or n < 2:
        raise ValueError(f"{m} passes of {n} samples make no spread; at least 2 of 2 do")
    means = [mean_of(each) for each in passes]
    centre = mean_of(means)
    between_samples = mean_of([_variance(each) for each in passes]) / n
    between_passes = _variance(means)
    error = 1.0 - coverage
    if between_passes > between_samples:
        variance, degrees = between_passes, m - 1.0
        overdispersion = between_passes / between_samples if between_samples else math.inf
    else:
        variance, degrees, overdispersion = between_samples, n - 1.0, 1.0
    half = t_quantile(0.25 * error, degrees) * math.sqrt(variance * (1.0 + 1.0 / m)) if variance else 0.0
    half += (centre if span is None else span) * threshold_nats(0.25 * error) / n
    return Prediction(mean=centre, low=centre - half, high=centre + half, overdispersion=overdispersion)


def by_pass(samples: list[list[Values]], arm: int) -> list[list[float]]:
    """One arm's numbers pass by pass, from numbers sample by sample; what was not measured is left out.

    Args:
        arm: 0 the candidate, 1 the baseline: the place in :data:`Values`.
    """
    passes = max((len(each) for each in samples), default=0)
    found: list[list[float]] = [[] for _ in range(passes)]
    for sample in samples:
        for number, values in enumerate(sample):
            value = values[arm]
            if value is not None:
                found[number].append(value)
    return found


def _variance(values: list[float]) -> float:
    centre = mean_of(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)
