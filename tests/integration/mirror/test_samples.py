"""Questions of suites, through the same arms and budgets as live traffic's copies."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from comparator.records import Arm, Outcome
from engines.base import Capability, EngineUnavailable
from proxy.mirror import NO_TENANT, Dropped, derive_seed
from tests.integration.mirror.test_budgets import Clock
from tests.support.engines import EVERYTHING, REFUSED, FakeEndpoint, FakeEngine, load, probe, raising, stalled
from tests.support.mirror import Rig, rig, sample_ask
from tests.support.waiting import LIMIT_S, PATIENCE_S, eventually

DOWN = EngineUnavailable("http://fake", "connection refused")


def run(main: Any) -> None:
    asyncio.run(main())


async def asked(made: Rig, *args: Any, **kwargs: Any) -> Comparison:
    return await made.mirror.run_sample("old-to-new", sample_ask(*args, **kwargs))


async def refused(made: Rig, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(Dropped) as caught:
        await asked(made, *args, **kwargs)
    return str(caught.value.reason), caught.value.detail


def starting(made: Rig, *args: Any, **kwargs: Any) -> asyncio.Task[Comparison]:
    return asyncio.create_task(asked(made, *args, **kwargs))


def test_a_sample_goes_through_both_arms_and_back_to_whoever_asked() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(fork_at=3), token_only_percent=100.0) as made:
            comparison = await asked(made, passage=2, control=True)
            assert [pair.right.arm for pair in comparison.pairs] == [Arm.CANDIDATE, Arm.CONTROL]
            assert comparison.sample == sample_ask(2).sample
            assert comparison.tenant == NO_TENANT
            assert uuid.UUID(comparison.capture_id).version == 7
            left = comparison.pairs[0].left
            assert left.request_id == "starter/s-1/2"
            assert left.sampling.seed == derive_seed("s", "starter/s-1/2")
            assert left.outcome is Outcome.COMPLETED  # token-only is for live copies
            assert comparison.pairs[0].fork is not None
            assert made.sink.log == []  # no ledger, no sink, no fork told
            assert made.sink.forks == []

    run(main)


def test_the_baseline_can_be_compared_with_itself_alone() -> None:
    async def main() -> None:
        unprobed = FakeEndpoint(FakeEngine(), error="http://new: not probed yet")
        async with rig(FakeEngine(), unprobed) as made:
            comparison = await asked(made, candidate=False, control=True)
            (pair,) = comparison.pairs
            assert (pair.left.arm, pair.right.arm) == (Arm.BASELINE, Arm.CONTROL)
            assert pair.valid
            assert comparison.candidates == ()
            assert made.candidate[0].engine.calls == made.candidate[0].engine.prompts == []
            assert made.baseline[0].engine.most_active == 1

    run(main)


def test_a_baseline_whose_second_run_fails_gives_no_comparison() -> None:
    async def main() -> None:
        async def dead_again(prompt: Any) -> Any:
            script = raising(DOWN, after=1) if "/control/" in prompt.exchange_id else FakeEngine()._answer
            async for item in script(prompt):
                yield item

        async with rig(FakeEngine(script=dead_again)) as made:
            reason, detail = await refused(made, candidate=False, control=True)
            assert reason == "baseline_unavailable"
            assert detail == "the baseline's second run ended failed: http://fake: connection refused"

    run(main)


def test_its_own_output_limit_holds_and_a_missing_one_is_the_shadows() -> None:
    async def main() -> None:
        async with rig(FakeEngine(length=90), FakeEngine(length=90), max_tokens=10) as made:
            long = await asked(made, fields={"max_tokens": 80})
            assert len(long.pairs[0].left.steps) == 80
            bare = await asked(made, fields={"max_tokens": None})
            assert len(bare.pairs[0].left.steps) == 10

    run(main)


def test_a_call_without_a_model_is_asked_of_the_one_that_the_baseline_serves() -> None:
    async def main() -> None:
        async with rig() as made:
            await asked(made, model="")
            for engine in (made.baseline[0].engine, made.candidate[0].engine):
                (prompt,), (call,) = engine.prompts, engine.calls
                assert prompt.model == call.model == call.body["model"] == "m"
        nameless = FakeEndpoint(FakeEngine(), msgspec.structs.replace(probe(), model=None))
        async with rig(nameless) as made:
            reason, detail = await refused(made, model="")
            assert (reason, "set the pool's engine.model" in detail) == ("unsupported", True)

    run(main)


def test_passes_differ_in_their_seeds_and_arms_of_a_pass_do_not() -> None:
    async def main() -> None:
        async with rig(replicates=7) as made:
            found = [
                await asked(made, passage, fields={"temperature": 1}, control=True) for passage in range(5)
            ]
            seeds = [
                {exchange.sampling.seed for pair in one.pairs for exchange in (pair.left, pair.right)}
                for one in found
            ]
            assert all(len(one) == 1 for one in seeds)
            assert len(set.union(*seeds)) == 5
            assert all(len(one.pairs) == 2 for one in found)  # passes are its replicates

    run(main)


def test_samples_have_a_share_of_their_own_and_captures_keep_theirs() -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(), FakeEngine()
        baseline.gate = asyncio.Event()
        async with rig(baseline, candidate, in_flight=2, samples_in_flight=3) as made:
            tasks = [starting(made, passage) for passage in range(5)]
            made.submit(4)
            await eventually(lambda: baseline.active == 5, "three samples and two captures")
            (status,) = made.mirror.status()
            assert (status.samples, status.running, status.queued) == (3, 2, 2)
            baseline.gate.set()
            assert len(await asyncio.gather(*tasks)) == 5
            await made.settled()
            assert baseline.most_active == 5
            assert made.mirror.status()[0].samples == 0

    run(main)


def test_a_sample_is_paid_for_like_any_copy() -> None:
    async def main() -> None:
        async with rig(tokens_per_day=60) as made:
            await asked(made, control=True)  # 3 x (9 + 6) tokens
            (status,) = made.mirror.status()
            assert status.spent.total_by_pool == {"old": 30, "new": 15}
            await asked(made, 1)
            reason, detail = await refused(made, 2)
            assert (reason, detail) == ("token_day", "75 of 60 tokens are spent today")
            assert (await made.drop())[0] == "token_day"

    run(main)


def test_it_waits_for_a_lull_and_says_what_kept_it() -> None:
    async def main() -> None:
        clock = Clock()
        live = FakeEngine("http://live")
        live.now = load(4, 2)
        async with rig(live, dedicated=False, queue_age_s=5.0, sources=clock.sources()) as made:
            patient, impatient = starting(made), None
            for _ in range(20):
                await asyncio.sleep(0)
            assert live.prompts == []
            live.now = load()
            clock.wait(made, 1.5)
            assert (await patient).pairs[0].valid
            live.now = load(4, 2)
            clock.wait(made, 1.5)
            impatient = starting(made, 1)
            for _ in range(20):
                await asyncio.sleep(0)
            clock.wait(made, 6.0)
            with pytest.raises(
                Dropped, match=r"pool_busy: waited 6\.0 s; pool old: http://live has 2 requests"
            ):
                await impatient

    run(main)


def test_what_cannot_be_asked_says_why() -> None:
    async def main() -> None:
        async with rig(FakeEngine(encode_error=REFUSED)) as made:
            assert (await refused(made))[0] == "unsupported"
        async with rig(FakeEngine(encode_error=DOWN)) as made:
            assert (await refused(made))[0] == "baseline_unavailable"
        unseeded = FakeEndpoint(FakeEngine(), probe(EVERYTHING - {Capability.SEED}))
        async with rig(FakeEngine(), unseeded) as made:
            reason, detail = await refused(made, fields={"temperature": 1})
            assert (reason, "honours no seed" in detail) == ("unsupported", True)
            # The baseline alone does not need the candidate's seeds.
            alone = await asked(made, fields={"temperature": 1}, candidate=False, control=True)
            assert alone.pairs[0].valid
            with pytest.raises(KeyError):
                await made.mirror.run_sample("gone", sample_ask())

    run(main)


# -- ends ---------------------------------------------------------------------------------------------


def test_a_rollback_ends_those_that_run_and_those_that_wait() -> None:
    async def main() -> None:
        # The fork is decided: a capture would be kept as evidence, half an answer is nothing to score.
        baseline, candidate = FakeEngine(script=stalled), FakeEngine(fork_at=0)
        async with rig(baseline, candidate, samples_in_flight=2) as made:
            tasks = [starting(made, passage, control=True) for passage in range(4)]
            await eventually(lambda: baseline.active == 2, "two samples")
            await made.mirror.stop_rollout("old-to-new", "breach")
            assert (baseline.active, candidate.active) == (0, 0)
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(end, Dropped)
                assert (end.reason, end.detail) == ("rolled_back", "breach")
            assert await refused(made) == ("rolled_back", "breach")
            made.mirror.resume_rollout("old-to-new")
            baseline.script = None
            assert (await asked(made)).pairs[0].valid

    run(main)


def test_a_rollback_that_is_lifted_at_once_still_ended_them() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=stalled)
        async with rig(baseline) as made:
            task = starting(made)
            await eventually(lambda: baseline.active == 1, "the sample")
            stopping = asyncio.create_task(made.mirror.stop_rollout("old-to-new", "breach"))
            await asyncio.sleep(0)
            made.mirror.resume_rollout("old-to-new")
            with pytest.raises(Dropped, match="rolled_back: breach"):
                await task
            await stopping

    run(main)


def test_closing_ends_them_at_once() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=stalled)
        async with rig(baseline, samples_in_flight=1) as made:
            tasks = [starting(made, passage) for passage in range(3)]
            await eventually(lambda: baseline.active == 1, "the first")
            async with asyncio.timeout(PATIENCE_S):
                await made.mirror.close(LIMIT_S)
            assert baseline.active == 0
            for end in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(end, Dropped)
                assert end.reason == "shutdown"
            assert (await refused(made))[0] == "shutdown"

    run(main)


def test_whoever_asked_and_leaves_takes_the_arms_along() -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(script=stalled), FakeEngine(script=stalled)
        async with rig(baseline, candidate, samples_in_flight=1) as made:
            task = starting(made)
            await eventually(lambda: candidate.active == baseline.active == 1, "the arms")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (baseline.active, candidate.active) == (0, 0)
            baseline.script = candidate.script = None
            assert (await asked(made, 1)).pairs[0].valid  # its slot is free again
            assert made.mirror.status()[0].samples == 0

    run(main)
