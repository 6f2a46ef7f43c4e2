"""The judge is killed in the middle of its own rollback, at each step of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkgate.state.latch import read_latch
from tests.support.saboteur import StubProcess
from tests.support.stack import Connection, Stack, request_bytes, stack
from tests.support.waiting import LIMIT_S, eventually

BEFORE = ("before the latch", "latch half written")
AFTER = ("latched, not published", "published, not sent", "first acknowledgement")


def test_judge_killed_at_any_step_of_a_rollback_never_loses_it_once_announced(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, _, new):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            client = Connection(host, int(port))
            for moment in (*AFTER, *BEFORE):
                await _killed_at(one, client, new, moment)
                answer = await client.ask("acme", request_bytes("acme", f"after {moment}"))
                assert answer.whole, answer
                assert answer.engine == "old"
                if moment != BEFORE[-1]:
                    code, _, err = await one.cli("rollout", "lift", "old-to-new", "--reason", "next moment")
                    assert code == 0, err
                    await one.until("the canary again", state="canary")
                    await one.obeyed()
            # Everything dies at once: what is latched still stands in the next life.
            assert one.process is not None
            epoch = one.table_epoch()
            one.kill("judge")
            one.process.kill()
            await asyncio.to_thread(one.process.wait)
            await one.start()
            found = await one.status()
            assert found["rollouts"][0]["state"] == "rolled_back"
            assert found["epoch"] > epoch
            client.close()

    asyncio.run(main())


async def _killed_at(one: Stack, client: Connection, new: StubProcess, moment: str) -> None:
    epoch = (await one.status())["epoch"]
    lives = len(one.pids("judge"))
    await new.set("forks at token 2")
    (one.seams / "moment").write_text(moment)
    answer = await client.ask("acme", request_bytes("acme", f"forks, {moment}"))
    assert answer.whole, answer
    assert answer.engine == "new"
    await eventually(lambda: len(one.pids("judge")) > lives, f"a judge killed {moment}")
    assert (one.seams / "fired").read_text() == moment
    found = await one.until_judged()
    if moment in AFTER:
        assert found["rollouts"][0]["state"] == "rolled_back", found
        assert found["rollouts"][0]["latched"]["durable"]
    else:
        # Nobody had heard of it, and the disk holds the latch of before, whole. The next fork decides again.
        if found["rollouts"][0]["state"] == "canary":
            assert read_latch(one.state / "rollback.latch").latched == {}
            await client.ask("acme", request_bytes("acme", f"forks again, {moment}"))
        await one.until(f"the rollback {moment}", state="rolled_back")
    await one.obeyed()
    assert (await one.status())["epoch"] > epoch
    await new.set()
