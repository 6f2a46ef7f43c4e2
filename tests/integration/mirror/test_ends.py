"""How a rollout's shadow ends: rolled back, resumed, shut down, or with a store that fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comparator.comparison import Comparison
from comparator.pair import ForkSeen
from comparator.records import Fact, Outcome
from engines.base import EngineUnavailable, Finish, Prompt, Steps
from proxy.mirror import Dropped
from tests.support import virtual
from tests.support.engines import FakeEndpoint, FakeEngine, endless, fake_step, raising, stalled, trickling
from tests.support.mirror import EDGE, capture, rig, sample_ask
from tests.support.waiting import eventually


def run(main: Any) -> None:
    virtual.run(main())


def test_a_rolled_back_rollout_aborts_what_runs_and_drops_what_waits() -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(script=stalled), FakeEngine(script=stalled)
        async with rig(baseline, candidate, in_flight=2) as made:
            made.submit(5)
            await eventually(lambda: candidate.active == 2, "two pairs")
            await made.mirror.stop_rollout("old-to-new", "token_equality failed")
            assert (baseline.active, candidate.active) == (0, 0)
            await made.settled()
            assert made.sink.reasons == ["rolled_back"] * 5
            assert all("token_equality failed" in detail for _, detail in made.sink.drops.values())
            assert (await made.drop())[0] == "rolled_back"

    run(main)


def test_the_pair_that_rolled_the_rollout_back_is_kept() -> None:
    async def main() -> None:
        async def forks_and_hangs(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            yield Steps((fake_step(prompt, 0, variant=1),))
            await asyncio.Event().wait()

        baseline = FakeEngine(script=stalled)
        async with rig(baseline, FakeEngine(script=forks_and_hangs)) as made:
            stopping: list[asyncio.Task[None]] = []

            def breach(event: ForkSeen) -> None:
                made.sink.forks.append(event)
                stop = made.mirror.stop_rollout(event.rollout, "forked")
                stopping.append(asyncio.get_running_loop().create_task(stop))

            made.sink.fork_seen = breach  # type: ignore[method-assign]
            pair = await made.pair()
            assert pair.valid
            assert pair.fork is not None
            assert pair.fork == made.sink.forks[0].fork
            assert pair.left.outcome is pair.right.outcome is Outcome.ABORTED
            assert pair.left.error == "rolled_back: forked"
            await stopping[0]

    run(main)


def forks_then(going: asyncio.Event) -> Any:
    async def script(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        yield Steps((fake_step(prompt, 0, variant=1),))
        await going.wait()
        yield Finish(
            finish_reason="stop", stop_reason=None, prompt_token_ids=None, facts={"batch_size": Fact(value=3)}
        )

    return script


def test_the_pair_that_decided_runs_to_its_own_end_and_all_others_are_aborted() -> None:
    async def main() -> None:
        going = asyncio.Event()
        baseline = FakeEngine(length=2)
        async with rig(baseline, FakeEngine(script=forks_then(going)), in_flight=3) as made:
            made.submit(3)
            await eventually(lambda: len(made.sink.forks) == 3, "three forks")
            stopping = asyncio.create_task(made.mirror.stop_rollout("old-to-new", "forked", spare="id-2"))
            await eventually(lambda: len(made.sink.pairs) == 2, "the others")
            assert {pair.right.outcome for pair in made.sink.pairs.values()} == {Outcome.ABORTED}
            assert 2 not in made.sink.pairs
            assert not stopping.done()
            made.submit()  # nothing new starts meanwhile
            await eventually(lambda: made.sink.reasons == ["rolled_back"], "the newcomer's drop")
            going.set()
            await stopping
            spared = made.sink.pairs[2]
            assert spared.valid
            assert spared.right.outcome is Outcome.COMPLETED
            assert spared.right.finish_reason == "stop"
            assert spared.right.facts["batch_size"] == Fact(value=3)
            assert len(made.sink.forks) == 3

    run(main)


@pytest.mark.parametrize("how", ["stopped again", "closed", "timed out"])
def test_the_pair_that_decided_does_not_outlive(how: str) -> None:
    async def main() -> None:
        candidate = FakeEngine(script=forks_then(asyncio.Event()))
        timeout_s = 0.2 if how == "timed out" else 120.0
        async with rig(FakeEngine(), candidate, arm_timeout_s=timeout_s) as made:
            made.submit()
            await eventually(lambda: made.sink.forks, "the fork")
            stopping = asyncio.create_task(made.mirror.stop_rollout("old-to-new", "forked", spare="id-1"))
            await asyncio.sleep(0)
            if how == "stopped again":
                await made.mirror.stop_rollout("old-to-new", "lifted")
            elif how == "closed":
                await made.mirror.close(0.0)
            await stopping
            expected = Outcome.TIMED_OUT if how == "timed out" else Outcome.ABORTED
            assert made.sink.pairs[1].right.outcome is expected

    run(main)


def test_what_arms_meet_is_told_to_their_endpoint() -> None:
    async def main() -> None:
        refused = EngineUnavailable("http://new", "connection refused")
        dead = FakeEndpoint(FakeEngine(script=raising(refused), load_error=refused))
        old = FakeEndpoint(FakeEngine())
        async with rig(old, dead) as made:
            await made.pair()
            assert set(dead.silences) == {"http://new: connection refused"}
            assert dead.answers == 0
            assert old.answers >= 1
            assert old.silences == []

    run(main)


def test_load_that_cannot_be_read_is_told_to_the_endpoint() -> None:
    async def main() -> None:
        endpoint = FakeEndpoint(FakeEngine(load_error=EngineUnavailable("http://new", "connection refused")))
        async with rig(None, endpoint, dedicated=False) as made:
            await made.pair()
            assert endpoint.silences == ["http://new: connection refused"]

    run(main)


def test_stopping_reaches_a_pair_that_is_still_being_encoded() -> None:
    class Slow(FakeEngine):
        async def encode(self, call: Any) -> Any:
            self.calls.append(call)
            await asyncio.Event().wait()

    async def main() -> None:
        slow = Slow()
        async with rig(FakeEngine(), slow) as made:
            made.submit()
            await eventually(lambda: slow.calls, "the encoding")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await made.settled()
            assert made.sink.reasons == ["rolled_back"]

    run(main)


def test_a_lifted_rollout_mirrors_again() -> None:
    async def main() -> None:
        async with rig() as made:
            await made.mirror.stop_rollout("old-to-new", "breach")
            assert (await made.drop())[0] == "rolled_back"
            made.mirror.resume_rollout("old-to-new")
            assert (await made.pair()).valid

    run(main)


def test_captures_of_no_configured_rollout_and_of_no_known_api_are_dropped() -> None:
    async def main() -> None:
        async with rig() as made:
            reason, detail = await made.drop(rollout="gone")
            assert (reason, detail) == ("rolled_back", "no rollout 'gone' is configured here")
            assert (await made.drop(target="/v1/embeddings"))[0] == "not_recognised"
            assert (await made.drop(body=b"nonsense"))[0] == "not_recognised"
            assert (await made.drop(headers=((b"content-encoding", b"br"),)))[0] == "unsupported"
            with pytest.raises(KeyError):
                await made.mirror.stop_rollout("gone", "why")

    run(main)


def test_a_large_body_is_decoded_too() -> None:
    async def main() -> None:
        async with rig() as made:
            pair = await made.pair(fields={"prompt": "x" * 200_000})
            assert len(pair.left.prompt_token_ids) == 200_000

    run(main)


def test_a_store_that_fails_is_counted_and_a_bug_in_the_sink_kills_nothing() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(fork_at=0)) as made:

            def broken(event: ForkSeen) -> None:
                raise RuntimeError("a bug in a gate")

            made.sink.store_error = OSError(28, "No space left on device")
            reason, detail = await made.drop()
            assert reason == "evidence_failed"
            assert "No space left" in detail
            made.sink.store_error = None
            made.sink.fork_seen = broken  # type: ignore[method-assign]
            assert (await made.pair()).fork is not None

    run(main)


def test_closing_lets_running_pairs_end_within_their_time() -> None:
    async def main() -> None:
        slow = FakeEngine()
        slow.gate = asyncio.Event()
        async with rig(FakeEngine(), slow, in_flight=1) as made:
            made.submit(3)
            await eventually(lambda: slow.active == 1, "the first pair")
            closing = asyncio.create_task(made.mirror.close(30.0))
            await eventually(lambda: len(made.sink.drops) == 2, "what waits to be dropped")
            slow.gate.set()
            await closing
            assert list(made.sink.pairs) == [1]
            assert made.sink.reasons == ["shutdown"] * 2
            made.submit()
            await made.settled()
            assert made.sink.reasons == ["shutdown"] * 3

    run(main)


def test_closing_aborts_what_does_not_end() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(script=trickling)) as made:
            made.submit()
            await eventually(lambda: made.candidate[0].engine.active == 1, "the pair")
            await made.mirror.close(0.05)
            assert made.sink.reasons == ["shutdown"]

    run(main)


def test_closing_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.mirror.mirror.STORE_S", 0.1)

    async def main() -> None:
        async with rig() as made:
            made.sink.store_gate = asyncio.Event()
            made.submit(3)
            await eventually(lambda: made.mirror.status()[0].storing == 3, "three pairs to wait")
            await made.mirror.close(0.0)
            await made.settled()
            assert made.sink.reasons == ["evidence_failed"] * 3

    run(main)


def test_nothing_is_lost_when_everything_fails_at_random() -> None:
    """Engines of every kind, controls, replicates, samples, stops and lifts in between: all end once."""

    async def main(seed: int) -> None:
        draw = random.Random(seed)
        broken = EngineUnavailable("http://fake", "reset")

        async def moody(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            scripts = [endless, stalled, trickling, raising(broken, 2), FakeEngine(fork_at=2)._answer]
            async for item in draw.choice(scripts)(prompt):
                yield item

        baseline = [FakeEndpoint(FakeEngine(f"http://{name}", script=moody)) for name in ("a", "b")]
        samples: list[asyncio.Task[Comparison]] = []
        async with rig(
            baseline[: draw.choice([1, 2])],
            FakeEngine(script=moody),
            in_flight=4,
            arm_timeout_s=0.05,
            queue_items=8,
            control_percent=50.0,
            timing_percent=30.0,
            token_only_percent=50.0,
            replicates=3,
            samples_in_flight=2,
        ) as made:
            for passage in range(30):
                fields = {"temperature": draw.choice([0.0, 0.7])}
                made.submit(draw.randrange(6), tenant=draw.choice(["a", "b"]), fields=fields)
                asking = made.mirror.run_sample(
                    "old-to-new", sample_ask(passage, control=draw.random() < 0.5)
                )
                samples.append(asyncio.create_task(asking))
                if draw.random() < 0.2:
                    draw.choice(samples).cancel()
                await asyncio.sleep(draw.random() * 0.01)
                action = draw.randrange(8)
                if action == 0:
                    await made.mirror.stop_rollout("old-to-new", "drawn")
                elif action == 1:
                    made.mirror.resume_rollout("old-to-new")
                elif action == 2:
                    made.sink.store_error = OSError("full")
                elif action == 3:
                    made.sink.store_error = None
                assert made.ledger.balance().balanced
        for end in await asyncio.gather(*samples, return_exceptions=True):
            assert isinstance(end, Comparison | Dropped | asyncio.CancelledError), end

    for seed in range(6):
        virtual.run(main(seed))


def test_an_end_told_twice_shows_as_a_fault() -> None:
    """The ledger's own alarm, which all tests here rely on, does ring."""

    async def main() -> None:
        async with rig() as made:
            await made.pair()
            ledger = made.ledger
            assert ledger.balance().balanced
            ledger.compared(EDGE.incarnation, 1)
            assert ledger.balance().faults == 1
            assert not ledger.balance().balanced
            ledger._lives[EDGE.incarnation].faults = 0
            made.mirror.submit(EDGE, capture(99, rollout="gone"))  # never received
            assert ledger.balance().faults == 1
            ledger._lives[EDGE.incarnation].faults = 0
            await eventually(lambda: made.sink.drops.pop(99, None), "the drop")

    run(main)
