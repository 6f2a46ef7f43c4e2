"""A fork in words and numbers, and the four lines it is traced to."""

from __future__ import annotations

import msgspec
import pytest

from comparator.compare import DIGEST_BY, compare
from comparator.comparison import Comparison, SampleRef, Score
from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from comparator.evidence.explain import Explanation, explain
from comparator.evidence.export import json_safe
from comparator.evidence.trace import Sameness, trace_pair
from comparator.evidence.words import as_text
from comparator.pair import Pair
from comparator.records import Arm, Fact, Outcome, Sampling
from tests.support.exchanges import comparison, exchange, pair, plain_steps, step

KNOWN = {
    "artifact_digest": Fact(value="sha256:w"),
    "batch_size": Fact(value=1),
    "batch_place": Fact(value=0),
}
PROVED = {"facts": KNOWN, "digest": Fact(value="sha256:env")}


@pytest.fixture
def store(tmp_path):
    with EvidenceStore(tmp_path / "e", 50_000_000) as opened:
        yield opened


def explained(store: EvidenceStore, made: Pair) -> Explanation:
    store.add(Batch(comparisons=(ComparisonDone(comparison=comparison(made), incarnation="e", sequence=1),)))
    return explain(store.show(made.capture_id))[0]


def words(*texts: str) -> list:
    return [
        step(i, [(i, -0.25), (99, -1.0)], text=text, received_s=0.1 * (i + 1)) for i, text in enumerate(texts)
    ]


def test_both_continuations_stand_around_the_fork_in_words(store):
    left = words("The", " capital", " is", " Paris", ".")
    right = words("The", " capital", " is")
    right += [step(8, [(8, -0.5), (3, -0.625)], text=" Lyon"), step(9, text="!")]
    text = as_text(explained(store, compare(exchange(steps=left), exchange(steps=right, arm=Arm.CANDIDATE))))
    assert "fork at output token 3" in text
    assert "both       The capital is\n" in text
    assert "baseline   [ Paris].\n" in text
    assert "candidate  [ Lyon]!\n" in text
    assert "0.750000 nats" in text
    assert "0.125000 nats" in text
    assert '-0.625000  3 " Paris"' in text
    assert "largest logprob error up to the fork 0.375 nats, at token 3" in text


def test_the_text_ends_with_the_four_lines(store):
    lines = as_text(explained(store, pair((1, 2), (1, 5)))).splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["artifact", "environment", "schedule", "numbers"]
    assert lines[2].endswith("unknown (batch_size: not recorded; batch_place: not recorded)")
    assert lines[3] == (
        "numbers      differs (fork at output token 1, largest logprob error 3 nats at token 1)"
    )


def test_a_digest_that_the_answer_did_not_tell_says_who_told_it(store):
    known = {"digest": Fact(value="sha256:env"), "facts": {DIGEST_BY: Fact(value="probe")}}
    answered = known | {"facts": {DIGEST_BY: Fact(value="answer")}}
    text = as_text(explained(store, pair((1, 2), (1, 5), left=answered, right=known)))
    assert [line.strip() for line in text.splitlines() if line.strip().startswith("environment sha256")] == [
        "environment sha256:env",
        "environment sha256:env, told by its probe",
    ]


def test_a_fork_names_the_command_that_replays_it_above_the_four_lines(store):
    lines = as_text(explained(store, pair((1, 2), (1, 5)))).splitlines()
    assert lines[-7:-4] == ["", "run again: forkgate evidence replay capture", ""]


@pytest.mark.parametrize("made", [pair((1, 2), (1, 2)), pair((1, 2), (1, 5), left={"as_tokens": False})])
def test_what_a_replay_would_refuse_or_need_not_run_names_none(store, made):
    explanation = explained(store, made)
    assert explanation.replay is None
    assert "run again" not in as_text(explanation)


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ({}, {"finish_reason": "length"}, "lengths 3 / 3, finish stop / length: differs"),
        ({}, {}, "lengths 3 / 3, finish stop / stop: same"),
        ({}, {"stop_reason": "END"}, "lengths 3 / 3, finish stop / stop (END): differs"),
        ({}, {"steps": plain_steps((1, 2))}, "lengths 3 / 2, finish stop / stop: differs"),
        ({}, {"outcome": Outcome.CUT}, "lengths 3 / cut, finish stop / unknown: unknown"),
        ({}, {"outcome": Outcome.FAILED}, "lengths 3 / failed, finish stop / unknown: differs"),
    ],
)
def test_how_both_arms_ended_stands_in_one_line(store, left, right, said):
    assert f"\n{said}\n" in as_text(explained(store, pair(left=left, right=right)))


