"""What a policy can decide with the traffic that is expected, said before it meets any. Pure.

========== =====================================================================================
``power``    observations until a betting test decides
``expected`` the traffic and the suites, as a person expects them
``reach``    what one gate can and cannot decide
``suites``   gates about frozen samples; ``answers``: about live answers; ``service``: about the service
========== =====================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.gates import (
    Accuracy,
    AnyGate,
    DistributionShift,
    ErrorRate,
    ForkHazard,
    GpuMemory,
    Length,
    LogitError,
    PositionMargins,
    Refusal,
    RuleCases,
    SampleRatio,
    Sampling,
    StructuredOutput,
    Throughput,
    TokenEquality,
    Tpot,
    Ttft,
)
from policies.gates.base import Alpha
from policies.levels import LOOKS, levels_of
from policies.lint import answers, service, suites
from policies.lint.expected import Expected, SuiteSize
from policies.lint.reach import Need, Reach
from policies.policy import Policy

__all__ = ["Expected", "Need", "Reach", "SuiteSize", "lint", "reach_of", "refusals"]


def lint(policy: Policy, expected: Expected, *, tenants: int = 1, looks: int = LOOKS) -> tuple[Reach, ...]:
    """What each gate of a policy can and cannot decide.

    Args:
        expected: traffic and suites; effects that are not told are typical ones.
        tenants: whom its steps move, over whom the alpha of gates kept by tenant is split.
        looks: judged stages and steps; gates about a suite are read at the last one, which has the least.
    """
    alphas = levels_of(policy.alpha, policy.gates, look=looks, tenants=tenants, kept=policy.tenant_gates)
    return tuple(reach_of(gate, expected, alphas[name]) for name, gate in policy.gates.items())


def refusals(policy: Policy, sizes: Mapping[str, SuiteSize]) -> tuple[str, ...]:
    """Why a policy must not be used: limits that no evidence whatever could decide.

    Args:
        sizes: of the policy's suites.
    """
    found = lint(policy, Expected(suites=dict(sizes)))
    return tuple(f"gates.{one.gate}: {one.refused}" for one in found if one.refused is not None)


def reach_of(gate: AnyGate, expected: Expected, alpha: Alpha) -> Reach:
    """What one gate can and cannot decide."""
    match gate:
        case TokenEquality():
            return answers.token_equality(gate, expected, alpha)
        case RuleCases():
            return suites.rule_cases(gate, expected, alpha)
        case Accuracy(estimand="suite"):
            return suites.share_of_suite(gate, "answer", gate.margin, expected, alpha)
        case StructuredOutput(estimand="suite"):
            return suites.share_of_suite(gate, "structured", gate.margin, expected, alpha)
        case Accuracy():
            return answers.paired_score(gate, gate.margin, gate.margin, expected, alpha)
        case StructuredOutput():
            return answers.paired_score(gate, gate.margin, gate.rollback_margin, expected, alpha)
        case Length() | Refusal():
            return suites.steady(gate, expected, alpha)
        case ForkHazard():
            return answers.fork_hazard(gate, expected, alpha)
        case LogitError():
            return answers.logit_error(gate, expected, alpha)
        case DistributionShift():
            return answers.distribution_shift(gate, expected, alpha)
        case Sampling() | PositionMargins():
            return answers.sampled(gate, expected, alpha)
        case ErrorRate():
            return service.by_blocks(gate, "failed requests", expected, alpha)
        case Ttft():
            return service.by_blocks(gate, "time to first token", expected, alpha)
        case Tpot():
            return service.by_blocks(gate, "time per output token", expected, alpha)
        case Throughput():
            return service.throughput(gate, expected, alpha)
        case GpuMemory():
            return service.gpu_memory(gate, expected, alpha)
        case SampleRatio():
            return service.sample_ratio(gate, expected, alpha)
