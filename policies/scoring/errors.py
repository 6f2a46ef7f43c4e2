"""Why an answer has no score."""

from __future__ import annotations

from policies.errors import PolicyError


class ScoringError(Exception):
    """An answer could not be scored. Never a score of 0: a broken scorer says nothing about the answer."""


class RefusalError(PolicyError):
    """Refusal rules that cannot be used. Each problem is one line: where, what, what to do."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))
