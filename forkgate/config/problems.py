"""One thing wrong with a configuration file: where, what, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps a configuration from being used."""

    path: str
    """``rollouts[0].shadow.percent``; empty for the file as a whole."""
    message: str
    line: int | None = None
    """1-based line in the file, where it is known."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used, with every reason found."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line a problem, as compilers write them: ``file:line: path: what, what to do``."""
        return [
            f"{self.file}:{problem.line}: {problem}" if problem.line else f"{self.file}: {problem}"
            for problem in self.problems
        ]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``, did you mean 'percent'?`` or, where nothing is near, the words that are known."""
    choices = sorted(set(known))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(choices)}" if choices else "nothing is known here"
