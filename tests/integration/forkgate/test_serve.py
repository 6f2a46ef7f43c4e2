"""``forkgate serve`` with real processes: requests, forks, kills, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.fake_vllm import FakeVllm
from tests.support.ports import free_port
from tests.support.sidecar import Sidecar, alive, eventually_async, sidecar
from tests.support.waiting import LIMIT_S, all_obey, eventually

Test = Callable[[Sidecar, FakeVllm, FakeVllm], Coroutine[Any, Any, None]]


def served(tmp_path: Path, test: Test, **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), sidecar(tmp_path, **options) as (one, old, new):
            await test(one, old, new)

    asyncio.run(main())


def live(engine: FakeVllm, prompt: str) -> int:
    """Requests that reached this engine as the client sent them."""
    return sum(
        1 for path, body in engine.requests if path == "/v1/completions" and body.get("prompt") == prompt
    )


async def compared(one: Sidecar, count: int) -> dict[str, Any]:
    """Wait until this many captures have ended, and return the ledger."""
    ledger: dict[str, Any] = {}

    async def ended() -> bool:
        nonlocal ledger
        ledger = await one.admin("/v1/ledger")
        return bool(ledger["captured"] >= count and ledger["in_flight"] == 0)

    await eventually_async(ended, f"{count} captures ended")
    return ledger


async def rolled_back(one: Sidecar) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def home() -> bool:
        nonlocal found
        found = await one.admin("/v1/rollouts/old-to-new")
        return bool(found["state"] == "rolled_back")

    await eventually_async(home, "the rollback")
    return found


async def published(one: Sidecar) -> None:
    """Every edge routes by the judge's present table."""

    async def obeyed() -> bool:
        return all_obey(await one.status())

    await eventually_async(obeyed, "every edge's acknowledgement")


