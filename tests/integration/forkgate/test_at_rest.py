"""A whole sidecar whose evidence is sealed: what its files and log show, and what a missing key comes to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from comparator.evidence import EvidenceReader, Keyring
from tests.support.at_rest import key
from tests.support.fake_vllm import FakeVllm
from tests.support.stack import Stack
from tests.support.waiting import LIMIT_S, eventually

PROMPT = "Quastenflosser und Murmeltier"
HEX = ("01" * 32, "02" * 32)
NEEDLES = {
    "text": PROMPT.encode(),
    "JSON": json.dumps(list(PROMPT.encode())).encode(),
    "compact JSON": json.dumps(list(PROMPT.encode()), separators=(",", ":")).encode(),
    "32 bits": struct.pack(f"<{len(PROMPT)}I", *PROMPT.encode()),
}
FORKS_ROLL_BACK = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"


def shown(directory: Path) -> list[str]:
    """Which needle stands where, in all files of the state directory and in the log."""
    paths = [Path(folder) / name for folder, _, names in os.walk(directory) for name in names]
    return [
        f"{what} in {path.name}"
        for path in paths
        if path.is_file() and path.name != "forkgate.yaml"
        for what, needle in NEEDLES.items()
        if needle and needle in path.read_bytes()
    ]


@asynccontextmanager
async def stack(directory: Path, encryption: dict[str, Any] | None, *lies: str) -> AsyncIterator[Stack]:
    async with FakeVllm().serving() as old, FakeVllm(*lies).serving() as new:
        evidence = {} if encryption is None else {"encryption": encryption}
        made = Stack(
            directory,
            old.url,
            new.url,
            workers=1,
            policy=FORKS_ROLL_BACK,
            canary=(),
            rest={"evidence": evidence},
        )
        try:
            yield made
        finally:
            await made.close()


def command(one: Stack, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forkgate", *words],
        cwd=one.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


async def asked(one: Stack, count: int) -> None:
    for _ in range(count):
        status, _ = await one.request("acme", PROMPT)
        assert status == 200
    await one.quiet(captured=count)


def test_without_a_key_the_store_shows_the_prompt(tmp_path: Path) -> None:
    """Else the test below would prove nothing."""

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, None) as one:
            await one.start()
            await asked(one, 2)
            await eventually(lambda: any("evidence.db" in place for place in shown(tmp_path)))

    asyncio.run(main())


def test_sealed_evidence_outlives_a_kill_and_shows_nothing_on_any_disk(tmp_path: Path) -> None:
    print_key = [sys.executable, "-c", f"print('{HEX[0]}')"]

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, {"key_command": print_key}) as one:
            await one.start()
            await asked(one, 3)
            assert (await one.status())["evidence"]["sealed_with"] == key(1).id
            os.kill(one.pids("judge")[-1], signal.SIGKILL)
            await one.until_judged()
            assert shown(tmp_path) == []
            listed = json.loads((await asyncio.to_thread(command, one, "evidence", "list", "--json")).stdout)
            assert len(listed) == 3
            store = str(tmp_path / "state" / "evidence.db")
            recompute = ("verdict", "recompute", "--evidence", store, "--rollout", "old-to-new")
            locked = await asyncio.to_thread(command, one, *recompute)
            assert (locked.returncode, locked.stdout) == (4, "")
            assert f"sealed with key {key(1).id}, and that key is not given" in locked.stderr
            opened = await asyncio.to_thread(command, one, *recompute, "--config", "forkgate.yaml")
            assert opened.returncode in (0, 3), opened.stderr

            one.config["evidence"] = {
                "encryption": {"key_env": "FORKGATE_TEST_KEY", "old_keys": [{"key_command": print_key}]}
            }
            one.write()
            await one.stop()
            os.environ["FORKGATE_TEST_KEY"] = HEX[1]
            try:
                await one.start()
            finally:
                del os.environ["FORKGATE_TEST_KEY"]
            assert b"FORKGATE_TEST_KEY=" in Path(f"/proc/{one.pids('judge')[-1]}/environ").read_bytes()
            assert b"FORKGATE_TEST_KEY=" not in Path(f"/proc/{one.pids('edge 0')[-1]}/environ").read_bytes()
            rekeyed = await asyncio.to_thread(command, one, "evidence", "rekey")
            assert rekeyed.returncode == 0, rekeyed.stderr
            assert f"key {key(1).id} is not needed any more" in rekeyed.stdout
            with EvidenceReader(store, Keyring(current=key(2))) as reader:
                assert len(list(reader.export())) == 4
            erased = await asyncio.to_thread(
                command,
                one,
                "evidence",
                "erase",
                "--tenant",
                "acme",
                "--reason",
                "ticket 7",
                "--yes",
                "--json",
            )
            assert json.loads(erased.stdout)["captures"] == 3, erased.stderr
            assert json.loads(erased.stdout)["who"]
            assert await asyncio.to_thread(shown, tmp_path) == []

    asyncio.run(main())


def test_a_judge_whose_file_names_another_key_writes_over_no_sealed_state(tmp_path: Path) -> None:
    first, second = ({"key_command": [sys.executable, "-c", f"print('{one}')"]} for one in HEX)
    pause = ("rollout", "pause", "old-to-new", "--reason", "wait")

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, first) as one:
            await one.start()
            paused = await asyncio.to_thread(command, one, *pause)
            assert paused.returncode == 0, paused.stderr
            await one.stop()
            sealed = (one.state / "rollouts.json").read_bytes()
            one.config["evidence"] = {"encryption": second}
            one.write()
            one.spawn()
            await one.until_edges()
            await eventually(lambda: "Name it under evidence.encryption.old_keys" in one.log_file.read_text())
            assert (one.state / "rollouts.json").read_bytes() == sealed
            assert f"sealed with key {key(1).id}, which is not among those given" in one.log_file.read_text()

    asyncio.run(main())


def test_a_judge_without_its_key_does_not_start_and_live_traffic_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, {"key_env": "FORKGATE_NO_SUCH_KEY"}) as one:
            one.spawn()
            await one.until_edges()
            await eventually(
                lambda: "the environment has no variable FORKGATE_NO_SUCH_KEY" in one.log_file.read_text()
            )
            status, _ = await one.request("acme", PROMPT)
            assert status == 200
            assert not (tmp_path / "state" / "evidence.db").exists()

    asyncio.run(main())
