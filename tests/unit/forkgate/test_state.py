"""Lock and route table on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forkgate.state.lock import Locked, StateLock
from forkgate.state.paths import StatePaths
from forkgate.state.table_file import TableCorrupt, read_table, write_table
from policies.routes import READER, Pool, PoolName, RouteTable

TABLE = RouteTable(
    epoch=4, home=PoolName("old"), pools=(Pool(name=PoolName("old"), endpoints=("http://h:1",)),)
)


def test_second_holder_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    held = StateLock(tmp_path / "lock")
    held.acquire()
    with pytest.raises(Locked) as caught:
        StateLock(tmp_path / "lock").acquire()
    assert caught.value.holder == os.getpid()
    held.release()
    again = StateLock(tmp_path / "lock")
    again.acquire()
    again.release()


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from forkgate.state.lock import StateLock;"
        "StateLock(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Locked):
            StateLock(tmp_path / "lock").acquire()
        holder.kill()
        holder.wait()
    lock = StateLock(tmp_path / "lock")
    lock.acquire()
    lock.release()


def test_table_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_table(tmp_path / "routes.json") is None
    write_table(tmp_path / "routes.json", msgspec.json.encode(TABLE))
    assert read_table(tmp_path / "routes.json") == TABLE
    assert [path.name for path in tmp_path.iterdir()] == ["routes.json"]


def test_failed_write_leaves_the_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "routes.json", msgspec.json.encode(TABLE))

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_table(tmp_path / "routes.json", b"{}")
    assert read_table(tmp_path / "routes.json") == TABLE


def test_something_else_in_the_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "routes.json").write_text("{}")
    with pytest.raises(TableCorrupt, match="remove it to start with every tenant at home"):
        read_table(tmp_path / "routes.json")


def test_what_only_a_newer_version_knows_is_kept_for_it(tmp_path: Path) -> None:
    newer = msgspec.json.encode({**msgspec.to_builtins(TABLE), "weights": {"old": 1}})
    write_table(tmp_path / "routes.json", newer)
    assert read_table(tmp_path / "routes.json") == TABLE
    assert (tmp_path / "routes.json").read_bytes() == newer


def test_a_table_that_asks_for_a_newer_reader_is_not_obeyed(tmp_path: Path) -> None:
    newer = msgspec.json.encode({**msgspec.to_builtins(TABLE), "reader": READER + 1})
    write_table(tmp_path / "routes.json", newer)
    with pytest.raises(TableCorrupt, match=r"it asks for a reader of version 2, .*; remove it to start"):
        read_table(tmp_path / "routes.json")


def test_state_directory_is_private(tmp_path: Path) -> None:
    paths = StatePaths(tmp_path / "state")
    paths.create()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
