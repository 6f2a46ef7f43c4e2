"""Gates, one small file each: frozen limits, an explicit state, a pure fold, a verdict.

A gate *is* its limits: a frozen struct whose ``kind`` (the struct's tag) is the registry's key and whose
fields are what a policy file may say. To add one: write its file after the pattern of
:mod:`policies.gates.base`, and add its limits to :data:`AnyGate` and its state to :data:`GateState`.
"""

from __future__ import annotations

from policies.gates.accuracy import Accuracy, AccuracyState
from policies.gates.distribution_shift import DistributionShift, DistributionShiftState
from policies.gates.error_rate import ErrorRate, ErrorRateState
from policies.gates.fork_hazard import ForkHazard, ForkHazardState
from policies.gates.gpu_memory import GpuMemory, GpuMemoryState
from policies.gates.length import Length, LengthState
from policies.gates.logit_error import LogitError, LogitErrorState
from policies.gates.position_margins import PositionMargins, PositionMarginsState
from policies.gates.refusal import Refusal, RefusalState
from policies.gates.rule_cases import RuleCases, RuleCasesState
from policies.gates.sample_ratio import SampleRatio, SampleRatioState
from policies.gates.sampling import Sampling, SamplingState
from policies.gates.structured_output import StructuredOutput, StructuredOutputState
from policies.gates.throughput import Throughput, ThroughputState
from policies.gates.token_equality import TokenEquality, TokenEqualityState
from policies.gates.tpot import Tpot, TpotState
from policies.gates.ttft import Ttft, TtftState

AnyGate = (
    RuleCases
    | Accuracy
    | StructuredOutput
    | Length
    | Refusal
    | PositionMargins
    | Sampling
    | TokenEquality
    | ForkHazard
    | LogitError
    | DistributionShift
    | ErrorRate
    | SampleRatio
    | Ttft
    | Tpot
    | Throughput
    | GpuMemory
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
    | ForkHazardState
    | LogitErrorState
    | DistributionShiftState
    | ErrorRateState
    | SampleRatioState
    | TtftState
    | TpotState
    | ThroughputState
    | GpuMemoryState
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
        ForkHazard,
        LogitError,
        DistributionShift,
        ErrorRate,
        SampleRatio,
        Ttft,
        Tpot,
        Throughput,
        GpuMemory,
    )
}
"""Kind to limits."""

__all__ = [
    "KINDS",
    "Accuracy",
    "AccuracyState",
    "AnyGate",
    "DistributionShift",
    "DistributionShiftState",
    "ErrorRate",
    "ErrorRateState",
    "ForkHazard",
    "ForkHazardState",
    "GateState",
    "GpuMemory",
    "GpuMemoryState",
    "Length",
    "LengthState",
    "LogitError",
    "LogitErrorState",
    "PositionMargins",
    "PositionMarginsState",
    "Refusal",
    "RefusalState",
    "RuleCases",
    "RuleCasesState",
    "SampleRatio",
    "SampleRatioState",
    "Sampling",
    "SamplingState",
    "StructuredOutput",
    "StructuredOutputState",
    "Throughput",
    "ThroughputState",
    "TokenEquality",
    "TokenEqualityState",
    "Tpot",
    "TpotState",
    "Ttft",
    "TtftState",
]
