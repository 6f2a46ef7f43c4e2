"""A policy's ``suites:`` section: which frozen samples are asked, how often, and who scores them.

::

    suites:
      starter: {passes: 5}                       # the suite that comes with the package
      support:
        file: suites/support.jsonl               # beside the policy file
        sha256: 9f2c...                          # refused when the file is another one
        passes: 5
        scorers:
          tone: {python: "scorers/tone.py:score", timeout_s: 5}

Values only: whoever may read files loads them, and tells the policy their digests
(:meth:`policies.policy.Policy.with_suites`).
"""

from __future__ import annotations

import re

import msgspec

STARTER = "starter"
"""The suite that needs no ``file``: it comes with the package."""

_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_CALLABLE = re.compile(r"(?P<file>[^:\0]+\.py):(?P<function>[A-Za-z_]\w*)")


class ScorerSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function of the user's own that scores an answer; it runs in a child process."""

    python: str
    """``FILE.py:FUNCTION``, the file beside the policy file."""
    timeout_s: float = 5.0
    """For one answer; a scorer that takes longer is ended, and that answer has no score."""

    def __post_init__(self) -> None:
        if not _CALLABLE.fullmatch(self.python):
            raise ValueError(
                f"python: {self.python!r} is not FILE.py:FUNCTION, such as 'scorers/tone.py:score'"
            )
        if not 0.0 < self.timeout_s <= 600.0:
            raise ValueError(f"timeout_s: {self.timeout_s:g} is outside 0-600 seconds (0 excluded)")

    @property
    def path(self) -> str:
        """The file's part of :attr:`python`."""
        return self.python.rpartition(":")[0]

    @property
    def function(self) -> str:
        """The function's part of :attr:`python`."""
        return self.python.rpartition(":")[2]


class SuiteSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One suite of a policy."""

    file: str | None = None
    """JSON Lines beside the policy file; None for the shipped suite of this name."""
    sha256: str | None = None
    """64 hex digits that the file's bytes must have; None takes the file as it is found at the start."""
    passes: int = 5
    """How often every sample is asked of each arm, at the start of each stage. What differs between an arm's
    passes is run-to-run noise; under 2 there is none to see, and 5 or more make an interval."""
    scorers: dict[str, ScorerSection] = {}
    """By the name that the samples use."""
    refusal_rules: str | None = None
    """File of phrases that make an answer a refusal, beside the policy file; None for the shipped rules."""

    def __post_init__(self) -> None:
        if self.sha256 is not None and not _HEX.fullmatch(self.sha256):
            raise ValueError(
                f"sha256: {self.sha256!r} is not 64 lower-case hex digits, print them with `sha256sum FILE`"
            )
        for field in ("file", "refusal_rules"):
            if "\0" in (getattr(self, field) or ""):
                raise ValueError(f"{field}: a NUL character is in no file's name")
        for name in self.scorers:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"scorers: the name {name!r} is not 1-63 letters, digits, '.', '_' and '-', the first a "
                    "letter or digit"
                )
        if not 1 <= self.passes <= 100:
            raise ValueError(f"passes: {self.passes} is outside 1-100; 5 is usual")

    def meaning(self, digest: str) -> dict[str, object]:
        """What the section says, with the content's digest in the place of where it lies."""
        scorers = {
            name: {"function": one.function, "timeout_s": one.timeout_s} for name, one in self.scorers.items()
        }
        return {"digest": digest, "passes": self.passes, "scorers": scorers}
