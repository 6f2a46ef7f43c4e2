"""Output tokens a second, by blocks of time."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.comparison import Comparison
from policies.gates import Throughput
from policies.gates.base import Alpha
from policies.verdict import Answer
from tests.support.exchanges import comparison, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)
T0 = 1_700_000_040.0
GATE = Throughput()


def rated(number: float, baseline: float, candidate: float, *, tokens: int = 100) -> Comparison:
    """A timing comparison of one block, by tokens a second."""
    made = pair()
    arms = []
    for exchange, rate in ((made.left, baseline), (made.right, candidate)):
        timing = msgspec.structs.replace(exchange.timing, tokens=tokens, total_s=tokens / rate)
        arms.append(msgspec.structs.replace(exchange, timing=timing))
    made = msgspec.structs.replace(made, left=arms[0], right=arms[1])
    return comparison(made, timing=True, unix_s=T0 + 60.0 * number)


def fold(gate, items):
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(gate, items):
    return gate.verdict(fold(gate, items), ALPHA)


def test_a_candidate_that_makes_fewer_tokens_fails():
    verdict = judge(GATE, [rated(n, 50.0, 40.0) for n in range(22)])
    assert verdict.answer is Answer.FAIL
    assert verdict.value == pytest.approx(0.8, rel=1e-6)
    assert (verdict.limit, verdict.n) == (0.9, 20)
    assert verdict.reason == (
        "in 20 of 20 blocks of 60 s the candidate made under 0.9 of the baseline's output tokens a "
        "second; half of them may; in all 40 against 50 a second and request"
    )


def test_one_within_the_tolerated_loss_passes():
    assert judge(GATE, [rated(n, 50.0, 47.0) for n in range(30)]).answer is Answer.PASS


def test_a_block_is_all_its_tokens_over_all_its_seconds():
    long, short = rated(0, 50.0, 50.0, tokens=9_000), rated(0.5, 50.0, 5.0, tokens=10)
    state = fold(GATE, [long, short, rated(3, 50.0, 50.0)])
    assert (state.under.ones, state.under.zeros) == (0, 1)


def test_one_stalled_block_moves_nothing():
    items = [rated(n, 50.0, 0.5 if n == 7 else 50.0) for n in range(40)]
    assert judge(GATE, items).answer is Answer.PASS


@pytest.mark.parametrize("total_s", [math.nan, math.inf, 0.0, -1.0])
def test_a_pair_without_a_length_is_counted_as_such(total_s):
    one = rated(0, 50.0, 50.0)
    made = one.pairs[0]
    right = msgspec.structs.replace(
        made.right, timing=msgspec.structs.replace(made.right.timing, total_s=total_s)
    )
    state = fold(GATE, [msgspec.structs.replace(one, pairs=(msgspec.structs.replace(made, right=right),))])
    assert (state.unmeasured, state.blocks) == (1, GATE.initial().blocks)
    assert "1 pairs without tokens or length" in GATE.verdict(state, ALPHA).reason


def test_a_pair_without_tokens_is_counted_as_such():
    assert fold(GATE, [rated(0, 50.0, 50.0, tokens=0)]).unmeasured == 1


def test_comparisons_with_logprobs_are_not_read():
    before = GATE.initial()
    assert GATE.fold(before, msgspec.structs.replace(rated(0, 1.0, 2.0), timing=False)) is before


def test_at_its_maximum_it_stays_as_it_is():
    gate = Throughput(maximum_n=10)
    items = [rated(n, 50.0, 40.0 if n % 2 else 50.0) for n in range(40)]
    verdict = judge(gate, items)
    assert (verdict.n, verdict.answer) == (10, Answer.INCONCLUSIVE)
    assert "undecided at its maximum of 10 blocks, for good" in verdict.reason


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"maximum_loss": 0.0},
            (
                "maximum_loss: 0.0 is outside 0-1, both excluded (a share of the baseline's rate; at 0 equal "
                "arms are under every other time)"
            ),
        ),
        ({"maximum_n": 2}, "maximum_n: 2 is under 10; fewer blocks decide nothing"),
        ({"block_s": 0.2}, "block_s: 0.2 is outside 1-86400 seconds; longer than an outage, such as 60"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        Throughput(**limits)
    assert str(caught.value) == message