def test_the_fork_is_named_by_its_class_with_its_numbers(store):
    tie = [step(1, [(1, -0.5), (2, -0.5), (3, -4.0)])]
    other = [step(2, [(2, -0.5), (1, -0.5), (3, -4.0)])]
    made = compare(exchange(steps=tie), exchange(steps=other, arm=Arm.CANDIDATE))
    text = as_text(explained(store, made))
    assert "\n  tie flip: exact tie: both tokens within 0 nats of the top" in text


def test_a_declared_dtype_widens_what_counts_as_a_tie(store):
    near = [step(1, [(1, -0.5), (2, -0.625), (3, -4.0)])]
    other = [step(2, [(2, -0.5), (1, -0.625), (3, -4.0)])]
    bf16 = {"dtype": Fact(value="bfloat16")}
    made = compare(
        exchange(steps=near, capture_id="a"),
        exchange(steps=other, capture_id="a", arm=Arm.CANDIDATE, facts=bf16),
    )
    assert explained(store, made).fork_class == "tie_flip"
    undeclared = compare(
        exchange(steps=near, capture_id="b"), exchange(steps=other, capture_id="b", arm=Arm.CANDIDATE)
    )
    assert explained(store, undeclared).fork_class == "precision_drift"


def test_a_stream_that_ended_says_so(store):
    text = as_text(explained(store, pair((1, 2), (1, 2, 3))))
    assert "(one stream ended)" in text
    assert "baseline   [ended]" in text


def test_tokens_without_text_are_shown_by_id(store):
    bare = [step(7), step(8)]
    other = [step(7), step(9)]
    text = as_text(explained(store, compare(exchange(steps=bare), exchange(steps=other, arm=Arm.CANDIDATE))))
    assert "both       ⟨7⟩" in text
    assert "[⟨8⟩]" in text
    assert "no step up to the fork has top-k logprobs on both arms" in text


def test_model_output_cannot_move_the_readers_cursor(store):
    evil = [step(1, text="a\x1b[2J\nb\u202e"), step(2, text="\x07")]
    made = compare(exchange(steps=evil), exchange(steps=[evil[0], step(3)], arm=Arm.CANDIDATE))
    text = as_text(explained(store, made))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "a\\x1b[2J\\nb\\u202e" in text


def test_the_stored_pair_is_checked_by_comparing_again(store):
    explanation = explained(store, pair((1, 2), (1, 5)))
    assert explanation.stored_matches_recomputed is True
    store._db.execute("UPDATE pair SET fork_index = 0, max_error_nats = 7.0")
    tampered = explain(store.show("capture"))[0]
    assert tampered.stored_matches_recomputed is False
    lines = as_text(tampered).splitlines()
    assert lines[-6].startswith("WARNING: ")
    assert [line.split()[0] for line in lines[-4:]] == ["artifact", "environment", "schedule", "numbers"]


def test_after_pruning_the_numbers_remain(store):
    explained(store, pair((1, 2), (1, 5)))
    store._db.execute("DELETE FROM content")
    store._db.execute("UPDATE exchange SET pruned = 1")
    explanation = explain(store.show("capture"))[0]
    assert explanation.pruned
    assert explanation.stored_matches_recomputed is None
    text = as_text(explanation)
    assert "pruned to make room" in text
    assert "fork at output token 1" in text
    assert "candidate  [<5>]" in text
    assert "\nlengths 2 / 2, finish stop / stop: same\n" in text
    assert "run again" not in text


def test_the_machine_form_is_json(store):
    explanation = explained(store, pair((1, 2), (1, 5)))
    again = msgspec.json.decode(msgspec.json.encode(json_safe(msgspec.to_builtins(explanation))))
    assert again["fork"]["fork_index"] == 1
    assert [trace["subject"] for trace in again["traces"]] == [
        "artifact",
        "environment",
        "schedule",
        "numbers",
    ]


