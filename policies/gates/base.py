"""The shape of every gate: a pure fold from evidence to a verdict.

A gate has frozen limits (its own ``msgspec`` struct, read from the policy file) and an explicit state that
is small, serialisable and grows by :meth:`Gate.fold`. Nothing is remembered elsewhere, so a verdict is a
function of (limits, evidence in order, alpha) and can be recomputed from stored evidence, bit for bit. A gate
may accumulate (an e-process keeps counts) or act on one item (``token_equality``); the caller asks for a
verdict after every item and may act on any of them.

Two tests, three answers. Rollback rejects "the candidate is within the margin", promotion rejects "the
candidate is beyond the margin"; neither rejected is inconclusive. Rollback is a union over gates, so that
each has a share of the rollout's alpha; promotion needs every gate, so that each has it whole.

Alpha bounds what is tested, and nothing else. Caps (``error_rate``, ``ttft`` and ``tpot`` without a margin,
``gpu_memory``, the cap of ``logit_error``), ``token_equality`` and ``rule_cases`` act on what was seen:
chance may send an equal candidate home through them, by their own numbers. ``length`` and ``refusal`` test
what they roll back for, but pass by an interval: their pass rejects nothing.

"Given the past" is meant: a null of traffic speaks of each moment. A candidate that is within the margin
while traffic is easy, and beyond it while traffic is hard, has no one answer, and may get the one of the
hours that it was seen in.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from comparator.comparison import Comparison
from comparator.pair import ForkSeen
from comparator.records import EngineSample, LiveRecord
from policies.verdict import Verdict

State = TypeVar("State", bound=msgspec.Struct)

Evidence = Comparison | ForkSeen | LiveRecord | EngineSample
"""All that gates may see. A gate ignores kinds that it does not read."""


class Alpha(msgspec.Struct, frozen=True, kw_only=True):
    """The error levels that a gate may spend: probabilities of a false answer over the whole rollout."""

    rollback: float
    """This gate's share: over gates, and a suite's looks or several tenants, they add up to the rollout's
    alpha (:mod:`policies.levels`)."""
    promotion: float
    """The rollout's alpha, whole."""


class Gate(Protocol[State]):
    """One frozen question about the evidence."""

    performance: ClassVar[bool]
    """Whether it is part of the performance contract: missed at level ``token``, it stops the rollout
    at a choice for a person instead of rolling back."""

    @property
    def spends_alpha(self) -> bool:
        """Whether it tests a hypothesis, and so needs a share of the rollout's alpha to roll back.

        A cap, or a gate that acts on what was seen, spends none. A gate's limits may decide it.
        """
        ...

    @property
    def name(self) -> str:
        """The gate's key in its policy file."""
        ...

    def initial(self) -> State:
        """The state before any evidence."""
        ...

    def fold(self, state: State, evidence: Evidence) -> State:
        """The state after one more item: ``state`` itself when the item says nothing. Never mutates it."""
        ...

    def verdict(self, state: State, alpha: Alpha) -> Verdict:
        """What the evidence so far says. Called at any time, as often as the caller likes."""
        ...


def suite_of(gate: Any) -> str | None:
    """The suite that a gate is about; None for one about traffic, whose state goes through all stages."""
    suite = getattr(gate, "suite", None)
    return suite if suite is not None and getattr(gate, "estimand", "suite") == "suite" else None


def needs_canary(gate: Any) -> bool:
    """Whether a gate reads live requests of the candidate, so that it knows nothing before a tenant moved."""
    return getattr(gate, "source", None) == "live"
