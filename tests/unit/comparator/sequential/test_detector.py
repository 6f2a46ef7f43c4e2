"""The e-detector against its own sum over starting points, in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import Detector, DetectorState, Mixture, SequentialError, rollback, threshold_nats
from tests.support.exact import log_of

TEST = rollback(0.005, Mixture.geometric(0.05, 0.8, 3))
DETECTOR = Detector(test=TEST, threshold=1000.0)
values = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 1.0]), min_size=1, max_size=40)


def run(observations: list[float], state: DetectorState | None = None) -> DetectorState:
    state = state or DetectorState()
    for value in observations:
        state = DETECTOR.step(state, value)
    return state


@settings(max_examples=40, deadline=None)
@given(values)
def test_it_is_the_sum_of_e_processes_started_at_every_observation(observations: list[float]):
    total = Fraction(0)
    null = Fraction(TEST.null)
    for bet, weight in zip(TEST.bets.points, TEST.bets.weights, strict=True):
        for start in range(len(observations)):
            product = Fraction(1)
            for value in observations[start:]:
                product *= 1 - Fraction(bet) * (Fraction(value) - null)
            total += Fraction(weight) * product
    assert DETECTOR.log_statistic(run(observations)) == pytest.approx(log_of(total), rel=1e-12, abs=1e-12)


def test_a_long_equal_past_does_not_hide_a_late_fault():
    past = [0.0] * 5000 + [-1.0, 1.0] * 100
    state = run(past)
    assert not DETECTOR.alarms(state)
    late = 0
    while not DETECTOR.alarms(state):
        state = DETECTOR.step(state, -1.0 if late % 4 == 0 else 0.0)
        late += 1
    assert late < 120
    # the e-process that watched the same past has lost far more than that fault could bring back
    gains = [math.log1p(0.8 * 0.995), math.log1p(-0.8 * 0.005)]
    lost = 100 * (gains[0] + math.log1p(-0.8 * 1.005)) + 5000 * gains[1]
    assert lost + late / 4 * gains[0] < threshold_nats(0.001)


@settings(max_examples=20, deadline=None)
@given(values, values)
def test_replaying_from_a_stored_state_gives_the_same_bits(before: list[float], after: list[float]):
    stored = msgspec.json.decode(msgspec.json.encode(run(before)), type=DetectorState)
    assert run(after, stored) == run(before + after)


def test_order_matters_so_states_do_not_merge():
    assert DETECTOR.log_statistic(run([-1.0, 0.0, 1.0])) != DETECTOR.log_statistic(run([1.0, 0.0, -1.0]))
    assert not hasattr(DetectorState, "merge")


def test_a_window_and_its_alpha_fix_the_run_length():
    detector = Detector.for_window(TEST, window=2_000, alpha=0.01)
    assert detector.average_run_length == detector.threshold == 200_000
    assert not detector.alarms(DetectorState())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Detector(test=TEST, threshold=1.0), "threshold: 1.0"),
        (lambda: Detector(test=TEST, threshold=math.nan), "threshold: nan"),
        (lambda: Detector.for_window(TEST, 0, 0.05), "window: 0"),
        (lambda: Detector.for_window(TEST, 10, 0.0), "alpha: 0.0"),
        (lambda: DETECTOR.step(DetectorState(), 1.5), "value 1.5 is outside"),
        (lambda: DETECTOR.step(DetectorState(), math.nan), "value nan is outside"),
        (lambda: DETECTOR.step(DetectorState(log_sums=(0.0,), n=1), 0.0), "1 sums for 3 bets"),
        (lambda: DetectorState(log_sums=(0.0,), n=0), "0 observations do not fit"),
        (lambda: DetectorState(log_sums=(math.nan,), n=1), "is not finite"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(build, words: str):
    with pytest.raises(SequentialError, match=words):
        build()
