"""The control: the baseline a second time, as the A/A floor, without harm to anything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comparator.compare import compare
from comparator.comparison import CONCURRENCY, Comparison, band_of
from comparator.pair import ForkSeen, SetAside
from comparator.records import Arm, Fact, Outcome
from engines.base import Capability, EngineRefused, EngineUnavailable, Finish, Prompt, Steps
from proxy.mirror import derive_seed
from tests.support import virtual
from tests.support.engines import (
    BROKEN,
    EVERYTHING,
    FakeEndpoint,
    FakeEngine,
    fake_step,
    load,
    probe,
    raising,
    stalled,
    unfinished,
)
from tests.support.mirror import Rig, rig
from tests.support.waiting import eventually

DIGEST = "sha256:" + "a" * 64
DOWN = EngineUnavailable("http://fake", "connection refused")
EVERY = {"control_percent": 100.0}


def run(main: Any) -> None:
    virtual.run(main())


def is_control(prompt: Prompt) -> bool:
    return "/control/" in prompt.exchange_id


def only_control(script: Any) -> Any:
    """A baseline that behaves, and whose second run does this."""

    async def both(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        async for item in script(prompt) if is_control(prompt) else FakeEngine()._answer(prompt):
            yield item

    return both


def sound(comparison: Comparison) -> None:
    """Every pair says what its stored exchanges say again, and all share one baseline."""
    for pair in comparison.pairs:
        assert pair == compare(pair.left, pair.right)
        assert pair.left == comparison.pairs[0].left


# -- where and when -----------------------------------------------------------------------------------


def test_a_control_asks_the_same_under_a_salt_of_its_own() -> None:
    async def main() -> None:
        async with rig(**EVERY) as made:
            comparison = await made.comparison(request_id="r-1", fields={"temperature": 0.7})
            candidate, control = comparison.pairs
            assert [pair.right.arm for pair in comparison.pairs] == [Arm.CANDIDATE, Arm.CONTROL]
            assert comparison.triples[0].valid
            first, second = made.baseline[0].engine.prompts
            assert (first.exchange_id, second.exchange_id) == ("id-1/baseline/0", "id-1/control/0")
            assert first.token_ids == second.token_ids
            assert first.sampling == second.sampling
            assert second.sampling.seed == derive_seed("s", "r-1")
            assert second.sampling.logprobs == 5
            assert (
                len(
                    {
                        exchange.facts["cache_salt"].value
                        for exchange in (candidate.left, candidate.right, control.right)
                    }
                )
                == 3
            )
            assert control.right.pool == "old"
            assert control.fork is None
            assert control.valid
            sound(comparison)

    run(main)


def test_a_pool_of_one_runs_it_after_the_first_has_ended() -> None:
    """Twins in one batch agree more than two runs do, so the two never run at once."""

    async def main() -> None:
        beside: list[int] = []

        class Watching(FakeEngine):
            async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
                if is_control(prompt):
                    beside.append(self.active)
                async for item in super().generate(prompt):
                    yield item

        baseline, candidate = Watching(length=9), FakeEngine(script=stalled)
        async with rig(baseline, candidate, arm_timeout_s=0.3, **EVERY) as made:
            made.submit(request_id="r-1")
            await eventually(lambda: beside, "the control")
            assert candidate.active == 1  # it waits for nobody but the baseline
            await made.settled()
            assert beside == [0]
            assert baseline.most_active == 1
            comparison = made.sink.comparisons[1]
            assert comparison.controls[0].valid
            assert comparison.candidates[0].right.outcome is Outcome.TIMED_OUT

    run(main)


def test_a_pool_of_several_runs_it_elsewhere_and_at_once() -> None:
    async def main() -> None:
        engines = [FakeEngine(f"http://{name}") for name in ("a", "b")]
        for engine in engines:
            engine.gate = asyncio.Event()
        async with rig([FakeEndpoint(one) for one in engines], **EVERY) as made:
            made.submit()
            await eventually(lambda: [one.active for one in engines] == [1, 1], "both at once")
            for engine in engines:
                assert engine.gate is not None
                engine.gate.set()
            await made.settled()
            (control,) = made.sink.comparisons[1].controls
            assert {control.left.endpoint, control.right.endpoint} == {"http://a", "http://b"}

    run(main)


@pytest.mark.parametrize(
    "other",
    [
        FakeEndpoint(FakeEngine("http://b"), error="http://b: not probed yet"),
        FakeEndpoint(FakeEngine("http://b"), probe(EVERYTHING - {Capability.SEED})),
        FakeEndpoint(FakeEngine("http://b"), probe(max_logprobs=3)),
    ],
    ids=["not probed", "honours no seed", "tells fewer logprobs"],
)
def test_an_endpoint_that_cannot_stand_in_is_no_place_for_it(other: FakeEndpoint) -> None:
    async def main() -> None:
        first = FakeEndpoint(FakeEngine("http://a"))
        async with rig([first, other], **EVERY) as made:
            for _ in range(4):
                comparison = await made.comparison()
                for pair in comparison.controls:
                    if pair.left.endpoint == "http://a":
                        assert pair.right.endpoint == "http://a"

    run(main)


def test_a_busy_endpoint_is_no_place_for_it() -> None:
    async def main() -> None:
        engines = [FakeEngine("http://a"), FakeEngine("http://b")]
        engines[1].now = load(9, 9, 1.0)
        async with rig([FakeEndpoint(one) for one in engines], dedicated=False, **EVERY) as made:
            (control,) = (await made.comparison()).controls
            assert control.left.endpoint == control.right.endpoint == "http://a"
            assert engines[1].prompts == []

    run(main)


def test_a_request_that_goes_as_itself_does_so_three_times() -> None:
    async def main() -> None:
        async with rig(**EVERY) as made:
            comparison = await made.comparison(fields={"tools": [{"type": "function"}]})
            assert [pair.valid for pair in comparison.pairs] == [True, True]
            for prompt in (*made.baseline[0].engine.prompts, *made.candidate[0].engine.prompts):
                assert prompt.call is not None
            sound(comparison)

    run(main)


@pytest.mark.parametrize("mute", [Arm.BASELINE, Arm.CANDIDATE, Arm.CONTROL])
def test_an_echo_that_is_missing_somewhere_leaves_one_baseline_in_all_pairs(mute: Arm) -> None:
    async def answer(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        yield Steps((fake_step(prompt, 0),))
        echo = None if f"/{mute}/" in prompt.exchange_id else (1, 2, 3)
        yield Finish(finish_reason="stop", prompt_token_ids=echo)

    async def main() -> None:
        async with rig(FakeEngine(script=answer), FakeEngine(script=answer), **EVERY) as made:
            comparison = await made.comparison(fields={"tools": [{"type": "function"}]})
            assert all(pair.valid for pair in comparison.pairs)
            assert len(comparison.controls) == (0 if mute is Arm.CONTROL else 1)
            sound(comparison)

    run(main)


def test_no_control_runs_where_the_prompts_differ() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_shift=1), **EVERY) as made:
            comparison = await made.comparison()
            assert comparison.pairs[0].set_aside is SetAside.ENCODING_MISMATCH
            assert comparison.controls == ()
            assert made.baseline[0].engine.prompts == []

    run(main)


# -- forks --------------------------------------------------------------------------------------------


def test_its_fork_is_told_as_the_controls_own() -> None:
    async def main() -> None:
        engine = FakeEngine()

        async def second_differs(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            async for item in FakeEngine(fork_at=2 if is_control(prompt) else None)._answer(prompt):
                yield item

        engine.script = second_differs
        async with rig(engine, FakeEngine(fork_at=4), **EVERY) as made:
            comparison = await made.comparison()
            told = {event.right_arm: event for event in made.sink.forks}
            assert len(made.sink.forks) == 2
            assert told[Arm.CONTROL].fork.fork_index == 2
            assert told[Arm.CANDIDATE].fork.fork_index == 4
            assert {event.left_arm for event in told.values()} == {Arm.BASELINE}
            for pair in comparison.pairs:
                assert pair.fork == told[pair.right.arm].fork
            sound(comparison)

    run(main)


def test_a_control_whose_environment_is_not_proved_tells_nothing_early() -> None:
    async def main() -> None:
        baseline = FakeEndpoint(FakeEngine("http://a", digest=DIGEST), probe(environment_digest=DIGEST))
        unproved = FakeEndpoint(FakeEngine("http://b", digest=DIGEST, fork_at=1), probe())
        async with rig([baseline, unproved], declared=(DIGEST, None), **EVERY) as made:
            comparison = await made.comparison()
            arms = {pair.left.endpoint for pair in comparison.pairs}
            assert len(arms) == 1
            # Whichever of the two is the baseline here, a fork of theirs is not told before its proof.
            assert not any(event.right_arm is Arm.CONTROL for event in made.sink.forks)
            assert comparison.controls[0].fork is not None
            assert comparison.controls[0].valid

    run(main)


# -- its own trouble ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [raising(DOWN), raising(DOWN, after=2), raising(EngineRefused("http://fake", "429", 429)), stalled],
    ids=["dead", "breaks off", "refuses", "stalls"],
)
def test_its_failure_leaves_the_candidates_pair_alone(script: Any) -> None:
    async def main() -> None:
        baseline = FakeEngine(script=only_control(script))
        async with rig(baseline, FakeEngine(fork_at=3), arm_timeout_s=0.3, **EVERY) as made:
            comparison = await made.comparison()
            (pair,) = comparison.pairs
            assert pair.right.arm is Arm.CANDIDATE
            assert pair.valid
            assert pair.left.outcome is pair.right.outcome is Outcome.COMPLETED
            assert pair.fork is not None
            assert comparison.triples == ()
            sound(comparison)

    run(main)


@pytest.mark.parametrize("script", [raising(BROKEN, after=1), unfinished], ids=["broken", "unfinished"])
def test_an_answer_of_its_that_breaks_the_contract_is_set_aside_with_the_reason(script: Any) -> None:
    async def main() -> None:
        async with rig(FakeEngine(script=only_control(script)), **EVERY) as made:
            comparison = await made.comparison()
            candidate, control = comparison.pairs
            assert candidate.valid
            assert control.set_aside is SetAside.INVALID_ANSWER
            assert str(control.set_aside_reason).startswith("control: http://fake: ")
            assert not comparison.triples[0].valid
            sound(comparison)

    run(main)


def test_a_control_that_breaks_off_after_its_fork_has_forked() -> None:
    async def forks_and_breaks(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        yield Steps((fake_step(prompt, 0, variant=1),))
        raise DOWN

    async def main() -> None:
        async with rig(FakeEngine(script=only_control(forks_and_breaks)), **EVERY) as made:
            (control,) = (await made.comparison()).controls
            assert control.valid
            assert control.fork is not None

    run(main)


def test_a_candidate_that_fails_takes_no_control_away() -> None:
    """The floor must not depend on what the candidate did."""

    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(script=raising(DOWN)), **EVERY) as made:
            comparison = await made.comparison()
            assert comparison.candidates[0].right.outcome is Outcome.FAILED
            assert comparison.controls[0].valid
        async with rig(FakeEngine(), FakeEngine(encode_error=DOWN), **EVERY) as made:
            comparison = await made.comparison()
            assert "encoding" in str(comparison.candidates[0].right.error)
            assert comparison.controls[0].valid

    run(main)


def test_a_baseline_that_fails_is_not_asked_a_second_time() -> None:
    async def main() -> None:
        async with rig(FakeEngine(script=raising(DOWN, after=2)), **EVERY) as made:
            comparison = await made.comparison()
            assert comparison.pairs[0].set_aside is SetAside.BASELINE_FAILED
            assert len(made.baseline[0].engine.prompts) == 1
        elsewhere = [FakeEndpoint(FakeEngine(f"http://{name}")) for name in ("a", "b")]
        for endpoint in elsewhere:
            endpoint.engine.script = first_fails
        async with rig(elsewhere, FakeEngine(script=stalled), **EVERY) as made:
            assert (await made.drop())[0] == "baseline_unavailable"  # and the control beside it was stopped

    async def first_fails(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        async for item in stalled(prompt) if is_control(prompt) else raising(DOWN)(prompt):
            yield item

    run(main)


# -- ends ---------------------------------------------------------------------------------------------


def test_a_rollback_in_mid_control_aborts_it_and_keeps_what_is_whole() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=only_control(stalled))
        async with rig(baseline, FakeEngine(fork_at=3), in_flight=3, **EVERY) as made:
            made.submit(3)
            await eventually(lambda: baseline.active == 3 and len(baseline.prompts) == 6, "three controls")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await made.settled()
            assert baseline.active == 0
            assert len(made.sink.comparisons) == 3
            for comparison in made.sink.comparisons.values():
                (pair,) = comparison.pairs
                assert pair.valid
                assert pair.right.outcome is Outcome.COMPLETED

    run(main)


def test_a_rollback_before_the_baseline_ended_starts_no_control() -> None:
    async def main() -> None:
        baseline = FakeEngine(script=stalled)
        async with rig(baseline, FakeEngine(script=stalled), **EVERY) as made:
            made.submit()
            await eventually(lambda: baseline.active == 1, "the baseline")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await made.settled()
            assert made.sink.reasons == ["rolled_back"]
            assert len(baseline.prompts) == 1

    run(main)


@pytest.mark.parametrize("how", ["spared", "closed"])
def test_what_may_still_end_starts_no_further_arm(how: str) -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(length=4), FakeEngine(length=4, fork_at=0)
        baseline.gate, candidate.gate = asyncio.Event(), None
        async with rig(baseline, candidate, **EVERY) as made:
            made.submit()
            await eventually(lambda: baseline.active == 1, "the baseline")
            if how == "spared":
                ending = asyncio.create_task(made.mirror.stop_rollout("old-to-new", "breach", spare="id-1"))
            else:
                ending = asyncio.create_task(made.mirror.close(30.0))
            await asyncio.sleep(0)
            baseline.gate.set()
            await ending
            await made.settled()
            comparison = made.sink.comparisons[1]
            assert comparison.pairs[0].left.outcome is Outcome.COMPLETED
            assert comparison.controls == ()
            assert len(baseline.prompts) == 1

    run(main)


def test_a_fork_of_the_control_alone_keeps_no_pair_that_a_rollback_cut_short() -> None:
    async def main() -> None:
        async def answer(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            yield Steps((fake_step(prompt, 0, variant=int(is_control(prompt))),))
            await asyncio.Event().wait()

        pool = [FakeEndpoint(FakeEngine(f"http://{name}", script=answer)) for name in ("a", "b")]
        async with rig(pool, FakeEngine(script=stalled), **EVERY) as made:
            made.submit()
            await eventually(lambda: made.sink.forks, "the control's fork")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await made.settled()
            assert made.sink.reasons == ["rolled_back"]

    run(main)


def test_a_bug_in_the_sink_spoils_no_pair() -> None:
    def broken(event: ForkSeen) -> None:
        raise RuntimeError("a bug in a gate")

    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(fork_at=1), **EVERY) as made:
            made.sink.fork_seen = broken  # type: ignore[method-assign]
            assert len((await made.comparison()).pairs) == 2

    run(main)


# -- what it costs, and what ran beside it ------------------------------------------------------------


def test_its_tokens_and_requests_are_counted_to_the_baselines_pool() -> None:
    async def main() -> None:
        async with rig(**EVERY) as made:
            await made.comparison()
            (status,) = made.mirror.status()
            # 5 prompt and 6 output tokens an arm.
            assert status.spent.total_by_pool == {"old": 22, "new": 11}
            assert status.spent.requests_by_pool == {"old": 2, "new": 1}
            assert (status.controls, status.replicates) == (1, 0)

    run(main)


def test_a_share_runs_a_control_and_none_of_those_is_cut() -> None:
    async def main() -> None:
        async with rig(
            FakeEngine(length=40),
            FakeEngine(length=40, fork_at=2),
            control_percent=50.0,
            token_only_percent=60.0,
            token_only_tail_tokens=2,
            max_tokens=64,
        ) as made:
            made.submit(60, fields={"max_tokens": 64})
            await made.settled()
            found = made.sink.comparisons.values()
            with_control = [one for one in found if one.controls]
            cut = [one for one in found if one.pairs[0].right.outcome is Outcome.CUT]
            assert 15 < len(with_control) < 45
            assert 5 < len(cut) < 35
            for one in with_control:
                assert not one.pairs[0].left.token_only
                assert {pair.right.outcome for pair in one.pairs} == {Outcome.COMPLETED}
                assert len(one.pairs[0].left.steps) == 40

    run(main)


def bands(comparison: Comparison) -> dict[Arm, Fact]:
    found = {pair.right.arm: pair.right.facts[CONCURRENCY] for pair in comparison.pairs}
    return {**found, Arm.BASELINE: comparison.pairs[0].left.facts[CONCURRENCY]}


def test_every_exchange_says_what_ran_beside_it() -> None:
    async def main() -> None:
        baseline, candidate = FakeEngine(), FakeEngine()
        baseline.now, candidate.now = load(running=5), load(running=0)
        async with rig(baseline, candidate, dedicated=False, **EVERY) as made:
            comparison = await made.comparison()
            assert bands(comparison) == {
                Arm.BASELINE: Fact(value=6),
                Arm.CONTROL: Fact(value=6),
                Arm.CANDIDATE: Fact(value=1),
            }
            assert comparison.triples[0].band is None  # 2 for the control, 0 for the candidate

    run(main)


def test_our_own_arms_count_where_nobody_else_works() -> None:
    async def main() -> None:
        mute = EngineUnavailable("http://fake", "/metrics: 404")
        baseline, candidate = FakeEngine(load_error=mute), FakeEngine(load_error=mute)
        baseline.gate = candidate.gate = asyncio.Event()
        async with rig(baseline, candidate, in_flight=4, **EVERY) as made:
            made.submit(4)
            await eventually(lambda: candidate.active == baseline.active == 4, "four captures")
            baseline.gate.set()
            await made.settled()
            seen = sorted(
                one.pairs[0].right.facts[CONCURRENCY].value for one in made.sink.comparisons.values()
            )
            assert seen == [1, 2, 3, 4]
            assert {band_of(one.pairs[0].right) for one in made.sink.comparisons.values()} == {0, 1, 2}

    run(main)


def test_an_arm_that_never_ran_has_no_band() -> None:
    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(encode_shift=1)) as made:
            pair = await made.pair()
            assert "never ran" in str(pair.left.facts[CONCURRENCY].unknown)
            assert band_of(pair.left) is None
        live = FakeEngine(load_error=EngineUnavailable("http://fake", "/metrics: 404"))
        async with rig(live, dedicated=False) as made:
            pair = await made.pair()
            assert "live work runs there too" in str(pair.left.facts[CONCURRENCY].unknown)
            assert band_of(pair.left) is None

    run(main)


def test_the_rig_balances_with_controls_under_everything_at_once() -> None:
    """A crowd of captures with controls and a stop in the middle: each ends once (``Rig.check``)."""

    async def main() -> None:
        made: Rig
        async with rig(
            [FakeEndpoint(FakeEngine(f"http://{name}")) for name in ("a", "b", "c")],
            FakeEngine(fork_at=3),
            control_percent=50.0,
            in_flight=4,
        ) as made:
            for _ in range(10):
                made.submit(6, fields={"temperature": 0.5})
                await asyncio.sleep(0.001)
            await made.mirror.stop_rollout("old-to-new", "breach")
            made.mirror.resume_rollout("old-to-new")
            made.submit(6)
            await made.settled()
            assert len(made.sink.comparisons) > 6

    run(main)
