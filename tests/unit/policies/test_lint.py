"""The linter: what it plans with, what it refuses, and that it speaks of every gate."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.sequential import Counts, RatioState, Tally, fork_hazard, promotion, rejects
from policies.gates import (
    KINDS,
    ForkHazard,
    ForkHazardState,
    SampleRatio,
    SampleRatioState,
    Throughput,
    TokenEquality,
    Ttft,
)
from policies.gates.base import Alpha
from policies.levels import levels_of
from policies.lint import Expected, SuiteSize, lint, reach_of, refusals
from policies.lint.power import (
    NEVER,
    fewest_for_mean,
    fewest_for_share,
    mean_needs,
    paired,
    share_needs,
)
from policies.lint.reach import span
from policies.lint.service import blocks_of
from policies.policy import SHIPPED, Policy, load_policy
from policies.suites import parse_suite, shipped
from policies.verdict import Answer

ALPHA = Alpha(rollback=0.005, promotion=0.05)

GATES = """
level: statistical
alpha: 0.05
suites: {starter: {}}
gates:
  rule_cases: {}
  accuracy: {}
  traffic_accuracy: {kind: accuracy, estimand: traffic}
  structured_output: {}
  traffic_structured: {kind: structured_output, estimand: traffic}
  length: {}
  refusal: {}
  position_margins: {}
  sampling: {}
  token_equality: {}
  fork_hazard: {}
  logit_error: {maximum_nats: 2}
  distribution_shift: {}
  error_rate: {source: live, maximum: 0.02, margin: 0.05}
  sample_ratio: {expected_percent: 10}
  ttft: {source: live, margin: 0.05}
  tpot: {maximum_ratio: 1.2}
  throughput: {}
  gpu_memory: {maximum_ratio: 1.1}
