"""Old is float32, new is bfloat16: they fork, traffic goes home by itself, and the evidence says why.

One story, told once; each test looks at another part of it, by the command line as an operator would.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from comparator.evidence import EvidenceReader
from comparator.evidence.export import read_comparisons
from tests.integration.road.conftest import MODEL, answer_ids, prompt_ids
from tests.support.engine_process import EngineProcess
from tests.support.road import (
    AT_HOME,
    CANARY,
    PROMPTS,
    ROLLOUT,
    arms,
    ask,
    capture,
    config,
    derived_seed,
    exported,
    tokens_of,
)
from tests.support.serving import Serving, serving

TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Story:
    serving: Serving
    rollout: dict[str, Any]
    deciding_id: str
    prompts: dict[str, str]
    """Request ID → what was asked."""
    fingerprints: dict[str, str | None]
    """Tenant → who answered its first request."""
    captured: int


def roll_back(one: Serving, prompts: dict[str, str], ask_these: Sequence[str] = PROMPTS) -> None:
    """Live requests, one at a time, until the rollout is latched."""
    for prompt in ask_these:
        request_id = f"road-{uuid.uuid4()}"
        prompts[request_id] = prompt
        before = one.admin("/v1/ledger")["captured"]
        ask(one, prompt, model=MODEL, tokens=TOKENS, request_id=request_id)
        one.settled(before + 1)
        if one.admin(f"/v1/rollouts/{ROLLOUT}")["latched"] is not None:
            return
    raise AssertionError(f"{len(ask_these)} prompts and no fork between float32 and bfloat16")


@pytest.fixture(scope="module")
def story(
    float32: EngineProcess, bfloat16: EngineProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    text = config(
        "reference",
        float32.url,
        bfloat16.url,
        tokens=TOKENS,
        old_digest=float32.digest,
        new_digest=bfloat16.digest,
    )
    with serving(tmp_path_factory.mktemp("rollback"), text) as one:
        fingerprints: dict[str, str | None] = {}
        prompts = {f"road-{tenant}": "Hello!" for tenant in (CANARY, AT_HOME)}
        for tenant in (CANARY, AT_HOME):
            request_id = f"road-{tenant}"
            _, fingerprints[tenant] = ask(
                one, prompts[request_id], model=MODEL, tokens=1, tenant=tenant, request_id=request_id
            )
        one.settled(len(prompts))
        roll_back(one, prompts)
        one.obeyed()
        rollout = one.admin(f"/v1/rollouts/{ROLLOUT}")
        yield Story(
            serving=one,
            rollout=rollout,
            deciding_id=rollout["latched"]["deciding_id"],
            prompts=prompts,
            fingerprints=fingerprints,
            captured=len(prompts),
        )


def test_fork_rolls_the_release_back_durably(story: Story) -> None:
    latched = story.rollout["latched"]
    assert story.rollout["state"] == "rolled_back"
    assert latched["gate"] == "token_equality"
    assert latched["durable"] is True
    flip = story.serving.admin("/v1/status")["flips"][0]
    assert (flip["edges"], flip["missing"]) == (2, [])


def test_canary_tenant_is_back_on_the_old_pool(story: Story) -> None:
    old, new = story.fingerprints[AT_HOME], story.fingerprints[CANARY]
    assert None not in (old, new)
    assert old != new
    assert ask(story.serving, "And now?", model=MODEL, tokens=1, tenant=CANARY)[1] == old


def test_ledger_balances_and_nothing_was_lost(story: Story) -> None:
    done = story.serving.cli("status", "--json")
    assert done.code == 0
    ledger = done.json["ledger"]
    assert ledger["balanced"]
    assert ledger["captured"] >= story.captured
    assert ledger["compared"] >= story.captured
    # What comes after the rollback is no longer run.
    assert set(ledger["dropped"]) <= {"rolled_back"}


def test_status_says_it_in_words(story: Story) -> None:
    done = story.serving.cli("status")
    assert (done.code, done.err) == (0, "")
    assert f"rollout {ROLLOUT}  old → new  rolled_back" in done.out
    assert f"why: forkgate evidence show {story.deciding_id}" in done.out
    assert ": balances" in done.out


def test_rollout_show_tells_the_gate_and_exits_1(story: Story) -> None:
    done = story.serving.cli("rollout", "show", ROLLOUT, "--exit-code")
    assert done.code == 1
    assert "gate token_equality: fail" in done.out
    as_json = story.serving.cli("rollout", "show", ROLLOUT, "--json")
    assert as_json.code == 0
    assert as_json.json["latched"]["deciding_id"] == story.deciding_id


def test_evidence_is_listed_newest_first(story: Story) -> None:
    done = story.serving.cli("evidence", "list", "--json")
    assert (done.code, done.err) == (0, "")
    started = [pair["started_unix_s"] for pair in done.json]
    assert len(started) >= story.captured
    assert started == sorted(started, reverse=True)
    forked = story.serving.cli("evidence", "list", "--forked", "--rollout", ROLLOUT, "--json").json
    assert story.deciding_id in {pair["capture_id"] for pair in forked}
    assert all(pair["fork_index"] is not None for pair in forked)
    assert story.serving.cli("evidence", "list", "--tenant", "nobody", "--json").json == []


def test_show_prints_both_continuations_and_the_four_causes(story: Story) -> None:
    done = story.serving.cli("evidence", "show", story.deciding_id)
    assert (done.code, done.err) == (0, "")
    assert "fork at output token" in done.out
    assert "baseline   old " in done.out
    assert "candidate  new " in done.out
    for cause in ("artifact", "environment", "schedule", "numbers"):
        (line,) = [line for line in done.out.splitlines() if line.startswith(cause)]
        answer = line.split()[1]
        # The rollback stopped both arms, before the engines told in which batches they ran.
        expected = {"artifact": {"same"}, "schedule": {"unknown", "same"}}.get(cause, {"differs"})
        assert answer in expected, line


def test_show_as_json_has_the_top_20_of_both_sides_at_the_fork(story: Story) -> None:
    done = story.serving.cli("evidence", "show", story.deciding_id, "--json")
    assert done.code == 0
    (explanation,) = done.json["explanations"]
    fork = explanation["fork"]
    assert explanation["stored_matches_recomputed"] is True
    for side in (fork["left"], fork["right"]):
        assert len(side["top_ids"]) == 20
        assert side["token_id"] == side["top_ids"][0]  # greedy
        assert side["margin_nats"] == pytest.approx(side["top_logprobs"][0] - side["top_logprobs"][1])
        assert side["text"]
    assert fork["left"]["token_id"] != fork["right"]["token_id"]
    assert fork["max_error_nats"] > 0
    assert explanation["fork_class"] is not None


def test_arm_that_was_stopped_claims_no_batch(story: Story) -> None:
    for line in exported(story.serving):
        for exchange in arms(line):
            batch_size = exchange["facts"]["batch_size"]
            if exchange["outcome"] == "completed":
                assert batch_size["value"] == [1] * len(exchange["steps"])
            else:
                assert "value" not in batch_size


def test_unknown_capture_is_a_mistake_of_the_asker(story: Story) -> None:
    for command in ("show", "replay"):
        done = story.serving.cli("evidence", command, "0197c1a0-0000-7000-8000-000000000000")
        assert (done.code, done.out) == (2, "")
        assert "0197c1a0-0000-7000-8000-000000000000" in done.err


def test_export_holds_what_each_engine_says_by_itself(
    story: Story, float32: EngineProcess, bfloat16: EngineProcess
) -> None:
    line = capture(story.serving, story.deciding_id)
    left, right = arms(line)
    prompt = story.prompts[left["request_id"]]
    (pair,) = line["pairs"]
    fork_index = pair["fork_index"]
    for engine, exchange in ((float32, left), (bfloat16, right)):
        assert exchange["prompt_token_ids"] == prompt_ids(engine, prompt)
        assert exchange["environment_digest"] == {"value": engine.digest}
        # An arm may have been stopped by the rollback that its own fork caused.
        ids = tokens_of(exchange)
        assert len(ids) > fork_index
        assert answer_ids(engine, prompt, TOKENS)[: len(ids)] == ids
    assert tokens_of(left)[:fork_index] == tokens_of(right)[:fork_index]
    assert tokens_of(left)[fork_index] != tokens_of(right)[fork_index]
    assert left["sampling"] == right["sampling"]
    assert left["sampling"]["seed"] == derived_seed(left["request_id"])
    assert left["facts"]["cache_salt"]["value"] != right["facts"]["cache_salt"]["value"]
    assert float32.digest != bfloat16.digest


def test_export_with_json_says_the_same(story: Story) -> None:
    plain = story.serving.cli("evidence", "export", "--forked")
    as_json = story.serving.cli("evidence", "export", "--forked", "--json")
    assert (plain.code, as_json.code) == (0, 0)
    assert plain.out == as_json.out
    assert all(line["forks"] for line in exported(story.serving, "--forked"))


def recomputed(story: Story) -> dict[str, Any]:
    """Every verdict, computed again from the file beside the running judge."""
    done = story.serving.cli(
        "verdict", "recompute", "--evidence", "state/evidence.db", "--rollout", ROLLOUT, "--json"
    )
    assert done.code == 0, (done.out, done.err)
    answer: dict[str, Any] = done.json
    return answer


def test_every_verdict_comes_out_the_same_from_the_file_alone(story: Story) -> None:
    answer = recomputed(story)
    assert (answer["differing"], answer["not_recomputed"], answer["problems"]) == (0, 0, [])
    assert answer["told"] == []
    (breach,) = [one for one in answer["verdicts"] if one["answer"] == "fail"]
    assert (breach["gate"], breach["equal"]) == ("token_equality", True)


def test_exported_lines_are_the_comparisons_that_gates_saw(story: Story) -> None:
    done = story.serving.cli("evidence", "export")
    comparisons = list(read_comparisons(done.out.splitlines()))
    assert len(comparisons) >= story.captured
    (deciding,) = [one for one in comparisons if one.capture_id == story.deciding_id]
    with EvidenceReader(story.serving.state / "evidence.db") as reader:
        assert deciding == reader.comparison(story.deciding_id)


def test_compare_names_the_fork_and_the_precision_behind_it(story: Story) -> None:
    done = story.serving.cli("compare", "--evidence", "state/evidence.db", "--level", "token", "--json")
    assert done.code == 1, done.err
    forks, *others = done.json["in_the_way"]
    assert (forks["what"], forks["weight"]) == ("forks", "seen")
    by_nature = [one["what"] for one in others if one["weight"] == "by nature"]
    assert by_nature == ["precision.dtype", "precision.kv_cache_dtype"]
    assert done.json["levels"]["statistical"]["shown"] is False


def test_replay_says_that_the_fork_stands(story: Story) -> None:
    before = story.serving.cli("evidence", "list", "--json").out
    done = story.serving.cli("evidence", "replay", story.deciding_id, "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"] == "stands"
    then, now = done.json["before"]["fork"], done.json["now"]["fork"]
    assert now["fork_index"] == then["fork_index"]
    for side in ("left", "right"):
        # One place, one thread, the same kernels: the numbers are the same to the bit.
        assert now[side]["top_ids"] == then[side]["top_ids"]
        assert now[side]["top_logprobs"] == then[side]["top_logprobs"]
    assert "the fork stands" in done.json["text"]
    assert story.serving.cli("evidence", "list", "--json").out == before  # replays are no evidence


def _state(story: Story) -> str:
    return str(story.serving.admin(f"/v1/rollouts/{ROLLOUT}")["state"])


def test_lift_starts_again_and_the_same_fork_rolls_back_again(story: Story) -> None:
    empty = story.serving.cli("rollout", "lift", ROLLOUT, "--reason", "  ")
    assert empty.code == 2
    assert "--reason" in empty.err
    unknown = story.serving.cli("rollout", "lift", "nonesuch", "--reason", "why not")
    assert unknown.code == 2
    assert ROLLOUT in unknown.err
    done = story.serving.cli("rollout", "lift", ROLLOUT, "--reason", "to see it again", "--json")
    assert done.code == 0, done.err
    assert done.json["rollout"]["latched"] is None
    assert done.json["epoch"] > story.rollout["latched"]["epoch"]
    story.serving.until("the canary again", lambda: _state(story) == "canary")
    story.serving.obeyed()
    assert ask(story.serving, "Hi!", model=MODEL, tokens=1, tenant=CANARY)[1] == story.fingerprints[CANARY]
    again = story.serving.cli("rollout", "lift", ROLLOUT, "--reason", "twice")
    assert again.code == 3
    assert "nothing to lift" in again.err
    deciding, _ = arms(capture(story.serving, story.deciding_id))
    roll_back(story.serving, {}, [story.prompts[deciding["request_id"]]])
    found = story.serving.admin(f"/v1/rollouts/{ROLLOUT}")
    assert found["state"] == "rolled_back"
    assert found["latched"]["deciding_id"] != story.deciding_id
    # What the first rollback rested on is kept.
    assert story.serving.cli("evidence", "show", story.deciding_id).code == 0
    assert [one["answer"] for one in recomputed(story)["verdicts"]].count("fail") == 2


def test_commands_without_a_judge_could_not_measure(
    story: Story, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for command in (
        ("status",),
        ("evidence", "list"),
        ("evidence", "show", story.deciding_id),
        ("evidence", "export"),
        ("rollout", "show", ROLLOUT),
        ("rollout", "lift", ROLLOUT, "--reason", "x"),
    ):
        done = story.serving.cli(*command, "--state-dir", str(elsewhere))
        assert (done.code, done.out) == (4, ""), command
        assert "is `forkgate serve` running?" in done.err
