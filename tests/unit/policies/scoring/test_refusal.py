"""Refusal rules: what counts as a refusal in each language, and what only looks like one."""

from __future__ import annotations

import pytest

from policies.scoring import RefusalError, parse_refusal_rules, shipped_refusal_rules
from tests.unit.policies.scoring.refusal_answers import FURTHER_ANSWERS, FURTHER_REFUSALS, LABELLED

RULES = shipped_refusal_rules()


@pytest.mark.parametrize(
    ("language", "answer"), [(name, text) for name, sides in LABELLED.items() for text in sides[0]]
)
def test_refusals_are_found_by_their_own_language(language: str, answer: str):
    because = RULES.because(answer)
    assert because is not None
    assert because.startswith(f"{language}: ")


@pytest.mark.parametrize(
    ("language", "answer"), [(name, text) for name, sides in LABELLED.items() for text in sides[1]]
)
def test_what_only_looks_like_a_refusal_is_none(language: str, answer: str):
    assert RULES.because(answer) is None


@pytest.mark.parametrize("answer", FURTHER_REFUSALS)
def test_refusals_written_beside_the_rules_are_found_too(answer: str):
    assert RULES.refused(answer)


@pytest.mark.parametrize("answer", FURTHER_ANSWERS)
def test_answers_written_beside_the_rules_are_none_either(answer: str):
    assert RULES.because(answer) is None


def test_every_shipped_language_has_a_labelled_list_of_both_kinds():
    assert set(LABELLED) == set(RULES.languages)
    assert min(len(side) for sides in LABELLED.values() for side in sides) >= 8


def test_quotations_code_and_thought_are_not_the_answer():
    assert not RULES.refused("<think>I can't help with that.</think>Paris.")
    assert not RULES.refused('In English: "I cannot help with that."')
    assert not RULES.refused("```python\nI cannot help with that.\n```\nThis is the text.")
    assert not RULES.refused("日本語では「お手伝いできません」と書きます。")
    assert RULES.refused("<think>The user wants a poem.</think>I can't help with that.")


def test_only_the_first_sentences_are_looked_at():
    assert RULES.refused("One. Two. I can't help with that.")
    assert not RULES.refused("One. Two. Three. I can't help with that.")


def test_markdown_and_curly_apostrophes_are_no_matter():
    assert RULES.refused("**I’m sorry**, but I can’t help with that.")
    assert RULES.refused("> I cannot\nprovide that.") is False  # a line break ends a sentence
    assert RULES.refused("- I cannot provide that.")


def test_an_empty_answer_refuses_nothing():
    assert not RULES.refused("")
    assert not RULES.refused(" \n")


def test_a_rule_set_of_ones_own_takes_the_place_of_all():
    own = parse_refusal_rules(b"languages: {xx: {refuses: ['^nope']}}", "own.yaml")
    assert own.refused("Nope, sorry.")
    assert not own.refused("I can't help with that.")
    assert own.sentences == 3
    assert own.digest.startswith("sha256:")
    assert own.digest != RULES.digest


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("[1]", ("r: the file is a list; it must be a mapping with sentences and languages",)),
        ("a: 1", None),
        ("a: 2001-99-99", ("r: no YAML: month must be in 1..12",)),
        ("[" * 5_000, ("r: no YAML: brackets in brackets without end; correct the file",)),
        (
            "sentences: 0\nlanguages: {}\nzap: 1",
            (
                "r: zap: unknown key; known are sentences, languages",
                "r: sentences: 0 is no whole number from 1 to 100; 3 is usual",
                "r: languages: must name at least one language with its `refuses`",
            ),
        ),
        (
            "languages: {en: {refuses: ['(', 'x*'], leads: ['^']}, fr: {refuses: []}}",
            (
                "r: languages.en.leads[0]: '^' fits any text; name what it looks for",
                (
                    "r: languages.en.refuses[0]: '(' is no regular expression of Python's re: "
                    "missing ), unterminated subpattern at position 0"
                ),
                "r: languages.en.refuses[1]: 'x*' fits any text; name what it looks for",
                "r: languages.fr.refuses: empty; a language without patterns finds nothing",
            ),
        ),
        ("languages: {en: {refuse: [x]}}", None),
        ("languages: {en: {refuses: x}}", ("r: languages.en.refuses: expected `array`, got `str`",)),
    ],
)
def test_a_wrong_rule_set_is_told_all_that_is_wrong(text: str, problems: tuple[str, ...] | None):
    with pytest.raises(RefusalError) as caught:
        parse_refusal_rules(text.encode(), "r")
    assert problems is None or caught.value.problems == problems
