"""Gates, one small file each: frozen limits, an explicit state, a pure fold, a verdict.

A gate *is* its limits: a frozen struct whose ``kind`` (the struct's tag) is the registry's key and whose
fields are what a policy file may say. To add one: write its file after the pattern of
:mod:`policies.gates.base`, and add its limits to :data:`AnyGate` and its state to :data:`GateState`.
"""

from __future__ import annotations

from policies.gates.accuracy import Accuracy, AccuracyState
from policies.gates.error_rate import ErrorRate, ErrorRateState
from policies.gates.latency import Latency, LatencyState
from policies.gates.length import Length, LengthState
from policies.gates.position_margins import PositionMargins, PositionMarginsState
from policies.gates.refusal import Refusal, RefusalState
from policies.gates.rule_cases import RuleCases, RuleCasesState
from policies.gates.sampling import Sampling, SamplingState
from policies.gates.structured_output import StructuredOutput, StructuredOutputState
from policies.gates.token_equality import TokenEquality, TokenEqualityState

AnyGate = (
    RuleCases
    | Accuracy
    | StructuredOutput
    | Length
    | Refusal
    | PositionMargins
    | Sampling
    | TokenEquality
    | ErrorRate
    | Latency
)
GateState = (
    RuleCasesState
    | AccuracyState
    | StructuredOutputState
    | LengthState
    | RefusalState
    | PositionMarginsState
    | SamplingState
    | TokenEqualityState
    | ErrorRateState
    | LatencyState
)

KINDS: dict[str, type[AnyGate]] = {
    str(gate.__struct_config__.tag): gate
    for gate in (
        RuleCases,
        Accuracy,
        StructuredOutput,
        Length,
        Refusal,
        PositionMargins,
        Sampling,
        TokenEquality,
        ErrorRate,
        Latency,
    )
}
"""Kind to limits."""

__all__ = [
    "KINDS",
    "Accuracy",
    "AccuracyState",
    "AnyGate",
    "ErrorRate",
    "ErrorRateState",
    "GateState",
    "Latency",
    "LatencyState",
    "Length",
    "LengthState",
    "PositionMargins",
    "PositionMarginsState",
    "Refusal",
    "RefusalState",
    "RuleCases",
    "RuleCasesState",
    "Sampling",
    "SamplingState",
    "StructuredOutput",
    "StructuredOutputState",
    "TokenEquality",
    "TokenEqualityState",
]