def answers(made: Pair) -> list[str]:
    return [trace.answer.value for trace in trace_pair(made)]


def test_same_everywhere_needs_every_field_known_on_both_arms():
    assert answers(pair(left=PROVED, right=PROVED)) == ["same"] * 4


def test_an_unknown_is_never_taken_for_an_equal():
    bare = pair()
    traces = trace_pair(bare)
    assert [trace.answer for trace in traces[:3]] == [Sameness.UNKNOWN] * 3
    assert traces[1].detail == "environment_digest: the engine tells none"


def test_unknown_on_one_arm_says_which():
    traces = trace_pair(pair(left=PROVED, right=PROVED | {"digest": Fact(unknown="plugin missing")}))
    assert traces[1].line() == ("environment  unknown (environment_digest of candidate: plugin missing)")


@pytest.mark.parametrize(
    ("change", "index", "word"),
    [
        ({"facts": KNOWN | {"artifact_digest": Fact(value="sha256:x")}}, 0, "artifact_digest"),
        ({"prompt": (1, 2)}, 0, "prompt token IDs differ from position 0"),
        ({"digest": Fact(value="sha256:other")}, 1, "environment_digest: sha256:env / sha256:other"),
        ({"engine": "vllm 0.33.0"}, 1, "engine: vllm 0.32.0 / vllm 0.33.0"),
        ({"sampling": Sampling(max_tokens=9)}, 1, "sampling.max_tokens: 16 / 9"),
        ({"facts": KNOWN | {"batch_size": Fact(value=8)}}, 2, "batch_size: 1 / 8"),
        ({"steps": plain_steps((1, 2, 3), shift_nats=0.5)}, 3, "no fork, largest logprob error 0.5 nats"),
    ],
)
def test_what_differs_is_named_with_both_values(change, index, word):
    trace = trace_pair(pair(left=PROVED, right=PROVED | change))[index]
    assert trace.answer is Sameness.DIFFERS
    assert word in trace.detail


def test_without_logprobs_equal_tokens_leave_the_numbers_unknown():
    bare = [step(1)]
    made = compare(exchange(steps=bare), exchange(steps=bare, arm=Arm.CANDIDATE))
    assert trace_pair(made)[3].answer is Sameness.UNKNOWN


# --- several pairs a capture, and the noise floor


def alone(number: int) -> dict[str, Fact]:
    return {"concurrency": Fact(value=number)}


def noisy_control(number: int, shift_nats: float) -> Comparison:
    """A capture whose control moved every margin by so much."""
    capture_id = f"control-{number}"
    candidate = pair(capture_id=capture_id)
    control = compare(
        candidate.left,
        exchange(
            steps=plain_steps((1, 2, 3), shift_nats=shift_nats),
            arm=Arm.CONTROL,
            capture_id=capture_id,
            facts=alone(1),
        ),
    )
    return comparison(candidate, control)


def near_flip(capture_id: str = "capture", **changes) -> Pair:
    """A fork whose two tokens stand .3 nats apart on both arms."""
    left = [step(1, [(1, -0.5), (2, -0.8), (3, -4.0)])]
    right = [step(2, [(2, -0.5), (1, -0.8), (3, -4.0)])]
    return compare(
        exchange(steps=left, capture_id=capture_id),
        exchange(steps=right, capture_id=capture_id, arm=Arm.CANDIDATE, facts=alone(1), **changes),
    )


def kept(store: EvidenceStore, *comparisons: Comparison) -> None:
    store.add(
        Batch(
            comparisons=tuple(
                ComparisonDone(comparison=one, incarnation="e", sequence=place)
                for place, one in enumerate(comparisons)
            )
        )
    )


def floored(store: EvidenceStore, capture_id: str = "capture") -> Explanation:
    return explain(store.show(capture_id), store.floors("old-to-new", without=capture_id))[0]


def test_a_fork_within_the_baselines_own_noise_is_a_near_tie(store):
    kept(store, *(noisy_control(number, 0.1) for number in range(20)), comparison(near_flip()))
    explanation = floored(store)
    assert explanation.fork_class == "tie_flip"
    assert explanation.floor is not None
    assert explanation.floor.n == 20
    assert explanation.floor.sigma_nats == pytest.approx(0.1, rel=0.05)
    text = as_text(explanation)
    sigma = f"{explanation.floor.sigma_nats:.3g}"
    assert f"noise floor of 20 control pairs: margins move by {sigma} nats" in text
    assert text.index("tie flip:") < text.index("noise floor of")


