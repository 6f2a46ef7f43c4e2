"""Evidence is folded of the environment that a rollout compares, and of no other."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from comparator.evidence import EvidenceReader
from comparator.records import EngineSample, Fact, LiveRecord
from engines.base import Engine, EngineOptions
from forkgate.config import loads
from forkgate.fleet import Fleet
from forkgate.judge.engine_watch import EngineWatch
from forkgate.judge.provenance import NONE_TOLD, LiveAnswers, is_foreign, most_met
from forkgate.judge.recompute import recompute
from policies.rollout import HoldCause, Lift
from proxy.live import ODD_ENVIRONMENT
from tests.support.engines import FakeEngine, probe
from tests.support.exchanges import live
from tests.support.judging import TEXT, Bench, config

NAME = "old-to-new"
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
OLD, NEW = "http://127.0.0.1:9001", "http://127.0.0.1:9002"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# -- what is compared, and what is not of it ----------------------------------------------------------


def test_a_pool_is_compared_as_what_most_of_its_endpoints_are() -> None:
    assert most_met({}) is None
    assert most_met({"1": {"version": "1"}, "2": {"environment_digest": NONE_TOLD}}) is None
    assert most_met({"1": {"environment_digest": B}, "2": {"environment_digest": A}}) == B
    facts = [{"environment_digest": digest} for digest in (B, A, A)]
    assert most_met({str(number): one for number, one in enumerate(facts)}) == A


@pytest.mark.parametrize(
    ("record", "foreign"),
    [
        (live(), False),  # nobody told
        (replace(live(), environment=A), False),
        (replace(live(), environment=B), True),
        (replace(live(), environment=B, environment_by_probe=True), True),
        (replace(live(), environment=ODD_ENVIRONMENT), True),
        (replace(live(status=500), environment=B), True),  # the baseline's failures flatter the candidate
        (replace(live(canary=True), environment=B), True),
        (replace(live(canary=True, status=500), environment=B), False),  # to go home is right
        (replace(live(canary=True, retried=True), environment=B), False),
        (replace(live(canary=True, status=400), environment=B), True),
    ],
)
def test_a_record_of_another_environment_is_not_folded_unless_a_canary_failed(
    record: LiveRecord, foreign: bool
) -> None:
    assert is_foreign(record, A) is foreign
    assert not is_foreign(record, None)


def sample(environment: str, rollout: str = NAME) -> EngineSample:
    return EngineSample(
        rollout=rollout,
        pool="new",
        endpoint=NEW,
        candidate=True,
        unix_s=1.0,
        running=0,
        waiting=0,
        kv_cache_usage=Fact(value=0.1),
        memory_bytes=Fact(value=2**40),
        generated_tokens=Fact(value=1),
        environment=environment,
    )


# -- what live answers tell ---------------------------------------------------------------------------


class Probing(FakeEngine):
    """Its probe tells a digest; its answers do not."""

    async def probe(self) -> Any:
        return probe() if self.digest is None else probe(environment_digest=self.digest)


class Watch:
    def __init__(self, state_dir: Path, *digests: str | None, text: str = TEXT) -> None:
        self.engines: list[Probing] = []
        told = iter(digests)

        def open_engine(base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
            self.engines.append(Probing(base_url, digest=next(told)))
            return self.engines[-1]

        self.fleet = Fleet(loads(text.format(state_dir=state_dir)), open_engine)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.watch = EngineWatch(self.fleet, lambda: (), self)
        self.now = 4e9
        self.answers = LiveAnswers(self.fleet, lambda: self.now)

    async def probed(self) -> None:
        for pool in ("old", "new"):
            for one in self.fleet.endpoints(pool):
                await self.fleet._probe(pool, one)

    def engine_sampled(self, sample: EngineSample) -> None:
        raise AssertionError("nothing is sampled here")

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str]) -> None:
        self.seen.append((pool, endpoint, facts))

    def take(self, *records: LiveRecord) -> list[tuple[str, bool]]:
        return [
            (record.environment, record.environment_by_probe) for record in self.answers.attribute(records)
        ]


def answered(environment: str = "", at: float = 0.0, **changes: Any) -> LiveRecord:
    record = live(canary=True, started_unix_s=3e9 + at)
    return replace(record, endpoint=NEW, environment=environment, **changes)


def test_a_probe_says_who_answered_where_answers_do_not_and_the_record_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        made = Watch(tmp_path, A, B)
        assert made.take(answered()) == [("", False)]  # not probed yet
        await made.probed()
        assert made.take(answered()) == [(B, True)]
        assert made.take(replace(answered(), endpoint="http://elsewhere")) == [("", False)]
        assert made.take(replace(answered(), first_byte_s=float("nan"))) == [("", False)]

    run(main())


def test_a_live_answer_of_another_environment_is_told_and_the_engine_doubted_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        made = Watch(tmp_path, A, A)
        await made.probed()
        made.seen.clear()
        (one,) = made.fleet.endpoints("new")
        assert made.take(answered(A), answered(B, 1.0)) == [(A, False), (B, False)]
        assert made.seen == [("new", NEW, {"environment_digest": B})]
        assert one.doubted.is_set()
        assert made.take(answered(A, 0.5)) == [(A, False)]  # of before: another edge's batch, late
        assert len(made.seen) == 1
        assert made.take(answered("", 2.0)) == [
            (ODD_ENVIRONMENT, False)
        ]  # its answers tell, this one does not
        old_edge = answered("", 3.0, environment_by_probe=True)
        assert made.take(old_edge) == [(B, True)]
        assert made.take(answered(ODD_ENVIRONMENT, 4.0)) == [(ODD_ENVIRONMENT, False)]
        assert one.view()["odd_environments"] == 1

    run(main())


def test_an_edge_whose_clock_is_ahead_makes_no_later_answer_look_old(tmp_path: Path) -> None:
    async def main() -> None:
        made = Watch(tmp_path, A, A)
        await made.probed()
        (one,) = made.fleet.endpoints("new")
        made.now = 3e9
        made.take(answered(B, 1e6))
        one.told(A, 3e9 + 1.0)
        assert one.environment.value == A

    run(main())


def test_an_endpoint_that_live_traffic_alone_reaches_is_watched_by_its_answers(tmp_path: Path) -> None:
    text = TEXT.replace(f'["{NEW}"]', f'["{NEW}"], shadow_endpoints: ["http://127.0.0.1:9102"]')

    async def main() -> None:
        made = Watch(tmp_path, A, B, text=text)
        await made.probed()
        made.seen.clear()
        assert made.take(answered(), answered(A)) == [("", False), (A, False)]
        assert made.seen == [("new", NEW, {"environment_digest": A})]
        view = next(pool for pool in made.fleet.view("old") if pool["name"] == "new")
        assert view["environments"] == {B: ["http://127.0.0.1:9102"], A: [NEW]}
        assert [one["url"] for one in view["live_endpoints"]] == [NEW]
        (line,) = made.fleet.troubles()
        assert "2 environments" in line

    run(main())


# -- a rollout ----------------------------------------------------------------------------------------


def mixed(numbers: Sequence[int], environment: str, **changes: Any) -> list[LiveRecord]:
    return [
        replace(
            live(sequence=number, canary=number % 2 == 0, first_byte_s=0.1 + number / 997, **changes),
            environment=environment,
        )
        for number in numbers
    ]


def meet(bench: Bench, old: str = A, new: str = B) -> None:
    bench.judge.environment_seen("old", OLD, {"version": "1", "environment_digest": old})
    bench.judge.environment_seen("new", NEW, {"version": "1", "environment_digest": new})


def test_records_and_samples_of_another_environment_move_no_gate_and_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            meet(bench)
            bench.judge.live(mixed(range(1, 20, 2), A))
            bench.judge.live(mixed(range(2, 20, 2), B))
            bench.judge.engine_sampled(sample(B))
            state = bench.desk.state(NAME)
            assert state.evidence == 20
            bench.judge.live(mixed(range(21, 40), "sha256:" + "c" * 64))
            bench.judge.engine_sampled(sample(A))
            tally = bench.desk.tallies[NAME]
            assert bench.desk.state(NAME) is state
            assert tally.live_set_aside == {"old": 10, "new": 9}
            assert tally.samples_set_aside == 1

    run(main())


def test_what_a_rollout_compares_outlives_a_swap_a_kill_and_ends_with_a_lift(tmp_path: Path) -> None:
    other = "sha256:" + "c" * 64

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            meet(bench)
            await bench.checkpoints.save()
            bench.judge.live(mixed(range(2, 20, 2), B))
            bench.judge.environment_seen("new", NEW, {"environment_digest": other})
            held = bench.desk.state(NAME).held
            assert held is not None
            assert held.cause is HoldCause.ENVIRONMENT
            assert other in held.reason
            bench.judge.live(mixed(range(20, 40, 2), other))
            assert bench.desk.tallies[NAME].live_set_aside == {"new": 10}
        # Nothing was saved since: the next judge has the checkpoint of before the swap, and the journal.
        async with Bench(tmp_path) as bench:
            assert bench.desk.compared(NAME, "new") == B
            assert bench.desk.compared(NAME, "old") == A
            before = bench.desk.state(NAME).evidence
            bench.judge.live(mixed(range(40, 60, 2), other))
            assert bench.desk.state(NAME).evidence == before
            await bench.judge.act(NAME, Lift(who="me", why="it is the new build", unix_s=2e9))
            assert bench.desk.compared(NAME, "new") == other
            bench.judge.live(mixed(range(60, 80, 2), other))
            bench.judge.live(mixed(range(80, 90, 2), B))
            assert bench.desk.state(NAME).evidence == before + 10
            assert bench.desk.tallies[NAME].live_set_aside == {"new": 5}

    run(main())


def test_verdicts_are_recomputed_bit_for_bit_where_records_were_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            meet(bench)
            for at in range(0, 400, 40):
                bench.judge.live(mixed(range(at + 1, at + 41, 2), A))
                bench.judge.live(mixed(range(at + 2, at + 41, 2), B))
                bench.judge.live(mixed(range(at + 1, at + 41), "sha256:" + "c" * 64))
                bench.judge.live(mixed(range(at + 1, at + 11), "", status=503))
            last = bench.desk.state(NAME)
        reader = EvidenceReader(bench.paths.evidence)
        found = recompute(reader, NAME)
        reader.close()
        assert (found.differing, found.problems, found.told) == (0, (), ())
        assert found.equal > 0
        assert found.evidence == last.evidence
        assert bench.desk.tallies[NAME].live_set_aside == {"old": 200, "new": 200}

    run(main())


def test_a_declared_environment_is_what_is_compared_whatever_was_met_first(tmp_path: Path) -> None:
    async def main() -> None:
        bench = Bench(tmp_path)
        pools = tuple(
            replace(pool, environment_digest=A if pool.name == "new" else None) for pool in bench.config.pools
        )
        bench.config = replace(bench.config, pools=pools)
        async with bench:
            meet(bench)
            assert bench.desk.compared(NAME, "new") == A
            assert bench.desk.compared(NAME, "old") == A  # met
            bench.judge.live(mixed(range(2, 20, 2), B))
            assert bench.desk.tallies[NAME].live_set_aside == {"new": 9}
            assert bench.desk.compared(NAME, "third") is None

    run(main())


def test_what_was_met_before_a_rollout_copies_is_not_what_it_compares_for_ever(tmp_path: Path) -> None:
    """A new build is put there before the start: nothing was compared yet, so nothing is kept."""

    async def main() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            assert not bench.desk.state(NAME).mirrors
            meet(bench)
            bench.judge.environment_seen("new", NEW, {"environment_digest": A})
            assert bench.desk.compared(NAME, "new") == A

    run(main())


def test_an_engine_that_told_and_tells_no_more_is_a_change(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            engines: list[Probing] = []

            def open_engine(base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
                engines.append(Probing(base_url, digest=A))
                return engines[-1]

            fleet = Fleet(config(tmp_path), open_engine)
            EngineWatch(fleet, bench.desk.states, bench.judge)
            (one,) = fleet.endpoints("new")
            await fleet._probe("new", one)
            assert bench.desk.state(NAME).held is None
            engines[1].digest = None
            await fleet._probe("new", one)
            held = bench.desk.state(NAME).held
            assert held is not None
            assert NONE_TOLD in held.reason

    run(main())
