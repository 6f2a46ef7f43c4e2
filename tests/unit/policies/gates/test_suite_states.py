"""What every gate about a suite does alike: stages, repeats, serialisation, limits."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from policies.gates import Accuracy, AnyGate, GateState, Length, Refusal, RuleCases, StructuredOutput
from policies.gates.passes import Passes
from policies.gates.predicted import History
from policies.verdict import Answer
from tests.support.exchanges import live
from tests.support.suite_answers import ALPHA, answer, fold, ref, scores

GATES: list[Any] = [RuleCases(), Accuracy(), StructuredOutput(), Length(), Refusal()]
each = pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)


def full(key: str, passage: int, **where: Any) -> Comparison:
    """An answer that every gate reads."""
    given = [
        score
        for question in ("rules", "answer", "structured", "refusal")
        for score in scores(question, candidate=1.0, baseline=1.0, control=1.0)
    ]
    return answer(ref(key, passage, **where), *given)


def progress_of(state: Any) -> Any:
    return state.progress if hasattr(state, "progress") else state.passes.progress


@each
def test_what_is_no_answer_of_this_suite_leaves_the_state_alone(gate: Any):
    state = gate.initial()
    traffic = answer(None, *scores("answer", candidate=1.0, baseline=1.0))
    for item in (traffic, full("a", 0, suite="other"), live(canary=True)):
        assert gate.fold(state, item) is state


@each
def test_another_stage_starts_afresh_and_the_old_one_is_over(gate: Any):
    state = fold(gate, [full("a", 0), full("a", 1)])
    fresh = fold(gate, [full("a", 0, stage="canary")], state)
    progress = progress_of(fresh)
    assert (progress.stage, progress.count, progress.past) == ("canary", 1, ("shadow",))
    assert gate.fold(fresh, full("a", 2)) is fresh
    alone = fold(gate, [full("a", 0, stage="canary")])
    assert gate.verdict(fresh, ALPHA) == gate.verdict(alone, ALPHA)


@each
def test_an_answer_that_comes_twice_or_out_of_range_counts_once_or_not(gate: Any):
    state = fold(gate, [full("a", 0)])
    assert gate.fold(state, full("a", 0)) is state
    assert gate.fold(state, full("a", 5)) is state
    assert gate.fold(state, full("a", -1)) is state
    assert gate.fold(state, full("b", 0)) is state  # a suite of one sample has no second


@each
def test_a_state_survives_serialisation_with_its_verdict(gate: Any):
    state = fold(gate, [full("a", passage) for passage in range(5)])
    again = msgspec.json.decode(msgspec.json.encode(state), type=GateState)
    assert again == state
    assert gate.verdict(again, ALPHA) == gate.verdict(state, ALPHA)


@each
def test_folding_never_changes_the_state_it_was_given(gate: Any):
    state = fold(gate, [full("a", 0)])
    before = msgspec.json.encode(state)
    gate.fold(state, full("a", 1))
    assert msgspec.json.encode(state) == before


@each
def test_shards_of_different_stages_do_not_merge(gate: Any):
    one, other = (fold(gate, [full("a", 0, stage=stage)]) for stage in ("shadow", "canary"))
    with pytest.raises(ValueError, match=r"^stages shadow and canary of suites .* make no one state$"):
        one.merge(other)
    assert gate.initial().merge(one) == one.merge(gate.initial()) == one


@each
def test_an_answer_that_was_given_up_completes_the_suite_and_counts_as_missing(gate: Any):
    """One that the baseline itself never gave: no pair, and errors for scores."""
    given_up = [
        score
        for question in ("rules", "answer", "structured", "refusal")
        for score in scores(question, candidate="given up", baseline="given up")
    ]
    items = [full(key, passage, samples=2) for passage in range(5) for key in ("a", "b")]
    items[-1] = msgspec.structs.replace(answer(ref("b", 4, samples=2), *given_up), pairs=())
    state = fold(gate, items)
    assert progress_of(state).complete
    verdict = gate.verdict(state, ALPHA)
    assert verdict.answer is Answer.ERROR
    assert "such as " in verdict.reason
    assert "b in pass 4" in verdict.reason


EQUAL = "margin: 0 can never pass, since equal arms cannot be proved equal"
SHARE = "is outside 0-1 (1 excluded); half a point is 0.005"
FIVE = History(mean=5.0, sd=0.1, runs=3)


@pytest.mark.parametrize(
    ("made", "limits", "message"),
    [
        (Accuracy, {"margin": 0.0}, f"{EQUAL}; half a point is 0.005"),
        (Accuracy, {"margin": 1.0}, f"margin: 1 {SHARE}"),
        (Accuracy, {"maximum_missing": -0.1}, f"maximum_missing: -0.1 {SHARE}"),
        (Accuracy, {"maximum_n": 0}, "maximum_n: 0 is under 1; no data is no pass"),
        (StructuredOutput, {"margin": 0.0}, f"{EQUAL}; 0.002 is usual"),
        (
            StructuredOutput,
            {"rollback_margin": 0.01},
            (
                "rollback_margin: 0.01 is over margin: 0.002; "
                "a drop that passes could not be rolled back any more"
            ),
        ),
        (StructuredOutput, {"maximum_n": 0}, "maximum_n: 0 is under 1; no data is no pass"),
        (RuleCases, {"maximum_flaky": 1.0}, f"maximum_flaky: 1 {SHARE}"),
        (Length, {"margin": 0.6}, "margin: 0.6 is outside 0-0.5"),
        (Length, {"coverage": 1.0}, "coverage: 1 is outside 0.5-1 (1 excluded); 0.95 is usual"),
        (Length, {"maximum_missing": math.nan}, "maximum_missing: nan is outside 0-1 (1 excluded)"),
        (Refusal, {"history": FIVE}, "history.mean: 5 is no rate; give a share from 0 to 1"),
        (History, {"mean": -1.0, "sd": 0.1, "runs": 3}, "mean: -1.0 is not a finite number of at least 0"),
        (History, {"mean": 1.0, "sd": math.inf, "runs": 3}, "sd: inf is not a finite number of at least 0"),
        (History, {"mean": 1.0, "sd": 0.1, "runs": 1}, "runs: 1; a spread between runs needs at least 2"),
    ],
)
def test_limits_out_of_range_are_refused(made: Any, limits: dict[str, Any], message: str):
    with pytest.raises(ValueError) as caught:
        made(**limits)
    assert str(caught.value) == message


def test_only_gates_that_test_a_hypothesis_spend_alpha():
    assert [gate.spends_alpha for gate in GATES] == [False, True, True, True, True]
    assert not any(gate.performance for gate in GATES)


def test_a_policy_may_state_a_history():
    decoded = msgspec.convert({"kind": "length", "history": {"mean": 50, "sd": 1, "runs": 4}}, AnyGate)
    assert decoded == Length(history=History(mean=50.0, sd=1.0, runs=4))


def test_passes_know_nothing_before_the_first_answer():
    assert Passes().cannot("starter", "accuracy", 0.0) is None
    assert list(Passes().asked()) == []
