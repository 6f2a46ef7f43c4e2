"""Gates over drawn answers: what they read, what they say, and that each verdict bounds total variation."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison, SampleRef
from comparator.pair import Pair
from comparator.records import Arm, Fact, Outcome
from comparator.records import Sampling as Parameters
from policies.gates import KINDS, GateState, PositionMargins, Sampling
from policies.gates.base import Alpha
from policies.gates.drawn import answer_of, usable
from policies.verdict import Answer
from tests.support import exchanges

ALPHA = Alpha(rollback=0.01, promotion=0.05)
GATE = Sampling(tokens=6)
DRAWN = Parameters(max_tokens=6, temperature=1.0, seed=5, logprobs=20)


def drawn(rng: random.Random, warm: float = 1.0) -> list[int]:
    weights = [2.0 ** (-token / (2 * warm)) for token in range(12)]
    return rng.choices(range(12), weights, k=6)


def made(
    name: str,
    baseline: list[list[int]],
    candidate: list[list[int]],
    control: list[list[int]] | None = None,
    *,
    engine: str = "vllm 0.32.0",
    sampling: Parameters = DRAWN,
    **changes: Any,
) -> Comparison:
    pairs: list[Pair] = []
    for replicate, tokens in enumerate(baseline):
        left = {"sampling": sampling, "replicate": replicate, "finish_reason": "length"}
        right = left | {"engine": engine}
        pairs.append(exchanges.pair(tokens, candidate[replicate], capture_id=name, left=left, right=right))
        if control is not None:
            pairs.append(
                exchanges.pair(
                    tokens, control[replicate], capture_id=name, right_arm=Arm.CONTROL, left=left, right=left
                )
            )
    return exchanges.comparison(*pairs, **changes)


def folded(gate: Sampling | PositionMargins, comparisons: list[Comparison]) -> Any:
    state: Any = gate.initial()
    for comparison in comparisons:
        state = gate.fold(state, comparison)
    return state


def stream(
    n: int,
    *,
    warm: float = 1.0,
    control_warm: float | None = None,
    same: float = 0.0,
    engine: str = "vllm 0.32.0",
    seed: int = 1,
) -> list[Comparison]:
    """``same``: share of replicates in which the candidate says what the baseline says."""
    rng = random.Random(seed)
    found = []
    for number in range(n):
        baseline = [drawn(rng) for _ in range(3)]
        candidate = [list(said) if rng.random() < same else drawn(rng, warm) for said in baseline]
        control = None if control_warm is None else [drawn(rng, control_warm) for _ in range(3)]
        found.append(made(f"c{number}", baseline, candidate, control, engine=engine))
    return found


def test_a_changed_temperature_is_rolled_back_with_the_capture_that_tipped_it():
    state = folded(GATE, stream(150, warm=1.6))
    verdict = GATE.verdict(state, ALPHA)
    assert verdict.answer is Answer.FAIL
    assert not verdict.hold
    assert verdict.rollback_nats is not None
    assert verdict.rollback_nats > 4.6
    assert verdict.deciding_id == state.highest_id
    assert "different distributions" in verdict.reason


def test_a_fail_stays_though_the_arms_agree_again():
    comparisons = stream(150, warm=1.6)
    calm = stream(100, same=1.0, seed=3)
    assert GATE.verdict(folded(GATE, comparisons + calm), ALPHA).answer is Answer.FAIL


def test_equal_answers_pass_once_the_bound_is_under_the_limit():
    state, passed_at = GATE.initial(), None
    for n, comparison in enumerate(stream(120, same=1.0), 1):
        state = GATE.fold(state, comparison)
        verdict = GATE.verdict(state, ALPHA)
        assert verdict.interval is not None
        if verdict.answer is Answer.PASS and passed_at is None:
            passed_at = n
            assert verdict.interval[1] <= 0.05
        if passed_at is None:
            assert verdict.answer is Answer.INCONCLUSIVE
            assert verdict.interval[1] > 0.05
    assert passed_at is not None
    assert 5 < passed_at < 40


def test_a_difference_within_the_limit_passes_though_it_is_found():
    """It is provably there, and provably under what the policy allows."""
    gate = Sampling(tokens=6, maximum_tv=0.5)
    state = folded(gate, stream(200, warm=6.0, same=0.6))
    assert state.candidate.highest_nats > 4.7
    verdict = gate.verdict(state, ALPHA)
    assert verdict.answer is Answer.PASS
    assert "what difference there is, is under 0.5" in verdict.reason


@pytest.mark.parametrize("n", [0, 1, 20, 150])
def test_every_verdict_carries_the_bound(n: int):
    for gate in (GATE, PositionMargins(positions=4)):
        verdict = gate.verdict(folded(gate, stream(n, same=0.5)), ALPHA)
        assert verdict.interval is not None
        assert 0.0 < verdict.interval[1] <= 1.0
        assert "total variation is at most" in verdict.reason
        assert verdict.n == n
        assert verdict.alpha == ALPHA.rollback
        assert verdict.estimand == "traffic"


def test_a_control_that_is_told_apart_is_an_error_that_holds():
    state = folded(GATE, stream(150, warm=1.6, control_warm=1.6))
    verdict = GATE.verdict(state, ALPHA)
    assert verdict.answer is Answer.ERROR
    assert verdict.hold
    assert "baseline and control, one environment, are told apart" in verdict.reason


def test_a_fair_control_is_shown_beside_the_candidate():
    state = folded(GATE, stream(60, warm=1.6, control_warm=1.0))
    assert state.control.n == 60
    assert "the control's at" in GATE.verdict(state, ALPHA).reason


def test_other_engines_leave_the_distribution_test_alone():
    state = folded(GATE, stream(80, engine="vllm 0.33.0"))
    verdict = GATE.verdict(state, ALPHA)
    assert verdict.answer is Answer.INCONCLUSIVE
    assert "engines differ (vllm 0.32.0 and vllm 0.33.0)" in verdict.reason
    assert verdict.interval is not None
    assert verdict.interval[1] > 0.5


def test_silence_passes_only_where_the_policy_says_so_and_seeds_are_no_help():
    comparisons = stream(80, engine="vllm 0.33.0")
    gate = Sampling(tokens=6, pass_without_bound_at=80)
    verdict = gate.verdict(folded(gate, comparisons), ALPHA)
    assert verdict.answer is Answer.PASS
    assert "takes for a pass" in verdict.reason
    assert gate.verdict(folded(gate, comparisons[:79]), ALPHA).answer is Answer.INCONCLUSIVE
    early = Sampling(tokens=6, pass_without_bound_at=20)  # like samplers: the bound alone passes
    assert early.verdict(folded(early, stream(21, same=0.9)), ALPHA).answer is Answer.INCONCLUSIVE


def test_forks_between_equal_distributions_mean_another_stream():
    """Same engine, same distribution at every step, other draws: a seed that is not the same."""
    even = [(token, -2.0) for token in range(6)]
    rng = random.Random(2)
    state = GATE.initial()
    for number in range(6):
        steps = [[exchanges.step(rng.randrange(6), even) for _ in range(6)] for _ in range(2)]
        pair = exchanges.pair(
            capture_id=f"c{number}",
            left={"steps": steps[0], "sampling": DRAWN},
            right={"steps": steps[1], "sampling": DRAWN},
        )
        state = GATE.fold(state, exchanges.comparison(pair))
    assert state.agreement.stream.ones >= 4
    assert "sampling_stream" in (state.agreement.uncoupled or "")
    assert "sampling_stream" in GATE.verdict(state, ALPHA).reason


def test_a_seed_that_was_not_used_is_told():
    pair = exchanges.pair(
        left={"sampling": DRAWN}, right={"sampling": DRAWN, "facts": {"seed": Fact(value=6)}}
    )
    state = GATE.fold(GATE.initial(), exchanges.comparison(pair))
    assert state.agreement.unlike == "candidate drew with seed 6, not with 5 as asked"


def test_what_is_no_new_drawn_answer_of_traffic_leaves_the_state_alone():
    said = [[1, 2, 3]]
    sample = SampleRef(
        suite="s", digest="sha256:0", stage="shadow", sample_id="1", category="c", passage=0, **_sizes()
    )
    for comparison in (
        made("a", said, said, repeat=True),
        made("b", said, said, sample=sample),
        made("c", said, said, sampling=msgspec.structs.replace(DRAWN, temperature=0.0)),
    ):
        assert GATE.fold(GATE.initial(), comparison) is not None
        assert GATE.fold(GATE.initial(), comparison) == GATE.initial()
    assert GATE.fold(GATE.initial(), exchanges.live()) == GATE.initial()


def _sizes() -> dict[str, Any]:
    """Fields of a sample's reference that say how large its suite is, whatever they are called."""
    fields = msgspec.structs.fields(SampleRef)
    return {
        field.name: 1
        for field in fields
        if field.required
        and field.name not in ("suite", "digest", "stage", "sample_id", "category", "passage")
    }


