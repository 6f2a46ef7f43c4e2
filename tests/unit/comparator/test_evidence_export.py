"""Exported lines read back to what gates saw, and a bad line says where it is bad."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from comparator.compare import compare
from comparator.comparison import Score
from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from comparator.evidence.export import ExportLineError, read_comparisons
from comparator.records import Arm, Outcome
from tests.support.exchanges import comparison, exchange, pair, step
from tests.unit.comparator.test_evidence_journal import fill, rich_comparison


@pytest.fixture
def store(tmp_path):
    with EvidenceStore(tmp_path / "e", 50_000_000) as opened:
        yield opened


def keep(store: EvidenceStore, *kept: Any) -> None:
    store.add(
        Batch(
            comparisons=tuple(
                ComparisonDone(comparison=one, incarnation="e", sequence=place)
                for place, one in enumerate(kept, 1)
            )
        )
    )


def line(**changes: Any) -> dict[str, Any]:
    """The least that a line must hold, as another tool might write it."""
    left, right = exchange((1, 2, 3)), exchange((1, 2, 4), arm=Arm.CANDIDATE)
    return {
        "comparison": {
            "capture_id": "capture",
            "rollout": "r",
            "tenant": "t",
            "cluster": "0011223344556677",
            "unix_s": 1.5,
        },
        "exchanges": [{"exchange": msgspec.to_builtins(one)} for one in (left, right)],
        **changes,
    }


def read(*lines: dict[str, Any]) -> list[Any]:
    return list(read_comparisons(msgspec.json.encode(one) for one in lines))


def refused(*lines: dict[str, Any]) -> str:
    with pytest.raises(ExportLineError) as caught:
        read(*lines)
    return str(caught.value)


def test_what_is_exported_reads_back_equal_in_every_field(store):
    odd = step(5, [(5, -math.inf), (6, -math.inf)], logprob=-0.0, received_s=0.1 + 0.2)
    failed = pair(capture_id="f", right={"outcome": Outcome.FAILED, "error": "reset"})
    kept = [
        rich_comparison("a"),
        comparison(pair(capture_id="b", left={"steps": [odd]}, right={"steps": [odd]})),
        comparison(failed),
    ]
    keep(store, *kept)
    assert list(read_comparisons(store.export())) == kept


def test_text_that_only_looks_like_a_number_stays_text(store):
    said = [step(1, [(1, -0.5)], text="NaN"), step(2, [(2, -0.5)], text="Infinity")]
    keep(store, comparison(pair(left={"steps": said}, right={"steps": said})))
    (back,) = read_comparisons(store.export())
    assert [one.text for one in back.pairs[0].left.steps] == ["NaN", "Infinity"]


def test_nan_logprobs_come_back_as_numbers(store):
    nan = step(1, [(1, -0.5)], logprob=math.nan)
    keep(store, comparison(pair(left={"steps": [nan]}, right={"steps": [nan]})))
    (back,) = read_comparisons(store.export())
    assert math.isnan(back.pairs[0].left.steps[0].logprob)


def test_a_line_needs_only_a_comparison_and_its_exchanges():
    (made,) = read(line())
    assert made.candidates[0].fork.fork_index == 2
    assert (made.rollout, made.cluster, made.repeat, made.sample) == ("r", "0011223344556677", False, None)


def test_text_lines_and_empty_ones_are_fine():
    text = msgspec.json.encode(line()).decode()
    assert len(list(read_comparisons(["\n", text + "\n", "  \n"]))) == 1


def test_arms_are_matched_by_replicate_candidate_before_control():
    arms = [
        exchange((1, 2), arm=arm, replicate=replicate)
        for replicate in (1, 0)
        for arm in (Arm.CONTROL, Arm.CANDIDATE, Arm.BASELINE)
    ]
    (made,) = read(line(exchanges=[{"exchange": msgspec.to_builtins(one)} for one in arms]))
    assert [(one.right.replicate, one.right.arm) for one in made.pairs] == [
        (0, Arm.CANDIDATE),
        (0, Arm.CONTROL),
        (1, Arm.CANDIDATE),
        (1, Arm.CONTROL),
    ]


def without(place: str) -> dict[str, Any]:
    made = line()
    at: Any = made
    *way, last = place.split(".")
    for part in way:
        at = at[int(part)] if part.isdecimal() else at[part]
    del at[last]
    return made


def changed(place: str, value: Any) -> dict[str, Any]:
    made = line()
    at: Any = made
    *way, last = place.split(".")
    for part in way:
        at = at[int(part)] if part.isdecimal() else at[part]
    at[last] = value
    return made


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (without("comparison.cluster"), "line 2: comparison.cluster: missing"),
        (without("exchanges"), "line 2: exchanges: missing"),
        (without("exchanges.0.exchange.sampling"), "exchanges[0].exchange.sampling: missing"),
        (changed("comparison.unix_s", "soon"), "line 2: comparison.unix_s: expected `float`, got `str`"),
        (
            changed("exchanges.1.exchange.arm", "other"),
            "exchanges[1].exchange.arm: invalid enum",
        ),
        (changed("exchanges.1.exchange.arm", "baseline"), "a second baseline of replicate 0"),
        (changed("exchanges.0.exchange.arm", "control"), "line 2: exchanges: replicate 0 has no baseline"),
        (changed("exchanges", []), "line 2: exchanges: one of the baseline and one of the candidate"),
        (changed("comparison.capture_id", "x"), "line 2: comparison.capture_id: x, but its"),
        (changed("exchanges.1.exchange.capture_id", "x"), "line 2: exchanges"),
        (
            changed("scores", [{"arm": "baseline", "question": "q"}]),
            "line 2: scores[0]: a Score holds",
        ),
        (
            changed("pairs", [{"left_exchange_id": "x", "right_exchange_id": "y"}]),
            "no exchange x on",
        ),
        (
            {"capture_id": "c", "comparison": None},
            "line 2: comparison: missing: capture c",
        ),
    ],
)
def test_a_bad_line_says_which_and_where(bad, said):
    assert said in refused(changed("comparison.capture_id", "capture"), bad)


def test_what_is_nested_without_end_is_no_json():
    with pytest.raises(ExportLineError, match="line 1: not JSON"):
        list(read_comparisons([b'{"comparison": ' + b"[" * 100_000]))


def test_what_is_no_json_says_so():
    with pytest.raises(ExportLineError, match="line 1: not JSON"):
        list(read_comparisons([b"{"]))


def test_a_fork_that_a_line_states_wrongly_is_not_believed():
    one = line()
    ids = [arm["exchange"]["exchange_id"] for arm in one["exchanges"]]
    stated = {"left_exchange_id": ids[0], "right_exchange_id": ids[1], "fork_index": 1}
    assert "pairs[0].fork_index: 1, but its exchanges say 2" in refused({**one, "pairs": [stated]})
    assert len(read({**one, "pairs": [{**stated, "fork_index": 2}]})) == 1


def test_a_capture_counts_once():
    assert "line 2: comparison.capture_id: capture stands on line 1 already" in refused(line(), line())


def test_pruned_lines_are_an_error_or_told(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        fill(store)
        _, *lines = store.export()
    with pytest.raises(ExportLineError, match="line 1: the steps of capture c0 were pruned"):
        list(read_comparisons(lines))
    told: list[int] = []
    whole = list(read_comparisons(lines, told.append))
    assert told[0] == 1
    assert len(told) + len(whole) == 120
    assert whole[-1].capture_id == "c119"


def unanswered(capture_id: str = "s") -> Any:
    """A sample that was given up: it has no pairs, and says why in its scores."""
    error = "asked three times, the pool was busy"
    return msgspec.structs.replace(
        rich_comparison(capture_id),
        pairs=(),
        scores=tuple(Score(arm=arm, question="answer", error=error) for arm in Arm),
    )


def test_a_sample_that_nobody_answered_is_kept_shown_and_exported(store):
    whole = rich_comparison("a")
    keep(store, whole, unanswered())
    assert store.comparison("s") == unanswered()
    assert store.resolve("s") == "s"
    assert store.show("s").exchanges == ()
    assert list(read_comparisons(store.export())) == [whole, unanswered()]


def test_filters_of_an_export_ask_about_all_pairs_of_a_capture(store):
    candidate = pair(capture_id="b")
    control = pair((1, 2, 3), (1, 2, 9), capture_id="b", right_arm=Arm.CONTROL)
    with_fork = comparison(candidate, compare(candidate.left, control.right))
    keep(
        store, comparison(pair(capture_id="a")), with_fork, comparison(pair(capture_id="c"), tenant="globex")
    )

    def ids(**filters: Any) -> list[str]:
        return [msgspec.json.decode(line)["capture_id"] for line in list(store.export(**filters))[1:]]

    assert ids() == ["a", "b", "c"]
    assert ids(forked=True) == ["b"]
    assert ids(forked=False) == ["a", "c"]
    assert ids(tenant="globex") == ["c"]
    assert ids(rollout="another") == []
