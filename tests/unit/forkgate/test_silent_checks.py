"""Checks of engines that answer with nothing: equal to themselves, and no pass."""

from __future__ import annotations

import msgspec
import pytest

from comparator.floor import Floor
from comparator.records import Exchange, Outcome
from forkgate.checks.report import PromptFound, is_silent, silence
from forkgate.checks.self_check import judge
from policies.policy import Level
from policies.verdict import Answer
from tests.support.exchanges import exchange


def said(*texts: str | None, outcome: Outcome = Outcome.COMPLETED) -> Exchange:
    made = exchange(tuple(range(len(texts))), outcome=outcome)
    steps = [msgspec.structs.replace(step, text=text) for step, text in zip(made.steps, texts, strict=True)]
    return msgspec.structs.replace(made, steps=tuple(steps))


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([said()], True),
        ([said(""), said(" ", "\n")], True),
        ([said("", "a")], False),
        ([said(None)], False),  # an engine that gives IDs alone: nobody knows what they read like
        ([said(), said("a")], False),
        ([said(outcome=Outcome.FAILED)], False),
        ([], False),
    ],
)
def test_silence_is_answers_that_came_with_nothing_to_read(answers: list[Exchange], expected: bool) -> None:
    assert is_silent(answers) is expected


@pytest.mark.parametrize("level", list(Level))
def test_an_environment_that_says_nothing_does_not_reproduce_itself(level: Level) -> None:
    found = [
        PromptFound(prompt=name, category="short", pairs=4, equal=4, silent=True) for name in ("boats", "tea")
    ]
    answer, reason = judge(level, "old", found, Floor(), 5)
    assert answer is Answer.FAIL
    assert reason.startswith("old answers all 2 prompts with nothing, and nothing is equal to nothing")
    one_speaks = [found[0], msgspec.structs.replace(found[1], silent=False)]
    assert judge(level, "old", one_speaks, Floor(), 5)[0] is Answer.PASS
    assert silence("old", one_speaks) is None
