"""The shape of every gate: a pure fold from evidence to a verdict.

A gate has frozen limits (its own ``msgspec`` struct, read from the policy file) and an explicit state that
is small, serialisable and grows by :meth:`Gate.fold`. Nothing is remembered elsewhere, so a verdict is a
function of (limits, evidence in order) and can be recomputed from stored evidence, bit for bit. A gate may
accumulate (an e-process keeps counts) or act on one item (``token_equality``); the caller asks for a
verdict after every item and may act on any of them.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from comparator.pair import ForkSeen, Pair
from comparator.records import LiveRecord
from policies.verdict import Verdict

State = TypeVar("State", bound=msgspec.Struct)

Evidence = Pair | ForkSeen | LiveRecord
"""All that gates may see. A gate ignores kinds that it does not read."""


class Gate(Protocol[State]):
    """One frozen question about the evidence."""

    @property
    def name(self) -> str:
        """The gate's key in its policy file."""
        ...

    def initial(self) -> State:
        """The state before any evidence."""
        ...

    def fold(self, state: State, evidence: Evidence) -> State:
        """The state after one more item. Never mutates ``state``."""
        ...

    def verdict(self, state: State) -> Verdict:
        """What the evidence so far says. Called at any time, as often as the caller likes."""
        ...
