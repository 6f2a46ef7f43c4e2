"""Every arm's answer of one comparison, scored."""

from __future__ import annotations

from typing import Protocol

import msgspec

from comparator.comparison import Comparison, Score
from comparator.records import Arm, Exchange, Outcome
from forkgate.config.suites import LoadedSuite
from policies.scoring import Judged, questions_of
from policies.suites import Sample


class AnswerScorer(Protocol):
    """:class:`forkgate.suites.Scorer`, or a test's own."""

    async def score(self, loaded: LoadedSuite, sample: Sample, answer: str) -> tuple[Judged, ...]: ...

    def forget(self, loaded: LoadedSuite) -> None: ...

    async def close(self) -> None: ...


async def with_scores(
    comparison: Comparison, loaded: LoadedSuite, sample: Sample, scorer: AnswerScorer
) -> Comparison:
    """The comparison with one score for every arm, replicate and question: a value, or why there is none.

    Equal answers are scored once, so that a scorer's own noise never tells two arms apart that said the same.
    """
    known: dict[str, tuple[Judged, ...]] = {}
    scores: list[Score] = []
    for exchange in _exchanges(comparison):
        answer, why_not = answer_of(exchange)
        if answer is None:
            judged = tuple(Judged(question=one, error=why_not) for one in questions_of(sample))
        else:
            if answer not in known:
                known[answer] = await scorer.score(loaded, sample, answer)
            judged = known[answer]
        scores += [
            Score(
                arm=exchange.arm,
                question=one.question,
                value=one.value,
                error=one.error,
                replicate=exchange.replicate,
            )
            for one in judged
        ]
    return msgspec.structs.replace(comparison, scores=tuple(scores))


def answer_of(exchange: Exchange) -> tuple[str | None, str | None]:
    """The answer's text, or why there is none that could be scored."""
    if exchange.outcome is not Outcome.COMPLETED:
        return None, f"no answer, it {_ENDED.get(exchange.outcome, exchange.outcome.value)}: {exchange.error}"
    silent = sum(step.text is None for step in exchange.steps)
    if silent:
        return None, f"the engine gave no text for {silent} of {len(exchange.steps)} tokens"
    return "".join(step.text or "" for step in exchange.steps), None


_ENDED = {
    Outcome.ABORTED: "was stopped by us",
    Outcome.CUT: "was cut by us",
    Outcome.REFUSED: "was refused",
    Outcome.TIMED_OUT: "timed out",
    Outcome.INVALID: "was no valid answer",
}


def _exchanges(comparison: Comparison) -> list[Exchange]:
    """Each arm's, by replicate: the baseline stands in the pairs of both others."""
    found: dict[tuple[Arm, int], Exchange] = {}
    for pair in comparison.pairs:
        for one in (pair.left, pair.right):
            found.setdefault((one.arm, one.replicate), one)
    return list(found.values())
