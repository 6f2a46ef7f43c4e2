"""How far two arms differ on a frozen set of samples, when only run-to-run noise is left.

The question. N samples, all of them observed, m passes an arm. In pass r, sample i's difference is
D_ir = candidate's number minus baseline's, in [-1, 1]. Its passes are alike in law, with mean μ_i and
variance σ_i². The estimand is the *set's own* mean difference Δ = (1/N) Σ μ_i: the samples are not a draw
from anything, so how much they differ among each other is no noise, and only the σ_i² are.

Assumption. Given the samples, differences of different samples, and of different passes, are independent.
(The two arms of one pass may depend on each other: they share a seed, and D is taken inside the pass.) What
changes one arm in a whole pass, such as an engine that degrades for its duration, breaks this and is not seen
here; repeated over the passes it is a difference of the arms, which is what the gate is for. Nor is noise
seen that no pass met: passes under one load say nothing of what another load would flip.

Seen noise. With D̄_i and s_i² the mean and variance of sample i's m_i passes, Δ̂ = (1/N) Σ D̄_i has the
variance V = (1/N²) Σ σ_i²/m_i, estimated without bias by V̂ = Σ v_i, v_i = s_i²/(m_i N²). Of v_i, the degrees
of freedom are m_i - 1, and Welch and Satterthwaite give those of the sum: ν = V̂² / Σ (v_i²/(m_i - 1)). Most
samples never differ and weigh nothing in either sum, so ν counts the passes of those that do. (Satterthwaite
1946, Biometrics Bulletin 2; Welch 1947, Biometrika 34.)

Unseen noise. Where no sample varied, V̂ = 0 would claim to know Δ exactly. Let q_i be the chance that a pass
of sample i comes out otherwise than all of its m passes did. That none did has probability
Π (1 - q_i)^m ≤ exp(-m Σ q_i), so with confidence 1 - α the mean share of flips that stayed unseen is at most

    (1/N) Σ q_i ≤ log(1/α) / (N m).

A flip moves a difference by at most w = 1 + |c|, towards the far end of [-1, 1], with c the constant that was
seen: 1 where the arms agree, 2 where one was always right and the other always wrong. So Δ lies within
w log(1/α)/(N m) of Δ̂, for every set of q_i. Where some samples did vary, a count of few flips is far from
normal and V̂ is itself uncertain, which is where empirical Bernstein bounds add a term of this very form
(Maurer & Pontil 2009, theorem 4); so the term stays, and each of the two errors has half of α:

    nothing varied:    bound = Δ̂ ± w log(1/α)/(N m)
    something varied:  bound = Δ̂ ± (t_{ν, 1 - α/2} √V̂ + w log(2/α)/(N m)).

Each is a bound on one side at level α. That the two together are one too does not follow from either: for
rare flips of one direction, the hardest case, tests/statistical sum the probability of a miss exactly, at
every rate and down to α = 1e-6; other mixtures are simulated there.

Unmeasured passes. A pass without a difference may have had any in [-1, 1]; j of them move Δ̂ by at most
j/(N m) either way, and each bound is taken at its worse end. (The sum of a sample's measured passes is
still divided by m, so that a flip in one of its m_i moves Δ̂ by at most w/(N m), and the bound on Σ m_i q_i
is enough.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from comparator.sequential import threshold_nats
from policies.gates.passes import Values
from policies.gates.student import t_quantile


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Δ̂ and all that its bounds need."""

    mean: float
    """Of what was measured."""
    candidate: float
    baseline: float
    variance: float
    """V̂, of run-to-run noise alone."""
    degrees: float
    """ν; infinite without variance."""
    answers: int
    """N·m."""
    unmeasured: float
    """How far passes without a difference could move Δ̂, either way."""
    reach_up: float
    """w upwards: the largest step that an unseen flip could take."""
    reach_down: float

    def at_most(self, alpha: float) -> float:
        """Δ is at most this, wrong with probability α (one-sided)."""
        return self.mean + self._width(alpha, self.reach_up)

    def at_least(self, alpha: float) -> float:
        """Δ is at least this, wrong with probability α (one-sided)."""
        return self.mean - self._width(alpha, self.reach_down)

    def _width(self, alpha: float, reach: float) -> float:
        if not self.variance:
            return reach * threshold_nats(alpha) / self.answers + self.unmeasured
        seen = t_quantile(0.5 * alpha, self.degrees) * math.sqrt(self.variance)
        return seen + reach * threshold_nats(0.5 * alpha) / self.answers + self.unmeasured


def difference_of(samples: Iterable[list[Values]]) -> Difference:
    """The difference over samples, each with m passes of (candidate, baseline), None where not measured.

    Raises:
        ValueError: no sample, or a value outside [0, 1].
    """
    means: list[float] = []
    candidates: list[float] = []
    baselines: list[float] = []
    variances: list[tuple[float, int]] = []
    constants: list[float] = []
    n = lost = answers = 0
    for passes in samples:
        n += 1
        answers += len(passes)
        both = [(mine, base) for mine, base in passes if mine is not None and base is not None]
        lost += len(passes) - len(both)
        candidates.extend(mine for mine, _ in both)
        baselines.extend(base for _, base in both)
        if any(not 0.0 <= value <= 1.0 for pair in both for value in pair):
            raise ValueError("a score outside 0-1 makes no bounded difference")
        differences = [mine - base for mine, base in both]
        # An unmeasured pass enters as 0 and with its whole range in `lost`.
        means.append(math.fsum(differences) / len(passes))
        if not differences:
            continue
        if differences.count(differences[0]) == len(differences):
            constants.append(differences[0])
            continue
        centre = math.fsum(differences) / len(differences)
        spread = math.fsum((value - centre) ** 2 for value in differences) / (len(differences) - 1)
        variances.append((spread / len(differences), len(differences) - 1))
    if not n:
        raise ValueError("no sample: there is no difference to speak of")
    total = math.fsum(value for value, _ in variances)
    squares = math.fsum(value * value / degrees for value, degrees in variances)
    return Difference(
        mean=math.fsum(means) / n,
        candidate=math.fsum(candidates) / len(candidates) if candidates else 0.0,
        baseline=math.fsum(baselines) / len(baselines) if baselines else 0.0,
        variance=total / n / n,
        degrees=total * total / squares if squares else math.inf,
        answers=answers,
        unmeasured=lost / answers,
        reach_up=1.0 + max(0.0, -min(constants, default=0.0)),
        reach_down=1.0 + max(0.0, max(constants, default=0.0)),
    )
