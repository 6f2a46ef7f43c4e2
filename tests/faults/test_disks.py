"""Disks that are full, read-only, broken, or hold nonsense: flips go out, clients notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from forkgate.state.latch import read_latch
from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stack, stubs
from tests.support.waiting import LIMIT_S, eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")


@contextlib.contextmanager
def mounted(path: Path, *arguments: str) -> Iterator[Path]:
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(file: Path) -> None:
    """Take what room is left, to the last byte."""
    with file.open("wb", buffering=0) as sink:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    sink.write(b"\0" * size)


def client(one: Stack) -> Connection:
    host, port = one.url.removeprefix("http://").rsplit(":", 1)
    return Connection(host, int(port))


async def ask(one: Stack, tenant: str, prompt: str) -> str:
    """A live request that must go well; the engine that answered."""
    connection = client(one)
    answer = await connection.ask(tenant, request_bytes(tenant, prompt))
    connection.close()
    assert answer.whole, answer
    return answer.engine


async def dropped(one: Stack, reason: str) -> dict[str, Any]:
    """Ask, live, until a capture was dropped for this reason; the ledger balances."""
    ledger: dict[str, Any] = {}
    count = 0

    async def counted() -> bool:
        nonlocal ledger, count
        count += 1
        assert await ask(one, "globex", f"until {reason} {count}") == "old"
        ledger = await one.admin("/v1/ledger")
        assert ledger["balanced"], ledger
        return bool(ledger["dropped"].get(reason))

    await eventually_async(counted, reason)
    return ledger


async def judging(one: Stack) -> dict[str, Any]:
    """A judge that every edge obeys, whatever troubles it reports."""
    await one.obeyed()
    return await one.status()


async def another_judge(one: Stack) -> dict[str, Any]:
    lives = len(one.pids("judge"))
    one.kill("judge")
    await eventually(lambda: len(one.pids("judge")) > lives, "another judge")

    async def answers() -> bool:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await judging(one)
            return True
        return False

    await eventually_async(answers, "the next judge")
    return await one.status()


async def troubled(one: Stack, *words: str) -> None:
    async def said() -> bool:
        told = " | ".join((await one.status())["troubles"])
        return all(word in told for word in words)

    await eventually_async(said, f"status says {words}")
    code, out, _ = await one.cli("status")
    assert code == 0
    for word in words:
        assert word in out


@needs_root
def test_full_disk_costs_evidence_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, _, new):
            await ask(one, "globex", "while there is room")
            fill(one.state / "filler")
            ledger = await dropped(one, "evidence_failed")
            assert ledger["captured"] >= 1
            await troubled(one, "disk is full")
            await new.set("forks at token 2")
            assert await ask(one, "acme", "it forks") == "new"
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            await new.set()
            # Its space was taken beforehand: even now the latch is on disk, before any edge hears of it.
            assert (await one.admin("/v1/rollouts/old-to-new"))["latched"]["durable"]
            assert "old-to-new" in read_latch(one.state / "rollback.latch").latched
            assert await ask(one, "acme", "after the flip") == "old"
            # Workers and judges that start on a full disk.
            one.kill("edge 0")
            await eventually(lambda: len(one.pids("edge 0")) == 2, "another edge")
            found = await another_judge(one)
            assert found["rollouts"][0]["state"] == "rolled_back"
            assert await ask(one, "acme", "after the kills") == "old"
            (one.state / "filler").unlink()
            await one.until_judged()  # which waits for no troubles
            code, _, err = await one.cli("rollout", "lift", "old-to-new", "--reason", "room again")
            assert code == 0, err
            await one.obeyed()
            before = (await one.quiet())["compared"]
            await ask(one, "globex", "kept again")
            await eventually_async(lambda: _compared(one, before), "evidence again")

    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=3m", "tmpfs"):
        asyncio.run(main())


async def _compared(one: Stack, before: int) -> bool:
    return bool((await one.quiet())["compared"] > before)


def test_disk_that_refuses_every_write_lets_the_flip_out_and_says_it_is_not_durable(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, _, new):
            pid = one.pids("judge")[-1]
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
            await dropped(one, "evidence_failed")
            await new.set("forks at token 2")
            assert await ask(one, "acme", "it forks") == "new"
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()  # the flip went out, so what became of the latch's write is known
            await new.set()
            found = await one.until("the rollback", state="rolled_back")
            assert found["latched"]["durable"] is False
            assert read_latch(one.state / "rollback.latch").latched == {}
            await troubled(one, "the rollback latch is not durable")
            assert await ask(one, "acme", "after the flip") == "old"
            # It was announced, so it stands although that judge could write nothing down.
            epoch = (await one.status())["epoch"]
            found = await another_judge(one)
            assert found["rollouts"][0]["state"] == "rolled_back"
            assert found["epoch"] > epoch
            assert await ask(one, "acme", "after the judge") == "old"
            await one.until("a durable latch", state="rolled_back", latched=_Durable())
            assert "old-to-new" in read_latch(one.state / "rollback.latch").latched
            await _heals(one, new)

    asyncio.run(main())


async def _heals(one: Stack, new: StubProcess) -> None:
    """The disk refuses once more, and then takes what it had refused."""
    code, _, err = await one.cli("rollout", "lift", "old-to-new", "--reason", "another disk")
    assert code == 0, err
    await one.until("its first step", state="canary")
    await one.obeyed()
    pid = one.pids("judge")[-1]
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    await new.set("forks at token 2")
    await ask(one, "acme", "it forks")
    found = await one.until("the rollback", state="rolled_back")
    assert found["latched"]["durable"] is False
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
    await one.until("a durable latch", state="rolled_back", latched=_Durable())
    assert "old-to-new" in read_latch(one.state / "rollback.latch").latched
    await one.until_judged()  # which waits for no troubles


class _Durable:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other["durable"] is True

    __hash__ = None  # type: ignore[assignment]


def test_damaged_latch_and_evidence_fail_to_home_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stubs("old", "new") as (old, new):
            one = Stack(tmp_path, old.url, new.url)
            one.state.mkdir()
            (one.state / "rollback.latch").write_bytes(b"nonsense" * 16_384)
            (one.state / "evidence.db").write_bytes(b"no database, this" * 1_000)
            (one.state / "routes.json").write_text('{"epoch": 7, "home"')
            (one.state / "rollouts.json").write_text("[]")
            try:
                one.spawn()
                await one.until_edges()
                assert await ask(one, "acme", "before a judge") == "old"
                await one.until("what is unknown counts as rolled back", state="rolled_back")
                await judging(one)
                assert await ask(one, "acme", "judged") == "old"
                await troubled(one, "not an SQLite database")
                found = await one.until("kept in a new file", state="rolled_back", latched=_Durable())
                assert "unknown" in found["latched"]["reason"]
                assert list(one.state.glob("rollback.latch.damaged*"))
                lift = ("rollout", "lift", "old-to-new", "--reason", "looked at it")
                code, _, err = await one.cli(*lift)
                assert code == 4, "what no journal holds is not done"
                assert "could not be journalled first" in err
                assert "move the file away" in err
                (one.state / "evidence.db").rename(one.state / "evidence.db.damaged")
                await one.until_judged()  # which waits for no troubles
                code, _, err = await one.cli(*lift)
                assert code == 0, err
                await one.until("its first step", state="canary")
                await one.obeyed()
                assert await ask(one, "acme", "lifted") == "new"
                await new.set("forks at token 2")
                await ask(one, "acme", "it forks")
                await one.until("the rollback", state="rolled_back")
                await one.obeyed()
                assert await ask(one, "acme", "after") == "old"
            finally:
                await one.close()

    asyncio.run(main())


def test_evidence_that_is_overwritten_under_way_costs_evidence_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, _, new):
            for number in range(4):
                await ask(one, "globex", f"while it is sound {number}")
            await one.quiet(captured=4)
            # A step that the journal alone knew of would be lost with it, and not taken again without one.
            await eventually(
                lambda: b'"stage":"canary"' in (one.state / "rollouts.json").read_bytes(), "kept"
            )
            one.kill("judge")  # so that the next one reads what is there
            for name in ("evidence.db", "evidence.db-wal"):
                file = one.state / name
                if file.exists():
                    file.write_bytes(os.urandom(file.stat().st_size))
            await eventually(lambda: len(one.pids("judge")) == 2, "another judge")
            await one.until("a judge", state="canary")
            await one.obeyed()
            await dropped(one, "evidence_failed")
            await troubled(one, "evidence.db")
            await new.set("forks at token 2")
            assert await ask(one, "acme", "it forks") == "new"
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            assert await ask(one, "acme", "after the flip") == "old"
            await one.quiet()

    asyncio.run(main())


@needs_root
def test_state_directory_on_a_read_only_disk_is_refused_or_served_but_never_a_canary(tmp_path: Path) -> None:
    """Nothing can be locked there: ``serve`` says so and starts nothing."""

    async def main(state: Path) -> None:
        async with asyncio.timeout(LIMIT_S), stubs("old", "new") as (old, new):
            one = Stack(tmp_path, old.url, new.url)
            subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
            one.spawn()
            assert one.process is not None
            code = await asyncio.to_thread(one.process.wait, 30)
            said = one.log_file.read_text()
            await one.close()
            assert code == 2, said
            assert "state_dir" in said
            assert "Read-only" in said
            assert "Traceback" not in said

    with mounted(tmp_path / "state", "-t", "tmpfs", "-o", "size=1m", "tmpfs") as state:
        asyncio.run(main(state))
