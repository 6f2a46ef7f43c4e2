"""A rollout's verdicts, computed again from the file: real judge parts wrote it, and somebody else, too."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from comparator.evidence import EvidenceError, EvidenceReader, EvidenceStore
from comparator.evidence.journal import decode_items, encode_items
from comparator.evidence.rows import OBSERVED, STATE
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId
from forkgate.judge import journal as module
from forkgate.judge.recompute import Recomputed, recompute
from policies.rollout import (
    Abort,
    Advance,
    CheckAnswer,
    CheckDone,
    CheckKind,
    ClockStepped,
    EnvironmentSeen,
    Event,
    HomeMoved,
    Lift,
    Pause,
    PoolSeen,
    Resume,
    RollBackNow,
    Stage,
    Start,
    SuiteDone,
    Tick,
    step,
)
from policies.rollout.table import QUIET
from policies.routes import PoolName, RolloutName, TenantName
from tests.support.exchanges import comparison, live, pair
from tests.support.judging import Bench
from tests.support.waiting import LIMIT_S, eventually

NAME = "old-to-new"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def equal(number: int) -> Comparison:
    return comparison(pair(capture_id=f"equal-{number}"))


def forked(capture_id: str = "forked") -> tuple[ForkSeen, Comparison]:
    made = pair((1, 2, 3), (1, 2, 9), capture_id=capture_id)
    assert made.fork is not None
    seen = ForkSeen(
        capture_id=CaptureId(capture_id),
        rollout=NAME,
        tenant="acme",
        left_arm=Arm.BASELINE,
        right_arm=Arm.CANDIDATE,
        fork=made.fork,
    )
    return seen, comparison(made)


def traffic(first: int, count: int, *, status: int = 200) -> list[Any]:
    return [
        live(sequence=number, status=status, canary=number % 2 == 0, first_byte_s=0.1 + number / 997)
        for number in range(first, first + count)
    ]


async def judged(bench: Bench, numbers: range) -> None:
    """Some comparisons and live records, mixed."""
    for number in numbers:
        await bench.judge.comparison_finished(equal(number), "edge-1", number)
        bench.judge.live(traffic(number * 10, 7))


async def breached(bench: Bench, capture_id: str = "forked", sequence: int = 99) -> None:
    seen, finished = forked(capture_id)
    flips = len(bench.judge.flips)
    bench.judge.fork_seen(seen)
    await eventually(lambda: len(bench.judge.flips) > flips)
    await bench.judge.comparison_finished(finished, "edge-1", sequence)


def one_life(state_dir: Path) -> Path:
    """Enough of everything that two gates change their answers, and a rollback."""

    async def main() -> None:
        async with Bench(state_dir) as bench:
            await judged(bench, range(1, 6))
            bench.judge.live(traffic(1_000, 200))
            await judged(bench, range(6, 9))
            await breached(bench)

    run(main())
    return state_dir / "evidence.db"


def again(path: Path) -> Recomputed:
    with EvidenceReader(path) as reader:
        return recompute(reader, NAME)


def tamper(path: Path, statement: str, *values: Any) -> None:
    db = sqlite3.connect(path)
    assert db.execute(statement, values).rowcount > 0
    db.commit()
    db.close()


def command(path: Path, *more: str, rollout: str = NAME) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command as users type it."""
    words = ["verdict", "recompute", "--evidence", str(path), "--rollout", rollout, *more]
    ended = subprocess.run(
        [sys.executable, "-m", "forkgate", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_every_verdict_of_a_rollout_comes_out_the_same_to_the_last_bit(tmp_path: Path) -> None:
    done = again(one_life(tmp_path))
    answers = [(one.gate, one.answer) for one in done.verdicts]
    assert ("live_errors", "inconclusive") in answers
    assert ("live_errors", "pass") in answers
    assert answers[-1] == ("token_equality", "fail")
    assert [one.equal for one in done.verdicts] == [True] * len(answers)
    assert (done.problems, done.told) == ((), ())
    assert done.evidence > 100  # live records are evidence too
    assert len(done.policy_digests) == 1


def test_the_command_needs_no_judge_and_says_what_it_found(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    code, out, err = command(path)
    assert code == 0, err
    assert out.splitlines()[-1].endswith("token_equality  fail  equal")
    assert "equal; " in err
    code, out, _ = command(path, "--json")
    said = json.loads(out)
    assert (code, said["differing"], said["not_recomputed"]) == (0, 0, 0)
    assert said["equal"] == len(said["verdicts"]) > 2


def test_it_reads_beside_a_judge_that_writes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            await bench.writer.call(lambda store: store._db.execute("BEGIN IMMEDIATE"))
            done = await asyncio.to_thread(again, tmp_path / "evidence.db")
            await bench.writer.call(lambda store: store._db.execute("ROLLBACK"))
            assert done.equal == len(done.verdicts) > 0
            await judged(bench, range(4, 6))
            assert (await asyncio.to_thread(again, tmp_path / "evidence.db")).events > done.events

    run(main())


def test_a_rollout_that_went_on_after_a_kill_replays_through_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            await bench.checkpoints.save()
            await judged(bench, range(4, 7))  # kill -9: the journal has it, the checkpoint has not
            evidence = bench.desk.state(NAME).evidence
            gates = bench.desk.state(NAME).gates
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME).evidence == evidence
            assert bench.desk.state(NAME).gates == gates
            bench.judge.live(traffic(1_000, 200))
            await judged(bench, range(7, 9))
            await breached(bench)

    run(main())
    done = again(tmp_path / "evidence.db")
    assert (done.differing, done.unknown, done.problems, done.told) == (0, 0, (), ())
    assert done.equal >= 3


def test_judges_that_ended_before_any_evidence_are_told_and_no_problem(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(2):  # each begins, and is gone before its state was kept
            async with Bench(tmp_path) as bench:
                await eventually(lambda: bench.writer.trouble is None)
            (tmp_path / "rollouts.json").unlink(missing_ok=True)
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            await breached(bench)

    run(main())
    done = again(tmp_path / "evidence.db")
    assert done.problems == ()
    assert done.equal > 0
    assert done.differing == 0
    assert any("begun anew before any evidence" in told for told in done.told)


def test_prompts_met_before_a_kill_are_met_after_it(tmp_path: Path) -> None:
    def asked(number: int) -> Comparison:
        return msgspec.structs.replace(equal(number), cluster="00112233aabbccdd", unix_s=time.time())

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await bench.judge.comparison_finished(asked(1), "edge-1", 1)
            await bench.checkpoints.save()
        async with Bench(tmp_path) as bench:
            await bench.judge.comparison_finished(asked(2), "edge-1", 2)
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            repeats = [reader.comparison(f"equal-{number}").repeat for number in (1, 2)]
            assert repeats == [False, True]

    run(main())
    assert again(tmp_path / "evidence.db").differing == 0


def test_what_the_last_transaction_lost_is_told_and_bridged_by_the_state_of_the_next_life(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 6))
            await bench.checkpoints.save()
        # The power went before the last commits reached the disk; the checkpoint's file did.
        tamper(tmp_path / "evidence.db", "DELETE FROM journal WHERE id > (SELECT max(id) - 4 FROM journal)")
        async with Bench(tmp_path) as bench:
            bench.judge.live(traffic(1_000, 200))
            await breached(bench)

    run(main())
    done = again(tmp_path / "evidence.db")
    (told,) = done.told
    assert "in another judge's life" in told
    assert "gone on from the state stored there" in told
    assert (done.differing, done.problems) == (0, ())
    assert done.verdicts[-1].equal is True


def test_a_store_that_failed_leaves_a_gap_that_is_told(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    second = f"SELECT id FROM journal WHERE kind = '{OBSERVED}' ORDER BY id LIMIT 1 OFFSET 1"
    tamper(path, f"DELETE FROM journal WHERE id = ({second})")
    done = again(path)
    assert any("is missing from the journal" in told for told in done.told)
    assert done.differing == 0
    assert done.unknown > 0
    code, out, err = command(path)
    assert code == 4
    assert "not recomputed: its evidence is not in the journal any more" in out
    assert "is missing from the journal; gone on from the state stored at evidence" in err


def test_a_snapshot_behind_a_gap_is_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 20)
    path = one_life(tmp_path)
    tamper(path, "DELETE FROM journal WHERE id <= 2")
    done = again(path)
    assert done.told[0].startswith("the journal begins at evidence")
    assert "gone on from the state stored at evidence" in done.told[0]
    assert (done.differing, done.problems) == (0, ())
    assert done.equal > 0
    assert done.verdicts[-1].equal is True


def test_pruned_evidence_is_told_and_never_counts_as_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 20)
    path = one_life(tmp_path)
    with EvidenceStore(path, 100_000_000) as store, store._transaction():
        store._pruner._prune_content(2_000)
    done = again(path)
    assert any("is gone" in told or "was pruned" in told for told in done.told)
    assert done.unknown > 0
    assert (done.differing, done.problems) == (0, ())
    assert command(path)[0] == 4


TAMPERED: list[tuple[str, str]] = [
    ("UPDATE verdict SET value = value + 1e-12 WHERE gate = 'live_errors' AND answer = 'pass'", "value"),
    ("UPDATE verdict SET answer = 'pass' WHERE answer = 'fail'", "answer 'pass', replayed 'fail'"),
    ("UPDATE verdict SET reason = 'all is well' WHERE answer = 'fail'", "reason 'all is well', replayed"),
    ("UPDATE verdict SET n = n + 1 WHERE gate = 'live_errors' AND answer = 'pass'", "n "),
    ("UPDATE verdict SET state = '{}' WHERE answer = 'fail'", "state '{}', replayed"),
    ("UPDATE verdict SET rollback_nats = 0.5 WHERE answer = 'fail'", "rollback_nats 0.5, replayed None"),
    ("UPDATE verdict SET interval_low = 0, interval_high = 1 WHERE answer = 'fail'", "interval (0.0, 1.0)"),
    ("UPDATE verdict SET policy_digest = 'sha256:0' WHERE answer = 'fail'", "policy 'sha256:0', replayed"),
    ("UPDATE verdict SET gate = 'another' WHERE answer = 'fail'", "it is stored, and the replay gives none"),
    ("DELETE FROM verdict WHERE answer = 'fail'", "the replay gives it, and it is not stored"),
]


@pytest.mark.parametrize(("statement", "said"), TAMPERED)
def test_a_tampered_verdict_is_found(tmp_path: Path, statement: str, said: str) -> None:
    path = one_life(tmp_path)
    tamper(path, statement)
    done = again(path)
    assert done.differing >= 1
    assert any(said in one.why for one in done.verdicts if one.equal is False)


def test_the_command_names_what_differs_and_fails(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    statement, said = TAMPERED[1]
    tamper(path, statement)
    code, out, err = command(path)
    assert code == 1
    assert f"DIFFERS: {said}" in out
    assert "1 differ" in err


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE pair SET fork_index = 1 WHERE capture_id = 'equal-2'", "says fork 1"),
        ("UPDATE exchange SET output_sha256 = 'x' WHERE capture_id = 'equal-2'", "those of its hash"),
        ("UPDATE journal SET body = x'71' WHERE id = 3", "none of a journal"),
        ("UPDATE journal SET number_after = number_after + 1 WHERE id = 3", "the replay is at"),
    ],
)
def test_evidence_that_contradicts_itself_is_a_problem(tmp_path: Path, statement: str, said: str) -> None:
    path = one_life(tmp_path)
    tamper(path, statement)
    done = again(path)
    assert any(said in problem for problem in done.problems), done.problems


