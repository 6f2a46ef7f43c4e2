"""Medians, intervals and verdicts of the bench."""

from __future__ import annotations

import numpy as np
import orjson
import pytest

from bench.report import BARS, Figure, Verdict, as_json
from bench.stats import Estimate, median_with_interval, quantile, ratios


def test_interval_covers_the_true_median_about_nine_times_in_ten() -> None:
    # 400 seeded repetitions; binomial(400, 0.9) is under 0.85 with probability 6e-4.
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        estimate = median_with_interval(rng.lognormal(0.0, 0.2, size=20).tolist())
        covered += estimate.low <= 1.0 <= estimate.high
    assert covered / 400 > 0.85


def test_same_blocks_give_the_same_interval_again() -> None:
    blocks = [1.0, 1.1, 0.9, 1.3, 0.8]
    assert median_with_interval(blocks) == median_with_interval(blocks)


@pytest.mark.parametrize("blocks", [[], [1.0, float("nan")], [float("inf")]])
def test_what_was_not_measured_has_no_median(blocks: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot take a median"):
        median_with_interval(blocks)


def test_quantile_is_a_sample_and_never_between_two() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert quantile(samples, 0.99) == 99.0
    assert quantile(samples, 0.5) == 50.0
    assert quantile(samples, 1.0) == 100.0


def test_ratios_refuse_blocks_without_a_partner() -> None:
    assert ratios([2.0, 3.0], [1.0, 2.0]) == [2.0, 1.5]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def _figure(key: str, value: float | None, low: float, high: float) -> Figure:
    if value is None:
        return Figure(key=key, value=None, detail={"reason": "the proxy did not start"})
    return Figure.of(key, Estimate(value=value, low=low, high=high, blocks=10), {})


@pytest.mark.parametrize(
    ("key", "value", "low", "high", "verdict"),
    [
        ("p99_vs_envoy", 1.0, 0.9, 1.1, Verdict.HOLDS),
        ("p99_vs_envoy", 1.01, 0.9, 1.1, Verdict.MISSED),
        ("p99_vs_envoy", 0.8, 0.7, 0.95, Verdict.VOID),  # holds the bar, and says nothing: too wide
        ("cpu_chunk_vs_envoy", 0.8, 0.5, 1.2, Verdict.HOLDS),  # needs no interval
        ("flip_p95_ms", 50.0, 50.0, 50.0, Verdict.MISSED),  # under 50, not at most
        ("judge_pairs_per_s", 150.0, 150.0, 150.0, Verdict.HOLDS),
        ("judge_pairs_per_s", 149.9, 149.9, 149.9, Verdict.MISSED),
        ("edge_kib_per_stream", 6.0, 6.0, 6.0, Verdict.NO_BAR),
        ("p99_vs_envoy", None, 0.0, 0.0, Verdict.FAILED),
    ],
)
def test_verdict_follows_bar_and_interval(
    key: str, value: float | None, low: float, high: float, verdict: Verdict
) -> None:
    assert _figure(key, value, low, high).verdict is verdict


def test_json_holds_plain_numbers_at_the_top() -> None:
    figures = [_figure("p50_vs_envoy", 0.5123456789, 0.5, 0.55), _figure("flip_p95_ms", None, 0, 0)]
    line = as_json(figures, {})
    assert "\n" not in line
    told = orjson.loads(line)
    assert told["p50_vs_envoy"] == 0.512346
    assert told["flip_p95_ms"] is None
    assert told["holds"] == {"p50_vs_envoy": True, "flip_p95_ms": None}
    assert told["verdicts"]["flip_p95_ms"] == "failed"
    assert told["intervals"] == {"p50_vs_envoy": [0.5, 0.55]}


def test_bars_are_those_that_were_promised() -> None:
    assert {key: bar.words for key, bar in BARS.items()} == {
        "cpu_passthrough_vs_envoy": "≤ 0.6",
        "cpu_sampled10_vs_envoy": "≤ 1",
        "cpu_sampled100_vs_envoy_mirror": "≤ 1",
        "cpu_chunk_vs_envoy": "≤ 0.9",
        "p50_vs_envoy": "≤ 1",
        "p99_vs_envoy": "≤ 1",
        "stalled_candidate_p99": "≤ 1.05",
        "flip_p95_ms": "< 50",
        "flip_fsync_ms": "-",
        "edge_kib_per_stream": "-",
        "endless_candidate_growth_mib": "< 1",
        "judge_pairs_per_s": "≥ 150",
        "cpu_vllm_router_vs_envoy": "-",
    }
