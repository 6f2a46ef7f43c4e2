"""Which pairs are evidence: the first rule that fits, in order."""

from __future__ import annotations

import math

import pytest

from comparator.compare import COMPARED_DIGEST, DECLARED_DIGEST, compare
from comparator.errors import ComparatorError
from comparator.outcomes import compare_outcomes, failed
from comparator.pair import SetAside
from comparator.records import Arm, Fact, Outcome, Sampling
from tests.support.exchanges import exchange, pair, plain_steps, step

OTHER_SAMPLING = Sampling(max_tokens=16, temperature=0.5, seed=5, logprobs=20)
DECLARED = {DECLARED_DIGEST: Fact(value="sha256:aa")}


def test_equal_arms_make_a_valid_pair():
    made = pair()
    assert made.valid
    assert made.fork is None
    assert made.max_error_nats == 0.0


def test_a_forked_pair_is_valid_and_carries_the_fork():
    made = pair((1, 2, 3), (1, 2, 4))
    assert made.valid
    assert made.fork is not None
    assert made.fork.fork_index == 2


def test_other_prompts_are_an_encoding_mismatch_and_are_never_aligned():
    made = pair((1,), (2,), right={"prompt": (7, 8, 9, 10)})
    assert made.set_aside is SetAside.ENCODING_MISMATCH
    assert made.fork is None
    assert made.set_aside_reason == (
        "prompt token IDs differ from position 3 (baseline has 3 tokens, candidate 4)"
    )


def test_other_sampling_is_a_configuration_mismatch_that_names_the_field():
    made = pair(right={"sampling": OTHER_SAMPLING})
    assert made.set_aside is SetAside.CONFIGURATION_MISMATCH
    assert made.set_aside_reason == "sampling differs (baseline / candidate): temperature 0.0 / 0.5"


def test_tokens_against_the_request_itself_is_a_configuration_mismatch():
    assert pair(right={"as_tokens": False}).set_aside is SetAside.CONFIGURATION_MISMATCH


def test_another_logprob_mode_is_a_configuration_mismatch_only_where_both_are_known():
    raw = {"facts": {"logprobs_mode": Fact(value="raw_logprobs")}}
    processed = {"facts": {"logprobs_mode": Fact(value="processed_logprobs")}}
    unknown = {"facts": {"logprobs_mode": Fact(unknown="not told")}}
    assert pair(left=raw, right=processed).set_aside is SetAside.CONFIGURATION_MISMATCH
    assert pair(left=raw, right=unknown).valid
    assert pair(left=raw).valid


def test_a_digest_other_than_the_declared_one_is_set_aside():
    proved = {"facts": DECLARED, "digest": Fact(value="sha256:bb")}
    made = pair(right=proved)
    assert made.set_aside is SetAside.DIGEST_MISMATCH
    assert made.set_aside_reason == "candidate: sha256:aa is declared but sha256:bb answered"


def test_a_declared_digest_that_nobody_proved_is_set_aside():
    made = pair(left={"facts": DECLARED})
    assert made.set_aside is SetAside.DIGEST_MISMATCH
    assert "no digest was proved (the engine tells none)" in str(made.set_aside_reason)


def test_another_environment_than_the_comparison_began_with_is_set_aside_where_none_is_declared():
    began = {COMPARED_DIGEST: Fact(value="sha256:aa")}
    assert pair(right={"facts": began, "digest": Fact(value="sha256:aa")}).valid
    other = pair(right={"facts": began, "digest": Fact(value="sha256:bb")})
    assert other.set_aside is SetAside.DIGEST_MISMATCH
    assert other.set_aside_reason == "candidate: sha256:aa is compared but sha256:bb answered"
    nobody = pair(left={"facts": began})
    assert nobody.set_aside is SetAside.DIGEST_MISMATCH
    assert "sha256:aa is compared but no digest was proved" in str(nobody.set_aside_reason)
    declared = {**began, **DECLARED, COMPARED_DIGEST: Fact(value="sha256:bb")}
    assert pair(right={"facts": declared, "digest": Fact(value="sha256:aa")}).valid