def test_without_controls_nothing_is_excused_and_the_text_says_so(store):
    kept(store, comparison(near_flip()))
    explanation = floored(store)
    assert explanation.fork_class == "precision_drift"
    assert explanation.floor is None
    assert "no control ran there yet: no noise is excused" in as_text(explanation)


def test_a_capture_does_not_excuse_itself_nor_another_band_or_rollout(store):
    loud = comparison(near_flip(), noisy_control(0, 1.0).pairs[1])
    same_capture = msgspec.structs.replace(
        loud.pairs[1],
        capture_id="capture",
        left=loud.pairs[0].left,
        right=msgspec.structs.replace(loud.pairs[1].right, capture_id="capture"),
    )
    other_band = noisy_control(1, 1.0)
    busy = msgspec.structs.replace(other_band.pairs[1].right, facts=alone(9))
    other_band = msgspec.structs.replace(
        other_band,
        pairs=(other_band.pairs[0], msgspec.structs.replace(other_band.pairs[1], right=busy)),
    )
    kept(store, comparison(loud.pairs[0], same_capture), other_band)
    assert floored(store).fork_class == "precision_drift"
    assert store.floors("another", without="capture").tallies == {}


def test_the_floor_is_taken_from_the_newest_controls(store):
    kept(store, *(noisy_control(number, 1.0 if number < 30 else 0.125) for number in range(60)))
    floors = store.floors("old-to-new", without="capture", limit=30)
    (tally,) = floors.tallies.values()
    assert tally.n == 30
    assert tally.floor().sigma_nats == pytest.approx(0.125, rel=0.05)


def test_every_pair_of_a_capture_is_explained_with_its_own_fork_and_replay(store):
    pairs = []
    for replicate in (0, 1):
        baseline = exchange((1, 2, 3), replicate=replicate)
        pairs += [
            compare(baseline, exchange((1, 2, 8 + replicate), arm=Arm.CANDIDATE, replicate=replicate)),
            compare(baseline, exchange((1, 7, 3), arm=Arm.CONTROL, replicate=replicate)),
        ]
    kept(store, comparison(*pairs, repeat=True, timing=True))
    explanations = explain(store.show("capture"))
    assert [(e.right.arm, e.replicate) for e in explanations] == [
        ("candidate", 0),
        ("control", 0),
        ("candidate", 1),
        ("control", 1),
    ]
    assert [e.fork.right.token_id for e in explanations if e.fork] == [8, 7, 9, 7]
    assert [e.replay for e in explanations] == [
        "forkgate evidence replay capture",
        "forkgate evidence replay capture --arm control",
        "forkgate evidence replay capture --replicate 1",
        "forkgate evidence replay capture --arm control --replicate 1",
    ]
    assert all(e.stored_matches_recomputed for e in explanations)
    text = as_text(explanations[2])
    for line in ("replicate 1: the same request with another seed", "repeat: its prompt", "timing: drawn"):
        assert f"\n{line}" in text


def test_a_sample_is_named_with_its_scores(store):
    sample = SampleRef(
        suite="starter",
        digest="sha256:aa",
        stage="canary",
        sample_id="s-1",
        category="code",
        passage=2,
        samples=10,
        passes=5,
    )
    scores = (
        Score(arm=Arm.BASELINE, question="answer", value=1.0),
        Score(arm=Arm.CANDIDATE, question="answer", value=0.25),
        Score(arm=Arm.BASELINE, question="rules", value=1.0),
        Score(arm=Arm.CANDIDATE, question="rules", error="the scorer hung"),
        Score(arm=Arm.CONTROL, question="rules", value=0.0),
    )
    made = comparison(pair(), sample=sample, scores=scores, tenant="")
    store.add(Batch(comparisons=(ComparisonDone(comparison=made, incarnation=None, sequence=None),)))
    (explanation,) = explain(store.show("capture"))
    assert explanation.scores == scores[:4]
    text = as_text(explanation)
    assert "sample s-1 (code) of suite starter, pass 3 of 5, at the start of canary" in text
    assert "\nscores answer 1 / 0.25, rules 1 / no value (the scorer hung)\n" in text
