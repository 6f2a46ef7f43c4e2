"""The bench's own machinery: walks agree with the core, rates and quantiles are what they are called."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.statistics import draws, labels, replay, sampling, speed, streams
from bench.statistics.__main__ import exit_code
from bench.statistics.findings import Finding, Scale, at_most, table
from bench.statistics.walks import WalkError, check_against_core, walk_bernoulli, walk_mean
from comparator.sequential import Counts, Mixture, MmdTest, Tally, fork_hazard, rollback, threshold_nats


class Inline(concurrent.futures.Executor):
    """Everything in this process."""

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        return map(fn, *iterables)


def test_a_walk_stops_where_the_core_first_rejects():
    rng = np.random.default_rng(1)
    codes = rng.choice(3, size=(12, 700), p=[0.2, 0.7, 0.1]).astype(np.uint8)
    test = rollback(0.005)
    walk = walk_mean(test, streams.DIFFERENCES, 12, 0.05)
    walk.feed(codes[:, :300])
    walk.feed(codes[:, 300:])
    assert walk.crossed.any()
    for row in range(12):
        state, first = Counts(), 0
        for n, code in enumerate(codes[row].tolist(), 1):
            state = state.add(streams.DIFFERENCES[code])
            if test.log_e(state) >= threshold_nats(0.05):
                first = n
                break
        assert walk.first[row] == first


def test_a_walk_over_many_values_stops_there_too():
    rng = np.random.default_rng(2)
    codes = rng.integers(0, len(streams.SIGN_MEANS) - 8, size=(5, 400)).astype(np.uint8)
    test = rollback(0.0, Mixture.geometric(0.1, 0.95, 5))
    walk = walk_mean(test, streams.SIGN_MEANS, 5, 0.01)
    walk.feed(codes)
    assert walk.crossed.all()
    check_against_core(test, codes, walk.first, walk.bar, streams.SIGN_MEANS)


def test_a_walk_that_differs_from_the_core_is_an_error():
    codes = np.ones((1, 100), dtype=np.uint8)
    walk = walk_bernoulli(fork_hazard(), 1, 0.01)
    walk.feed(codes)
    assert fork_hazard().log_e(Tally(ones=int(walk.first[0]))) >= threshold_nats(0.01)
    with pytest.raises(WalkError, match="the core says"):
        check_against_core(fork_hazard(), codes, walk.first + 3, walk.bar)


def test_the_streams_are_fair_or_unfair_by_what_they_say():
    rng = np.random.default_rng(3)
    level = streams.level_of(rng, 400, 2_000)
    assert abs(float(level.std()) - 1.0) < 0.1
    assert np.corrcoef(level[:, :-1].ravel(), level[:, 1:].ravel())[0, 1] == pytest.approx(0.99, abs=0.005)
    margin = streams.mostly_agreeing(rng, np.full((400, 2_000), 0.05, dtype=np.float32), -0.01)
    values = margin.astype(int) - 1
    # 800,000 draws with variance .05: five standard errors are .00125
    assert float(values.mean()) == pytest.approx(-0.01, abs=0.00125)
    assert float(np.abs(values).mean()) == pytest.approx(0.05, abs=0.00125)
    order = streams.fair_forks(rng, level)
    first, second = int((order == 1).sum()), int((order == 0).sum())
    assert abs(first - second) < 5 * math.sqrt(first + second)


def test_a_rate_is_held_to_its_lower_bound():
    assert at_most(0, 10, 0.05)
    assert at_most(55, 1_000, 0.05)
    assert not at_most(80, 1_000, 0.05)


def test_the_fixed_n_is_the_textbooks():
    # (1.6449 + 0.8416)² x .05 / .005²
    assert speed.fixed_n(0.05, 0.005, 0.05, 0.8) == 12_366


def test_a_stream_that_never_stops_is_slower_than_any():
    assert speed.quantile_of(np.array([5, 0, 7, 6]), 0.5) == 6.0
    assert speed.quantile_of(np.array([5, 0, 7, 0]), 0.9) == math.inf


def test_promotion_takes_about_as_long_as_a_fixed_n():
    # the median of 150 streams; a quantile's standard error is about 10 % here, the bar is far from the truth
    _, times = speed.promotion_times((np.random.SeedSequence(4), 0.05), 150)
    assert 0.4 < speed.quantile_of(times, 0.5) / speed.fixed_n(0.05, 0.005, 0.05, 0.8) < 1.5


def test_twice_the_hazard_and_half_again_the_noise_are_found_soon():
    assert speed.quantile_of(speed.fork_times(np.random.SeedSequence(5), 2.0, 500, 400), 0.9) < 250
    louder = speed.logit_times(np.random.SeedSequence(6), 50, 150, speed.NOISE)
    equal = speed.logit_times(np.random.SeedSequence(7), 50, 150, 1.0)
    assert (louder > 0).mean() > 0.9
    assert (equal > 0).sum() <= 3  # α = .001: four or more of 50 has chance 2e-7


def test_stored_verdicts_come_back_bit_for_bit():
    finding = replay.bit_equality(np.random.SeedSequence(8), Scale.QUICK)
    assert finding.holds, finding


def test_a_bound_is_told_for_every_sampling_verdict():
    found = sampling.batch(np.random.SeedSequence(9))
    assert all(0.0 < bound < 1.0 for bound in found["race bound"])
    assert np.mean(found["race mismatch"]) <= 2 * found["tv"][0] / (1 + found["tv"][0]) + 0.005
    # 100 streams at α = .05: nineteen or more has chance under 1e-6
    assert sum(found["maximal too low"]) < 19


def test_a_verdict_of_the_gate_is_read_for_its_bound():
    found = [sampling.verdicts(np.random.SeedSequence(seed), 30) for seed in range(4)]
    assert all(one["verdicts"] == 30 and one["bare"] == 0 for one in found)
    assert sum(one["wrong"] for one in found) <= 2  # of 4 at α = .05: three or more has chance 5e-4


def test_the_walk_over_answers_says_what_the_core_says():
    rng, test, rows, n = np.random.default_rng(12), MmdTest(), 6, 80
    drawn, walk = draws.Draws(rng, streams.level_of(rng, rows, n)), draws.MmdWalk(test, rows, 0.05)
    seen = [drawn.at(index) for index in range(n)]
    for tokens in seen:
        walk.feed(tokens)
    told = walk.log_e(np.arange(rows))
    draws.check_against_core(test, [[tokens[row] for tokens in seen] for row in range(rows)], told)
    with pytest.raises(WalkError, match="stream 0: the core says"):
        draws.check_against_core(test, [[tokens[0] for tokens in seen[:-20]]], told)


def test_numbers_do_not_depend_on_who_computes_them():
    here = speed.hazard_times(Inline(), np.random.SeedSequence(10), Scale.QUICK)
    again = speed.hazard_times(Inline(), np.random.SeedSequence(10), Scale.QUICK)
    other = speed.hazard_times(Inline(), np.random.SeedSequence(11), Scale.QUICK)
    assert here == again
    assert here.detail != other.detail


def test_what_is_not_measured_never_holds():
    nothing = labels.labelled_pairs(None)
    assert (nothing.value, nothing.holds) == (None, None)
    good = Finding(name="a", value=1.0, bar=2.0, holds=True)
    bad = Finding(name="b", value=3.0, bar=2.0, holds=False, detail={"why": "over"})
    assert [exit_code(found) for found in ([good], [good, nothing], [good, nothing, bad])] == [0, 4, 1]
    told = table([good, bad, nothing])
    assert "DOES NOT HOLD" in told
    assert "not measured" in told
    assert "why: over" in told


def test_a_folder_that_is_no_battery_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    from bench.statistics.__main__ import main

    monkeypatch.setattr("sys.argv", ["bench.statistics", "--battery", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "no pairs.json there" in capsys.readouterr().err
