"""Gates about a suite: order, shards, repeats and serialisation leave no trace in what they say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.comparison import Comparison
from policies.gates import Accuracy, GateState, Length, Refusal, RuleCases, StructuredOutput
from policies.verdict import Answer
from tests.support.suite_answers import ALPHA, Said, answer, failing, fold, lengths, ref, scores

GATES: list[Any] = [RuleCases(), Accuracy(), StructuredOutput(), Length(), Refusal()]
QUESTIONS = ("rules", "answer", "structured", "refusal")
PASSES = 5
PAIRS = [lengths(candidate, baseline) for candidate in (2, 5) for baseline in (2, 4)] + [failing()]

said: st.SearchStrategy[Said] = st.sampled_from([0.0, 1 / 3, 0.1, 1.0, "it hung", "it crashed", None])


@st.composite
def suites(draw: st.DrawFn) -> list[Comparison]:
    """Some or all of the answers of a small suite, in the order in which it would run."""
    n = draw(st.integers(1, 4))
    asks = [draw(st.sets(st.sampled_from(QUESTIONS))) for _ in range(n)]
    found = []
    for passage in range(PASSES):
        for i in range(n):
            if draw(st.integers(0, 9)) == 0:
                continue
            given_scores = [
                score
                for question in sorted(asks[i])
                for score in scores(question, candidate=draw(said), baseline=draw(said), control=draw(said))
            ]
            pairs = (draw(st.sampled_from(PAIRS)),)
            found.append(answer(ref(f"s{i}", passage, samples=n), *given_scores, pairs=pairs))
    return found


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_order_with_repeats_and_a_restart_gives_the_same_state_and_verdict(
    gate: Any, data: st.DataObject
):
    items = data.draw(suites())
    whole = fold(gate, items)
    shuffled = data.draw(st.permutations(items))
    cut = data.draw(st.integers(0, len(items)))
    half = fold(gate, shuffled[:cut])
    stored = msgspec.json.decode(msgspec.json.encode(half), type=GateState)
    again = fold(gate, [*shuffled[:cut], *shuffled], stored)
    assert again == whole
    assert gate.verdict(again, ALPHA) == gate.verdict(whole, ALPHA)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_shards_merge_to_the_whole_in_any_order_even_where_they_overlap(gate: Any, data: st.DataObject):
    items = data.draw(suites())
    if not items:
        return
    parts: list[list[Comparison]] = [[], []]
    for item in items:
        for part in data.draw(st.sampled_from([(0,), (1,), (0, 1)])):
            parts[part].append(item)
    left, right = (fold(gate, part) for part in parts)
    assert left.merge(right) == right.merge(left) == fold(gate, items)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_an_incomplete_suite_never_passes_and_none_counts_more_samples_than_it_has(
    gate: Any, data: st.DataObject
):
    items = data.draw(suites())
    state = fold(gate, items)
    verdict = gate.verdict(state, ALPHA)
    progress = state.progress if hasattr(state, "progress") else state.passes.progress
    if not progress.complete:
        assert verdict.answer is not Answer.PASS
    assert verdict.n <= progress.samples