@pytest.mark.parametrize(
    "right",
    [
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.CUT},
        {"outcome": Outcome.ABORTED},
        {"token_only": True},
        {"prompt": (1, 2)},
    ],
)
def test_a_replicate_without_two_whole_answers_does_not_count(right: dict[str, Any]):
    pair = exchanges.pair(left={"sampling": DRAWN}, right={"sampling": DRAWN} | right)
    assert usable([pair]) == ()


def test_an_answer_has_its_end_where_the_model_ended_it():
    assert answer_of(exchanges.exchange((1, 2, 3), finish_reason="stop"), 5) == (1, 2, 3, -1)
    assert answer_of(exchanges.exchange((1, 2, 3), finish_reason="length"), 5) == (1, 2, 3)
    assert answer_of(exchanges.exchange((1, 2, 3), finish_reason="stop"), 3) == (1, 2, 3)
    assert answer_of(exchanges.exchange((1, 2, 3), finish_reason="stop"), 2) == (1, 2)


def test_the_maximum_is_for_good():
    gate = Sampling(tokens=6, maximum_n=40)
    comparisons = stream(60)
    state = folded(gate, comparisons[:40])
    assert gate.fold(state, comparisons[40]) is state
    verdict = gate.verdict(state, ALPHA)
    assert verdict.answer is Answer.INCONCLUSIVE
    assert "at its maximum of 40 comparisons, for good" in verdict.reason