"""

STARTER = SuiteSize(
    samples=1000, passes=5, questions={"rules": 100, "answer": 500, "structured": 400, "refusal": 1000}
)


def policy(gates: str, suites: str = "{}") -> Policy:
    return load_policy(f"level: statistical\nalpha: 0.05\nsuites: {suites}\ngates: {gates}\n", "p")


def test_equal_pairs_bound_a_share_however_few_they_are() -> None:
    for pairs, told in ((2, "77.64%"), (1_000, "0.30%")):
        reach = reach_of(TokenEquality(minimum_pairs=pairs), Expected(), ALPHA)
        assert any(
            f"after {pairs:,} equal pairs bounds the share that would fork at {told}" in one
            for one in reach.says
        )


def test_one_minute_is_one() -> None:
    assert (span(1 / 1440), span(2 / 1440)) == ("1 minute of traffic", "2 minutes of traffic")


class TestPower:
    @pytest.mark.parametrize(
        ("discordance", "median", "p90"),
        [(0.013, 3_530, 7_624), (0.027, 6_790, 15_796), (0.05, 11_390, 28_808), (0.09, 24_110, 53_264)],
    )
    def test_planned_samples_are_near_the_simulated_ones(self, discordance, median, p90):
        # Simulated stopping times of the same test: the specification's table of four discordances.
        needed = mean_needs(promotion(0.005), paired(0.0, discordance), 0.05)
        assert 0.75 * median <= needed.median <= 1.34 * median
        assert 0.75 * p90 <= needed.p90 <= 1.34 * p90

    @pytest.mark.parametrize(("ratio", "median", "p90"), [(1.5, 240, 520), (2.0, 82, 178), (3.0, 32, 70)])
    def test_planned_triples_are_near_the_simulated_ones(self, ratio, median, p90):
        needed = share_needs(fork_hazard(1.0), ratio / (1 + ratio), 0.01)
        assert 0.75 * median <= needed.median <= 1.34 * median
        assert 0.75 * p90 <= needed.p90 <= 1.34 * p90

    @pytest.mark.parametrize(
        ("margin", "usual", "each", "fails", "passes"),
        [
            (0.05, 0.05, 8, (91, 115), (114, 153)),
            (0.05, 0.05, 1, (249, 462), (300, 680)),
            (0.02, 0.01, 2, (101, 146), (304, 503)),
        ],
    )
    def test_planned_blocks_are_near_the_simulated_ones(self, margin, usual, each, fails, passes):
        # 1,000 simulated streams of binomial blocks on the gate's grid: a tenth more than the margin at
        # α .005, and equal arms at .05. Without the spread of a block it was 82 and 105 for one request each.
        gate = Ttft(margin=margin)
        roll_back, promote = gate.margins.tests
        for test, more, alpha, found in (
            (roll_back, margin + 0.1, 0.005, fails),
            (promote, 0.0, 0.05, passes),
        ):
            needed = mean_needs(test, blocks_of(usual, more, each), alpha)
            assert 0.75 * found[0] <= needed.median <= 1.34 * found[0]
            assert 0.75 * found[1] <= needed.p90 <= 1.34 * found[1]

    def test_the_fewest_is_exact(self):
        test = promotion(0.1)
        n = int(fewest_for_mean(test, 0.05))
        assert rejects(test.log_e(Counts(values=(1.0,), counts=(n,))), 0.05)
        assert not rejects(test.log_e(Counts(values=(1.0,), counts=(n - 1,))), 0.05)

    def test_one_sure_outcome_has_no_spread(self):
        needed = mean_needs(promotion(0.1), ((1.0, 1.0),), 0.05)
        assert needed.median == needed.p90 == fewest_for_mean(promotion(0.1), 0.05)

    def test_what_goes_the_other_way_never_decides(self):
        assert mean_needs(promotion(0.005), paired(-0.02, 0.05), 0.05) == NEVER
        assert share_needs(fork_hazard(2.0), 0.5, 0.01) == NEVER

    def test_no_effect_at_no_margin_never_decides(self):
        assert mean_needs(promotion(0.0), paired(0.0, 0.0), 0.05) == NEVER

    def test_fewest_of_a_share_is_that_of_sure_events(self):
        needed = share_needs(fork_hazard(1.5), 1.0, 0.01)
        assert needed.median == pytest.approx(fewest_for_share(fork_hazard(1.5), 0.01), abs=1)

    def test_a_difference_needs_its_discordance(self):
        with pytest.raises(ValueError, match=r"difference 0\.1 cannot come of a discordance of 0\.05"):
            paired(0.1, 0.05)


class TestNeverDecided:
    """Gates that would say "could not measure" or "inconclusive" for good, found before any traffic."""

    @pytest.mark.parametrize("gate", ["length", "refusal", "accuracy", "structured_output"])
    def test_a_suite_of_too_few_passes_is_refused_for_every_gate_that_looks_at_noise(self, gate):
        for passes, is_refused in ((4, True), (5, False)):
            size = msgspec.structs.replace(STARTER, passes=passes)
            found = refusals(policy(f"{{{gate}: {{}}}}", "{starter: {}}"), {"starter": size})
            assert bool(found) is is_refused, found
            assert all("run-to-run noise shows from 5 on: never decides" in one for one in found)

    @pytest.mark.parametrize("maximum", [10, 100, 10_000])
    def test_fork_hazard_is_refused_exactly_where_no_stream_could_pass_it(self, maximum):
        made = policy(f"{{fork_hazard: {{maximum_n: {maximum}}}}}")
        alpha = levels_of(0.05, made.gates)["fork_hazard"]
        best = [
            made.gates["fork_hazard"].verdict(ForkHazardState(first=first), alpha).answer
            for first in (Tally(zeros=maximum), Tally(ties=maximum))
        ]
        assert bool(refusals(made, {})) is (Answer.PASS not in best)


class TestLint:
    def test_every_kind_of_gate_is_spoken_of(self):
        found = lint(load_policy(GATES, "p"), Expected(suites={"starter": STARTER}))
        assert {reach.kind for reach in found} == set(KINDS)
        for reach in found:
            assert reach.says, reach.gate
            assert reach.refused is None, reach.refused
            assert all(need.sentence() for need in reach.needs)

    def test_only_gates_that_test_have_a_share_of_alpha(self):
        found = {reach.gate: reach for reach in lint(load_policy(GATES, "p"), Expected())}
        assert found["token_equality"].alpha is None
        assert found["tpot"].alpha is None
        share = found["fork_hazard"].alpha
        assert share is not None
        spending = sum(reach.alpha is not None for reach in found.values())
        assert spending * share == pytest.approx(0.05)

    def test_a_gate_of_everybodys_traffic_is_one_test_for_all_tenants_and_steps(self):
        alphas = {
            lint(policy("{fork_hazard: {}}"), Expected(), tenants=n, looks=n)[0].alpha for n in (1, 2, 50)
        }
        assert alphas == {0.05}

    def test_a_gate_kept_by_tenant_shares_alpha_among_them(self):
        made = policy("{fork_hazard: {scope: tenant}}")
        assert [lint(made, Expected(), tenants=n)[0].alpha for n in (1, 4)] == pytest.approx(
            [0.05 / 2, 0.05 / 5]
        )

    def test_a_suites_gate_is_read_at_its_last_look(self):
        made = policy("{accuracy: {}}", "{starter: {}}")
        found = [lint(made, Expected(), looks=n)[0].alpha for n in (1, 2, 3)]
        assert found == pytest.approx([0.05 / 2, 0.05 / 6, 0.05 / 12])

    def test_days_follow_from_the_traffic(self):
        gate = ForkHazard(ratio=1.5)
        few, many = (
            reach_of(gate, Expected(requests_per_day=per_day), ALPHA).needs[0] for per_day in (1e5, 1e6)
        )
        assert few.days == pytest.approx(10 * many.days)
        assert few.needed == many.needed

    def test_without_traffic_nothing_comes(self):
        need = reach_of(ForkHazard(), Expected(requests_per_day=0), ALPHA).needs[0]
        assert need.days == math.inf
        assert "the expected traffic brings none" in need.sentence()

    def test_what_a_maximum_cuts_off_is_said(self):
        needs = reach_of(ForkHazard(maximum_n=20), Expected(), ALPHA).needs
        assert any("it will stay inconclusive" in need.sentence() for need in needs)

    def test_no_control_is_said(self):
        says = reach_of(ForkHazard(), Expected(control_percent=0), ALPHA).says
        assert any("set shadow.control_percent" in sentence for sentence in says)

    def test_no_timing_is_said(self):
        (tpot,) = lint(policy("{tpot: {maximum_ratio: 1.2}}"), Expected())
        assert any("set shadow.timing_percent" in sentence for sentence in tpot.says)

    def test_a_wrong_expected_percent_is_said(self):
        (gate,) = lint(policy("{sample_ratio: {expected_percent: 50}}"), Expected(percent=10))
        assert any("make them equal" in sentence for sentence in gate.says)


class TestSmallSuites:
    def test_neither_bound_leaves_what_a_share_can_be(self):
        mine = policy(
            "{rule_cases: {suite: mine}, accuracy: {suite: mine, margin: 0.15}}", "{mine: {file: a}}"
        )
        size = SuiteSize(samples=5, passes=5, questions={"answer": 5, "rules": 1})
        rules, accuracy = (" ".join(one.says) for one in lint(mine, Expected(suites={"mine": size})))
        assert "under 60.00%" in rules
        assert "may miss any drop" in accuracy
        few = msgspec.structs.replace(size, passes=2)
        assert "too few to bound" in " ".join(lint(mine, Expected(suites={"mine": few}))[0].says)


class TestRefusals:
    def test_a_suite_too_small_for_its_margin_is_refused_with_the_way_out(self):
        small = SuiteSize(samples=20, passes=5, questions={"answer": 20})
        (refused,) = refusals(policy("{accuracy: {suite: mine}}", "{mine: {file: a.jsonl}}"), {"mine": small})
        assert refused.startswith("gates.accuracy: margin 0.005 can never be decided: 20 samples x 5 passes")
        assert "120 samples" in refused

    def test_the_way_out_is_one(self):
        mine = policy("{accuracy: {suite: mine}}", "{mine: {file: a.jsonl}}")
        enough = SuiteSize(samples=120, passes=5, questions={"answer": 120})
        short = SuiteSize(samples=118, passes=5, questions={"answer": 118})
        assert refusals(mine, {"mine": enough}) == ()
        assert refusals(mine, {"mine": short})

    def test_a_suite_that_does_not_ask_is_refused(self):
        empty = SuiteSize(samples=10, passes=5)
        found = refusals(policy("{rule_cases: {suite: mine}}", "{mine: {file: a.jsonl}}"), {"mine": empty})
        assert found == ("gates.rule_cases: suite 'mine' has no sample with rules: never decides",)

    @pytest.mark.parametrize(
        ("gates", "words"),
        [
            ("{accuracy: {estimand: traffic, maximum_n: 1000}}", "margin 0.005 can never be decided"),
            ("{distribution_shift: {maximum_n: 20}}", "promotion_margin 0.02 can never be decided"),
            ("{sampling: {maximum_tv: 0.001, maximum_n: 50}}", "maximum_tv 0.001 can never be decided"),
            ("{error_rate: {source: live, margin: 0.001, maximum_n: 100}}", "can never be decided"),
            ("{logit_error: {exceedance: 0.01, margin: null, maximum_n: 100}}", "exceedance 0.01 can never"),
            ("{logit_error: {exceedance: 0.01, maximum_n: 100}}", "exceedance 0.01 can never be decided"),
            ("{sample_ratio: {expected_percent: 10, maximum_n: 1000}}", "tolerance 0.1 can never be decided"),
        ],
    )
    def test_a_margin_that_the_maximum_cannot_reach_is_refused(self, gates, words):
        suites = "{}"
        (refused,) = refusals(policy(gates, suites), {})
        assert words in refused
        assert "maximum_n" in refused

    def test_a_strict_alpha_needs_more_blocks_than_the_least_maximum(self):
        gate = Throughput(maximum_n=10)
        strict, usual = (reach_of(gate, Expected(), Alpha(rollback=a, promotion=a)) for a in (1e-6, 0.05))
        assert strict.refused is not None
        assert strict.refused.startswith("maximum_n 10 can never be enough for a pass: it takes ")
        assert usual.refused is None
        for reach, alpha in ((strict, 1e-6), (usual, 0.05)):
            _, promote = gate.tests
            never_slow = promote.log_e(Tally(zeros=gate.maximum_n))
            assert rejects(never_slow, alpha) is (reach.refused is None)

    @pytest.mark.parametrize("maximum", [1_000, 5_000, 20_000])
    def test_a_share_of_copies_is_refused_exactly_where_none_could_pass(self, maximum):
        gate = SampleRatio(expected_percent=10, maximum_n=maximum)
        shares = [(copies, maximum - copies) for copies in range(0, maximum, maximum // 1_000)]
        states = [SampleRatioState(copied=RatioState(counts=counts)) for counts in shares]
        passes = [state for state in states if gate.verdict(state, ALPHA).answer is Answer.PASS]
        assert bool(passes) is (reach_of(gate, Expected(), ALPHA).refused is None)

    def test_scores_of_live_answers_are_said_to_be_nobodys(self):
        (gate,) = lint(policy("{accuracy: {estimand: traffic}}"), Expected())
        assert any("scores no live answer by itself" in sentence for sentence in gate.says)

    def test_shipped_policies_are_not_refused(self):
        starter = parse_suite(shipped("starter"), "starter.jsonl", "starter")
        for name in SHIPPED:
            made = load_policy(name)
            sizes = {suite: SuiteSize.of(starter, one.passes) for suite, one in made.suites.items()}
            assert refusals(made, sizes) == (), name


@pytest.mark.parametrize(
    ("field", "value"),
    [("requests_per_day", -1), ("percent", 101), ("discordance", 1.5), ("fork_share", -0.1)],
)
def test_expectations_out_of_range_are_named(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        Expected(**{field: value})
