"""What gates about the answers themselves can decide: tokens, scores, forks, numbers, distributions."""

from __future__ import annotations

from comparator.sequential import PartingTest, Tally
from policies.gates import (
    Accuracy,
    DistributionShift,
    ForkHazard,
    ForkHazardState,
    LogitError,
    PositionMargins,
    Sampling,
    StructuredOutput,
    TokenEquality,
)
from policies.gates.base import Alpha
from policies.lint.expected import Expected
from policies.lint.power import Needed, mean_needs, paired, parting_needs, share_needs
from policies.lint.reach import Need, Reach, count, made, need, never_decided, span
from policies.verdict import Answer

_AGREE = paired(0.0, 0.0)


def token_equality(gate: TokenEquality, expected: Expected, alpha: Alpha) -> Reach:
    """Any fork."""
    n = gate.minimum_pairs
    days = Need(
        what="pass, no fork at all",
        unit="comparisons",
        needed=Needed(median=float(n), p90=float(n)),
        per_day=expected.comparisons_per_day,
    )
    return made(
        gate,
        None,
        (
            (
                "fails at the first fork of a valid pair, whatever its cause; equal environments that "
                "share no batch fork too"
            ),
            (
                f"a pass after {count(n)} equal pairs bounds the share that would fork at "
                f"{1 - 0.05 ** (1 / n):.2%} (95 %); it proves no equality of all answers"
            ),
        ),
        (days,),
    )


def paired_score(
    gate: Accuracy | StructuredOutput, margin: float, drop: float, expected: Expected, alpha: Alpha
) -> Reach:
    """A score of live requests, through the core.

    Args:
        margin: what promotion rules out.
        drop: beyond which rollback acts.
    """
    promote, roll_back = gate.tests
    d = expected.discordance
    effect = min(d, 4 * margin)
    needs = (
        need("pass, arms equal", "comparisons", mean_needs(promote, paired(0.0, d), alpha.promotion), gate,
              expected.comparisons_per_day),
        need(f"fail, the candidate {drop + effect:.1%} lower", "comparisons",
              mean_needs(roll_back, paired(-min(1.0, drop + effect), max(d, drop + effect)), alpha.rollback),
              gate, expected.comparisons_per_day),
    )  # fmt: skip
    return made(
        gate,
        alpha.rollback,
        (
            f"live requests whose score differs in {d:.1%} of pairs between equal arms",
            (
                "forkgate scores no live answer by itself: in a rollout it stays inconclusive; it decides "
                "over lines with scores, given to `forkgate gate evaluate --pairs` (docs/evidence-format.md)"
            ),
        ),
        needs,
        never_decided(
            gate, "margin", margin, mean_needs(promote, _AGREE, alpha.promotion), "even if all pairs agree"
        ),
    )


def fork_hazard(gate: ForkHazard, expected: Expected, alpha: Alpha) -> Reach:
    """Discordant triples, of which only a part of the requests gives one."""
    roll_back, promote = gate.tests
    # A triple bets when candidate and control fork at different places; about this share does.
    share = min(1.0, 2 * expected.fork_share * (1 - expected.fork_share / 2))
    per_day = expected.triples_per_day * share
    needs = []
    for factor in (1.5, 2.0, 3.0):
        hazard = gate.ratio * factor
        needs.append(
            Need(
                what=f"fail, the candidate's hazard {hazard:g} times the control's",
                unit="discordant triples",
                needed=share_needs(roll_back, hazard / (1 + hazard), alpha.rollback),
                per_day=per_day,
                maximum=gate.maximum_n,
            )
        )
    equal = share_needs(promote, 0.5, alpha.promotion)
    needs.append(
        Need(
            what="pass, equal hazards",
            unit="discordant triples",
            needed=equal,
            per_day=per_day,
            maximum=gate.maximum_n,
        )
    )
    says = [
        (
            "reads token IDs alone; needs a control in the candidate's band of concurrency, else it stays "
            "inconclusive"
        ),
        f"with {expected.fork_share:.0%} of equal answers forking, {share:.0%} of triples bet",
    ]
    if not expected.control_percent:
        says.append("control_percent is 0: it can decide nothing, set shadow.control_percent")
    return made(gate, alpha.rollback, says, needs, _never_passes(gate, alpha))


def _never_passes(gate: ForkHazard, alpha: Alpha) -> str | None:
    """Why no stream could pass: not where the candidate never forks first, not where nothing forks."""
    for best in (Tally(zeros=gate.maximum_n), Tally(ties=gate.maximum_n)):
        if gate.verdict(ForkHazardState(first=best), alpha).answer is Answer.PASS:
            return None
    return (
        f"maximum_n {gate.maximum_n:,} can never be enough for a pass, even if the candidate never forks "
        "first; raise it"
    )