def test_the_command_fails_on_a_problem_though_no_verdict_differs(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    tamper(path, "UPDATE pair SET fork_index = 1 WHERE capture_id = 'equal-2'")
    code, out, _ = command(path)
    assert code == 1
    assert "PROBLEM  evidence " in out


def rewritten(path: Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """Change the live records of one journal entry."""
    db = sqlite3.connect(path)
    for key, body in db.execute("SELECT id, body FROM journal WHERE kind = ? ORDER BY id DESC", [OBSERVED]):
        items = list(decode_items(body))
        if len(items) > 100:
            db.execute("UPDATE journal SET body = ? WHERE id = ?", (encode_items(change(items)), key))
            break
    else:
        raise AssertionError("no such entry")
    db.commit()
    db.close()


def test_one_live_record_that_was_changed_is_found(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    rewritten(path, lambda items: [msgspec.structs.replace(items[0], status=500, canary=True), *items[1:]])
    done = again(path)
    assert done.differing >= 1
    assert {one.gate for one in done.verdicts if one.equal is False} == {"live_errors"}


def test_a_state_that_the_replay_does_not_arrive_at_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 20)
    path = one_life(tmp_path)
    db = sqlite3.connect(path)
    states = db.execute("SELECT id, body FROM journal WHERE kind = ? ORDER BY id", [STATE]).fetchall()
    assert len(states) > 2
    key = states[-1][0]
    # The first state of all, with the numbers of the last.
    plain, last = (msgspec.msgpack.decode(_unpacked(body)) for _, body in (states[0], states[-1]))
    body = msgspec.msgpack.encode({**last, "gates": plain["gates"]})
    db.execute("UPDATE journal SET body = ? WHERE id = ?", (b"p" + body, key))
    db.commit()
    db.close()
    done = again(path)
    assert any("is not the one that the replay arrived at" in problem for problem in done.problems)


def _unpacked(body: bytes) -> bytes:
    from comparator.evidence.journal import unpack

    return unpack(body)


def test_a_file_that_is_not_there_and_a_rollout_that_is_not_known_are_usage_errors(tmp_path: Path) -> None:
    code, out, err = command(tmp_path / "nothing.db")
    assert (code, out) == (2, "")
    assert "--evidence: evidence " in err
    path = one_life(tmp_path)
    code, out, err = command(path, rollout="old-to-newer")
    assert (code, out) == (2, "")
    assert "knows no rollout 'old-to-newer'; it knows old-to-new" in err


def test_a_rollout_without_verdicts_is_nothing_to_recompute(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path):
            pass

    run(main())
    code, _, err = command(tmp_path / "evidence.db")
    assert code == 3
    assert "has no stored verdict" in err


def test_a_damaged_file_could_not_be_measured(tmp_path: Path) -> None:
    path = one_life(tmp_path)
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xff" * (path.stat().st_size - 8_192))
    code, out, _ = command(path)
    assert (code, out) == (4, "")


SAID: dict[str, Any] = {"who": "ana", "why": "driver fixed", "unix_s": 5.5}
EVENTS: tuple[Event, ...] = (
    Start(**SAID),
    Pause(**SAID),
    Resume(**SAID),
    Advance(**SAID),
    Abort(**SAID),
    RollBackNow(**SAID),
    RollBackNow(tenant=TenantName("acme"), **SAID),
    Lift(**SAID),
    Lift(tenant=TenantName("acme"), **SAID),
    Tick(unix_s=5.5),
    ClockStepped(by_s=-3600.25, unix_s=5.5),
    HomeMoved(by=RolloutName("other"), unix_s=5.5),
    HomeMoved(by=None, unix_s=5.5),
    PoolSeen(pool=PoolName("old"), ready=False, reason="nobody answers", unix_s=5.5),
    EnvironmentSeen(pool=PoolName("old"), endpoint="http://o:1", facts={"version": "1"}, unix_s=5.5),
    CheckDone(
        kind=CheckKind.SELF_CHECK, answer=CheckAnswer.FAILED, summary="no", facts={"a": "b"}, unix_s=5.5
    ),
    SuiteDone(suite="starter", look="canary-1", summary="done", whole=False, unix_s=5.5),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_that_are_no_evidence_come_back_as_they_were(tmp_path: Path, event: Event) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            state = bench.desk.state(NAME)
            after, _ = step(state, event)
            entries = module.entries_of(state, after, event)
            if after is state:
                assert type(event) in QUIET
                assert entries == ()
                return
            assert entries[0].kind == type(event).__name__
            assert module.event_of(entries[0].kind, entries[0].body) == event
            moved = after.place != state.place or isinstance(event, Lift | Start)
            assert [one.kind for one in entries[1:]] == ([STATE] if moved else [])

    run(main())


def test_no_kind_of_event_is_left_out() -> None:
    assert {type(event).__name__ for event in EVENTS} | {"Configured"} == set(module.EVENTS)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            state = bench.desk.state(NAME)
            kept = module.snapshot(state, 1.0)
            assert kept.plan is not None
            assert module.state_of(kept.body, kept.plan.body) == state
            assert module.plan_of(kept.plan.body) == state.plan
            assert state.plan.policy.digest == kept.plan.policy_digest
            assert '"token_equality"' in kept.plan.policy

    run(main())


def test_a_rollout_that_was_lifted_replays_through_the_lift(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            await breached(bench)
            assert await bench.lift(NAME, "me", "driver fixed")
            assert bench.desk.state(NAME).stage is not Stage.ROLLED_BACK
            await judged(bench, range(4, 7))
            await breached(bench, "again", 100)

    run(main())
    done = again(tmp_path / "evidence.db")
    assert (done.differing, done.unknown, done.problems, done.told) == (0, 0, (), ())
    assert [one.answer for one in done.verdicts].count("fail") == 2


def test_verdicts_of_an_older_forkgate_are_told_and_never_count_as_equal(tmp_path: Path) -> None:
    path = tmp_path / "evidence.db"
    db = sqlite3.connect(path)
    db.executescript((Path(__file__).resolve().parents[2] / "data/evidence/version_1.sql").read_text())
    db.close()
    code, _, err = command(path)
    assert code == 2
    assert "schema_version 1 is older than 3; start the judge once to migrate it" in err
    EvidenceStore(path, 100_000_000).close()
    code, out, _ = command(path)
    assert code == 4
    assert out.rstrip().endswith("not recomputed: an older forkgate stored it, without a journal")


def test_evidence_that_was_folded_and_could_not_be_stored_is_a_gap_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates are asked before anything is stored: what the disk then refuses was acted on all the same."""
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 30)

    async def main() -> None:
        async with Bench(tmp_path) as bench:
            await judged(bench, range(1, 4))
            odd = comparison(pair((2**70,), (2**70,), capture_id="odd"))
            with pytest.raises(EvidenceError, match="a pair cannot be stored"):
                await bench.judge.comparison_finished(odd, "edge-1", 50)
            await judged(bench, range(4, 9))
            bench.judge.live(traffic(1_000, 200))
            await breached(bench)

    run(main())
    done = again(tmp_path / "evidence.db")
    (told,) = done.told
    assert "is gone: " in told
    assert "no capture odd" in told
    assert "gone on from the state stored at evidence" in told
    assert (done.differing, done.problems) == (0, ())
    assert done.verdicts[-1].equal is True
