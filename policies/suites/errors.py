"""What is wrong with a suite, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable

from policies.errors import PolicyError

MOST_PROBLEMS = 50
"""A file that is wrong throughout is told so by its first problems; the rest are counted."""


class SuiteError(PolicyError):
    """A suite that cannot be used. Each problem is one line: where, what, what to do."""

    def __init__(self, problems: Iterable[str]) -> None:
        found = tuple(problems)
        more = len(found) - MOST_PROBLEMS
        self.problems: tuple[str, ...] = (
            found if more <= 0 else (*found[:MOST_PROBLEMS], f"... and {more} problems more")
        )
        super().__init__("\n".join(self.problems))