def test_request_goes_down_the_whole_road(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        status, _ = await one.request("acme", "by the canary")
        assert status == 200
        status, _ = await one.request("globex", "at home")
        assert status == 200
        assert (live(new, "by the canary"), live(old, "by the canary")) == (1, 0)
        assert (live(new, "at home"), live(old, "at home")) == (0, 1)
        ledger = await compared(one, 2)
        assert ledger["balanced"]
        assert (ledger["captured"], ledger["compared"]) == (2, 2)
        code, out, err = await one.cli("evidence", "list", "--json")
        assert (code, err) == (0, "")
        assert [pair["fork_index"] for pair in json.loads(out)] == [None, None]

        async def told() -> bool:  # live records come up in batches
            (rollout,) = (await one.status())["rollouts"]
            return bool(rollout["load"]["live_requests"] == 2)

        await eventually_async(told, "both live requests to be told")
        code, out, _ = await one.cli("status")
        assert code == 0
        assert "4 shadow requests over 2 live in these pools (200.0%)" in out
        assert "captured 2 = compared 2 + dropped 0 + in flight 0: balances" in out
        assert "acme → new" in out
        assert "honours: " in out
        assert (await one.admin("/readyz"))["ready"]
        assert await one.stop() == 0

    served(tmp_path, test)


def test_fork_moves_the_tenant_back_and_says_why(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        new.lies.add("forks at token 2")
        await one.request("acme", "it forks")
        await rolled_back(one)
        await published(one)
        found = await rolled_back(one)
        assert found["latched"]["durable"]
        await one.request("acme", "after")
        assert (live(new, "after"), live(old, "after")) == (0, 1)
        deciding = found["latched"]["deciding_id"]
        ledger = await compared(one, 1)
        assert ledger["balanced"]
        code, out, err = await one.cli("evidence", "show", deciding)
        assert code == 0, err
        assert "fork at output token 2" in out
        code, out, err = await one.cli("evidence", "replay", deciding, "--json")
        assert code == 0, err
        assert json.loads(out)["verdict"] == "stands"
        new.lies.discard("forks at token 2")
        code, out, _ = await one.cli("evidence", "replay", deciding)
        assert code == 1
        assert "the fork vanished" in out
        code, out, _ = await one.cli("rollout", "show", "old-to-new", "--exit-code")
        assert code == 1
        assert "ROLLED BACK" in out
        (flip,) = (await one.status())["flips"]
        assert flip["missing"] == []
        assert flip["edges"] == 2

    served(tmp_path, test)


def test_rollback_survives_kill_9_of_the_judge_and_a_restart_until_lifted(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        new.lies.add("forks at token 2")
        await one.request("acme", "it forks")
        await rolled_back(one)
        new.lies.discard("forks at token 2")
        await published(one)
        epoch = (await one.status())["epoch"]
        one.kill("judge")
        await one.request("acme", "without a judge")
        assert live(old, "without a judge") == 1
        await eventually(lambda: len(one.pids("judge")) == 2, "another judge")
        found = await one.until_judged()
        assert found["rollouts"][0]["state"] == "rolled_back"
        assert found["epoch"] > epoch
        assert await one.stop() == 0

        await one.start()
        found = await one.status()
        assert found["rollouts"][0]["state"] == "rolled_back"
        assert found["routes"] == {}
        await one.request("acme", "after a restart")
        assert (live(new, "after a restart"), live(old, "after a restart")) == (0, 1)

        async def routed() -> bool:  # its shadow stage is skipped, once the old pool was looked at
            status = await one.status()
            return status["routes"] == {"acme": "new"} and all_obey(status)

        code, out, _ = await one.cli("rollout", "lift", "old-to-new", "--reason", "fixed")
        assert code == 0
        assert "lifted, " in out
        await eventually_async(routed, "acme on the candidate again")
        await one.request("acme", "lifted")
        assert live(new, "lifted") >= 1
        code, _, err = await one.cli("rollout", "lift", "old-to-new", "--reason", "again")
        assert code == 3
        assert "nothing to lift" in err

    served(tmp_path, test)


def test_second_serve_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        import subprocess
        import sys

        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "forkgate", "serve", str(one.file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert one.process is not None
        assert f"is in use by process {one.process.pid}" in done.stderr
        assert (await one.request())[0] == 200

    served(tmp_path, test, workers=1)


def test_taken_port_is_refused_in_words(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        import subprocess
        import sys

        port = one.url.rsplit(":", 1)[1]
        other = tmp_path / "other.yaml"
        text = one.file.read_text().replace("port: 0, workers", f"port: {port}, workers")
        other.write_text(text.replace("state_dir: state", "state_dir: other"))
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "forkgate", "serve", str(other)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert f"listen.port: 127.0.0.1:{port} is taken by another process" in done.stderr

    served(tmp_path, test, workers=1)


def test_killed_edge_is_replaced_and_the_ledger_balances(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        for number in range(5):
            await one.request("globex", f"before {number}")
        await compared(one, 5)
        (gone,) = (edge["incarnation"] for edge in (await one.status())["edges"])
        dead = one.kill("edge 0")

        async def replaced() -> bool:
            found = await one.until_judged()
            return gone not in [edge["incarnation"] for edge in found["edges"]]

        await eventually_async(replaced, "another edge, by the judge's table")
        assert not alive(dead)
        for number in range(5):
            assert (await one.request("globex", f"after {number}"))[0] == 200
        ledger = await compared(one, 10)
        assert ledger["balanced"], ledger
        assert ledger["captured"] == ledger["compared"] + sum(ledger["dropped"].values())
        # The judge has counted the dead one, so its file is gone; one a living worker is left.
        await eventually(
            lambda: len(list((one.state / "ledgers").iterdir())) == 1, "the dead edge's ledger settled"
        )

    served(tmp_path, test, workers=1)


def test_captures_held_by_a_killed_judge_are_counted(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        old.pause_s = new.pause_s = 0.2
        await asyncio.gather(*(one.request("globex", f"slow {number}") for number in range(4)))

        async def held() -> bool:
            return bool((await one.admin("/v1/ledger"))["in_flight_judge"] > 0)

        await eventually_async(held, "a capture at the judge")
        one.kill("judge")
        await eventually(lambda: len(one.pids("judge")) == 2, "another judge")
        old.pause_s = new.pause_s = 0.0
        await one.until_judged()
        await one.request("globex", "after")
        ledger = await compared(one, 5)
        assert ledger["balanced"], ledger
        assert ledger["dropped"].get("judge_lost", 0) >= 1

    served(tmp_path, test, workers=1)


def test_canary_goes_home_when_the_judge_stays_away(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        import os
        import signal

        async def judged() -> bool:  # the judge took longer to start than the grace: hysteresis first
            await one.request("acme", "judged")
            return live(new, "judged") > 0

        await eventually_async(judged, "acme on the candidate")
        # Stopped, not killed: the supervisor has nothing to restart, and edges get no answer.
        os.kill(one.pids("judge")[-1], signal.SIGSTOP)

        async def home() -> bool:
            before = old_live()
            await one.request("acme", "unjudged")
            return old_live() > before

        def old_live() -> int:
            return live(old, "unjudged")

        try:
            await eventually_async(home, "acme at home")
        finally:
            os.kill(one.pids("judge")[-1], signal.SIGCONT)
        await one.until_judged()

        async def back() -> bool:
            before = live(new, "back")
            await one.request("acme", "back")
            return live(new, "back") > before

        await eventually_async(back, "acme on the candidate again")

    served(tmp_path, test, workers=1, grace_s=0.5)


async def refused(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


def test_sigterm_lets_a_running_answer_finish(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        old.pause_s = 0.2
        running = asyncio.create_task(one.request("globex", "long", tokens=40))
        await eventually(lambda: old.running, "the answer has begun")
        url = one.url
        stopping = asyncio.create_task(one.stop())
        await eventually_async(lambda: refused(url), "who comes now is refused, and does not hang")
        assert not running.done()
        status, body = await running
        assert status == 200
        assert body.rstrip().endswith("[DONE]")
        assert await stopping == 0
        assert not any(alive(pid) for pid in one.pids())

    served(tmp_path, test, workers=1)


def test_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        assert one.process is not None
        one.process.kill()
        await asyncio.to_thread(one.process.wait)
        await eventually(lambda: not any(alive(pid) for pid in one.pids()), "children gone")
        await one.start()
        assert (await one.request())[0] == 200

    served(tmp_path, test)


def test_metrics_show_live_traffic_and_flips(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        new.lies.add("forks at token 2")
        await one.request("acme", "it forks")
        await rolled_back(one)
        address = (await one.status())["metrics"]
        text = ""

        async def shown() -> bool:
            nonlocal text
            assert one.session is not None
            async with one.session.get(address) as response:
                text = await response.text()
            return "forkgate_flip_duration_seconds_count" in text and "forkgate_live_requests_total{" in text

        await eventually_async(shown, "metrics")
        assert 'forkgate_rollout="old-to-new"' in text
        assert 'forkgate_tenant="acme"' in text
        assert all(f"forkgate_{name}_total{{" in text for name in ("shadow_tokens", "shadow_requests"))

    served(tmp_path, test, workers=1)


def test_sighup_changes_nothing_and_a_second_sigterm_waits_for_nobody(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        import signal

        assert one.process is not None
        one.process.send_signal(signal.SIGHUP)
        await eventually(lambda: any("SIGHUP" in line["event"] for line in one.log()), "a word about SIGHUP")
        assert (await one.request())[0] == 200
        old.pause_s = 0.5
        running = asyncio.create_task(one.request("globex", "endless", tokens=200))
        await eventually(lambda: live(old, "endless"), "the answer has begun")
        one.process.send_signal(signal.SIGTERM)
        await eventually(lambda: any(line["event"] == "draining" for line in one.log()), "the drain")
        assert alive(one.process.pid)
        assert await one.stop() == 0
        assert not any(alive(pid) for pid in one.pids())
        await asyncio.gather(running, return_exceptions=True)

    served(tmp_path, test, workers=1)


def test_metrics_port_that_is_taken_while_no_judge_runs_costs_metrics_only(tmp_path: Path) -> None:
    async def test(one: Sidecar, old: FakeVllm, new: FakeVllm) -> None:
        await one.stop()
        port = free_port()
        text = one.file.read_text()
        assert "prometheus: {host: 127.0.0.1, port: 0}" in text
        one.file.write_text(
            text.replace(
                "prometheus: {host: 127.0.0.1, port: 0}", f"prometheus: {{host: 127.0.0.1, port: {port}}}"
            )
        )
        await one.start()
        assert (await one.status())["metrics"] == f"http://127.0.0.1:{port}/metrics"
        lives = len(one.pids("judge"))
        one.kill("judge")
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

            def taken() -> bool:
                try:
                    other.bind(("127.0.0.1", port))
                except OSError:  # the killed judge is not quite gone
                    return False
                other.listen()
                return True

            await eventually(taken, "the killed judge's port")

            async def told() -> bool:
                with contextlib.suppress(OSError, aiohttp.ClientError):
                    status = await one.status()
                    return any("running without metrics" in trouble for trouble in status["troubles"])
                return False

            await eventually_async(told, "the judge to run without metrics")
            assert (await one.request())[0] == 200
            assert len(one.pids("judge")) == lives + 1  # it did not die of it

        async def served_again() -> bool:
            status = await one.status()
            return status["metrics"] is not None and not status["troubles"]

        await eventually_async(served_again, "the page, once its port is free")

    served(tmp_path, test, workers=1)
