"""The whole road on real vLLM: float32 is the old pool, bfloat16 the new one.

Live requests come from the tenant at home, so that the bfloat16 server runs nothing but its shadow arm, one
at a time: what it says then, it says again.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import openai
import pytest

from comparator.records import Sampling
from engines import EngineOptions, Prompt, Steps, open_engine
from tests.support.road import (
    AT_HOME,
    CANARY,
    DEPTH,
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
from tests.support.vllm_server import MODEL, Vllm
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.timeout(2400)  # the first test waits for two servers and for a fork

TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class Story:
    serving: Serving
    old: str
    new: str
    drawn_id: str
    """Request ID of the one request at temperature 0.8."""
    texts: dict[str, tuple[str, str]]
    """Request ID → prompt and live answer."""
    rollout: dict[str, Any]

    @property
    def deciding_id(self) -> str:
        deciding: str = self.rollout["latched"]["deciding_id"]
        return deciding

    def of(self, request_id: str) -> dict[str, Any]:
        (found,) = [
            line
            for line in exported(self.serving)
            if line["exchanges"][0]["exchange"]["request_id"] == request_id
        ]
        return found


@pytest.fixture(scope="module")
def story(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    old, new = vllm.url("float32"), vllm.url("bfloat16")
    with serving(tmp_path_factory.mktemp("road"), config("vllm", old, new, tokens=TOKENS)) as one:
        texts: dict[str, tuple[str, str]] = {}

        def live(prompt: str, temperature: float) -> str:
            request_id = f"road-{uuid.uuid4()}"
            captured = one.admin("/v1/ledger")["captured"]
            text, _ = ask(
                one, prompt, model=MODEL, tokens=TOKENS, request_id=request_id, temperature=temperature
            )
            texts[request_id] = prompt, text
            one.settled(captured + 1)
            return request_id

        drawn_id = live(PROMPTS[0], 0.8)
        rollout = one.admin(f"/v1/rollouts/{ROLLOUT}")
        if rollout["latched"] is not None:  # it may fork too; the greedy ones are wanted as well
            lifted = one.cli("rollout", "lift", ROLLOUT, "--reason", "greedy requests follow", "--json")
            assert lifted.code == 0, lifted.err
            one.until("the canary again", lambda: one.admin(f"/v1/rollouts/{ROLLOUT}")["state"] == "canary")
            one.obeyed()
            rollout = one.admin(f"/v1/rollouts/{ROLLOUT}")
        for prompt in PROMPTS:
            if rollout["latched"] is not None:
                break
            live(prompt, 0.0)
            rollout = one.admin(f"/v1/rollouts/{ROLLOUT}")
        assert rollout["latched"] is not None, f"{len(texts)} requests and no fork between the precisions"
        one.obeyed()
        rollout = one.admin(f"/v1/rollouts/{ROLLOUT}")  # its latch is on disk by now
        yield Story(serving=one, old=old, new=new, drawn_id=drawn_id, texts=texts, rollout=rollout)


def run_again(url: str, exchange: dict[str, Any]) -> list[int]:
    """The tokens of one arm, asked of its engine once more."""

    async def main() -> list[int]:
        engine = open_engine(url, EngineOptions(kind="vllm", model=MODEL))
        prompt = Prompt(
            exchange_id=uuid.uuid4().hex,
            model=MODEL,
            token_ids=tuple(exchange["prompt_token_ids"]),
            sampling=msgspec.convert(exchange["sampling"], Sampling),
            cache_salt=uuid.uuid4().hex,
        )
        try:
            parts = [part async for part in engine.generate(prompt)]
        finally:
            await engine.close()
        return [step.token_id for part in parts if isinstance(part, Steps) for step in part.steps]

    return asyncio.run(main())


def tokenize(url: str, prompt: str) -> list[int]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        url + "/tokenize", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        ids: list[int] = json.load(answer)["tokens"]
    return ids


def test_the_two_precisions_fork_and_traffic_goes_home(story: Story) -> None:
    assert story.rollout["state"] == "rolled_back"
    assert story.rollout["latched"]["gate"] == "token_equality"
    assert story.rollout["latched"]["durable"] is True
    status = story.serving.admin("/v1/status")
    assert status["routes"] == {}
    assert status["ledger"]["balanced"]
    assert set(status["ledger"]["dropped"]) <= {"rolled_back"}
    flip = status["flips"][-1]
    assert (flip["edges"], flip["missing"]) == (2, [])


def test_both_servers_honour_all_that_a_comparison_needs(story: Story) -> None:
    status = story.serving.cli("status").out
    for needed in ("token_in", "token_out", "logprobs", "seed", "encode", "cache_salt", "abort"):
        assert f"lacks {needed}" not in status
    assert status.count("honours: ") == 2


def test_captures_are_token_ids_of_the_servers_own_tokenizer(story: Story) -> None:
    for request_id, (prompt, _) in story.texts.items():
        for url, exchange in zip((story.old, story.new), arms(story.of(request_id)), strict=True):
            assert exchange["as_tokens"] is True
            assert exchange["endpoint"] == url
            assert exchange["prompt_token_ids"] == tokenize(url, prompt)


def test_seed_is_derived_once_and_both_arms_have_it(story: Story) -> None:
    for request_id in story.texts:
        left, right = arms(story.of(request_id))
        assert left["sampling"] == right["sampling"]
        assert left["sampling"]["seed"] == derived_seed(request_id)
        assert left["facts"]["cache_salt"]["value"] != right["facts"]["cache_salt"]["value"]
    assert arms(story.of(story.drawn_id))[0]["sampling"]["temperature"] == 0.8


def test_seed_at_temperature_is_honoured_so_each_arm_says_the_same_again(story: Story) -> None:
    for url, exchange in zip((story.old, story.new), arms(story.of(story.drawn_id)), strict=True):
        ids = tokens_of(exchange)
        assert len(ids) >= 2
        # An arm may have been stopped by a rollback that its own fork caused.
        assert run_again(url, exchange)[: len(ids)] == ids


def test_top_20_of_every_step_is_there_and_sorted(story: Story) -> None:
    for line in exported(story.serving):
        for exchange in arms(line):
            for step in exchange["steps"]:
                assert len(step["top_ids"]) in (DEPTH, DEPTH + 1)
                assert step["top_logprobs"] == sorted(step["top_logprobs"], reverse=True)
                assert step["token_id"] in step["top_ids"]


def test_live_stream_is_what_the_server_says_directly(story: Story) -> None:
    prompt, text = list(story.texts.values())[-1]
    with openai.OpenAI(base_url=story.old + "/v1", api_key="k", max_retries=0) as direct:
        answer = direct.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=TOKENS,
            temperature=0,
        )
    assert answer.choices[0].message.content == text


def test_canary_tenant_was_moved_off_the_candidate(story: Story) -> None:
    """By the server's own account of who answered."""
    before = served(story.old), served(story.new)
    ask(story.serving, "Hello!", model=MODEL, tokens=1, tenant=CANARY)
    ask(story.serving, "Hello!", model=MODEL, tokens=1, tenant=AT_HOME)
    assert (served(story.old) - before[0], served(story.new) - before[1]) == (2, 0)


def served(url: str) -> int:
    with urllib.request.urlopen(url + "/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return int(
        sum(
            float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:request_success_total{")
        )
    )


def test_evidence_names_the_fork_and_its_replay_stands(story: Story) -> None:
    shown = story.serving.cli("evidence", "show", story.deciding_id)
    assert shown.code == 0
    assert "fork at output token" in shown.out
    line = capture(story.serving, story.deciding_id)
    left, right = arms(line)
    fork_index = line["pairs"][0]["fork_index"]
    assert left["sampling"]["temperature"] == 0
    assert tokens_of(left)[:fork_index] == tokens_of(right)[:fork_index]
    assert tokens_of(left)[fork_index] != tokens_of(right)[fork_index]
    replayed = story.serving.cli("evidence", "replay", story.deciding_id, "--json")
    assert replayed.code == 0, replayed.out + replayed.err
    assert replayed.json["verdict"] == "stands"
    assert replayed.json["now"]["fork"]["fork_index"] == fork_index
