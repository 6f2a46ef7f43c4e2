"""Whatever the pieces and their order, streaming says what comparing the finished exchanges says."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.align import PairAligner
from comparator.compare import compare
from comparator.pair import Fork
from comparator.records import Arm, Outcome, Step
from tests.support.exchanges import exchange

token_ids = st.integers(0, 5)
# few distinct values, so that ties at the border of the top five are common
logprobs = st.sampled_from([-0.0, -0.25, -0.5, -0.5, -1.0, -2.0, -math.inf])
tops = st.lists(st.tuples(st.integers(0, 9), logprobs), max_size=9)
WELL_FORMED = st.sampled_from(
    [
        (-0.25, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -5.0),
        (-0.5, -0.5, -0.75, -1.5, -2.0, -2.5, -4.0, -5.0),
        (-0.25, -0.5, -1.0, -1.5, -2.0, -2.0, -2.0, -5.0),  # ties across the border
        (-0.25, -0.5, -1.0, -1.5, -2.5, -2.5, -2.5, -5.0),
        (-0.25, -0.5, -1.0, -1.5, -3.0, -3.5, -4.0, -5.0),
        (-0.25, -0.5, -1.0, -1.5, -2.0, -3.0, -math.inf, -math.inf),
    ]
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    top = draw(tops)
    if draw(st.booleans()):  # nearly well formed, the common case: sorted, more than five
        first = draw(st.integers(0, 2))
        values = draw(WELL_FORMED)
        distinct = draw(st.sampled_from([8, 8, 8, 4]))  # four: every ID twice
        ids = [(first + 3 * i) % distinct for i in range(8)]
        top = list(zip(ids, values, strict=True))  # ties in any order of ID
    if draw(st.integers(0, 30)) == 0:
        top = [*top, (3, math.nan)]
    return Step(
        token_id=draw(token_ids),
        logprob=draw(st.none() | logprobs),
        top_ids=tuple(i for i, _ in top),
        top_logprobs=tuple(x for _, x in top),
        received_s=0.0,
    )


@st.composite
def two_streams(draw: st.DrawFn) -> tuple[list[Step], list[Step]]:
    left = draw(st.lists(steps(), max_size=8))
    right = draw(st.lists(steps(), max_size=8))
    shared = draw(st.integers(0, len(left)))
    if draw(st.booleans()):
        # mostly equal: same tokens, now and then the same numbers
        head = [s if draw(st.booleans()) else draw(steps()) for s in left[:shared]]
        head = [
            Step(mine.token_id, s.logprob, s.top_ids, s.top_logprobs, 0.0)
            for mine, s in zip(left, head, strict=False)
        ]
        right = head + right
    return left, right


ENDS = st.sampled_from([Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED, Outcome.CUT])


def reference(
    left: list[Step], right: list[Step], left_ends: bool, right_ends: bool
) -> tuple[int | None, float | None, int | None, bool]:
    """(fork index, largest error, where, fault) by the definition, slowly."""
    worst: float | None = None
    where: int | None = None
    for index in range(max(len(left), len(right))):
        present = [side[index] for side in (left, right) if index < len(side)]
        if len(present) < 2 and not (left_ends if index >= len(left) else right_ends):
            return None, worst, where, False
        if any(x != x for s in present for x in (*s.top_logprobs, s.logprob or 0.0)):
            return None, worst, where, True
        if len(present) < 2:
            return index, worst, where, False
        fives = []
        for one in present:
            best: dict[int, float] = {}
            for token_id, logprob in zip(one.top_ids, one.top_logprobs, strict=True):
                best[token_id] = max(logprob, best.get(token_id, -math.inf))
            ranked = sorted(best.items(), key=lambda entry: (-entry[1], entry[0]))
            fives.append(dict(ranked[:5]))
        for token_id in fives[0].keys() & fives[1].keys():
            a, b = fives[0][token_id], fives[1][token_id]
            error = 0.0 if a == b else abs(a - b)
            if worst is None or error > worst:
                worst, where = error, index
        if present[0].token_id != present[1].token_id:
            return index, worst, where, False
    return None, worst, where, False


@settings(max_examples=200, deadline=None)
@given(two_streams(), ENDS, ENDS, st.data())
def test_any_chunking_and_interleaving_is_the_same_as_comparing_at_the_end(
    streams, left_end, right_end, data
):
    left, right = streams
    aligner = PairAligner()
    forks: list[Fork] = []
    queues = {Arm.BASELINE: (left, left_end), Arm.CANDIDATE: (right, right_end)}
    positions = dict.fromkeys(queues, 0)
    while queues:
        arm = data.draw(st.sampled_from(sorted(queues)))
        pieces, end = queues[arm]
        start = positions[arm]
        if start == len(pieces) and not data.draw(st.booleans()):
            fork = aligner.finish(arm, end is Outcome.COMPLETED)
            del queues[arm]
        else:
            count = data.draw(st.integers(0, len(pieces) - start))
            fork = aligner.push(arm, pieces[start : start + count])
            positions[arm] = start + count
        if fork is not None:
            forks.append(fork)
    streamed = aligner.alignment()

    mine = exchange(steps=left, outcome=left_end)
    other = exchange(steps=right, arm=Arm.CANDIDATE, outcome=right_end)
    at_end = compare(mine, other)
    assert compare(mine, other, streamed) == at_end
    assert streamed.fork == at_end.fork
    assert streamed.max_error_nats == at_end.max_error_nats
    assert forks == ([] if streamed.fork is None else [streamed.fork])

    index, error, where, fault = reference(
        left, right, left_end is Outcome.COMPLETED, right_end is Outcome.COMPLETED
    )
    assert (None if streamed.fork is None else streamed.fork.fork_index) == index
    assert (streamed.max_error_nats, streamed.max_error_index) == (error, where)
    assert (streamed.fault is not None) == fault
