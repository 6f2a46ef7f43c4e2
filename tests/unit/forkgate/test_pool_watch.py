"""The old pool is asked a real question through the whole window; what becomes of it holds the steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.base import (
    CallKind,
    Capability,
    Engine,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineUnavailable,
    Load,
    Probe,
    Prompt,
)
from engines.identity import Identity
from forkgate.config import Config, loads
from forkgate.fleet import Fleet, shadow_pool
from forkgate.hooks.notices import differences
from forkgate.judge.pool_watch import PoolFound, PoolWatch
from policies.rollout import PoolSeen, RolloutState, Stage, start, step
from proxy.mirror.arm import LOWEST_PRIORITY
from tests.support.engines import FakeEngine, load, stalled
from tests.support.judging import TEXT
from tests.support.waiting import eventually
from tests.unit.policies.test_rollout import plan

RECORD = Identity(fields={"gpu.driver": "575.57", "container.image": "sha256:abc"})


class Old(FakeEngine):
    """One that can die, and that says who it is."""

    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self.dead = False

    def _alive(self) -> None:
        if self.dead:
            raise EngineUnavailable(self.base_url, "connection refused")

    async def probe(self) -> Probe:
        self._alive()
        return msgspec.structs.replace(await super().probe(), record=RECORD)

    async def load(self) -> Load:
        self._alive()
        return await super().load()

    async def encode(self, call: Any) -> Any:
        self._alive()
        return await super().encode(call)

    def generate(self, prompt: Prompt) -> Any:
        self._alive()
        return super().generate(prompt)


class Scene:
    """A fleet of engines made of Python, a watch, and one rollout."""

    def __init__(
        self,
        tmp_path: Path,
        stage: Stage = Stage.CANARY,
        change: Callable[[str], str] = str,
        **watch: Any,
    ) -> None:
        said = "".join(f", {name}: {value}" for name, value in watch.items())
        text = TEXT.format(state_dir=tmp_path).replace(
            '["http://127.0.0.1:9001"]', f'["http://a:1", "http://b:1"], watch: {{every_s: 1{said}}}'
        )
        self.config: Config = loads(change(text))
        self.engines: dict[str, Old] = {}
        self.state: RolloutState = msgspec.structs.replace(
            start(plan(pool_proof=True)), stage=stage, entered_unix_s=1.0
        )
        self.told: list[tuple[str, bool, str]] = []
        self.arms: dict[str, int] = {}
        self.fleet = Fleet(self.config, self.open)
        self.watch = PoolWatch(
            self.config, self.fleet, self.open, lambda: [self.state], self, arms=lambda: self.arms
        )

    def open(self, base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
        self.engines[base_url] = Old(base_url)
        return self.engines[base_url]

    def pool_seen(self, pool: str, ready: bool, reason: str) -> None:
        self.told.append((pool, ready, reason))
        event = PoolSeen(pool=pool, ready=ready, reason=reason, unix_s=2.0)  # type: ignore[arg-type]
        self.state, _ = step(self.state, event)

    async def look(self) -> PoolFound:
        return await self.watch.look("old")

    async def __aenter__(self) -> Scene:
        self.fleet.start()
        await eventually(lambda: not self.fleet.unprobed())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.watch.close()
        await self.fleet.close()


def scene(main: Callable[[Scene], Any], tmp_path: Path, **how: Any) -> None:
    async def run() -> None:
        async with Scene(tmp_path, **how) as made:
            await main(made)

    asyncio.run(run())


def test_each_live_endpoint_is_asked_a_short_question_as_a_shadow_of_the_lowest_priority(
    tmp_path: Path,
) -> None:
    async def main(made: Scene) -> None:
        found = await made.look()
        assert found.ready, found
        for url in ("http://a:1", "http://b:1"):
            (prompt,) = made.engines[url].prompts
            assert prompt.sampling.max_tokens == 4
            assert prompt.sampling.logprobs == 0
            assert prompt.priority == LOWEST_PRIORITY
            assert prompt.exchange_id.startswith("old-pool/old/")
        assert made.engines["http://127.0.0.1:9002"].prompts == [], "the candidate tells its load alone"
        await made.look()
        assert len(made.engines["http://a:1"].calls) == 1, "what it made of the words is kept"
        salts = {one.cache_salt for one in made.engines["http://a:1"].prompts}
        assert len(salts) == 2, "no answer comes from a cache"

    scene(main, tmp_path)


def test_a_lost_endpoint_holds_every_step_at_once_and_two_good_looks_end_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(made: Scene) -> None:
        await made.look()
        before = made.state
        made.engines["http://b:1"].dead = True
        lost = await made.look()
        assert (lost.ready, "http://b:1: connection refused" in lost.reason) == (False, True)
        (notice,) = differences(before, made.state)
        assert (notice.event, "pool old could not take everything back" in notice.text) == ("pool", True)
        view = made.watch.view("old")
        assert view is not None
        assert (view["ready"], made.watch.ready()) == (False, {"old": False})
        made.engines["http://b:1"].dead = False
        once = await made.look()
        assert (once.ready, "one more look" in once.reason) == (False, True)
        before = made.state
        again = await made.look()
        assert again.ready
        (notice,) = differences(before, made.state)
        assert "pool old can take everything back again" in notice.text
        assert [ready for _, ready, _ in made.told] == [True, False, False, True]

    with caplog.at_level(logging.INFO, "forkgate.judge.pool_watch"):
        scene(main, tmp_path)
    said = [one.levelname for one in caplog.records if "the old pool" in one.getMessage()]
    assert said == ["INFO", "ERROR", "WARNING"]


def test_an_endpoint_that_is_slower_than_its_bound_is_as_good_as_gone(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        made.engines["http://a:1"].script = stalled
        found = await made.look()
        assert not found.ready
        assert "http://a:1 gave no whole answer of 4 tokens within 0.2 s" in found.reason
        assert made.engines["http://a:1"].active == 0, "and it is not left running"

    scene(main, tmp_path, slowest_s=0.2)


def test_a_pool_with_a_queue_is_full_and_is_not_asked_anything_on_top(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        made.engines["http://a:1"].now = load(running=40, waiting=2)
        found = await made.look()
        assert (found.ready, found.reason) == (False, "http://a:1 has 2 requests waiting")
        assert made.engines["http://a:1"].prompts == []

    scene(main, tmp_path)


def test_a_queue_that_is_gone_a_moment_later_is_no_full_pool(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        engine = made.engines["http://a:1"]
        engine.now = load(running=8, waiting=1)
        looking = asyncio.create_task(made.look())
        await eventually(lambda: made.engines["http://b:1"].prompts)  # the other one was asked meanwhile
        engine.now = load(running=8)
        assert (await looking).ready
        assert len(engine.prompts) == 1

    scene(main, tmp_path)


def test_a_queue_of_shadows_alone_leaves_the_pool_ready_by_its_answer(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        made.engines["http://a:1"].now = load(running=1, waiting=6)
        made.arms = {"http://a:1": 6}
        found = await made.look()
        assert found.ready, found
        assert len(made.engines["http://a:1"].prompts) == 1

    scene(main, tmp_path)


def test_room_is_held_against_what_the_candidate_carries_without_shadows(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        made.engines["http://127.0.0.1:9002"].now = load(running=21)
        assert "room for 20 more requests, and the candidate runs 21" in (await made.look()).reason
        made.arms = {"http://127.0.0.1:9002": 1}
        await made.look()
        assert (await made.look()).ready

    scene(main, tmp_path, capacity_requests=10)


def test_who_answers_there_stands_in_the_status(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        await made.look()
        view = made.watch.view("old")
        assert view is not None
        assert [(one["driver"], one["image"]) for one in view["endpoints"]] == [("575.57", "sha256:abc")] * 2
        assert made.watch.view("new") is None

    scene(main, tmp_path)


def test_a_pool_whose_shadows_run_elsewhere_is_asked_where_its_clients_are(tmp_path: Path) -> None:
    def shadowed(text: str) -> str:
        return text.replace('"http://b:1"]', '"http://b:1"], shadow_endpoints: ["http://shadow:1"]')

    async def main(made: Scene) -> None:
        assert set(made.engines) >= {"http://a:1", "http://b:1", "http://shadow:1"}
        assert (await made.look()).ready
        assert [len(made.engines[f"http://{one}:1"].prompts) for one in ("a", "b", "shadow")] == [1, 1, 0]
        view = made.watch.view("old")
        assert view is not None
        assert view["endpoints"][0]["driver"] == "575.57", "probed by the watch itself"
        made.engines["http://a:1"].dead = True
        assert not (await made.look()).ready

    scene(main, tmp_path, change=shadowed)


def test_a_candidate_that_does_not_answer_is_named_until_it_does_shared_with_shadows_or_not(
    tmp_path: Path,
) -> None:
    def shadowed(text: str) -> str:
        return text.replace(
            '["http://127.0.0.1:9002"]', '["http://new:1"], shadow_endpoints: ["http://shadow:1"]'
        )

    async def main(made: Scene) -> None:
        candidate = next(one for url, one in made.engines.items() if url == live)
        await made.look()
        assert made.watch.silent("new") == ()
        assert made.watch.silences() == {"old": 0, "new": 0}
        candidate.dead = True
        assert (await made.look()).ready, "the old pool is well"
        assert made.watch.silent("new") == (f"{live}: not answering: connection refused",)
        assert made.watch.silences() == {"old": 0, "new": 1}
        candidate.dead = False
        await made.look()
        assert made.watch.silent("new") == ()

    live = "http://127.0.0.1:9002"
    scene(main, tmp_path)
    live = "http://new:1"
    scene(main, tmp_path, change=shadowed)


def test_an_engine_that_answers_but_tells_no_load_is_not_silent(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        async def untold() -> Load:
            raise EngineInvalid("http://127.0.0.1:9002", "/metrics has no such number")

        made.engines["http://127.0.0.1:9002"].load = untold  # type: ignore[method-assign]
        await made.look()
        assert made.watch.silent("new") == ()

    scene(main, tmp_path)


def test_a_model_without_a_chat_template_is_asked_in_plain_words(tmp_path: Path) -> None:
    class Plain(Old):
        async def encode(self, call: Any) -> Any:
            if call.kind is CallKind.CHAT:
                raise EngineRefused(self.base_url, "no chat template", 400)
            return await super().encode(call)

    async def main(made: Scene) -> None:
        for url in ("http://a:1", "http://b:1"):
            made.engines[url].__class__ = Plain
        assert (await made.look()).ready

    scene(main, tmp_path)


@pytest.mark.parametrize(
    ("stage", "watched"),
    [
        (Stage.PENDING, False),
        (Stage.SELF_CHECK, False),
        (Stage.SHADOW, True),
        (Stage.CANARY, True),
        (Stage.OBSERVING, True),
        (Stage.PROMOTED, True),
        (Stage.ROLLED_BACK, False),
        (Stage.ABORTED, False),
    ],
)
def test_it_is_watched_for_as_long_as_somebody_might_go_back(
    tmp_path: Path, stage: Stage, watched: bool
) -> None:
    async def main(made: Scene) -> None:
        running = asyncio.create_task(made.watch.run())
        if watched:
            await eventually(lambda: made.told, "a look")
        else:
            await asyncio.sleep(0.3)  # longer than it takes to find out that it is watched
            assert made.told == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    scene(main, tmp_path, stage=stage)


def test_an_engine_without_priorities_is_asked_without_one(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        one = made.fleet.endpoints("old")[0]
        assert one.probe is not None
        one.probe = msgspec.structs.replace(one.probe, has=one.probe.has - {Capability.PRIORITY})
        await made.look()
        assert made.engines["http://a:1"].prompts[0].priority is None

    scene(main, tmp_path)


def test_nothing_is_said_of_a_pool_before_its_first_probe_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        made = Scene(tmp_path)
        held = asyncio.Event()

        class Late(Old):
            async def probe(self) -> Probe:
                await held.wait()
                return await super().probe()

        for engine in made.engines.values():
            engine.__class__ = Late
        made.fleet.start()
        running = asyncio.create_task(made.watch.run())
        await asyncio.sleep(0.3)  # more than one turn of the watch
        assert made.told == []
        held.set()
        await eventually(lambda: made.told, "the first look")
        assert made.told[0][:2] == ("old", True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.fleet.close()

    asyncio.run(main())


def test_a_pool_that_never_answered_a_probe_is_no_pool_to_go_back_to(tmp_path: Path) -> None:
    async def main() -> None:
        made = Scene(tmp_path)
        for engine in made.engines.values():
            engine.dead = True
        made.fleet.start()
        await eventually(lambda: made.fleet.endpoints("old")[0].error == "http://a:1: connection refused")
        assert not (await made.look()).ready
        await made.fleet.close()

    asyncio.run(main())


def test_an_engine_that_only_its_edge_reaches_is_asked_by_its_service(tmp_path: Path) -> None:
    """The chart's sidecar mode: the judge is in another pod, and the Service leads to live engines."""

    def sidecar(text: str) -> str:
        return text.replace(
            '["http://a:1", "http://b:1"]',
            '["http://127.0.0.1:8000"], shadow_endpoints: ["http://service:8000"]',
        )

    async def main(made: Scene) -> None:
        assert (await made.look()).ready
        assert len(made.engines["http://service:8000"].prompts) == 1
        assert not shadow_pool(made.config, made.fleet, "old").dedicated

    scene(main, tmp_path, change=sidecar)


def test_the_judge_asks_where_it_is_told_to(tmp_path: Path) -> None:
    async def main(made: Scene) -> None:
        assert (await made.look()).ready
        assert len(made.engines["http://other:1"].prompts) == 1
        assert made.engines["http://a:1"].prompts == []

    scene(main, tmp_path, endpoints='["http://other:1"]')
