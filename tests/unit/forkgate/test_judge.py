"""A breach goes token → latch → epoch → every edge, whatever the disk does, and stands across lives."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from comparator.compare import compare
from comparator.evidence import EvidenceError, EvidenceReader
from comparator.pair import Pair, SetAside
from comparator.records import Arm, Outcome
from forkgate.judge.recompute import recompute
from forkgate.state.latch import Latch, LatchFile, read_latch
from policies.rollout import HoldCause, RollBack, Stage
from policies.routes import RolloutName
from proxy.ledger import DropReason, EdgeCounts, JudgeLedger
from proxy.link.pb import link_pb2 as pb
from proxy.link.server import LinkServer
from proxy.link.values import EdgeIdentity
from proxy.live import FLAG_CANARY, RECORD_BYTES, LivePacker
from tests.support.exchanges import comparison, exchange, live, pair
from tests.support.judging import Bench, fork_seen
from tests.support.waiting import LIMIT_S, eventually

EDGE = EdgeIdentity(sidecar="host", worker=0, incarnation="edge-1")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    uvloop.run(bounded())


def equal_pair(capture_id: str) -> Pair:
    return compare(
        exchange((1, 2, 3), arm=Arm.BASELINE, capture_id=capture_id),
        exchange((1, 2, 3), arm=Arm.CANDIDATE, capture_id=capture_id),
    )


def forked_pair(capture_id: str) -> Pair:
    return compare(
        exchange((1, 2, 3), arm=Arm.BASELINE, capture_id=capture_id),
        exchange((1, 2, 9), arm=Arm.CANDIDATE, capture_id=capture_id),
    )


def test_fork_takes_the_tenant_home_and_every_edge_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            assert bench.publisher.table.routes == {"acme": "new"}
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            (done,) = bench.judge.flips
            assert bench.server.tables[-1].routes == {}
            assert bench.server.tables[-1].mirrors == ()
            assert bench.server.tables[-1].epoch == done.epoch
            assert (done.durable, done.edges, done.missing) == (True, 2, ())
            assert bench.mirror.stopped[0][0] == "old-to-new"
            assert "forked" in bench.mirror.stopped[0][1]
            assert bench.mirror.spared == [fork_seen().capture_id]  # it decided: its evidence is to be whole

    run(main())


def test_latch_is_on_disk_before_any_edge_hears_of_the_flip(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            seen: list[bool] = []
            publish = bench.server.publish
            bench.server.publish = lambda table: (  # type: ignore[method-assign]
                seen.append("old-to-new" in read_latch(bench.paths.latch).latched),
                publish(table),
            )[1]
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert seen == [True]

    run(main())


def test_full_disk_does_not_stop_the_flip_and_it_is_marked_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            real = os.pwrite

            def full(_fd: int, _data: bytes, _at: int) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(os, "pwrite", full)
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            monkeypatch.setattr(os, "pwrite", real)
            assert bench.server.tables[-1].routes == {}
            assert not bench.judge.flips[0].durable
            latch = bench.desk.state("old-to-new").latch
            assert latch is not None
            assert not latch.durable
            assert "No space left" in (bench.keeper.trouble or "")

    run(main())


def test_stalled_disk_delays_the_flip_by_its_bound_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        released = threading.Event()
        real = LatchFile.write

        def stalled(self: LatchFile, latch: Any) -> None:
            released.wait()
            real(self, latch)

        monkeypatch.setattr(LatchFile, "write", stalled)
        async with Bench(tmp_path, latch_s=0.05) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert bench.server.tables[-1].routes == {}
            assert not bench.judge.flips[0].durable
            released.set()
            await eventually(lambda: bench.keeper.durable)
            assert "old-to-new" in read_latch(bench.paths.latch).latched
            latch = bench.desk.state("old-to-new").latch
            assert latch is not None
            assert latch.durable, "and it is told so, though nobody waited any longer"

    run(main())


def test_disk_that_comes_back_writes_the_newest_latch_once_for_all_that_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        busy, released = threading.Event(), threading.Event()
        written: list[int] = []
        real = LatchFile.write

        def stalled(self: LatchFile, latch: Latch) -> None:
            busy.set()
            released.wait()
            written.append(latch.epoch)
            real(self, latch)

        monkeypatch.setattr(LatchFile, "write", stalled)
        async with Bench(tmp_path) as bench:
            first = asyncio.create_task(bench.keeper.hold(Latch(epoch=1), 60.0))
            await eventually(busy.is_set)
            later = [
                asyncio.create_task(bench.keeper.hold(Latch(epoch=number), 60.0)) for number in (2, 3, 4)
            ]
            await eventually(lambda: bench.keeper.latch.epoch == 4)
            released.set()
            assert all(one.durable for one in await asyncio.gather(first, *later))
            assert bench.keeper.durable
        assert written == [1, 4]

    run(main())


def test_read_only_latch_file_does_not_stop_the_flip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def read_only(self: LatchFile) -> Any:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(LatchFile, "open", read_only)
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert bench.server.tables[-1].routes == {}
            assert not bench.judge.flips[0].durable

    run(main())


def test_edge_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, acknowledge_s=0.05) as bench:
            bench.server.obedient = ("edge-1",)
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert bench.judge.flips[0].missing == ("edge-2",)

    run(main())


def test_rollback_stands_in_the_next_life_under_a_higher_epoch(tmp_path: Path) -> None:
    async def first() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)

    async def second() -> None:
        async with Bench(tmp_path) as bench:
            state = bench.desk.state("old-to-new")
            assert state.stage is Stage.ROLLED_BACK
            assert bench.publisher.table.routes == {}
            assert bench.publisher.table.epoch > 2

    run(first())
    run(second())


def test_damaged_latch_counts_every_rollout_as_rolled_back(tmp_path: Path) -> None:
    async def first() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)

    async def second() -> None:
        async with Bench(tmp_path) as bench:
            assert bench.desk.state("old-to-new").stage is Stage.ROLLED_BACK
            assert bench.publisher.table.routes == {}
            assert not bench.keeper.durable

    run(first())
    (tmp_path / "rollback.latch").write_bytes(b"\x07" * 131_072)
    run(second())


def test_lift_opens_the_latch_on_disk_and_starts_the_rollout_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert await bench.lift("old-to-new", "me", "driver fixed")
            assert bench.desk.state("old-to-new").stage is Stage.CANARY
            assert bench.server.tables[-1].routes == {"acme": "new"}
            assert set(bench.mirror.resumed) == {"old-to-new"}
            latch = read_latch(bench.paths.latch)
            assert latch.latched == {}
            assert latch.lifted[0].reason == "driver fixed"
            bench.judge.fork_seen(fork_seen("01900000-0000-7000-8000-000000000002"))
            await eventually(lambda: len(bench.judge.flips) == 2)
            assert bench.server.tables[-1].routes == {}

    run(main())


def test_lift_that_the_disk_refuses_leaves_the_rollback_standing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)

            def full(_fd: int, _data: bytes, _at: int) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            with monkeypatch.context() as patched:
                patched.setattr(os, "pwrite", full)
                assert not await bench.lift("old-to-new", "me", "why not")
            assert bench.desk.state("old-to-new").stage is Stage.ROLLED_BACK
            assert "old-to-new" in bench.keeper.latch.latched
            assert bench.server.tables[-1].routes == {}

    run(main())


def test_edge_ahead_of_us_gets_a_table_above_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.epoch_ahead(EDGE, 41)
            await eventually(lambda: bench.server.tables)
            assert bench.server.tables[-1].epoch == 42

    run(main())


def test_rollback_that_only_an_edge_was_told_of_stands(tmp_path: Path) -> None:
    """Its judge died after the announcement, with the latch refused by the disk and no supervisor near."""

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            assert bench.publisher.table.routes
            bench.judge.epoch_ahead(EDGE, 41)
            bench.judge.rolled_back(EDGE, {"old-to-new": 41, "forgotten": 40})
            assert bench.desk.state("old-to-new").stage is Stage.ROLLED_BACK
            await eventually(lambda: len(bench.server.tables) == 2)
            for table in bench.server.tables:  # no table, however early, makes a canary of the tenant again
                assert (table.routes, table.rolled_back) == ({}, {"old-to-new": 41, "forgotten": 40})
                assert table.epoch > 41
            await eventually(lambda: bench.mirror.stopped)
            assert not bench.keeper.durable
            written = await bench.keeper.hold(bench.keeper.latch, 10.0)  # as upkeep does
            assert written.durable
        async with Bench(tmp_path) as bench:
            assert bench.desk.state("old-to-new").stage is Stage.ROLLED_BACK

    run(main())


def test_rollback_that_was_lifted_since_does_not_come_back_from_a_late_edge(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            epoch = bench.judge.flips[-1].epoch
            assert await bench.lift("old-to-new", "ann", "known and fixed")
            bench.judge.rolled_back(EDGE, {"old-to-new": epoch})
            assert bench.desk.state("old-to-new").stage is not Stage.ROLLED_BACK

    run(main())


def test_lift_that_waits_in_line_keeps_what_is_latched_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            other = msgspec.structs.replace(
                bench.keeper.latch.latched["old-to-new"].rollback, rollout=RolloutName("other")
            )
            bench.publisher.listener = None  # the desk knows no such rollout
            rolling = asyncio.create_task(bench.publisher.roll_back(other, 0.0))
            lifting = asyncio.create_task(bench.lift("old-to-new", "ann", "known and fixed"))
            assert await lifting
            await rolling
            assert set(bench.keeper.latch.latched) == {"other"}
        assert set(read_latch(bench.paths.latch).latched) == {"other"}

    run(main())


def test_broken_evidence_store_fails_its_pair_and_never_the_rollback(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "evidence.db").write_bytes(b"this is no database at all, not even nearly" * 100)
        async with Bench(tmp_path) as bench:
            with pytest.raises(EvidenceError):
                await bench.judge.comparison_finished(comparison(forked_pair("c-1")), "edge-1", 1)
            await eventually(lambda: bench.judge.flips)
            assert bench.server.tables[-1].routes == {}
            assert bench.writer.trouble is not None

    run(main())


def test_canarys_errors_breach_the_live_gate(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.live([live(sequence=number, status=200, canary=True) for number in range(1, 60)])
            assert bench.desk.state("old-to-new").stage is Stage.CANARY
            bench.judge.live([live(sequence=60 + number, status=500, canary=True) for number in range(60)])
            await eventually(lambda: bench.judge.flips)
            assert bench.server.tables[-1].routes == {}

    run(main())


def test_pair_is_committed_before_it_counts_as_compared(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await asyncio.gather(
                *(
                    bench.judge.comparison_finished(comparison(equal_pair(f"c-{number}")), "edge-1", number)
                    for number in range(1, 41)
                )
            )
            with EvidenceReader(bench.paths.evidence) as reader:
                assert reader.ledger_counts("edge-1").compared == 40
            assert bench.desk.tallies["old-to-new"].pairs == 40

    run(main())


def test_drops_and_verdicts_reach_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.judge.dropped("edge-1", 1, "old-to-new", DropReason.UNSUPPORTED, "tools")
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            assert reader.ledger_counts("edge-1").dropped == {"unsupported": 1}
            verdicts = reader.verdicts(rollout="old-to-new")
            assert [(row.gate, row.answer, row.acted) for row in verdicts] == [
                ("token_equality", "fail", "rollback")
            ]
            assert verdicts[0].state

    run(main())


def test_next_judge_knows_what_ended_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.judge.comparison_finished(comparison(equal_pair("c-1")), "edge-1", 1)
            await bench.judge.dropped("edge-1", 2, "old-to-new", DropReason.TOO_OLD, "")
        async with Bench(tmp_path) as bench:
            past = await bench.writer.past("edge-1", [1, 2, 3])
            assert (past.compared, past.dropped, past.ended) == (1, {"too_old": 1}, frozenset({1, 2}))

    run(main())


def test_killed_judges_evidence_is_folded_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            for number in (1, 2):
                await bench.judge.comparison_finished(comparison(equal_pair(f"c-{number}")), "edge-1", number)
            await bench.checkpoints.save()
            for number in (3, 4, 5):
                await bench.judge.comparison_finished(comparison(equal_pair(f"c-{number}")), "edge-1", number)
            # no save: this is where kill -9 strikes
            evidence = bench.desk.state("old-to-new").evidence
        async with Bench(tmp_path) as bench:
            assert bench.desk.state("old-to-new").evidence == evidence == 5
            assert bench.desk.tallies["old-to-new"].pairs == 5
            assert bench.checkpoints.caught_up == []

    run(main())


def test_live_records_of_a_batch_that_comes_again_after_a_kill_count_once(tmp_path: Path) -> None:
    """Its receipt was lost with the judge: the edge can only send it again."""

    def served(bench: Bench) -> LinkServer:
        ledger = JudgeLedger()
        bench.checkpoints.batches = ledger.batches
        table = bench.publisher.table
        taken = bench.checkpoints.batches_before
        return LinkServer("unused", None, bench.judge, table, ledger=ledger, live_taken=taken)

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            server = served(bench)
            await server.take(live_batch("edge-1", 1))
            await server.take(live_batch("edge-2", 7))
            await bench.checkpoints.save()
            state = bench.desk.state("old-to-new")
            assert state.evidence == 2
        for before in (2, 3):  # kill -9 twice: what came after the checkpoint is in the journal
            async with Bench(tmp_path) as bench:
                server = served(bench)
                assert bench.desk.state("old-to-new").evidence == before
                await server.take(live_batch("edge-1", 1))
                await server.take(live_batch("edge-1", 2))
                assert bench.desk.state("old-to-new").evidence == 3
        async with Bench(tmp_path) as bench:
            server = served(bench)
            await server.take(live_batch("edge-1", 2))
            await bench.checkpoints.save()
        async with Bench(tmp_path) as bench:
            assert bench.checkpoints.batches_before == {"edge-1": 2, "edge-2": 7}

    run(main())


def live_batch(incarnation: str, number: int) -> pb.Batch:
    """One answer of the canary."""
    packer = LivePacker(10)
    packer.add(1.0, "acme", "new", "http://h:1", 200, 0.1, 0.2, 3, 4, 0, FLAG_CANARY)
    records, names = packer.take()
    batch = pb.Batch(batch=number, live_records=records, names=names, record_bytes=RECORD_BYTES)
    batch.edge.sidecar, batch.edge.incarnation = "host", incarnation
    return batch


def edited(state_dir: Path, *, percent: float = 10.0, policy: str | None = None) -> Bench:
    """The next judge's, whose configuration says something else of the first rollout."""
    bench = Bench(state_dir)
    first, *others = bench.config.rollouts
    if policy is not None:
        (state_dir / "edited.yaml").write_text(policy)
        first = msgspec.structs.replace(first, policy=str(state_dir / "edited.yaml"))
    shadow = msgspec.structs.replace(first.shadow, percent=percent)
    first = msgspec.structs.replace(first, shadow=shadow)
    bench.config = msgspec.structs.replace(bench.config, rollouts=(first, *others))
    return bench


