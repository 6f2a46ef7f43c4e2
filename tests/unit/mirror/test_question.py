"""What a capture is drawn for: by hash, before any arm runs, each draw by itself."""

from __future__ import annotations

import pytest

from proxy.mirror import NO_TENANT, MirrorSettings, derive_seed
from proxy.mirror.question import Question, question_of_capture, question_of_sample
from proxy.mirror.seeds import is_control, is_timing, is_token_only
from tests.support.mirror import capture, sample_ask

NUMBERS = range(1, 4_001)


def drawn(**settings: float) -> list[Question]:
    made = MirrorSettings(**settings)  # type: ignore[arg-type]
    return [question_of_capture("r", made, capture(number)) for number in NUMBERS]


def share(questions: list[Question], name: str) -> float:
    return sum(getattr(question, name) for question in questions) / len(questions)


def test_each_draw_is_a_hash_of_its_own() -> None:
    """Shares of 4,000 at 50 %: sigma of a share is .008, of a conditional one .011: within six of them."""
    names = [f"request-{number}" for number in NUMBERS]
    draws = {
        draw.__name__: [draw("r", name, 50.0) for name in names]
        for draw in (is_token_only, is_control, is_timing)
    }
    for left, hits in draws.items():
        assert abs(sum(hits) / len(hits) - 0.5) < 0.05, left
        for right, others in draws.items():
            if left != right:
                both = sum(a and b for a, b in zip(hits, others, strict=True))
                assert abs(both / sum(hits) - 0.5) < 0.07, (left, right)


def test_every_replica_of_the_judge_draws_alike_and_other_rollouts_otherwise() -> None:
    settings = MirrorSettings(control_percent=50.0, timing_percent=50.0)
    names = [question_of_capture("r", settings, capture(number)) for number in NUMBERS]
    assert names == [question_of_capture("r", settings, capture(number)) for number in NUMBERS]
    others = [question_of_capture("s", settings, capture(number)) for number in NUMBERS]
    assert [one.control for one in names] != [one.control for one in others]


def test_a_copy_drawn_for_control_or_timing_is_never_cut() -> None:
    questions = drawn(control_percent=30.0, timing_percent=20.0, token_only_percent=50.0)
    assert 0.25 < share(questions, "control") < 0.35
    assert 0.15 < share(questions, "timing") < 0.25
    assert not any(one.token_only and (one.control or one.timing) for one in questions)
    # 50 % of the 0.7 x 0.8 that neither took.
    assert 0.23 < share(questions, "token_only") < 0.33


@pytest.mark.parametrize(("percent", "expected"), [(0.0, 0.0), (100.0, 1.0)])
def test_none_and_all_are_exact(percent: float, expected: float) -> None:
    assert share(drawn(control_percent=percent), "control") == expected
    assert share(drawn(timing_percent=percent), "timing") == expected


def test_a_sample_is_asked_whole_once_and_with_a_seed_of_its_pass() -> None:
    questions = [
        question_of_sample(sample_ask(passage, name), "id") for passage in range(5) for name in ("s-1", "s-2")
    ]
    assert len({derive_seed("g", one.request_id) for one in questions}) == 10
    for one in questions:
        assert (one.token_only, one.timing, one.control, one.replicates) == (False, False, False, 1)
        assert (one.own_limit, one.tenant) == (True, NO_TENANT)


def test_a_question_to_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="sample 's-1': candidate and control are both off"):
        sample_ask(candidate=False)
    assert sample_ask(candidate=False, control=True).control
