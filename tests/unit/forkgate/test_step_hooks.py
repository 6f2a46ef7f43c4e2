"""Hooks and a real judge: a step waits for its hook, a rollback waits for none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path

import orjson
import pytest

from forkgate.config import loads
from forkgate.config.hooks import HookEvent, HookSection
from forkgate.hooks import Hooks, StepHooks
from policies.rollout import Advance, Pause, RollBackNow, Stage, blocked_by
from tests.support.exchanges import comparison, pair
from tests.support.hook_receiver import ALLOW, HookReceiver, answer
from tests.support.judging import TEXT, Bench, fork_seen
from tests.support.waiting import LIMIT_S, PATIENCE_S

NAME = "old-to-new"
POLICY = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"
REFUSE = answer(200, b'{"allow": false, "reason": "change freeze"}')
SAID = {"who": "ana", "why": "looks fine"}


def run(work: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


class Hooked(Bench):
    """A judge whose rollout leaves its shadow stage under a hook."""

    def __init__(self, tmp_path: Path, url: str, *, advance: str, timeout_s: float = PATIENCE_S) -> None:
        super().__init__(tmp_path / "state")
        (tmp_path / "policy.yaml").write_text(POLICY)
        text = TEXT.format(state_dir=tmp_path / "state").replace("audit", str(tmp_path / "policy.yaml"))
        self.config = loads(text.replace("skip: true", f"advance: {advance}"))
        (tmp_path / "secret").write_text("0123456789abcdef")
        section = HookSection(
            name="deploys",
            url=url,
            secret_file=str(tmp_path / "secret"),
            events=tuple(HookEvent),
            timeout_s=timeout_s,
            again_s=1.0,
        )
        self.now = 1_000.0
        self.hooks = Hooks([section], "sidecar-1", first_wait_s=0.01)
        self.steps = StepHooks(self.hooks, lambda: self.now)

    async def __aenter__(self) -> Hooked:
        await super().__aenter__()
        self.judge.hooks, self.judge.in_the_way.steps = self.hooks, self.steps
        self.judge.tick()  # the stage's clock starts
        await self.judge.comparison_finished(comparison(pair()), "edge-1", 1)
        state = self.desk.state(NAME)
        assert (state.stage, blocked_by(state, time.time())) == (Stage.SHADOW, ())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.steps.close()
        await super().__aexit__(*_)
        await self.hooks.close(drain_s=1.0)

    @property
    def place(self) -> str:
        return self.desk.state(NAME).place

    async def told(self) -> None:
        """Let the question that a tick began come to its answer."""
        asked = self.steps._asked[NAME]
        while asked.task is not None:
            await asyncio.sleep(0)


def asked(receiver: HookReceiver) -> int:
    return sum(got.headers["forkgate-event"] == "before_step" for got in receiver.requests)


def test_step_that_goes_by_itself_waits_for_its_hook(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([REFUSE, REFUSE, ALLOW]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="gates") as bench,
        ):
            bench.judge.tick()
            assert bench.place == "shadow"
            assert bench.steps.blocked_by(bench.desk.state(NAME)) == (
                "hook deploys has been asked and has not answered yet",
            )
            await bench.told()
            assert bench.steps.blocked_by(bench.desk.state(NAME)) == ("hook deploys refuses: change freeze",)
            bench.judge.tick()
            bench.judge.tick()
            assert (bench.place, asked(receiver)) == ("shadow", 1)  # not asked again before its time
            bench.now += 1.0
            bench.judge.tick()
            await bench.told()
            assert (bench.place, asked(receiver)) == ("shadow", 2)
            bench.now += 1.0
            bench.judge.tick()
            await bench.told()
            bench.judge.tick()
            await bench.judge.settle(PATIENCE_S)
            assert (bench.place, asked(receiver)) == ("canary step 1 of 1", 3)

    run(main())


def test_a_yes_that_grew_old_is_asked_for_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([ALLOW, REFUSE]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="gates") as bench,
        ):
            bench.judge.tick()
            await bench.told()
            bench.now += 60.0
            bench.judge.tick()
            await bench.told()
            bench.judge.tick()
            assert (bench.place, asked(receiver)) == ("shadow", 2)

    run(main())


@pytest.mark.parametrize("said", ["hang", "close", answer(500)])
def test_silent_hook_keeps_a_step_waiting_and_is_named(tmp_path: Path, said: bytes | str) -> None:
    async def main() -> None:
        async with (
            HookReceiver([said]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="gates", timeout_s=0.3) as bench,
        ):
            bench.judge.tick()
            await bench.told()
            bench.judge.tick()
            assert bench.place == "shadow"
            (why,) = bench.steps.blocked_by(bench.desk.state(NAME))
            assert why.startswith("hook deploys gave no answer: ")

    run(main())


def test_person_who_promotes_is_told_what_the_hook_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([REFUSE, ALLOW]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="manual") as bench,
        ):
            bench.judge.tick()
            assert asked(receiver) == 0  # nobody has promoted
            refused = await bench.say(Advance(**SAID, unix_s=time.time()))
            assert refused == ("hook deploys refuses: change freeze",)
            assert bench.place == "shadow"
            assert await bench.say(Advance(**SAID, unix_s=time.time())) == ()
            assert bench.place == "canary step 1 of 1"

    run(main())


def test_promotion_that_something_else_blocks_asks_no_hook(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([ALLOW]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="manual") as bench,
        ):
            await bench.say(Pause(**SAID, unix_s=time.time()))
            assert await bench.say(Advance(**SAID, unix_s=time.time())) != ()
            assert asked(receiver) == 0

    run(main())


def test_rollback_waits_for_no_hook_however_it_hangs(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver(["hang"]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="gates", timeout_s=LIMIT_S) as bench,
        ):
            bench.judge.tick()
            await receiver.until(lambda: asked(receiver) == 1)
            bench.judge.fork_seen(fork_seen())
            await bench.judge.settle(PATIENCE_S)
            assert bench.desk.state(NAME).stage is Stage.ROLLED_BACK
            assert bench.steps._asked[NAME].task is not None, "the hook was waited for"
            (done,) = bench.judge.flips
            assert done.edges == 2

    run(main())


def test_a_persons_rollback_is_not_asked_about(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([REFUSE]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="gates") as bench,
        ):
            assert await bench.say(RollBackNow(**SAID, unix_s=time.time())) == ()
            assert bench.place == "rolled_back"
            assert asked(receiver) == 0

    run(main())


def test_rollback_is_told_as_breach_stage_and_flip_without_any_token(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            HookReceiver([answer(200)]).serving() as receiver,
            Hooked(tmp_path, receiver.url, advance="manual") as bench,
        ):
            bench.judge.tick()
            bench.judge.fork_seen(fork_seen())
            await bench.judge.settle(PATIENCE_S)
            await receiver.until(lambda: len(receiver.requests) == 3)
            told = [orjson.loads(got.body) for got in receiver.requests]
            assert [one["event"] for one in told] == ["breach", "stage", "rollback"]
            assert (told[2]["edges"], told[2]["durable"]) == (2, True)
            for one in told:
                assert set(one) <= {
                    "event", "rollout", "text", "baseline", "candidate", "place", "before", "tenant", "gate",
                    "reason", "who", "deciding_id", "epoch", "edges", "missing", "durable", "id", "sidecar",
                    "unix_s",
                }  # fmt: skip

    run(main())
