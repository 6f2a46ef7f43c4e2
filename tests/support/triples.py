"""Comparisons of a baseline, a candidate and a control, as short as a test wants to write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comparator.compare import compare
from comparator.comparison import CONCURRENCY, Comparison
from comparator.records import Arm, Exchange, Fact, Outcome, Sampling, Step
from tests.support.exchanges import comparison, exchange, step

GREEDY = Sampling(max_tokens=64, temperature=0.0, seed=5, logprobs=20)


def steps_of(
    tokens: int, *, fork_at: int | None = None, error_nats: float = 0.0, gap_nats: float = 0.2, k: int = 8
) -> tuple[Step, ...]:
    """Steps that fork at ``fork_at`` from those without, and err by ``error_nats`` from those of 0.

    The second choice stands ``gap_nats`` under the first; a fork takes it, and swaps the two.
    """
    made = []
    for index in range(tokens):
        first = 100 + 10 * index
        second = -1.0 - gap_nats - error_nats
        rest = [(first + 2 + j, -4.0 - j) for j in range(k - 2)]
        if fork_at == index:
            made.append(step(first + 1, [(first + 1, -1.0), (first, second), *rest]))
        else:
            made.append(step(first, [(first, -1.0), (first + 1, second), *rest]))
    return tuple(made)


def triple(
    capture_id: str = "capture",
    *,
    candidate: Sequence[Step] | int | None = None,
    control: Sequence[Step] | int | None = None,
    tokens: int = 8,
    bands: tuple[int | None, int | None] = (1, 1),
    sampling: Sampling = GREEDY,
    candidate_outcome: Outcome = Outcome.COMPLETED,
    control_outcome: Outcome = Outcome.COMPLETED,
    baseline: Sequence[Step] | None = None,
    **changes: Any,
) -> Comparison:
    """One comparison with a control.

    Args:
        capture_id: names the capture, and its cluster.
        candidate: its steps, or where it forks from the baseline; None: nowhere.
        control: likewise.
        tokens: of every arm whose steps are not given.
        bands: concurrency of candidate and control; None: unknown.
        sampling: of all arms.
        candidate_outcome: how the candidate ended.
        control_outcome: how the control ended.
        baseline: its steps.
        changes: further fields of the comparison.
    """

    def arm(
        which: Arm,
        said: Sequence[Step] | int | None,
        concurrency: int | None,
        outcome: Outcome = Outcome.COMPLETED,
    ) -> Exchange:
        made = steps_of(tokens, fork_at=said) if said is None or isinstance(said, int) else said
        facts = {} if concurrency is None else {CONCURRENCY: Fact(value=concurrency)}
        return exchange(
            steps=made, arm=which, capture_id=capture_id, sampling=sampling, facts=facts, outcome=outcome
        )

    left = arm(Arm.BASELINE, baseline, bands[0])
    return comparison(
        compare(left, arm(Arm.CANDIDATE, candidate, bands[0], candidate_outcome)),
        compare(left, arm(Arm.CONTROL, control, bands[1], control_outcome)),
        **changes,
    )