def logit_error(gate: LogitError, expected: Expected, alpha: Alpha) -> Reach:
    """A cap, an exceedance and a sign, of which each may be left out."""
    says = []
    if gate.maximum_nats is None:
        says.append("no maximum_nats: a single large error decides nothing")
    else:
        says.append(
            f"fails at the first request with an error over {gate.maximum_nats:g} nats up to its fork: other "
            "weights or another model, seen at once; it cannot see differences below that"
        )
    if gate.exceedance is not None:
        days = gate.floor_requests / expected.triples_per_day if expected.triples_per_day > 0.0 else None
        floor = "of which the expected traffic brings none" if days is None else f"about {span(days)}"
        says.append(
            f"tests whether {gate.exceedance:.0%} more requests of the candidate than of the control have an "
            f"error that no earlier control had; that is frozen after {gate.floor_requests} controls, {floor}"
        )
    refused = None
    if gate.exceedance is not None:
        refused = never_decided(
            gate,
            "exceedance",
            gate.exceedance,
            mean_needs(gate.over_margins.tests[1], _AGREE, alpha.promotion),
            "even if neither arm ever has such an error",
        )
    if gate.margin is None:
        return made(gate, alpha.rollback if gate.spends_alpha else None, says, refused=refused)
    share = alpha.rollback if gate.exceedance is None else alpha.rollback / 2  # as the gate splits it
    roll_back, promote = gate.margins.tests
    if gate.margin == 0.0:
        says.append(
            "tests whether errors are larger than the old environment's own: sound new hardware may fail it, "
            "so it is for environments that are meant to be alike"
        )
    needs = (
        need(
            "fail, errors larger than the control's at 60 % of steps",
            "triples",
            mean_needs(roll_back, ((-0.6, 0.6), (0.2, 0.4)), share),
            gate,
            expected.triples_per_day,
        ),
        need(
            "pass, errors as the control's",
            "triples",
            mean_needs(promote, ((-0.3, 0.5), (0.3, 0.5)), alpha.promotion),
            gate,
            expected.triples_per_day,
        ),
    )
    refused = refused or never_decided(
        gate,
        "promotion_margin",
        gate.promotion_margin if gate.promotion_margin is not None else gate.margin,
        mean_needs(promote, _AGREE, alpha.promotion),
        "even if both errors are always the same",
    )
    return made(gate, alpha.rollback, says, needs, refused)


def distribution_shift(gate: DistributionShift, expected: Expected, alpha: Alpha) -> Reach:
    """Forks of one class, through the core."""
    roll_back, promote = gate.margins.tests
    beyond = gate.promotion_margin if gate.promotion_margin is not None else gate.margin
    needs = [
        need(
            f"fail, {share:.0%} of answers shifted",
            "triples",
            mean_needs(roll_back, ((-1.0, share), (0.0, 1.0 - share)), alpha.rollback),
            gate,
            expected.triples_per_day,
        )
        for share in (0.05, 0.2)
    ]
    never = mean_needs(promote, _AGREE, alpha.promotion)
    needs.append(need("pass, no shift on either arm", "triples", never, gate, expected.triples_per_day))
    return made(
        gate,
        alpha.rollback,
        (
            (
                "counts only forks whose error is over the cap, or whose token the other arm does not "
                "list; near ties and precision drift never count"
            ),
        ),
        needs,
        never_decided(gate, "promotion_margin", beyond, never, "even if neither arm ever shifts"),
    )


def sampled(gate: Sampling | PositionMargins, expected: Expected, alpha: Alpha) -> Reach:
    """Distributions of drawn answers."""
    test = PartingTest(limit=gate.maximum_tv)
    tokens = gate.tokens if isinstance(gate, Sampling) else gate.positions
    never = parting_needs(test, 0.0, tokens, alpha.promotion)
    rate = gate.maximum_tv / 4
    needs = (
        need("pass, same-seed answers never part", "comparisons", never, gate, expected.comparisons_per_day),
        need(
            f"pass, they part at {rate:.1%} of tokens",
            "comparisons",
            parting_needs(test, rate, tokens, alpha.promotion),
            gate,
            expected.comparisons_per_day,
        ),
    )
    return made(
        gate,
        alpha.rollback,
        (
            "reads requests at a temperature above 0 alone, and needs seeds: shadow.replicates 4 or more",
            (
                "a pass needs both arms to draw by one sampler from one seed; otherwise it can find a "
                "difference and exclude none"
            ),
            "how many requests a known change takes to be found: python -m bench.sampling",
        ),
        needs,
        never_decided(gate, "maximum_tv", gate.maximum_tv, never, "even if no same-seed answers ever part"),
    )