STRICTER = "level: token\nalpha: 0.05\ngates: {token_equality: {minimum_pairs: 7}}\n"


def test_gates_go_on_when_nothing_frozen_changed_between_two_starts(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.judge.comparison_finished(comparison(equal_pair("c-1")), "edge-1", 1)
            gates = bench.desk.state("old-to-new").gates
            await bench.checkpoints.save()
        async with edited(tmp_path, percent=11.0) as bench:
            state = bench.desk.state("old-to-new")
            assert (state.plan.percent, state.evidence, state.held) == (11.0, 1, None)
            assert state.gates == gates
            await bench.judge.comparison_finished(comparison(equal_pair("c-2")), "edge-1", 2)
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            done = recompute(reader, "old-to-new")
        assert (done.differing, done.unknown, done.problems) == (0, 0, ())

    run(main())


@pytest.mark.parametrize("held_before", [False, True])
def test_frozen_that_changed_between_two_starts_is_never_mixed_and_waits_for_a_person(
    tmp_path: Path, held_before: bool
) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.judge.comparison_finished(comparison(equal_pair("c-1")), "edge-1", 1)
            if held_before:
                mixed = pair(capture_id="c-0", right={"prompt": (9, 9)})
                assert mixed.set_aside is SetAside.ENCODING_MISMATCH
                await bench.judge.comparison_finished(comparison(mixed), "edge-1", 2)
            before = bench.desk.state("old-to-new")
            assert before.stage is Stage.CANARY
            await bench.checkpoints.save()
        async with edited(tmp_path, policy=STRICTER) as bench:
            state = bench.desk.state("old-to-new")
            assert state.held is not None
            assert state.held.cause is HoldCause.CONFIGURATION
            assert "policy (digest sha256:" in state.held.reason
            assert ("Before, it was held: encoding mismatch" in state.held.reason) is held_before
            assert state.gates == {name: gate.initial() for name, gate in state.plan.policy.gates.items()}
            assert (state.stage, state.evidence) == (Stage.PENDING, before.evidence)  # home; numbers go on
            assert not bench.publisher.table.routes
            assert bench.desk.tallies["old-to-new"].pairs == 0
            assert await bench.lift("old-to-new", "me", "meant so")
            assert bench.desk.state("old-to-new").stage is Stage.CANARY
            await bench.judge.comparison_finished(comparison(equal_pair("c-3")), "edge-1", 3)
            assert bench.desk.state("old-to-new").gates["token_equality"].pairs == 1  # type: ignore[union-attr]
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            done = recompute(reader, "old-to-new")
        assert (done.differing, done.unknown, done.problems) == (0, 0, ())
        assert any(told.startswith("begun anew after evidence") for told in done.told)

    run(main())


def test_breach_that_was_not_latched_yet_is_obeyed_whatever_the_files_say_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.checkpoints.save()
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
        (tmp_path / "rollback.latch").unlink()
        async with edited(tmp_path, policy=STRICTER) as bench:
            state = bench.desk.state("old-to-new")
            assert state.stage is Stage.ROLLED_BACK
            assert any(
                isinstance(effect, RollBack)
                for asked in bench.checkpoints.caught_up
                for effect in asked.effects
            )

    run(main())


def test_death_of_an_edge_is_no_evidence(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            counts = EdgeCounts(
                sidecar="host", worker=0, incarnation="edge-1", captured=3, delivered=1, dropped={}
            )
            bench.judge.edge_gone(EDGE, counts)
            assert bench.desk.state("old-to-new").evidence == 0

    run(main())


def test_restart_buys_no_second_token_budget(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.checkpoints.spent = lambda rollout: {"acme": 1_000} if rollout == "old-to-new" else {}
            await bench.judge.comparison_finished(comparison(equal_pair("c-1")), "edge-1", 1)
            await bench.checkpoints.save()
        async with Bench(tmp_path) as bench:
            assert bench.checkpoints.spent_before == {"old-to-new": {"acme": 1_000}}
        # Yesterday's spending is yesterday's.
        file = tmp_path / "rollouts.json"
        kept = msgspec.json.decode(file.read_bytes())
        kept["unix_s"] -= 86_400
        file.write_bytes(msgspec.json.encode(kept))
        async with Bench(tmp_path) as bench:
            assert bench.checkpoints.spent_before == {}

    run(main())


def test_pair_that_decided_a_rollback_ends_before_the_lift(tmp_path: Path) -> None:
    """It may still run, and its fork must not roll the rollout back once more."""

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            stages: list[Stage] = []
            stop = bench.mirror.stop_rollout

            async def stopping(name: str, reason: str, *, spare: str | None = None) -> None:
                stages.append(bench.desk.state(name).stage)
                await stop(name, reason, spare=spare)

            bench.mirror.stop_rollout = stopping  # type: ignore[method-assign]
            assert await bench.lift("old-to-new", "me", "driver fixed")
            assert stages == [Stage.ROLLED_BACK]
            assert bench.mirror.spared[-1] is None
            assert set(bench.mirror.resumed) == {"old-to-new"}

    run(main())


def test_pairs_are_told_apart_by_what_became_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            failed = compare(
                exchange((1, 2, 3), capture_id="failed"),
                exchange((1,), arm=Arm.CANDIDATE, capture_id="failed", outcome=Outcome.FAILED),
            )
            other = compare(
                exchange((1, 2, 3), capture_id="other"),
                exchange((1, 2, 3), arm=Arm.CANDIDATE, capture_id="other", prompt=(7, 8)),
            )
            for sequence, one in enumerate((equal_pair("equal"), failed, other), 1):
                await bench.judge.comparison_finished(comparison(one), EDGE.incarnation, sequence)
            tally = bench.desk.tallies["old-to-new"]
            assert (tally.pairs, tally.compared, tally.failed, tally.set_aside) == (3, 1, 1, 1)
            assert tally.reasons == {"encoding_mismatch": 1}

    run(main())
