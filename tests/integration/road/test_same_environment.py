"""Old and new are the same: nothing forks, nothing is rolled back, and everything captured is compared."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from comparator.records import Sampling
from tests.integration.road.conftest import MODEL, answer_ids, prompt_ids
from tests.support.engine_process import EngineProcess
from tests.support.road import (
    AT_HOME,
    CANARY,
    DEPTH,
    PROMPTS,
    arms,
    ask,
    config,
    derived_seed,
    exported,
    tokens_of,
)
from tests.support.serving import Serving, serving

TOKENS = 8
REQUESTS = 6


@dataclass(frozen=True, kw_only=True)
class Asked:
    request_id: str
    prompt: str
    temperature: float
    tenant: str
    text: str
    fingerprint: str | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    serving: Serving
    asked: list[Asked]
    ledger: dict[str, Any]
    captures: dict[str, dict[str, Any]]
    """By request ID."""


@pytest.fixture(scope="module")
def seen(
    float32: EngineProcess, float32_again: EngineProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    """Some live requests, the last of them drawn, the others greedy; and what they left."""
    text = config(
        "reference",
        float32.url,
        float32_again.url,
        tokens=TOKENS,
        old_digest=float32.digest,
        new_digest=float32_again.digest,
    )
    with serving(tmp_path_factory.mktemp("same"), text) as one:
        asked = []
        for number, prompt in enumerate(PROMPTS[:REQUESTS]):
            tenant = (CANARY, AT_HOME)[number % 2]
            request_id, temperature = f"road-{uuid.uuid4()}", 0.8 if number >= REQUESTS - 2 else 0.0
            told, fingerprint = ask(
                one,
                prompt,
                model=MODEL,
                tokens=TOKENS,
                tenant=tenant,
                request_id=request_id,
                temperature=temperature,
            )
            asked.append(
                Asked(
                    request_id=request_id,
                    prompt=prompt,
                    temperature=temperature,
                    tenant=tenant,
                    text=told,
                    fingerprint=fingerprint,
                )
            )
        ledger = one.settled(REQUESTS)
        captures = {line["pairs"][0]["request_id"]: line for line in exported(one)}
        yield Seen(serving=one, asked=asked, ledger=ledger, captures=captures)


def test_everything_is_compared_and_nothing_forks(seen: Seen) -> None:
    assert seen.ledger["balanced"]
    assert (seen.ledger["captured"], seen.ledger["compared"]) == (REQUESTS, REQUESTS), seen.ledger
    assert seen.captures.keys() == {one.request_id for one in seen.asked}
    for line in seen.captures.values():
        (pair,) = line["pairs"]
        assert (pair["fork_index"], pair["set_aside"], line["forks"]) == (None, None, [])
        assert pair["max_error_nats"] == 0.0  # the same kernels on the same numbers
        assert (pair["left_outcome"], pair["right_outcome"]) == ("completed", "completed")
    rollout = seen.serving.admin("/v1/rollouts/old-to-new")
    assert (rollout["pairs"], rollout["forks"], rollout["set_aside"]) == (REQUESTS, 0, 0)
    assert rollout["latched"] is None
    assert "fail" not in {verdict["answer"] for verdict in rollout["verdicts"]}


def test_the_same_environment_has_the_same_digest_on_both_sides(
    seen: Seen, float32: EngineProcess, float32_again: EngineProcess
) -> None:
    assert float32.digest == float32_again.digest
    for line in seen.captures.values():
        for exchange in arms(line):
            assert exchange["environment_digest"] == {"value": float32.digest}


def test_no_evidence_yet_is_inconclusive_not_a_pass(seen: Seen) -> None:
    done = seen.serving.cli("rollout", "show", "old-to-new", "--exit-code", "--json")
    assert done.code == 3
    verdicts = {verdict["gate"]: verdict for verdict in done.json["verdicts"]}
    assert verdicts["token_equality"]["answer"] == "inconclusive"
    assert verdicts["token_equality"]["n"] == REQUESTS


def test_prompt_ids_are_those_of_each_engines_own_tokenizer(
    seen: Seen, float32: EngineProcess, float32_again: EngineProcess
) -> None:
    for one in seen.asked:
        left, right = arms(seen.captures[one.request_id])
        assert left["prompt_token_ids"] == prompt_ids(float32, one.prompt)
        assert right["prompt_token_ids"] == prompt_ids(float32_again, one.prompt)


def test_answers_are_what_the_engine_says_by_itself_and_what_the_client_got(
    seen: Seen, float32: EngineProcess
) -> None:
    for one in seen.asked:
        left, right = arms(seen.captures[one.request_id])
        assert tokens_of(left) == tokens_of(right)
        sampling = {"temperature": one.temperature, "seed": derived_seed(one.request_id)}
        assert tokens_of(left) == answer_ids(float32, one.prompt, TOKENS, **sampling)
        if one.temperature == 0:
            assert "".join(step["text"] for step in left["steps"]) == one.text


def test_seed_is_derived_from_the_request_and_shared_by_the_arms(seen: Seen) -> None:
    seeds = set()
    for one in seen.asked:
        left, right = arms(seen.captures[one.request_id])
        assert left["sampling"]["seed"] == right["sampling"]["seed"] == derived_seed(one.request_id)
        seeds.add(left["sampling"]["seed"])
    assert len(seeds) == REQUESTS


def test_every_parameter_is_explicit_and_equal_on_the_arms(seen: Seen) -> None:
    for one in seen.asked:
        left, right = arms(seen.captures[one.request_id])
        assert left["sampling"] == right["sampling"]
        assert left["sampling"].keys() == set(Sampling.__struct_fields__)
        sampling = msgspec.convert(left["sampling"], Sampling)
        assert (sampling.temperature, sampling.max_tokens, sampling.logprobs) == (
            one.temperature,
            TOKENS,
            DEPTH,
        )


def test_request_record_is_complete(seen: Seen, float32: EngineProcess) -> None:
    """A field is there with its value, or with the reason why it cannot be known."""
    for one in seen.asked:
        for exchange in arms(seen.captures[one.request_id]):
            facts = exchange["facts"]
            assert facts["adapter"] == {"value": "none"}
            assert facts["dtype"] == {"value": "float32"}
            assert facts["artifact_digest"]["value"].startswith("sha256:")
            assert float32.digest[7:19] in facts["system_fingerprint"]["value"]
            assert facts["attention_mask"] == {"value": "causal"}
            assert facts["padding"] == {"value": "none"}
            assert facts["template_sha256"]["value"].startswith("sha256:")
            assert facts["processor_order"]["value"][0]
            assert facts["logprobs_mode"] == {"value": "raw_logprobs"}
            assert facts["batch_size"]["value"] == [1] * len(exchange["steps"])
            assert facts["batch_place"]["value"] == [0] * len(exchange["steps"])
            assert exchange["tenant"] == one.tenant
            assert exchange["as_tokens"] is True
            assert exchange["finish_reason"] in ("length", "stop")
            assert exchange["timing"]["ttft_s"] > 0


def test_cache_salts_are_never_shared(seen: Seen) -> None:
    salts = [
        exchange["facts"]["cache_salt"]["value"] for line in seen.captures.values() for exchange in arms(line)
    ]
    assert len(set(salts)) == 2 * REQUESTS
    assert all(len(salt) >= 16 for salt in salts)


def test_top_20_of_every_step_is_sorted(seen: Seen) -> None:
    for line in seen.captures.values():
        for exchange in arms(line):
            greedy = exchange["sampling"]["temperature"] == 0
            for step in exchange["steps"]:
                ids, logprobs = step["top_ids"], step["top_logprobs"]
                assert len(ids) == len(set(ids)) == DEPTH
                assert logprobs == sorted(logprobs, reverse=True)
                if greedy:
                    assert step["token_id"] == ids[0]
                if step["token_id"] in ids:
                    assert step["logprob"] == logprobs[ids.index(step["token_id"])]
                else:  # drawn from beyond the first 20
                    assert step["logprob"] <= logprobs[-1]


def test_all_four_causes_are_the_same(seen: Seen) -> None:
    capture_id = seen.captures[seen.asked[0].request_id]["capture_id"]
    shown = seen.serving.cli("evidence", "show", capture_id).out
    assert "no fork: equal to the end" in shown
    for cause in ("artifact", "environment", "schedule", "numbers"):
        (line,) = [line for line in shown.splitlines() if line.startswith(cause)]
        assert line.split() == [cause, "same"]


def test_both_tenants_were_answered(seen: Seen) -> None:
    assert all(one.text for one in seen.asked)
    assert len({one.fingerprint for one in seen.asked}) == 1  # one environment, two pools


def test_replay_of_equal_arms_is_equal_again(seen: Seen) -> None:
    drawn = seen.captures[seen.asked[-1].request_id]["capture_id"]
    done = seen.serving.cli("evidence", "replay", drawn, "--json")
    assert done.code == 0, done.err
    assert done.json["verdict"] == "stands"
    assert done.json["now"]["fork"] is None
    assert done.json["now"]["set_aside"] is None


@pytest.mark.parametrize("sides", [("old", "new"), ()], ids=["pools", "who answered"])
def test_compare_finds_that_the_two_have_shown_equal_tokens(seen: Seen, sides: tuple[str, ...]) -> None:
    """Six prompts bound the share that may fork at 39 %, which is enough where 45 % is asked."""
    asked = ("compare", *sides, "--evidence", "state/evidence.db", "--level", "token", "--json")
    done = seen.serving.cli(*asked, "--forks-at-most", "0.45")
    assert done.code == 0, done.err
    assert done.json["a"]["environment"] == done.json["b"]["environment"]
    assert (done.json["a"]["name"], done.json["b"]["name"]) == ("old", "new")
    assert done.json["evidence"]["between"] == {"equal": REQUESTS, "forked": 0}
    assert seen.serving.cli(*asked).code == 3