def test_the_declared_digest_proved_is_valid():
    assert pair(right={"facts": DECLARED, "digest": Fact(value="sha256:aa")}).valid


@pytest.mark.parametrize("arm", ["left", "right"])
def test_an_answer_that_broke_its_contract_is_set_aside(arm):
    made = pair((1,), (1,), **{arm: {"outcome": Outcome.INVALID, "error": "no token IDs"}})
    assert made.set_aside is SetAside.INVALID_ANSWER
    assert "no token IDs" in str(made.set_aside_reason)


def test_a_nan_logprob_is_an_invalid_answer_that_names_the_step():
    bad = [step(1, [(1, math.nan)], logprob=-0.1)]
    made = compare(exchange((1,)), exchange(arm=Arm.CANDIDATE, steps=bad))
    assert made.set_aside is SetAside.INVALID_ANSWER
    assert made.set_aside_reason == "candidate step 0: logprob of token 1 is nan"


@pytest.mark.parametrize(
    "outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.REFUSED, Outcome.ABORTED, Outcome.CUT]
)
def test_a_baseline_without_an_answer_leaves_nothing_to_compare_with(outcome):
    made = pair((1,), (1, 2), left={"outcome": outcome, "error": "HTTP 503"})
    assert made.set_aside is SetAside.BASELINE_FAILED
    assert made.set_aside_reason == f"baseline {outcome}: HTTP 503"


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.ABORTED])
def test_a_candidate_without_an_answer_is_a_valid_pair_without_a_fork(outcome):
    made = pair((1, 2), (1,), right={"outcome": outcome})
    assert made.valid
    assert made.fork is None


@pytest.mark.parametrize("outcome", [Outcome.ABORTED, Outcome.CUT, Outcome.FAILED, Outcome.INVALID])
@pytest.mark.parametrize("arm", ["left", "right"])
def test_what_comes_after_the_fork_takes_nothing_from_it(outcome, arm):
    made = pair((1, 2), (1, 3), **{arm: {"outcome": outcome}})
    assert made.valid
    assert made.fork is not None


def test_the_first_rule_that_fits_decides():
    everything = {
        "prompt": (1,),
        "sampling": OTHER_SAMPLING,
        "facts": DECLARED,
        "outcome": Outcome.INVALID,
    }
    for remove, expected in (
        (None, SetAside.ENCODING_MISMATCH),
        ("prompt", SetAside.CONFIGURATION_MISMATCH),
        ("sampling", SetAside.DIGEST_MISMATCH),
        ("facts", SetAside.INVALID_ANSWER),
        ("outcome", None),
    ):
        everything.pop(remove or "", None)
        assert pair((1,), (1,), right=everything).set_aside is expected


def test_exchanges_of_two_captures_are_no_pair():
    with pytest.raises(ComparatorError, match="two arms of one capture"):
        compare(exchange(capture_id="a"), exchange(capture_id="b", arm=Arm.CANDIDATE))


def test_latency_is_of_the_arrivals_that_there_are():
    timing = exchange(steps=[step(i, received_s=s) for i, s in enumerate((0.5, 0.5, 0.75, 0.75, 1.5))]).timing
    assert (timing.ttft_s, timing.tpot_s) == (0.5, 0.25)
    assert exchange((1,)).timing.tpot_s is None
    assert exchange(()).timing.ttft_s is None


def test_finish_reasons_differ_also_without_a_fork():
    difference = compare_outcomes(exchange(), exchange(arm=Arm.CANDIDATE, finish_reason="length"))
    assert difference.finish_reasons_differ
    assert (difference.left_tokens, difference.right_tokens) == (3, 3)


def test_an_arm_that_we_stopped_has_no_length_and_is_no_failure():
    cut = exchange(arm=Arm.CANDIDATE, outcome=Outcome.CUT)
    assert compare_outcomes(exchange(), cut).right_tokens is None
    assert not failed(cut)
    assert failed(exchange(outcome=Outcome.TIMED_OUT))


def test_steps_of_one_pair_with_shifted_numbers_report_the_largest_error():
    made = pair(right={"steps": plain_steps((1, 2, 3), shift_nats=0.5)})
    assert made.max_error_nats == 0.5
