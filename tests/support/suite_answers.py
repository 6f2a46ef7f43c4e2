"""Comparisons of a suite's samples, as short as a test wants to write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from comparator.comparison import Comparison, SampleRef, Score
from comparator.pair import Pair
from comparator.records import Arm, CaptureId, Outcome
from policies.gates.base import Alpha
from policies.verdict import Verdict
from tests.support.exchanges import comparison, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)

_GOOD = pair()
_CONTROL = pair(right_arm=Arm.CONTROL)

Said = float | str | None
"""A score, the reason why there is none, or no score at all."""


def ref(
    sample_id: str = "a",
    passage: int = 0,
    *,
    samples: int = 1,
    passes: int = 5,
    stage: str = "shadow",
    suite: str = "starter",
    digest: str = "sha256:1",
) -> SampleRef:
    """Which sample, which pass, of how many."""
    return SampleRef(
        suite=suite,
        digest=digest,
        stage=stage,
        sample_id=sample_id,
        category="short",
        passage=passage,
        samples=samples,
        passes=passes,
    )


def scores(question: str, **arms: Said) -> tuple[Score, ...]:
    """Scores by arm's name, such as ``candidate=1.0, baseline="it hung"``."""
    made = []
    for arm, said in arms.items():
        if isinstance(said, str):
            made.append(Score(arm=Arm(arm), question=question, error=said))
        elif said is not None:
            made.append(Score(arm=Arm(arm), question=question, value=said))
    return tuple(made)


def answer(sample: SampleRef | None, *given: Score, pairs: Iterable[Pair] = (), **changes: Any) -> Comparison:
    """One comparison; without ``pairs``, all arms ended well."""
    capture = CaptureId(f"{sample.sample_id}/{sample.passage}" if sample is not None else "live")
    made = tuple(pairs) or (_GOOD, _CONTROL)
    return comparison(*made, capture_id=capture, sample=sample, scores=given, **changes)


def answers(
    question: str,
    candidate: dict[str, list[Said]],
    baseline: dict[str, list[Said]],
    *,
    samples: int | None = None,
    **where: Any,
) -> list[Comparison]:
    """A whole suite, pass by pass as it runs; further samples up to ``samples`` do not ask the question."""
    passes = len(next(iter(candidate.values())))
    n = samples or len(candidate)
    made = []
    for passage in range(passes):
        for key in candidate:
            made.append(
                answer(
                    ref(key, passage, samples=n, passes=passes, **where),
                    *scores(question, candidate=candidate[key][passage], baseline=baseline[key][passage]),
                )
            )
        for number in range(n - len(candidate)):
            made.append(answer(ref(f"other-{number}", passage, samples=n, passes=passes, **where)))
    return made


def of_length(sample: SampleRef, candidate: int, baseline: int) -> Comparison:
    """Both arms ended well after so many tokens."""
    return answer(sample, pairs=(lengths(candidate, baseline),))


def lengths(candidate: int, baseline: int) -> Pair:
    """A pair of answers of so many tokens."""
    return pair(tuple(range(1, baseline + 1)), tuple(range(1, candidate + 1)))


def failing(outcome: Outcome = Outcome.TIMED_OUT) -> Pair:
    """The candidate gave no answer."""
    return pair((1, 2), (), right={"outcome": outcome, "error": "no answer within 60 s"})


def right(n: int, wrong: int = 0, passes: int = 5) -> dict[str, list[Said]]:
    """n samples, all right in every pass but the first ``wrong``, which are always wrong."""
    return {f"s{i:04}": [0.0 if i < wrong else 1.0] * passes for i in range(n)}


def fold(gate: Any, items: Iterable[Comparison], state: Any = None) -> Any:
    """The gate's state after all items."""
    state = gate.initial() if state is None else state
    for item in items:
        state = gate.fold(state, item)
    return state


def says(gate: Any, items: Iterable[Comparison]) -> Verdict:
    """What the gate says after all items."""
    verdict: Verdict = gate.verdict(fold(gate, items), ALPHA)
    return verdict
