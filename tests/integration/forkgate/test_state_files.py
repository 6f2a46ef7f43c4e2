"""What a sidecar leaves on its disk is its user's alone."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

from tests.support.sidecar import sidecar
from tests.support.waiting import LIMIT_S

WRITTEN = {
    "admin.sock",
    "audit.jsonl",
    "evidence.db",
    "evidence.db-wal",
    "judge.lock",
    "ledgers",
    "link.sock",
    "listen.json",
    "rollback.latch",
    "rollouts.json",
    "routes.json",
    "serve.lock",
}
"""By name, so that a file that is new here is thought about."""


def wide(directory: Path) -> dict[str, str]:
    """Files and folders that others could read, and how."""
    every = [directory, *directory.rglob("*")]
    modes = {str(one.relative_to(directory)): stat.S_IMODE(one.lstat().st_mode) for one in every}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def test_every_file_in_the_state_directory_is_its_users_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with sidecar(tmp_path) as (one, _, _):
            assert (await one.request("acme"))[0] == 200
            code, _, err = await one.cli("rollout", "rollback", "old-to-new", "--reason", "a line")
            assert code == 0, err
            assert {file.name for file in one.state.iterdir()} >= WRITTEN
            assert list((one.state / "ledgers").iterdir())
            assert wide(one.state) == {}
            assert await one.stop() == 0
            assert wide(one.state) == {}

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
