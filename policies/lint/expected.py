"""What a person expects of the traffic and of the suites."""

from __future__ import annotations

import math

import msgspec

from policies.suites import Suite


class SuiteSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much a suite asks."""

    samples: int
    passes: int
    questions: dict[str, int] = {}
    """Samples that ask each question: ``rules``, ``answer``, ``structured``, ``refusal``."""

    @classmethod
    def of(cls, suite: Suite, passes: int) -> SuiteSize:
        """Of a suite that was read."""
        summary = suite.summary()
        return cls(
            samples=summary.samples,
            passes=passes,
            questions={
                "rules": summary.with_rules,
                "answer": summary.with_answer,
                "structured": summary.with_structured,
                "refusal": summary.samples,
            },
        )


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic as it is expected, and effects as they are typical. All of it may be told otherwise."""

    requests_per_day: float = 100_000.0
    """Live requests of the tenants that are mirrored, each with a prompt of its own."""
    canary_per_day: float = 5_000.0
    """Live requests that the candidate answers."""
    percent: float = 10.0
    """Of the requests, copied."""
    control_percent: float = 10.0
    """Of the copies, also run a second time on the baseline."""
    timing_percent: float = 0.0
    """Of the copies, run without logprobs."""
    discordance: float = 0.05
    """Share of answers whose score differs between two runs of equal environments."""
    fork_share: float = 0.4
    """Share of answers that fork between two runs of equal environments."""
    suites: dict[str, SuiteSize] = {}

    def __post_init__(self) -> None:
        for name in ("requests_per_day", "canary_per_day"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}: {getattr(self, name)} is no number of requests")
        for name in ("percent", "control_percent", "timing_percent"):
            if not 0.0 <= getattr(self, name) <= 100.0:
                raise ValueError(f"{name}: {getattr(self, name)} is outside 0-100")
        for name in ("discordance", "fork_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}: {getattr(self, name)} is outside 0-1")

    @property
    def comparisons_per_day(self) -> float:
        """Captured requests."""
        return self.requests_per_day * self.percent / 100

    @property
    def triples_per_day(self) -> float:
        """Captured requests with a control."""
        return self.comparisons_per_day * self.control_percent / 100

    @property
    def timed_per_day(self) -> float:
        """Captured requests that run without logprobs."""
        return self.comparisons_per_day * self.timing_percent / 100
