"""A judge that starts on what a forkgate without steps left: told in words, gates anew, latches kept."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from comparator.evidence import NO_KEYS
from forkgate.judge.checkpoint import VERSION, NewerStatesError
from forkgate.judge.edited import edited
from policies.rollout import Abort, HoldCause, RolloutState, Stage
from tests.support.judging import Bench, fork_seen

BEFORE = Path(__file__).parent / "checkpoints" / "before_steps.json"
"""As that forkgate wrote it: a canary of `acme`, three items of evidence."""
NAME = "old-to-new"


def test_a_checkpoint_of_another_form_is_refused_with_words_and_the_rollout_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            shutil.copy(BEFORE, bench.paths.rollouts)
        async with Bench(tmp_path) as bench:
            state = bench.desk.state(NAME)
            assert (state.stage, state.evidence) == (Stage.CANARY, 0)
            assert state.plan.steps[0].tenants == ("acme",)
            bench.judge.fork_seen(fork_seen())
            assert bench.desk.state(NAME).stage is Stage.ROLLED_BACK
            await bench.judge.settle(10.0)
            await bench.checkpoints.save()
        async with Bench(tmp_path) as bench:
            assert bench.desk.state(NAME).stage is Stage.ROLLED_BACK

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    (told,) = [one for one in caplog.records if one.message == "rollout states are lost, gates start anew"]
    assert "unknown field `canary_tenants`" in told.error  # type: ignore[attr-defined]


def test_a_latch_stands_whatever_became_of_the_checkpoint(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            bench.judge.fork_seen(fork_seen())
            await bench.judge.settle(10.0)
            assert bench.desk.state(NAME).latch is not None
            shutil.copy(BEFORE, bench.paths.rollouts)
        async with Bench(tmp_path) as bench:
            state = bench.desk.state(NAME)
            assert state.stage is Stage.ROLLED_BACK
            assert state.latch is not None
            assert bench.publisher.table.routes == {}

    asyncio.run(main())


def test_states_of_a_newer_forkgate_are_neither_begun_anew_nor_written_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as bench:
            assert await bench.say(Abort(who="ana", why="enough", unix_s=1.0)) == ()
            await bench.checkpoints.save()
            file = bench.paths.rollouts
            newer = msgspec.json.decode(file.read_bytes()) | {"version": VERSION + 1}
            newer["rollouts"][0]["state"]["stage"] = "a stage to come"
            file.write_bytes(msgspec.json.encode(newer))
        before = file.read_bytes()
        with pytest.raises(
            NewerStatesError, match=r"version 2, a newer forkgate wrote it .* knows 1\. Start that"
        ):
            await Bench(tmp_path).__aenter__()
        assert file.read_bytes() == before
        with pytest.raises(NewerStatesError):
            edited(bench.config, bench.paths, lambda: NO_KEYS)

    asyncio.run(main())


def test_what_states_say_is_what_a_reader_of_their_version_knows() -> None:
    """Who adds to these raises the version, or an older judge takes all states for lost: what was aborted or
    held begins anew by itself."""
    assert VERSION == 1
    assert set(HoldCause) == {"check", "suite", "gate", "choice", "encoding", "configuration", "environment"}
    assert set(Stage) == {
        *("pending", "self_check", "quick_check", "shadow", "canary", "observing", "promoted"),
        *("rolled_back", "aborted"),
    }
    assert set(RolloutState.__struct_fields__) == {
        *("plan", "stage", "gates", "answers", "latch", "held", "paused", "ended", "checks", "suites"),
        *("environments", "pools", "home_of", "step", "moved", "left", "tenants", "sent_home", "looks"),
        *("entered_unix_s", "pairs", "sequence", "evidence", "begun_unix_s", "encoding_mismatches"),
    }
