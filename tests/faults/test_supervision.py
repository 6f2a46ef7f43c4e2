"""A machine out of descriptors or processes: what died is started again once there is room."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from tests.support.stack import Connection, Stack, request_bytes, stack
from tests.support.waiting import LIMIT_S, eventually


def _not_started(one: Stack) -> set[str]:
    return {line["child"] for line in one.log() if line["event"] == "cannot be started, trying again"}


def test_child_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, *_):
            assert one.process is not None
            pid = one.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
            try:
                one.kill("judge")
                one.kill("edge 0")
                await eventually(
                    lambda: _not_started(one) == {"judge", "edge 0"}, "their failures in the log"
                )
                host, port = one.url.removeprefix("http://").rsplit(":", 1)
                client = Connection(host, int(port))
                answer = await client.ask("globex", request_bytes("globex", "by the other worker"))
                client.close()
                assert answer.whole, answer
            finally:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            await eventually(
                lambda: len(one.pids("judge")) == len(one.pids("edge 0")) == 2, "both started again"
            )
            await one.until_judged()
            # The dead worker's counters could not be read at first; they are settled all the same.
            await eventually(lambda: len(list((one.state / "ledgers").iterdir())) == 2, "its ledger settled")
            await one.quiet()

    asyncio.run(main())
