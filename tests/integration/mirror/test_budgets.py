"""What a rollout's shadow may cost, and what is dropped when that is reached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engines.base import EngineUnavailable, Load
from proxy.mirror import Sources
from proxy.mirror.room import PROBE_WAIT_S
from tests.support import virtual
from tests.support.engines import FakeEndpoint, FakeEngine, endless, load, probe, stalled
from tests.support.mirror import Rig, rig
from tests.support.waiting import eventually


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.unix_s = 1_700_000_000.0

    def sources(self) -> Sources:
        return Sources(monotonic=lambda: self.now_s, unix=lambda: self.unix_s)

    def wait(self, made: Rig, seconds: float) -> None:
        self.now_s += seconds
        self.unix_s += seconds
        made.mirror.poke()


def run(main: Any) -> None:
    virtual.run(main())


def gated(**options: Any) -> FakeEngine:
    engine = FakeEngine(**options)
    engine.gate = asyncio.Event()
    return engine


def opened(*engines: FakeEngine) -> None:
    for engine in engines:
        assert engine.gate is not None
        engine.gate.set()


async def blocked(made: Rig, by: str) -> None:
    """Until the head of the queue waits for this reason."""
    await eventually(lambda: (made.mirror.status()[0].blocked or "").startswith(by), f"a wait for {by}")


def test_no_more_pairs_run_than_allowed_and_the_others_wait() -> None:
    async def main() -> None:
        baseline, candidate = gated(), gated()
        async with rig(baseline, candidate, in_flight=3) as made:
            made.submit(10)
            await eventually(lambda: candidate.active == 3, "three pairs")
            await blocked(made, "in_flight_limit: 3 captures run")
            (status,) = made.mirror.status()
            assert (status.running, status.queued) == (3, 7)
            opened(baseline, candidate)
            await made.settled()
            assert len(made.sink.pairs) == 10
            assert baseline.most_active == candidate.most_active == 3

    run(main)


def test_a_full_queue_drops_the_newcomer_for_what_blocks_it() -> None:
    async def main() -> None:
        baseline, candidate = gated(), gated()
        async with rig(baseline, candidate, in_flight=1, queue_items=2) as made:
            made.submit()
            await eventually(lambda: candidate.active == 1, "the first pair")
            made.submit(5)
            await eventually(lambda: len(made.sink.drops) == 3, "three drops")
            assert sorted(made.sink.drops) == [4, 5, 6]
            assert made.sink.reasons == ["in_flight_limit"] * 3
            opened(baseline, candidate)
            await made.settled()

    run(main)


def test_a_queue_is_bounded_in_bytes() -> None:
    async def main() -> None:
        baseline, candidate = gated(), gated()
        async with rig(baseline, candidate, in_flight=1, queue_bytes=5_000) as made:
            made.submit()
            await eventually(lambda: candidate.active == 1, "the first pair")
            made.submit(4, fields={"prompt": "x" * 2_000})
            await eventually(lambda: len(made.sink.drops) == 2, "two drops")
            assert "bytes wait already" in made.sink.drops[5][1]
            opened(baseline, candidate)
            await made.settled()

    run(main)


def test_a_capture_that_waited_too_long_is_dropped_with_what_kept_it() -> None:
    async def main() -> None:
        clock = Clock()
        baseline, candidate = gated(), gated()
        async with rig(baseline, candidate, in_flight=1, queue_age_s=10.0, sources=clock.sources()) as made:
            made.submit()
            await eventually(lambda: candidate.active == 1, "the first pair")
            made.submit()
            await blocked(made, "in_flight_limit")
            clock.wait(made, 6.0)
            made.submit()
            clock.wait(made, 6.0)
            await eventually(lambda: made.sink.drops, "the drop")
            assert made.sink.drops == {2: ("too_old", "waited 12.0 s; in_flight_limit: 1 captures run")}
            opened(baseline, candidate)
            await made.settled()
            assert sorted(made.sink.pairs) == [1, 3]

    run(main)


def test_tokens_a_second_are_kept_by_waiting() -> None:
    async def main() -> None:
        clock = Clock()
        # A pair takes 2 x (5 prompt + 6 output) = 22 tokens, so 44 a second is two pairs a second.
        async with rig(tokens_per_second=44.0, in_flight=1, sources=clock.sources()) as made:
            made.submit(8)
            await blocked(made, "token_rate")
            assert len(made.sink.pairs) == 2
            assert made.mirror.status()[0].blocked == "token_rate: more than 44 tokens a second"
            for seconds in range(1, 4):
                clock.wait(made, 1.01)
                await eventually(lambda now=seconds: len(made.sink.pairs) == 2 + 2 * now, "two more")
            spent = made.mirror.status()[0].spent
            assert spent.total_tokens == 8 * 22
            assert spent.total_by_pool == {"old": 8 * 11, "new": 8 * 11}
            assert spent.requests_by_pool == {"old": 8, "new": 8}

    run(main)


def test_a_queue_that_overflows_for_want_of_tokens_says_so() -> None:
    async def main() -> None:
        clock = Clock()
        async with rig(
            tokens_per_second=10.0, in_flight=1, queue_items=2, queue_age_s=1e4, sources=clock.sources()
        ) as made:
            made.submit()
            await eventually(lambda: len(made.sink.pairs) == 1, "the first pair")
            made.submit()
            await blocked(made, "token_rate")
            made.submit(2)
            await eventually(lambda: made.sink.drops, "the drop")
            assert made.sink.reasons == ["token_rate"]
            clock.wait(made, 100.0)
            await eventually(lambda: len(made.sink.pairs) == 2, "the second pair")
            clock.wait(made, 100.0)
            await made.settled()

    run(main)


def test_a_days_tokens_end_and_come_again() -> None:
    async def main() -> None:
        clock = Clock()
        async with rig(tokens_per_day=30, in_flight=1, sources=clock.sources()) as made:
            made.submit(3)
            await made.settled()
            assert made.sink.drops == {3: ("token_day", "44 of 30 tokens are spent today")}
            made.submit()
            await made.settled()
            assert made.sink.reasons == ["token_day"] * 2
            clock.wait(made, 86_400.0)
            assert (await made.pair()).valid

    run(main)


def test_what_an_earlier_life_spent_today_counts() -> None:
    async def main() -> None:
        async with rig(tokens_per_day=100) as made:
            made.mirror.charge("old-to-new", 100, "acme")
            assert (await made.drop())[0] == "token_day"

    run(main)


def test_one_tenant_cannot_take_the_whole_queue() -> None:
    async def main() -> None:
        baseline, candidate = gated(), gated()
        async with rig(baseline, candidate, in_flight=1, queue_items=8, tenant_share_percent=50.0) as made:
            made.submit()
            await eventually(lambda: candidate.active == 1, "the first pair")
            made.submit(6, tenant="greedy")
            made.submit(2, tenant="modest")
            await eventually(lambda: len(made.sink.drops) == 2, "two drops")
            assert made.sink.reasons == ["tenant_budget"] * 2
            opened(baseline, candidate)
            await made.settled()
            tenants = [pair.left.tenant for pair in made.sink.pairs.values()]
            assert tenants.count("modest") == 2
            assert tenants.count("greedy") == 4

    run(main)


def test_a_slow_store_frees_the_engines_and_is_bounded_all_the_same() -> None:
    async def main() -> None:
        async with rig(in_flight=1, queue_items=1_000) as made:
            made.sink.store_gate = asyncio.Event()
            made.submit(100)
            await eventually(lambda: made.mirror.status()[0].storing == 20, "4 x 1 + 16 to wait")
            await blocked(made, "in_flight_limit: 20 pairs wait for the store")
            assert made.mirror.status()[0].storing == 20
            assert made.ledger.balance().compared == 0
            made.sink.store_gate.set()
            await made.settled()
            assert len(made.sink.pairs) == 100

    run(main)


def test_what_waits_for_the_store_is_bounded_in_pairs() -> None:
    async def main() -> None:
        async with rig(in_flight=1, queue_items=1_000, replicates=8, control_percent=100.0) as made:
            made.sink.store_gate = asyncio.Event()
            made.submit(5, fields={"temperature": 1})
            await blocked(made, "in_flight_limit: 32 pairs wait for the store")
            assert made.mirror.status()[0].storing == 2
            made.sink.store_gate.set()
            await made.settled()

    run(main)


# -- live work comes first ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (load(4, 2, 0.1), "http://live has 2 requests waiting"),
        (load(4, 0, 0.95), "http://live uses 95% of its KV cache"),
    ],
)
def test_shadows_wait_while_live_work_waits(told: Load, why: str) -> None:
    async def main() -> None:
        clock = Clock()
        live = FakeEngine("http://live")
        idle, live.now = live.now, told
        async with rig(live, dedicated=False, queue_items=2, sources=clock.sources()) as made:
            made.submit()
            await blocked(made, "pool_busy")
            assert why in str(made.mirror.status()[0].blocked)
            made.submit(2)
            await eventually(lambda: made.sink.drops, "the drop")
            assert made.sink.reasons == ["pool_busy"]
            assert live.prompts == []
            live.now = idle
            clock.wait(made, 1.5)
            await made.settled()
            assert len(made.sink.pairs) == 2

    run(main)


@pytest.mark.parametrize(("percent", "starts"), [(60.0, False), (95.0, True), (100.0, True)])
def test_how_full_a_cache_may_be_is_the_rollouts_to_say(percent: float, starts: bool) -> None:
    async def main() -> None:
        live = FakeEngine("http://live")
        live.now = load(4, 0, 0.95)
        async with rig(live, dedicated=False, kv_cache_percent=percent) as made:
            if starts:
                assert (await made.pair()).valid
                return
            made.submit()
            await blocked(made, "pool_busy")
            told = str(made.mirror.status()[0].blocked)
            assert "http://live uses 95% of its KV cache, more than 60 %" in told

    run(main)


def test_what_keeps_copies_from_starting_is_counted_once_a_copy() -> None:
    async def main() -> None:
        clock = Clock()
        live = FakeEngine("http://live")
        idle, live.now = live.now, load(4, 2, 0.1)
        async with rig(live, dedicated=False, tokens_per_day=22, sources=clock.sources()) as made:

            def refused() -> dict[str, int]:
                return {name: count for name, count in made.mirror.status()[0].refused.items() if count}

            made.submit()
            await blocked(made, "pool_busy: pool old: http://live has 2 requests waiting")
            for _ in range(3):  # looked at again and again
                live.now = load(4, 2, 0.1)
                clock.wait(made, 1.5)
                await blocked(made, "pool_busy")
            assert refused() == {"waiting_requests": 1}
            live.now = load(4, 0, 0.95)
            clock.wait(made, 1.5)
            await eventually(lambda: refused() == {"waiting_requests": 1, "kv_cache": 1}, "the cache")
            live.now = idle
            clock.wait(made, 1.5)
            await made.settled()
            assert (await made.drop())[0] == "token_day"
            assert refused() == {"waiting_requests": 1, "kv_cache": 1, "token_day": 1}
            assert made.mirror.status()[0].dropped == {"token_day": 1}
            assert made.mirror.status()[0].drop_details == {"token_day": "22 of 22 tokens are spent today"}

    run(main)


def test_dedicated_endpoints_are_never_too_busy() -> None:
    async def main() -> None:
        busy = FakeEngine()
        busy.now = load(9, 9, 1.0)
        async with rig(busy, dedicated=True) as made:
            assert (await made.pair()).valid

    run(main)


def test_an_endpoint_that_tells_no_load_is_said_so_once(caplog: pytest.LogCaptureFixture) -> None:
    class Mute(FakeEngine):
        async def load(self) -> Load:
            raise EngineUnavailable(self.base_url, "/metrics: 404")

    async def main() -> None:
        clock = Clock()
        async with rig(Mute("http://mute"), dedicated=False, sources=clock.sources()) as made:
            await made.pair()
            clock.wait(made, 5.0)
            await made.pair()

    run(main)
    assert caplog.text.count("load unknown, shadows do not wait for live work there") == 1


# -- several endpoints --------------------------------------------------------------------------------


def test_arms_spread_over_a_pools_endpoints_and_avoid_busy_ones() -> None:
    async def main() -> None:
        first, second, busy = gated(), gated(), FakeEngine()
        busy.now = load(9, 9, 1.0)
        pool = [FakeEndpoint(engine) for engine in (first, second, busy)]
        async with rig(pool, dedicated=False, in_flight=6) as made:
            made.submit(6)
            await eventually(lambda: first.active + second.active == 6, "six pairs")
            assert (first.active, second.active) == (3, 3)
            assert busy.prompts == []
            opened(first, second)
            await made.settled()

    run(main)


def test_captures_wait_for_the_baselines_first_probe() -> None:
    async def main() -> None:
        clock = Clock()
        late = FakeEndpoint(FakeEngine(), error="http://late: not probed yet")
        async with rig(late, queue_items=1, sources=clock.sources()) as made:
            made.submit(1)
            await blocked(made, "baseline_unavailable")
            made.submit(1)
            await eventually(lambda: made.sink.drops, "the drop")
            reason, detail = made.sink.drops[2]
            assert reason == "baseline_unavailable"
            assert "http://late: not probed yet" in detail
            late.probe = probe()
            clock.wait(made, 1.0)
            await made.settled()
            assert list(made.sink.pairs) == [1]

    run(main)


def test_a_candidate_that_never_answers_a_probe_becomes_evidence_after_a_while() -> None:
    async def main() -> None:
        clock = Clock()
        dead = FakeEngine(encode_error=EngineUnavailable("http://dead", "connection refused"))
        never = FakeEndpoint(dead, error="http://dead: connection refused")
        async with rig(FakeEngine(), never, sources=clock.sources(), queue_age_s=100.0) as made:
            made.submit()
            await blocked(made, "in_flight_limit: pool new: http://dead")
            assert dead.calls == []
            clock.wait(made, PROBE_WAIT_S + 1.0)
            await made.settled()
            assert made.sink.pairs[1].valid
            assert made.sink.pairs[1].right.outcome == "failed"

    run(main)


def test_endless_and_stalled_candidates_hold_no_more_than_their_slots() -> None:
    async def main() -> None:
        async with rig(
            FakeEngine(length=64),
            [FakeEndpoint(FakeEngine(script=endless)), FakeEndpoint(FakeEngine(script=stalled))],
            in_flight=4,
            arm_timeout_s=0.2,
        ) as made:
            made.submit(24, fields={"max_tokens": 64})
            await made.settled()
            outcomes = [str(pair.right.outcome) for pair in made.sink.pairs.values()]
            assert set(outcomes) == {"invalid", "timed_out"}
            assert len(outcomes) == 24
            assert all(len(pair.right.steps) <= 64 for pair in made.sink.pairs.values())

    run(main)
