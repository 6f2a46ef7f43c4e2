"""Which gates read token IDs themselves, and not only what was found by comparing them.

Evidence that was kept as keyed hashes aligns as its tokens did, so that every other gate finds in it what it
found before. A token's hash is another one in each capture, which says nothing to a gate that looks for one
token in many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policies.gates.position_margins import PositionMargins
from policies.gates.sampling import Sampling


def by_token(gates: Mapping[str, Any]) -> tuple[str, ...]:
    """Their names, of these gates."""
    return tuple(name for name, gate in gates.items() if isinstance(gate, Sampling | PositionMargins))
