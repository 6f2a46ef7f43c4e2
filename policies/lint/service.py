"""What gates about the service can decide: errors, times, throughput, memory, and whether all is there."""

from __future__ import annotations

import math

from comparator.sequential import RatioState
from policies.gates import ErrorRate, GpuMemory, SampleRatio, SampleRatioState, Throughput, Tpot, Ttft
from policies.gates.base import Alpha
from policies.lint.expected import Expected
from policies.lint.power import Outcomes, fewest_for_share, mean_needs, paired, share_needs
from policies.lint.reach import Need, Reach, made, need, never_decided, too_short
from policies.verdict import Answer, Verdict

_DAY_S = 86_400.0
_AGREE = paired(0.0, 0.0)
_USUAL_FAILURES = 0.01
"""Share of requests that fail on either arm, as it is typical."""


def by_blocks(gate: ErrorRate | Ttft | Tpot, what: str, expected: Expected, alpha: Alpha) -> Reach:
    """A cap, a test over blocks of time, or both."""
    says = []
    if isinstance(gate, ErrorRate):
        arrivals = (
            expected.canary_per_day
            if gate.source == "live"
            else expected.comparisons_per_day * (1 - expected.timing_percent / 100)
        )
        capped = gate.maximum is not None
        cap = "" if gate.maximum is None else f"share of {what} is over {gate.maximum:g}"
        minimum = gate.minimum_requests
    else:
        live = isinstance(gate, Ttft) and gate.source == "live"
        arrivals = expected.canary_per_day if live else expected.timed_per_day
        capped = gate.maximum_s is not None or gate.maximum_ratio is not None
        cap = f"p{gate.quantile * 100:g} of {what} is over its cap"
        minimum = gate.minimum_requests
        if not live and not expected.timing_percent:
            says.append(
                "reads only requests that run without logprobs: set shadow.timing_percent above 0, or it can "
                "decide nothing"
            )
    if capped:
        says.append(
            f"fails when the {cap} within {gate.window_s:g} s, a cap, which errs by chance at small numbers; "
            f"it needs {minimum} requests in the window, {_window(minimum, gate.window_s, arrivals)}"
        )
    needs: list[Need] = []
    refused = None
    if gate.margin is not None:
        roll_back, promote = gate.margins.tests
        usual = _USUAL_FAILURES if isinstance(gate, ErrorRate) else 1.0 - gate.quantile
        arriving = arrivals * gate.block_s / _DAY_S
        betting = 1.0 - math.exp(-arriving)  # share of blocks in which the candidate had a request at all
        each = max(1.0, arriving / betting) if betting else 1.0
        per_day = _DAY_S / gate.block_s * betting
        beyond = gate.promotion_margin if gate.promotion_margin is not None else gate.margin
        effect = min(0.9, gate.margin + 0.1)
        needs = [
            need(
                f"fail, {effect:.0%} more of them",
                "blocks",
                mean_needs(roll_back, blocks_of(usual, effect, each), alpha.rollback),
                gate,
                per_day,
            ),
            need(
                "pass, arms equal",
                "blocks",
                mean_needs(promote, blocks_of(usual, 0.0, each), alpha.promotion),
                gate,
                per_day,
            ),
        ]
        says.append(
            f"tests one observation a block of {gate.block_s:g} s, so that one outage is one observation; "
            f"reckoned with {each:.0f} of the candidate's requests in each, {usual:.0%} of them on equal arms"
        )
        refused = never_decided(
            gate,
            "promotion_margin",
            beyond,
            mean_needs(promote, _AGREE, alpha.promotion),
            "even if all blocks agree",
        )
    return made(gate, alpha.rollback if gate.margin is not None else None, says, needs, refused)


def blocks_of(usual: float, more: float, each: float) -> Outcomes:
    """A block's difference of shares: its mean and its spread, as two outcomes alike.

    Args:
        usual: the baseline's share.
        more: how much larger the candidate's is.
        each: requests of an arm in a block; the baseline has more of them as a rule, which decides sooner.
    """
    worse = min(1.0, usual + more)
    spread = math.sqrt((usual * (1.0 - usual) + worse * (1.0 - worse)) / each)
    mean = usual - worse
    return ((max(-1.0, mean - spread), 0.5), (min(1.0, mean + spread), 0.5))


def throughput(gate: Throughput, expected: Expected, alpha: Alpha) -> Reach:
    """Blocks under the limit."""
    roll_back, promote = gate.tests
    per_day = _DAY_S / gate.block_s if expected.timed_per_day else 0.0
    says = ["a pass says that most blocks are within the loss, not that each is"]
    if not expected.timing_percent:
        says.append("reads only requests that run without logprobs: set shadow.timing_percent above 0")
    needs = (
        need(
            "fail, 9 of 10 blocks too slow",
            "blocks",
            share_needs(roll_back, 0.9, alpha.rollback),
            gate,
            per_day,
        ),
        need(
            "pass, 1 of 10 blocks too slow",
            "blocks",
            share_needs(promote, 0.1, alpha.promotion),
            gate,
            per_day,
        ),
    )
    fewest = fewest_for_share(promote, alpha.promotion)
    refused = too_short(gate, fewest, "even if no block is ever too slow")
    return made(gate, alpha.rollback, says, needs, refused)


def gpu_memory(gate: GpuMemory, expected: Expected, alpha: Alpha) -> Reach:
    """A cap on what engines tell."""
    return made(
        gate,
        None,
        (
            (
                "a cap on what the engines' own metrics tell; an engine that tells no memory makes it an "
                "error, never a pass"
            ),
        ),
    )


def sample_ratio(gate: SampleRatio, expected: Expected, alpha: Alpha) -> Reach:
    """Whether what was drawn is what was configured."""
    says = [
        (
            f"holds when live requests are not copied at {gate.expected_percent:g} %, or when the candidate "
            f"is missing from more than {gate.maximum_missing:.0%} of comparisons: evidence that is lost is "
            "not lost by chance"
        ),
    ]
    if abs(gate.expected_percent - expected.percent) > 1e-9:
        says.append(
            f"expected_percent is {gate.expected_percent:g} and the traffic's percent "
            f"{expected.percent:g}: it will hold the rollout; make them equal"
        )
    return made(gate, alpha.rollback, says, refused=_never_near_enough(gate, alpha))


def _never_near_enough(gate: SampleRatio, alpha: Alpha) -> str | None:
    """Why no share of copies could pass. More of them speak against "too few" and for "too many": the lesser
    of the two rises to where they meet, and falls."""
    n = gate.maximum_n

    def verdict(copies: int) -> Verdict:
        return gate.verdict(SampleRatioState(copied=RatioState(counts=(copies, n - copies))), alpha)

    def nats(copies: int) -> float:
        found = verdict(copies).promotion_nats
        assert found is not None
        return found

    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if nats(middle) < nats(middle + 1) else (low, middle)
    if verdict(low).answer is Answer.PASS:
        return None
    return (
        f"tolerance {gate.tolerance:g} can never be decided: {n:,} answers (maximum_n) are too few to show a "
        f"share so near to {gate.expected_percent:g} %; raise maximum_n or tolerance"
    )


def _window(minimum: int, window_s: float, per_day: float) -> str:
    arrive = per_day * window_s / _DAY_S
    if arrive >= minimum:
        return f"and {arrive:.0f} arrive"
    return f"and only {arrive:.0f} arrive: it will stay inconclusive"
