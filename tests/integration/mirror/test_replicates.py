"""Several seeds of one prompt, and copies that run without logprobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comparator.compare import compare
from comparator.pair import SetAside
from comparator.records import Arm, Outcome
from engines.base import EngineUnavailable, Finish, Prompt, Steps
from proxy.mirror import derive_seed
from tests.integration.mirror.test_budgets import Clock
from tests.support import virtual
from tests.support.engines import FakeEngine, raising, stalled
from tests.support.mirror import rig
from tests.support.waiting import eventually

WARM = {"temperature": 0.8}
DOWN = EngineUnavailable("http://fake", "connection refused")


def run(main: Any) -> None:
    virtual.run(main())


def only_replicate(index: int, script: Any, arm: Arm = Arm.CANDIDATE) -> Any:
    """Behaves, and does this in one replicate of one arm."""

    async def both(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        chosen = prompt.exchange_id.endswith(f"/{arm}/{index}")
        async for item in script(prompt) if chosen else FakeEngine()._answer(prompt):
            yield item

    return both


def test_all_arms_of_a_replicate_share_a_seed_and_replicates_do_not() -> None:
    async def main() -> None:
        async with rig(replicates=4, control_percent=100.0) as made:
            comparison = await made.comparison(request_id="r-1", fields=WARM)
            assert len(comparison.candidates) == len(comparison.controls) == len(comparison.triples) == 4
            order = [(pair.left.replicate, pair.right.arm) for pair in comparison.pairs]
            assert order == [(i, arm) for i in range(4) for arm in (Arm.CANDIDATE, Arm.CONTROL)]
            for index in range(4):
                seeds = {
                    exchange.sampling.seed
                    for pair in comparison.pairs
                    for exchange in (pair.left, pair.right)
                    if exchange.replicate == index
                }
                assert seeds == {derive_seed("s", "r-1", index)}
            assert len({pair.left.sampling.seed for pair in comparison.pairs}) == 4
            assert len({pair.left.token_ids for pair in comparison.candidates}) == 4
            names = [prompt.exchange_id for prompt in made.candidate[0].engine.prompts]
            assert names == [f"id-1/candidate/{index}" for index in range(4)]
            salts = [prompt.cache_salt for prompt in made.baseline[0].engine.prompts]
            assert len(salts) == len(set(salts)) == 8
            (status,) = made.mirror.status()
            assert (status.controls, status.replicates) == (4, 3)
            assert status.spent.requests_by_pool == {"old": 8, "new": 4}
            for pair in comparison.pairs:
                assert pair == compare(pair.left, pair.right)

    run(main)


def test_they_run_in_turn_and_weigh_as_one() -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(), FakeEngine()
        async with rig(baseline, candidate, replicates=5) as made:
            await made.comparison(fields=WARM)
            assert baseline.most_active == candidate.most_active == 1
            assert len(baseline.calls) == len(candidate.calls) == 1  # encoded once

    run(main)


def test_a_greedy_request_runs_once() -> None:
    async def main() -> None:
        async with rig(replicates=5) as made:
            assert len((await made.comparison(fields={"temperature": 0})).pairs) == 1

    run(main)


def test_prompts_that_differ_are_told_once() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_shift=1), replicates=5) as made:
            (pair,) = (await made.comparison(fields=WARM)).pairs
            assert pair.set_aside is SetAside.ENCODING_MISMATCH

    run(main)


def test_a_candidate_that_refuses_the_call_itself_is_told_once() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_error=DOWN), replicates=5) as made:
            (pair,) = (await made.comparison(fields=WARM)).pairs
            assert pair.right.outcome is Outcome.FAILED
            assert len(made.baseline[0].engine.prompts) == 1

    run(main)


def test_a_fork_names_its_replicate() -> None:
    async def main() -> None:
        candidate = FakeEngine(script=only_replicate(2, FakeEngine(fork_at=1)._answer))
        async with rig(FakeEngine(), candidate, replicates=3) as made:
            comparison = await made.comparison(fields=WARM)
            assert [pair.fork is not None for pair in comparison.pairs] == [False, False, True]
            (seen,) = made.sink.forks
            assert (seen.replicate, seen.fork) == (2, comparison.pairs[2].fork)

    run(main)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [(raising(DOWN, after=1), Outcome.FAILED), (stalled, Outcome.TIMED_OUT)],
)
def test_a_candidate_that_fails_once_is_not_asked_again(script: Any, outcome: Outcome) -> None:
    """A stalled one would else cost its time as often as there are seeds."""

    async def main() -> None:
        candidate = FakeEngine(script=only_replicate(1, script))
        async with rig(FakeEngine(), candidate, replicates=8, arm_timeout_s=0.2) as made:
            comparison = await made.comparison(fields=WARM)
            assert [pair.right.outcome for pair in comparison.pairs] == [Outcome.COMPLETED, outcome]
            assert all(pair.valid for pair in comparison.pairs)

    run(main)


def test_what_was_found_before_the_baseline_failed_is_kept() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=only_replicate(2, raising(DOWN), Arm.BASELINE))
        async with rig(baseline, replicates=8) as made:
            comparison = await made.comparison(fields=WARM)
            assert [pair.left.replicate for pair in comparison.pairs] == [0, 1]
            assert all(pair.valid for pair in comparison.pairs)

    run(main)


def test_a_control_that_fails_once_holds_up_no_further_replicate() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=only_replicate(1, stalled, Arm.CONTROL))
        async with rig(baseline, replicates=4, control_percent=100.0, arm_timeout_s=0.2) as made:
            comparison = await made.comparison(fields=WARM)
            assert len(comparison.candidates) == 4
            assert [pair.left.replicate for pair in comparison.controls] == [0]

    run(main)


def test_a_rollback_between_replicates_keeps_the_finished_ones() -> None:
    async def main() -> None:
        candidate = FakeEngine(script=only_replicate(2, stalled))
        async with rig(FakeEngine(), candidate, replicates=8) as made:
            made.submit(fields=WARM)
            await eventually(lambda: len(candidate.prompts) == 3, "the third replicate")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await made.settled()
            assert [pair.left.replicate for pair in made.sink.comparisons[1].pairs] == [0, 1]
            assert len(candidate.prompts) == 3

    run(main)


def test_a_shutdown_lets_the_running_replicate_end_and_starts_no_other() -> None:
    async def main() -> None:
        candidate = FakeEngine()
        candidate.gate = asyncio.Event()
        async with rig(FakeEngine(), candidate, replicates=8) as made:
            made.submit(fields=WARM)
            await eventually(lambda: candidate.active == 1, "the first replicate")
            closing = asyncio.create_task(made.mirror.close(30.0))
            await asyncio.sleep(0)
            candidate.gate.set()
            await closing
            assert len(made.sink.comparisons[1].pairs) == 1

    run(main)


def test_replicates_wait_for_the_token_rate_like_any_start() -> None:
    async def main() -> None:
        clock = Clock()
        # A replicate takes 2 x (5 + 6) = 22 tokens, so 44 a second is two of them a second.
        async with rig(
            replicates=6, tokens_per_second=44.0, sources=clock.sources(), queue_age_s=1e4
        ) as made:
            made.submit(fields=WARM)
            prompts = made.candidate[0].engine.prompts
            await eventually(lambda: len(prompts) == 2, "two replicates")
            for expected in (4, 6):
                for _ in range(20):
                    await asyncio.sleep(0)
                assert len(prompts) == expected - 2
                clock.wait(made, 1.01)
                await eventually(lambda now=expected: len(prompts) == now, "two more")
            await made.settled()
            assert len(made.sink.comparisons[1].pairs) == 6

    run(main)


def test_a_series_that_waits_is_ended_by_a_rollback_and_by_the_days_budget() -> None:
    async def main() -> None:
        clock = Clock()
        async with rig(
            replicates=6, tokens_per_second=22.0, sources=clock.sources(), queue_age_s=1e4
        ) as made:
            made.submit(fields=WARM)
            await eventually(lambda: len(made.candidate[0].engine.prompts) == 1, "the first replicate")
            for _ in range(20):
                await asyncio.sleep(0)
            await made.mirror.stop_rollout("old-to-new", "breach")
            assert len(made.sink.comparisons[1].pairs) == 1
        async with rig(replicates=6, tokens_per_day=50) as made:
            assert len((await made.comparison(fields=WARM)).pairs) == 3  # 66 tokens: one pair too many

    run(main)


# -- timing -------------------------------------------------------------------------------------------


def test_timing_copies_run_without_logprobs_on_all_arms_and_are_not_cut() -> None:
    async def main() -> None:
        async with rig(
            FakeEngine(length=30),
            FakeEngine(length=30, fork_at=2),
            timing_percent=100.0,
            control_percent=100.0,
            token_only_percent=100.0,
        ) as made:
            comparison = await made.comparison()
            assert comparison.timing
            for pair in comparison.pairs:
                for exchange in (pair.left, pair.right):
                    assert exchange.sampling.logprobs == 0
                    assert exchange.facts["logprobs_depth"].value == 0
                    assert exchange.outcome is Outcome.COMPLETED
                    assert not exchange.token_only
                    assert not any(step.top_ids for step in exchange.steps)
            assert comparison.candidates[0].fork is not None
            assert comparison.candidates[0].max_error_nats is None

    run(main)


def test_a_share_is_drawn_for_timing_and_the_rest_keeps_its_logprobs() -> None:
    async def main() -> None:
        async with rig(timing_percent=50.0) as made:
            made.submit(60)
            await made.settled()
            depths = [
                (one.timing, one.pairs[0].left.sampling.logprobs) for one in made.sink.comparisons.values()
            ]
            assert set(depths) == {(True, 0), (False, 5)}
            assert 15 < sum(timing for timing, _ in depths) < 45

    run(main)
