"""What the next judge takes over: the last checkpoint, and everything that the journal holds behind it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from comparator.evidence import EvidenceReader
from comparator.records import Arm, Fact
from forkgate.judge import checkpoint as module
from forkgate.judge.recompute import recompute
from policies.rollout import RollBack, RolloutState, Stage
from tests.support.exchanges import comparison, live, pair
from tests.support.judging import Bench, fork_seen
from tests.support.waiting import eventually

NAME = "old-to-new"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def with_control(number: int, replicates: int = 2) -> Comparison:
    """Two replicates with a control each: six exchanges, whose first two are no pair to fold alone."""
    pairs = []
    for replicate in range(replicates):
        mine = {"replicate": replicate, "facts": {"concurrency": Fact(value=1)}}
        capture_id = f"c-{number}"
        candidate = pair(capture_id=capture_id, left=mine, right=mine)
        control = pair(capture_id=capture_id, right_arm=Arm.CONTROL, left=mine, right=mine)
        pairs += [candidate, msgspec.structs.replace(control, left=candidate.left)]
    return comparison(*pairs)


async def evidence(bench: Bench, first: int, last: int) -> None:
    for number in range(first, last):
        await bench.judge.comparison_finished(with_control(number), "edge-1", number)
        bench.judge.live([live(sequence=number, canary=True, first_byte_s=0.1 * number)])


def same(mine: RolloutState, other: RolloutState) -> bool:
    return mine == msgspec.structs.replace(other, sequence=mine.sequence)


def rows(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    assert db.execute(statement).rowcount > 0
    db.commit()
    db.close()


def test_everything_after_the_checkpoint_is_taken_in_again_as_it_was(tmp_path: Path) -> None:
    """Control arms, replicates and live records: the state is the one that the killed judge had."""
    states: list[RolloutState] = []

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await evidence(bench, 1, 3)
            await bench.checkpoints.save()
            await evidence(bench, 3, 9)
            states.append(bench.desk.state(NAME))
            tally = bench.desk.tallies[NAME]
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME) == states[0]
            assert bench.desk.tallies[NAME].pairs == tally.pairs
            assert bench.checkpoints.caught_up == []

    run(main())


def test_many_events_are_taken_in_by_the_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 3)

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            await evidence(bench, 1, 9)
            state = bench.desk.state(NAME)
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME) == state

    run(main())


def test_rollback_that_was_decided_and_not_latched_is_obeyed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
        bench.paths.latch.unlink()  # kill -9 before its first write
        async with Bench(tmp_path) as bench:
            (asked,) = bench.checkpoints.caught_up
            assert any(isinstance(effect, RollBack) for effect in asked.effects)
            assert bench.desk.state(NAME).stage is Stage.ROLLED_BACK

    run(main())


def test_latched_rollout_keeps_what_its_gates_said_and_its_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await evidence(bench, 1, 3)
            await bench.checkpoints.save()
            await evidence(bench, 3, 5)
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            state = bench.desk.state(NAME)
        async with Bench(tmp_path) as bench:
            assert bench.checkpoints.caught_up == []
            assert bench.desk.state(NAME).gates == state.gates
            assert bench.desk.state(NAME).evidence == state.evidence
            assert bench.desk.state(NAME).latch is not None

    run(main())


def test_lift_after_the_checkpoint_is_taken_in_again_with_what_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await evidence(bench, 1, 3)
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            await bench.checkpoints.save()
            assert await bench.lift(NAME, "me", "driver fixed")
            await evidence(bench, 3, 5)
            state = bench.desk.state(NAME)
        async with Bench(tmp_path) as bench:
            assert same(bench.desk.state(NAME), state)
            assert not any(
                isinstance(effect, RollBack)
                for asked in bench.checkpoints.caught_up
                for effect in asked.effects
            )
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            done = recompute(reader, NAME)
            assert (done.differing, done.unknown, done.problems) == (0, 0, ())

    run(main())


def test_lift_that_the_journal_lost_starts_from_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            await bench.checkpoints.save()
            assert await bench.lift(NAME, "me", "driver fixed")
        rows(tmp_path / "evidence.db", "DELETE FROM journal WHERE kind = 'Lift'")
        async with Bench(tmp_path) as bench:
            state = bench.desk.state(NAME)
            assert state.latch is None
            assert state.gates == {name: gate.initial() for name, gate in state.plan.policy.gates.items()}
            assert state.evidence == 1  # numbers go on

    run(main())


def test_evidence_that_the_store_lost_is_left_out_and_the_rest_taken_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            await evidence(bench, 1, 5)
        rows(tmp_path / "evidence.db", "DELETE FROM pair WHERE capture_id = 'c-2'")
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME).evidence == 7
            assert bench.desk.state(NAME).gates["token_equality"].pairs == 6  # type: ignore[union-attr]
            await evidence(bench, 5, 7)
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME).evidence == 11

    run(main())


def test_ignored_events_do_not_make_older_ones_count_twice(tmp_path: Path) -> None:
    """What comes while it is rolled back is counted and not kept: numbers must rise all the same."""

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            await evidence(bench, 1, 4)  # ignored
            assert await bench.lift(NAME, "me", "driver fixed")
            await evidence(bench, 4, 6)
            state = bench.desk.state(NAME)
        for _ in range(2):
            async with Bench(tmp_path) as bench:
                assert bench.desk.state(NAME) == state
                await bench.checkpoints.save()

    run(main())


def test_a_checkpoint_that_another_time_wrote_is_read(tmp_path: Path) -> None:
    """Older ones named the captures in the state; the journal made that needless."""

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await evidence(bench, 1, 3)
            await bench.checkpoints.save()
            state = bench.desk.state(NAME)
        file = tmp_path / "rollouts.json"
        kept = msgspec.json.decode(file.read_bytes())
        kept["rollouts"][0]["folded"] = ["c-1", "c-2"]
        file.write_bytes(msgspec.json.encode(kept))
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME) == state

    run(main())


def test_events_that_are_left_out_for_their_number_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_AGAIN", 4)

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            await evidence(bench, 1, 6)
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME).evidence == 4
        assert "is missing from the journal" in caplog.text
        (record,) = [one for one in caplog.records if "missing from the journal" in one.message]
        assert record.missing == "1-6"  # type: ignore[attr-defined]

    run(main())


def test_states_that_the_disk_refuses_are_a_trouble_until_it_takes_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path / "state") as bench:
            await evidence(bench, 0, 1)
            in_the_way = bench.paths.rollouts.with_name("rollouts.json.new")
            in_the_way.mkdir()
            await bench.checkpoints.save()
            assert bench.checkpoints.trouble is not None
            assert "rollout states are not kept" in bench.checkpoints.trouble
            in_the_way.rmdir()
            await bench.checkpoints.save()
            assert bench.checkpoints.trouble is None
            assert bench.paths.rollouts.exists()

    run(main())
