"""What the checks ask: a few prompts over the categories of sample suites, of our own words.

In an order in which the first ten hold every category. Answers are cut after a few tokens, so that what
counts is how an answer begins: prompts whose next words are open (a list, a name, a story) begin with small
margins, prompts with one right answer end early, near the stop.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Turn = tuple[Literal["system", "user", "assistant"], str]


class CheckPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt of a check."""

    id: str
    category: str
    """As in suites: short, long_context, chinese, code, structured_output, near_stop, low_margin."""
    turns: tuple[Turn, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        """As a chat call has them."""
        return [{"role": role, "content": content} for role, content in self.turns]

    @property
    def text(self) -> str:
        """For a model without a chat template: the same words as plain text."""
        return "\n\n".join(content for _, content in self.turns)


def _ask(name: str, category: str, text: str, system: str | None = None) -> CheckPrompt:
    turns: tuple[Turn, ...] = (("user", text),)
    if system is not None:
        turns = (("system", system), *turns)
    return CheckPrompt(id=name, category=category, turns=turns)


def _timetable(stops: int) -> str:
    """A long and dull text of which one line matters."""
    lines = [
        f"Stop {number}: the boat leaves pier {(7 * number) % 23 + 1} at {6 + number // 4:02d}:"
        f"{15 * (number % 4):02d} and carries {(13 * number) % 40 + 8} crates."
        for number in range(1, stops + 1)
    ]
    return "\n".join(lines)


PROMPTS: tuple[CheckPrompt, ...] = (
    _ask("lighthouse", "short", "Describe a lighthouse in one sentence."),
    _ask(
        "boats",
        "long_context",
        f"Read this timetable.\n\n{_timetable(14)}\n\nFrom which pier does the boat of stop 9 leave?",
    ),
    _ask("tea-zh", "chinese", "请用两句话介绍绿茶和红茶的区别。"),
    _ask("median", "code", "Write a Python function `median(numbers)` that sorts a copy of the list first."),
    _ask(
        "order-json",
        "structured_output",
        'Three lamps were ordered for Oslo. Answer with JSON only: {"item": ..., "count": ..., "city": ...}',
    ),
    _ask("yes-no", "near_stop", "Is 91 a prime number? Answer with one word, yes or no."),
    _ask("any-name", "low_margin", "Invent a name for a small blue robot and say why it fits."),
    _ask("arithmetic", "short", "What is 17 times 23? Show the steps."),
    _ask("shell", "code", "Show a shell command that counts the lines of all .txt files, and explain it."),
    _ask("story-zh", "chinese", "写一个关于一只猫在图书馆过夜的小故事的开头。"),
    _ask("openings", "low_margin", "Give three different opening lines for a mystery novel."),
    _ask("colours", "structured_output", "List five colours as a YAML list. No other words."),
    _ask("one-word", "near_stop", "Name the capital of Japan. One word."),
    _ask(
        "polite",
        "short",
        "My parcel has not come. What now?",
        system="You answer for a small parcel service, in a friendly tone and at most three sentences.",
    ),
    _ask("sql", "code", "Write an SQL query: the three customers with the most orders in 2024."),
    _ask("weather", "low_margin", "It was a day like no other, because"),
)
"""Sixteen; a check takes as many from the front as its settings say."""
