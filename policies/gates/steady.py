"""What length and refusal share: a mean over a suite that should stay where the baseline's runs put it.

Two steps, as strict as each may be. The *interval* (:mod:`policies.gates.predicted`) is what people ask for;
it errs 1 time in 20 by construction, so that outside of it the rollout holds and a person looks. *Rollback*
needs an e-value besides: each sample bets once, its passes averaged inside, on the difference between the
arms, through the two-sided core with a margin (:func:`comparator.sequential.two_sided`).

Assumption of the e-value: while the arms are equal, each sample's difference is fair given the others.
Where a whole pass shares something, such as a load that cuts answers short, samples are no such bets:
simulated with passes that shift by a fifth, more than 1 in 10 equal candidates would have been rolled back.
Whether that is so, the baseline's own passes tell: when their means differ more than their samples explain
(overdispersion above 1, there), no e-value rolls back, and outside the interval the step is held.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from comparator.sequential import Counts, Mixture, TwoSidedTest, on_grid, rejects, two_sided
from policies.gates.base import Alpha
from policies.gates.passes import Passes, Values, mean_of
from policies.gates.predicted import History, Prediction, by_pass, from_passes, stated
from policies.verdict import Answer, Verdict

STEPS = 512
"""Differences are rounded to this part, so that counts stay few; halves to even, so neither arm gains."""


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's question, in its limits and its words."""

    gate: str
    what: str
    """Such as ``mean length``."""
    unit: str
    """Behind a value, such as `` tokens``."""
    suite: str
    margin: float
    coverage: float
    history: History | None
    maximum_missing: float
    span: float | None
    """As in :func:`policies.gates.predicted.from_passes`."""
    difference: Callable[[float, float], float]
    """Of a sample's candidate and baseline means, in [-1, 1]; its sign turns when they are swapped."""

    @property
    def test(self) -> TwoSidedTest:
        """Rejects "differs by at most ``margin``"."""
        return two_sided(self.margin, bets_of(self.margin))

    def verdict(self, passes: Passes, alpha: Alpha) -> Verdict:
        """Judged once a stage, when the suite is complete."""
        cannot = passes.cannot(self.suite, self.what, self.maximum_missing)
        if cannot is not None:
            return self._says(Answer.ERROR, cannot, alpha)
        if not passes.progress.complete:
            told = f"{passes.progress.told(self.suite)}; {self.what} is judged once, when all are"
            return self._says(Answer.INCONCLUSIVE, told, alpha)
        samples = [pairs for _, pairs in passes.asked()]
        mine, base = by_pass(samples, 0), by_pass(samples, 1)
        if min(len(each) for each in (*mine, *base)) < 2:
            return self._says(
                Answer.ERROR,
                f"could not measure: suite {self.suite} has too few samples for a {self.what}",
                alpha,
            )
        if self.span is None and not any(number for each in base for number in each):
            return self._says(
                Answer.ERROR,
                f"could not measure: every answer of the baseline to suite {self.suite} is empty",
                alpha,
            )
        value = mean_of([mean_of(each) for each in mine])
        own = from_passes(base, coverage=self.coverage, span=self.span)
        history = own if self.history is None else stated(self.history, self.coverage)
        shaken = own.overdispersion > 1.0
        # What was not measured on the candidate might have been anything: both ends must be inside.
        lost = sum(pair[0] is None for pairs in samples for pair in pairs)
        largest = (
            max(number for each in (*mine, *base) for number in each) if self.span is None else self.span
        )
        slack = largest * lost / (len(samples) * passes.progress.passes)
        rollback_nats = self.test.log_e(self.bets(samples))
        said = (
            f"{self.what} over {len(samples)} samples in {passes.progress.passes} passes is "
            f"{value:.4g}{self.unit} on the candidate; {self.coverage:.0%} of the baseline's runs "
            f"lie between {max(0.0, history.low):.4g} and {history.high:.4g}"
        )
        if lost:
            said += f" ({lost} answers unmeasured, counted at their worst)"
        outside = not (history.low <= value - slack and value + slack <= history.high)
        proved = rejects(rollback_nats, alpha.rollback)
        differs = (
            f"sample by sample it differs by more than {self.margin:g} "
            f"(log E {rollback_nats:.2f}, this gate's alpha {alpha.rollback:g})"
        )
        answer, hold = Answer.INCONCLUSIVE, True
        if outside and proved and not shaken:
            answer, hold = Answer.FAIL, False
            said += f": outside, and {differs}"
        elif outside and proved:
            said += (
                f": outside, and {differs}, but the baseline's own passes differ more than its samples "
                "explain, so that the load may be the cause; the step is held for a person to look"
            )
        elif outside:
            said += (
                ": outside, so the step is held for a person to look; no proof of a difference to roll back"
            )
        elif proved and not shaken:
            said += f": inside, yet {differs}; the step is held for a person to look"
        else:
            answer, hold = Answer.PASS, False
        return self._says(
            answer, said, alpha, value=value, n=len(samples), history=history, hold=hold, nats=rollback_nats
        )

    def bets(self, samples: list[list[Values]]) -> Counts:
        """Each sample's one difference; samples that an arm never answered bet nothing."""
        found = []
        for pairs in samples:
            mine = [number for number, _ in pairs if number is not None]
            base = [number for _, number in pairs if number is not None]
            if mine and base:
                found.append(on_grid(self.difference(mean_of(mine), mean_of(base)), STEPS))
        return Counts.of(found)

    def _says(
        self,
        answer: Answer,
        reason: str,
        alpha: Alpha,
        *,
        value: float | None = None,
        n: int = 0,
        history: Prediction | None = None,
        hold: bool = False,
        nats: float | None = None,
    ) -> Verdict:
        limit = None
        if history is not None and value is not None:
            limit = history.high if value >= history.mean else history.low
        return Verdict(
            gate=self.gate,
            answer=answer,
            value=value,
            limit=limit,
            n=n,
            reason=reason,
            alpha=alpha.rollback,
            estimand="suite",
            rollback_nats=nats,
            interval=None if history is None else (history.low, history.high),
            hold=hold,
        )


def bets_of(margin: float) -> Mixture:
    """Bets up to nearly all that two_sided(margin) allows: averaged differences vary little."""
    return Mixture.geometric(0.03, 0.95 / (1.0 + margin), 8)


def check_steady(margin: float, coverage: float, maximum_missing: float) -> None:
    """Limits of a gate.

    Raises:
        ValueError: which, what it was, what is allowed.
    """
    if not 0.0 <= margin <= 0.5:
        raise ValueError(f"margin: {margin:g} is outside 0-0.5")
    if not 0.5 <= coverage < 1.0:
        raise ValueError(f"coverage: {coverage:g} is outside 0.5-1 (1 excluded); 0.95 is usual")
    if not math.isfinite(maximum_missing) or not 0.0 <= maximum_missing < 1.0:
        raise ValueError(f"maximum_missing: {maximum_missing:g} is outside 0-1 (1 excluded)")
