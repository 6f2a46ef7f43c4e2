"""A policy's suite is asked of both pools as a stage begins; its answers reach the gates, across a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S

POLICY = """
level: statistical
alpha: 0.05
gates:
  rule_cases: {suite: mine}
suites:
  mine: {file: ./suite.jsonl, passes: 3}
"""
SAMPLES = 8


def write(directory: Path, one: Sidecar) -> None:
    (directory / "policy.yaml").write_text(POLICY)
    lines = [
        {
            "id": f"s{number}",
            "category": "short",
            "template": f"t{number}",
            "prompt": f"question {number}",
            "max_tokens": 6,
            "rules": [{"kind": "regex", "pattern": "."}],
        }
        for number in range(SAMPLES)
    ]
    (directory / "suite.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    one.file.write_text(one.file.read_text().replace("policy: audit", "policy: ./policy.yaml"))


def test_suite_is_asked_and_judged_and_a_killed_judge_costs_no_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            FakeVllm(pause_s=0.02).serving() as old,
            FakeVllm(pause_s=0.02).serving() as new,
        ):
            one = Sidecar(tmp_path, old.url, new.url)
            write(tmp_path, one)
            try:
                await one.start()
                rollout: dict[str, Any] = {}

                async def shown(samples: int) -> bool:
                    nonlocal rollout
                    rollout = await one.admin("/v1/rollouts/old-to-new")
                    return bool(rollout["samples"] >= samples)

                await eventually_async(lambda: shown(3), "the first answers")
                judge = (await one.status())["judge"]["pid"]
                os.kill(judge, signal.SIGKILL)

                async def another() -> bool:
                    try:
                        return bool((await one.status())["judge"]["pid"] != judge)
                    except Exception:
                        return False

                await eventually_async(another, "the next judge")

                async def done() -> bool:
                    await shown(0)
                    return bool(rollout["suites"][0]["done"])

                await eventually_async(done, "the suite's end")
                (verdict,) = rollout["verdicts"]
                assert (verdict["gate"], verdict["answer"]) == ("rule_cases", "pass"), verdict
                assert rollout["samples"] == SAMPLES * 3  # each answer counted once, none lost
                assert rollout["controls"] == SAMPLES * 3
                code, out, _err = await one.cli("rollout", "show", "old-to-new")
                assert code == 0
                assert "  suite mine: 24 of 24 answers" in out
            finally:
                await one.close()

    asyncio.run(main())
