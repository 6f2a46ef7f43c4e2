"""Gates, one small file each: frozen limits, an explicit state, a pure fold, a verdict.

A gate *is* its limits: a frozen struct whose ``kind`` (the struct's tag) is the registry's key and whose
fields are what a policy file may say. To add one: write its file after the pattern of
:mod:`policies.gates.base`, and add its limits to :data:`AnyGate` and its state to :data:`GateState`.
"""

from __future__ import annotations

from policies.gates.error_rate import ErrorRate, ErrorRateState
from policies.gates.latency import Latency, LatencyState
from policies.gates.position_margins import PositionMargins, PositionMarginsState
from policies.gates.sampling import Sampling, SamplingState
from policies.gates.token_equality import TokenEquality, TokenEqualityState

AnyGate = PositionMargins | Sampling | TokenEquality | ErrorRate | Latency
GateState = PositionMarginsState | SamplingState | TokenEqualityState | ErrorRateState | LatencyState

KINDS: dict[str, type[AnyGate]] = {
    str(gate.__struct_config__.tag): gate
    for gate in (PositionMargins, Sampling, TokenEquality, ErrorRate, Latency)
}
"""Kind to limits."""

__all__ = [
    "KINDS",
    "AnyGate",
    "ErrorRate",
    "ErrorRateState",
    "GateState",
    "Latency",
    "LatencyState",
    "PositionMargins",
    "PositionMarginsState",
    "Sampling",
    "SamplingState",
    "TokenEquality",
    "TokenEqualityState",
]
