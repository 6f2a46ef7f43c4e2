"""All that the arms of one captured request came to: one observation.

A request is asked of the baseline and of the candidate, sometimes of the baseline a second time (the
control), at temperatures above 0 with several seeds (replicates). Each of these is a :class:`Pair` with the
baseline on the left; together they are one :class:`Comparison`, because they share a prompt, a moment and a
load. Whoever bets on evidence bets once a comparison, and once a *cluster*: the same prompt, or a later turn
of the same conversation, is not new evidence.
"""

from __future__ import annotations

import msgspec

from comparator.pair import Pair
from comparator.records import Arm, CaptureId, Exchange, Fact

CONCURRENCY = "concurrency"
"""Key in :attr:`Exchange.facts`: requests that ran on the endpoint when this one started, itself included."""


class SampleRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which frozen sample was asked, when it was no client's request."""

    suite: str
    """The suite's name in the policy."""
    digest: str
    """Of the suite's content."""
    stage: str
    """The rollout's stage at whose start the suite ran; a suite runs anew at each."""
    sample_id: str
    category: str
    passage: int
    """Which of the suite's passes, from 0. All arms of a pass share a seed; passes do not."""
    samples: int
    """How many samples the suite has: a gate about the suite speaks when it has seen them all."""
    passes: int
    """How often each is asked."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """What a scorer said of one arm's answer. Exactly one of ``value`` and ``error`` is set."""

    arm: Arm
    question: str
    """``rules`` | ``answer`` | ``structured`` | ``refusal``: which of a gate's questions it answers."""
    value: float | None = None
    """0 to 1, larger is more of it: right, well formed, refused..."""
    error: str | None = None
    """Why there is no value: the scorer hung, crashed, or the answer had no text."""
    replicate: int = 0

    def __post_init__(self) -> None:
        if (self.value is None) == (self.error is None):
            raise ValueError("a Score holds either a value or the reason why there is none")
        if self.value is not None and not 0.0 <= self.value <= 1.0:
            raise ValueError(f"score {self.value} is outside 0-1")


class Triple(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate and control against one and the same baseline exchange."""

    candidate: Pair
    control: Pair

    @property
    def valid(self) -> bool:
        """Both pairs count."""
        return self.candidate.valid and self.control.valid

    @property
    def band(self) -> int | None:
        """The concurrency band that candidate and control share; None when they ran in different ones."""
        mine, other = band_of(self.candidate.right), band_of(self.control.right)
        return mine if mine == other else None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One captured request, compared."""

    capture_id: CaptureId
    rollout: str
    tenant: str
    cluster: str
    """Names the prompt, or the conversation that it continues: 16 hex digits."""
    pairs: tuple[Pair, ...]
    """By replicate; in each, baseline and candidate first, then baseline and control where one ran."""
    repeat: bool = False
    """This cluster has been seen in this rollout before: no new evidence for a test that bets by prompt."""
    timing: bool = False
    """Drawn beforehand to run without logprobs, as live traffic does: its times count."""
    sample: SampleRef | None = None
    """Set for a sample of a suite; None for live traffic."""
    scores: tuple[Score, ...] = ()
    unix_s: float
    """When it was finished, by the judge's clock."""

    @property
    def candidates(self) -> tuple[Pair, ...]:
        """The pairs of baseline and candidate, by replicate."""
        return tuple(pair for pair in self.pairs if pair.right.arm is Arm.CANDIDATE)

    @property
    def controls(self) -> tuple[Pair, ...]:
        """The pairs of baseline and control, by replicate."""
        return tuple(pair for pair in self.pairs if pair.right.arm is Arm.CONTROL)

    @property
    def triples(self) -> tuple[Triple, ...]:
        """Replicates that have both."""
        controls = {pair.left.replicate: pair for pair in self.controls}
        return tuple(
            Triple(candidate=pair, control=controls[pair.left.replicate])
            for pair in self.candidates
            if pair.left.replicate in controls
        )


def band_of(exchange: Exchange) -> int | None:
    """The band of concurrency that an exchange ran in: 0 alone, 1 for 2-3, 2 for 4-7, 3 for 8-15...

    None when how many requests shared its endpoint is not known. Batches of one band cost about the same
    numbers and times; those of different bands are not compared.
    """
    fact: Fact | None = exchange.facts.get(CONCURRENCY)
    if fact is None or not isinstance(fact.value, int):
        return None
    return max(1, fact.value).bit_length() - 1


def path_of(exchange: Exchange) -> str:
    """The road that an exchange took through its engine: engine, and tokens or the request as itself."""
    return f"{exchange.engine}/{'tokens' if exchange.as_tokens else 'itself'}"
