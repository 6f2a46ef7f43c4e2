"""The judge makes a rollout's checks before it copies or moves anything, and knows a prompt it has met."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from comparator.evidence import EvidenceReader
from comparator.records import Arm, EngineSample, Fact
from forkgate.judge.starts import Starts
from policies.policy import Level
from policies.rollout import CheckKind, HoldCause, Stage
from policies.verdict import Answer
from tests.support.exchanges import comparison, pair
from tests.support.judging import Bench, NotedChecks, NotedSuites, fork_seen
from tests.support.waiting import eventually
from tests.unit.forkgate.test_judge import run

ROLLOUT = "old-to-new"


def test_checks_come_first_and_nothing_is_copied_or_moved_before_they_passed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            await eventually(lambda: len(bench.checks.asked) == 1)
            assert bench.checks.asked[0] == (ROLLOUT, CheckKind.SELF_CHECK, Level.TOKEN)
            assert (bench.publisher.table.routes, bench.publisher.table.mirrors) == ({}, ())
            bench.checks.end(Answer.PASS)
            await eventually(lambda: len(bench.checks.asked) == 2)
            assert bench.publisher.table.routes == {}
            bench.checks.end(Answer.PASS)
            await eventually(lambda: bench.desk.state(ROLLOUT).stage is Stage.SHADOW)
            bench.judge.tick()
            await eventually(lambda: bench.publisher.table.routes == {"acme": "new"})
            assert set(bench.mirror.resumed) == {ROLLOUT}
            assert len(bench.publisher.table.mirrors) == 1

    run(main())


@pytest.mark.parametrize(
    ("answer", "word"),
    [(Answer.FAIL, "failed"), (Answer.ERROR, "could_not"), (Answer.INCONCLUSIVE, "could_not")],
)
def test_check_that_did_not_pass_holds_until_a_lift_makes_it_again(
    tmp_path: Path, answer: Answer, word: str
) -> None:
    async def main() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            await eventually(lambda: len(bench.checks.asked) == 1)
            bench.checks.end(answer, "3 of 10 prompts forked")
            await eventually(lambda: bench.desk.state(ROLLOUT).held is not None)
            held = bench.desk.state(ROLLOUT).held
            assert held is not None
            assert (held.cause, held.reason) == (
                HoldCause.CHECK,
                f"self_check {word}: 3 of 10 prompts forked",
            )
            assert bench.publisher.table.routes == {}
            assert await bench.lift(ROLLOUT, "ana", "batch size fixed")
            await eventually(lambda: len(bench.checks.asked) == 2)
            assert bench.checks.asked[1][1] is CheckKind.SELF_CHECK

    run(main())


def test_next_judge_makes_the_check_that_no_judge_ended(tmp_path: Path) -> None:
    async def first() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            await eventually(lambda: len(bench.checks.asked) == 1)
            bench.checks.end(Answer.PASS)
            await eventually(lambda: len(bench.checks.asked) == 2)
            await bench.checkpoints.save()

    async def second() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            await eventually(lambda: len(bench.checks.asked) == 1)
            assert bench.checks.asked[0][1] is CheckKind.QUICK_CHECK
            assert bench.desk.state(ROLLOUT).stage is Stage.QUICK_CHECK

    run(first())
    run(second())


def test_check_that_breaks_holds_with_what_broke(tmp_path: Path) -> None:
    class Broken(NotedChecks):
        async def run(self, rollout: str, kind: CheckKind, level: Level):  # type: ignore[no-untyped-def]
            raise RuntimeError("a bug")

    async def main() -> None:
        async with Bench(tmp_path, checks=False) as bench:
            told: list[str] = []
            bench.judge.check_done = lambda rollout, kind, report: told.append(report.reason)  # type: ignore[method-assign]
            starts = Starts(Broken(), NotedSuites(), {}, bench._kept, bench.judge)
            starts.check(ROLLOUT, CheckKind.SELF_CHECK, Level.TOKEN)
            await eventually(lambda: told)
            assert "the check itself broke: RuntimeError: a bug" in told[0]
            await starts.close()

    run(main())


def test_rollback_ends_what_the_stage_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path, checks=True) as bench:
            await eventually(lambda: len(bench.checks.asked) == 1)
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips and bench.suites.stopped)
            assert not bench.starts.checking(ROLLOUT)
            assert bench.suites.stopped == [(ROLLOUT, "the rollout was rolled back")]

    run(main())


def test_prompt_that_was_met_is_marked_and_kept_so_also_by_the_next_judge(tmp_path: Path) -> None:
    def asked(number: int, cluster: str, **right: object):  # type: ignore[no-untyped-def]
        one = pair(capture_id=f"01900000-0000-7000-8000-{number:012d}", right=right)
        return comparison(one, cluster=cluster, unix_s=time.time())

    async def life(numbers: tuple[int, ...]) -> int:
        async with Bench(tmp_path) as bench:
            for number in numbers:
                await bench.judge.comparison_finished(asked(number, "a prompt"), "e", number)
            await bench.checkpoints.save()
            return bench.desk.tallies[ROLLOUT].repeats

    async def main() -> None:
        assert await life((1, 2)) == 1
        assert await life((3,)) == 2
        with EvidenceReader(tmp_path / "evidence.db") as reader:
            kept = [reader.show(f"01900000-0000-7000-8000-{number:012d}").comparison for number in (1, 2, 3)]
        assert [one.repeat for one in kept if one is not None] == [False, True, True]

    run(main())


def test_prompt_whose_pairs_were_set_aside_is_still_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            mismatch = comparison(pair((1,), (2,), right={"prompt": (0,)}), cluster="p")
            assert not bench.desk.arrived(mismatch).repeat
            assert not bench.desk.arrived(comparison(pair(), cluster="p")).repeat
            assert bench.desk.arrived(comparison(pair(), cluster="p")).repeat

    run(main())


def test_lift_lets_gates_learn_from_every_prompt_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            assert not bench.desk.arrived(comparison(pair(), cluster="p")).repeat
            bench.judge.fork_seen(fork_seen())
            await eventually(lambda: bench.judge.flips)
            assert await bench.lift(ROLLOUT, "ana", "fixed")
            assert not bench.desk.arrived(comparison(pair(), cluster="p")).repeat

    run(main())


def test_controls_fork_is_no_fork_of_the_candidate(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            one = comparison(pair(), pair((1, 2, 3), (1, 2, 9), right_arm=Arm.CONTROL))
            await bench.judge.comparison_finished(one, "e", 1)
            assert bench.desk.state(ROLLOUT).stage is Stage.CANARY
            tally = bench.desk.tallies[ROLLOUT]
            assert (tally.forks, tally.control_forks) == (0, 1)

    run(main())


def test_engines_samples_are_evidence_and_another_engine_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            sample = EngineSample(
                rollout=ROLLOUT,
                pool="new",
                endpoint="http://127.0.0.1:9002",
                candidate=True,
                unix_s=1.0,
                running=1,
                waiting=0,
                kv_cache_usage=Fact(value=0.1),
                memory_bytes=Fact(value=10**9),
                generated_tokens=Fact(value=5),
            )
            bench.judge.engine_sampled(sample)
            assert bench.desk.state(ROLLOUT).evidence == 1
            bench.judge.environment_seen("new", "http://127.0.0.1:9002", {"version": "1"})
            known = bench.desk.state(ROLLOUT)
            bench.judge.environment_seen("new", "http://127.0.0.1:9002", {"version": "1"})
            assert bench.desk.state(ROLLOUT) is known  # what is known is no event
            bench.judge.environment_seen("new", "http://127.0.0.1:9002", {"version": "2"})
            held = bench.desk.state(ROLLOUT).held
            assert held is not None
            assert held.cause is HoldCause.ENVIRONMENT
            assert bench.publisher.table.routes == {"acme": "new"}  # traffic stays

    run(main())
