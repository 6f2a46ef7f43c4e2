"""Which answers of a comparison are scored, and what stands where there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from comparator.comparison import Comparison, Score
from comparator.pair import Pair
from comparator.records import Arm, Outcome
from forkgate.suites import with_scores
from forkgate.suites.scores import answer_of
from tests.support.exchanges import comparison, exchange, pair, plain_steps, step
from tests.support.suites import Ones, loaded, sample


def scored(tmp_path: Path, *pairs: Pair) -> tuple[tuple[Score, ...], list[str]]:
    suite = loaded(tmp_path, sample("s1", rules=[{"kind": "regex", "pattern": "x"}]))
    scorer = Ones()
    made: Comparison = asyncio.run(with_scores(comparison(*pairs), suite, suite.suite.samples[0], scorer))
    return made.scores, scorer.answers


def test_each_arm_owes_a_score_for_each_question(tmp_path: Path) -> None:
    scores, _ = scored(tmp_path, pair(), pair(right_arm=Arm.CONTROL))
    assert [(one.arm, one.question) for one in scores] == [
        (arm, question)
        for arm in (Arm.BASELINE, Arm.CANDIDATE, Arm.CONTROL)
        for question in ("rules", "refusal")
    ]


def test_equal_answers_are_scored_once(tmp_path: Path) -> None:
    _, answers = scored(tmp_path, pair((1, 2), (1, 3)), pair((1, 2), (1, 2), right_arm=Arm.CONTROL))
    assert answers == ["<1><2>", "<1><3>"]


def test_arm_that_failed_owes_an_error_for_each_question(tmp_path: Path) -> None:
    scores, answers = scored(tmp_path, pair(right={"outcome": Outcome.TIMED_OUT, "error": "60 s"}))
    assert [one.error for one in scores if one.arm is Arm.CANDIDATE] == ["no answer, it timed out: 60 s"] * 2
    assert len(answers) == 1


def test_replicates_are_scored_apart(tmp_path: Path) -> None:
    scores, _ = scored(tmp_path, *(pair(left={"replicate": one}, right={"replicate": one}) for one in (0, 1)))
    assert [(one.arm, one.replicate) for one in scores if one.question == "refusal"] == [
        (Arm.BASELINE, 0),
        (Arm.CANDIDATE, 0),
        (Arm.BASELINE, 1),
        (Arm.CANDIDATE, 1),
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ("<1><2><3>", None)),
        ({"steps": ()}, ("", None)),
        ({"steps": (step(1), *plain_steps((2, 3)))}, (None, "the engine gave no text for 1 of 3 tokens")),
        ({"outcome": Outcome.FAILED, "error": "reset"}, (None, "no answer, it failed: reset")),
        ({"outcome": Outcome.INVALID, "error": "NaN"}, (None, "no answer, it was no valid answer: NaN")),
        (
            {"outcome": Outcome.ABORTED, "error": "rollback"},
            (None, "no answer, it was stopped by us: rollback"),
        ),
    ],
)
def test_answer_is_text_or_the_reason_why_not(changes: dict[str, Any], said: object) -> None:
    assert answer_of(exchange(**changes)) == said