def test_a_stored_state_gives_the_same_verdict_and_goes_on_alike():
    comparisons = stream(40, warm=1.3, control_warm=1.0)
    for gate in (GATE, PositionMargins(positions=4)):
        state = folded(gate, comparisons[:25])
        again = msgspec.json.decode(msgspec.json.encode(state), type=GateState)
        assert again == state
        assert gate.verdict(again, ALPHA) == gate.verdict(state, ALPHA)
        assert gate.fold(again, comparisons[30]) == gate.fold(state, comparisons[30])


def test_a_stored_state_is_small():
    state = folded(GATE, stream(30, control_warm=1.0))
    assert len(msgspec.json.encode(state)) < 80_000


def test_a_position_that_moved_is_named():
    rng = random.Random(4)
    gate = PositionMargins(positions=4)
    comparisons = []
    for number in range(200):
        baseline, candidate = [drawn(rng) for _ in range(3)], [drawn(rng) for _ in range(3)]
        for said in candidate:
            said[2] = 11 - said[2]
        comparisons.append(made(f"c{number}", baseline, candidate, [drawn(rng) for _ in range(3)]))
    verdict = gate.verdict(folded(gate, comparisons), ALPHA)
    assert verdict.answer is Answer.FAIL
    assert "tokens have moved at output position 2 (" in verdict.reason


def test_a_difference_that_seems_within_the_limit_is_not_rolled_back_before_its_bound_comes():
    """One token of six, in a sixth of the answers: told apart soon, and .028 a token where .05 may be."""
    rng, state, found = random.Random(6), GATE.initial(), False
    for number in range(200):
        baseline = [drawn(rng) for _ in range(3)]
        candidate = [[*said[:5], 11] if rng.random() < 1 / 6 else said for said in baseline]
        state = GATE.fold(state, made(f"c{number}", baseline, candidate))
        verdict = GATE.verdict(state, Alpha(rollback=0.01, promotion=1e-6))
        assert verdict.answer is not Answer.FAIL
        found = found or "speak for less than 0.05" in verdict.reason
    assert found
    assert verdict.answer is Answer.PASS


def test_a_position_that_moved_alone_does_not_hide_in_the_average():
    """First tokens of a tenth of the answers: .1 there, .018 a token where .05 may be."""
    rng, gate = random.Random(5), PositionMargins(positions=6)
    comparisons = []
    for number in range(300):
        baseline = [drawn(rng) for _ in range(3)]
        candidate = [[11, *said[1:]] if rng.random() < 0.1 else said for said in baseline]
        comparisons.append(made(f"c{number}", baseline, candidate))
    verdict = gate.verdict(folded(gate, comparisons), ALPHA)
    assert verdict.promotion_nats is not None
    assert verdict.promotion_nats > 3.0  # the average alone would pass
    assert verdict.answer is Answer.FAIL
    assert "tokens have moved at output position 0 (" in verdict.reason


def test_positions_pass_by_the_same_bound_and_hold_on_an_unfair_control():
    gate = PositionMargins(positions=4)
    assert gate.verdict(folded(gate, stream(120, same=1.0)), ALPHA).answer is Answer.PASS
    verdict = gate.verdict(folded(gate, stream(300, warm=3.0, control_warm=3.0)), ALPHA)
    assert verdict.answer is Answer.ERROR
    assert verdict.hold


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("sampling", {"maximum_tv": 0.0}, "0 cannot be proved"),
        ("sampling", {"tokens": 0}, "tokens: 0 is outside 1-512"),
        ("sampling", {"maximum_n": 0}, "maximum_n: 0"),
        (
            "sampling",
            {"maximum_n": 10, "pass_without_bound_at": 11},
            "pass_without_bound_at: 11 is outside 1-10",
        ),
        ("position_margins", {"positions": 65}, "positions: 65 is outside 1-64"),
        ("position_margins", {"maximum_tv": 1.0}, "maximum_tv: 1.0"),
        ("position_margins", {"maximum_n": 0}, "maximum_n: 0"),
    ],
)
def test_limits_are_checked(kind: str, fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        KINDS[kind](**fields)
