"""A judge that starts on what a forkgate without steps left: told in words, gates anew, latches kept."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from policies.rollout import Stage
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
