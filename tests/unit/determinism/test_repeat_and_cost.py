"""Repetition bit by bit, and the interval of a cost."""

from __future__ import annotations

import itertools
import types
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch

from engines.determinism import audit, cost, repeat, workload
from engines.determinism.audit import Plan
from engines.determinism.workload import How, Run

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel

HOW = How(max_batch=4, prefill_chunk=32)
QUICK = Plan(runs=2, tokens=4, rounds=0, concurrency=2)


def test_a_request_repeats_itself_alone_and_with_passes_of_its_own(tiny: LoadedModel) -> None:
    report = audit.audit(tiny, QUICK, how=HOW)
    assert report.verdict == "pass"
    told = {one.name: one for one in report.repeats}
    assert told["alone"].logits_equal
    assert told["in a changed batch, a pass for each"].logits_equal
    assert told["alone"].runs == 2
    assert told["alone"].steps == 8
    assert report.operators.alerts == ()
    assert report.operators.seen > 20
    assert not torch.are_deterministic_algorithms_enabled()


def test_random_numbers_inside_the_model_are_caught_alone(tiny: LoadedModel) -> None:
    _answer_with(tiny, lambda logits: logits + 1e-3 * next(count))
    report = audit.audit(tiny, QUICK, how=HOW)
    assert report.verdict == "fail"
    assert any(reason.startswith("alone: logits differ") for reason in report.reasons)
    first = report.repeats[0].first
    assert first is not None
    assert first.step == 0
    assert first.largest_logit_difference is not None
    assert first.largest_logit_difference > 0


count = itertools.count(1)


def _answer_with(model: LoadedModel, change: object) -> None:
    """The network's logits changed: by a counter, it is what an undeclared nondeterministic kernel does."""
    head = model.network.lm_head
    forward = head.forward
    head.forward = types.MethodType(lambda _self, x: change(forward(x)), head)  # type: ignore[operator]


def test_a_model_whose_rows_see_each_other_fails_only_in_a_shared_batch(tiny: LoadedModel) -> None:
    # Every logit gets the batch's size: alone it repeats, and with passes of its own no neighbour reaches it.
    _answer_with(tiny, lambda logits: logits + 0.01 * logits.shape[0])
    report = audit.audit(tiny, QUICK, how=HOW)
    told = {one.name: one.logits_equal for one in report.repeats}
    assert told == {
        "alone": True,
        "in a changed batch, a pass for each": True,
        "in a changed batch, passes shared": False,
    }
    assert report.verdict == "pass"
    assert any("share passes" in note for note in report.notes)
    held = audit.audit(tiny, msgspec.structs.replace(QUICK, shared_batch=True), how=HOW)
    assert held.verdict == "fail"
    assert held.reasons[0].startswith("in a changed batch, passes shared: logits differ")


def test_an_operator_found_in_the_model_fails_the_audit_and_is_named(tiny: LoadedModel) -> None:
    _answer_with(tiny, lambda logits: logits.clone().put_(torch.tensor([0]), torch.tensor([0.0])))
    report = audit.audit(tiny, msgspec.structs.replace(QUICK, rounds=1), how=HOW)
    assert report.verdict == "fail"
    assert {(one.operator, one.module) for one in report.operators.alerts} == {("aten::put_", "lm_head")}
    assert report.repeats == ()
    assert report.cost is not None
    assert report.cost.warn_only
    assert any("warnings only" in note for note in report.notes)


def test_logits_that_are_all_nan_say_nothing(tiny: LoadedModel) -> None:
    _answer_with(tiny, lambda logits: logits * float("nan"))
    with pytest.raises(repeat.NothingToCompare):
        repeat.alone(tiny, workload.greedy(tiny, count=1, max_tokens=2), runs=1, seed=0, how=HOW)


def test_requests_that_never_meet_are_no_changed_batch(tiny: LoadedModel) -> None:
    asks = workload.greedy(tiny, count=2, max_tokens=2)
    with pytest.raises(repeat.NothingToCompare, match="no pass was shared"):
        repeat.changed_batch(
            tiny, asks[:1], neighbours=asks[1:], seed=0, how=How(max_batch=2, prefill_chunk=16), shared=True
        )


def _ran(*logits: list[float], tokens: list[int]) -> Run:
    return Run(tokens=tokens, logits=[torch.tensor(step) for step in logits])


def test_bits_are_compared_and_not_values() -> None:
    told = _ran([0.0, float("nan")], tokens=[0])
    assert repeat.difference_of(told, _ran([0.0, float("nan")], tokens=[0]), request=0, label="x") is None
    other = repeat.difference_of(told, _ran([-0.0, float("nan")], tokens=[0]), request=0, label="x")
    assert other is not None
    assert other.tokens_equal
    assert other.largest_logit_difference is None


def test_equal_logits_with_other_tokens_are_a_difference() -> None:
    told, other = _ran([1.0], [2.0], tokens=[4, 5]), _ran([1.0], [2.0], tokens=[4, 6])
    found = repeat.difference_of(told, other, request=1, label="run 2")
    assert found is not None
    assert (found.step, found.tokens_equal, found.largest_logit_difference) == (1, False, 0.0)


def test_costs_are_timed_by_turns_for_all_three_ways(tiny: LoadedModel) -> None:
    asks = workload.greedy(tiny, count=2, max_tokens=3)
    rounds: list[int] = []
    told = cost.measure(tiny, asks, rounds=2, seed=0, how=HOW, warn_only=False, progress=rounds.append)
    assert rounds == [0, 1, 2]
    assert [one.way for one in told.figures] == ["plain", "strict", "deterministic"]
    assert all(one.tokens_per_s > 0 and one.ttft_s > 0 and one.tpot_s > 0 for one in told.figures)
    assert {one.way for one in told.ratios} == {"strict", "deterministic"}
    assert all(one.low is None for one in told.ratios), "two rounds make no interval"


@pytest.mark.parametrize(("n", "covered", "trimmed"), [(6, 1 - 2 / 64, 0), (9, 1 - 20 / 512, 1)])
def test_the_interval_is_the_narrowest_of_order_statistics_that_covers(
    n: int, covered: float, trimmed: int
) -> None:
    told = cost.ratio([1.0 + place for place in range(n)][::-1], "strict", "tpot_s")
    assert told.ratio == 1 + (n - 1) / 2
    assert (told.low, told.high) == (1.0 + trimmed, float(n - trimmed))
    assert told.covered == pytest.approx(covered)


def test_five_rounds_make_no_interval() -> None:
    told = cost.ratio([1.0] * 5, "strict", "tpot_s")
    assert (told.low, told.high, told.covered) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"runs": 0}, "--runs: 0"), ({"tokens": 1}, "--tokens: 1"), ({"concurrency": 1}, "--concurrency: 1")],
)
def test_a_plan_out_of_range_is_named(change: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan(**change)
