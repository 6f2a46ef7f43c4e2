"""The last route table reaches the disk without anybody waiting for it."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from forkgate.state.table_file import read_table, write_table
from forkgate.supervisor import keeper as module
from forkgate.supervisor.keeper import TableKeeper
from policies.routes import Pool, PoolName, RouteTable

FIRST = RouteTable(
    epoch=1, home=PoolName("old"), pools=(Pool(name=PoolName("old"), endpoints=("http://h:1",)),)
)


def epoch(number: int) -> tuple[int, bytes]:
    return number, msgspec.json.encode(msgspec.structs.replace(FIRST, epoch=number))


class Disk:
    """Hangs in its first write until it is freed."""

    def __init__(self) -> None:
        self.busy = threading.Event()
        self.free = threading.Event()
        self.written: list[int] = []

    def write(self, path: Path, encoded: bytes) -> None:
        self.busy.set()
        assert self.free.wait(60)
        self.written.append(msgspec.json.decode(encoded)["epoch"])
        write_table(path, encoded)


def test_newest_table_wins_once_a_disk_that_hung_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    monkeypatch.setattr(module, "write_table", disk.write)
    keeper = TableKeeper(tmp_path / "routes.json")
    keeper.start()
    keeper.keep(*epoch(1))
    assert disk.busy.wait(60)
    for number in (2, 3, 4):
        keeper.keep(*epoch(number))
    assert disk.written == []  # and nobody waited
    disk.free.set()
    keeper.close(60)
    assert disk.written == [1, 4]
    kept = read_table(tmp_path / "routes.json")
    assert kept is not None
    assert kept.epoch == 4


def test_disk_that_never_answers_is_left_behind_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    monkeypatch.setattr(module, "write_table", disk.write)
    keeper = TableKeeper(tmp_path / "routes.json")
    keeper.start()
    keeper.keep(*epoch(1))
    keeper.close(0.01)
    assert "left behind" in caplog.text
    disk.free.set()
    keeper.close(60)


def test_disk_that_refuses_one_table_is_offered_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = threading.Event()

    def write(path: Path, encoded: bytes) -> None:
        if not refused.is_set():
            refused.set()
            raise OSError(28, "No space left on device")
        write_table(path, encoded)

    monkeypatch.setattr(module, "write_table", write)
    keeper = TableKeeper(tmp_path / "routes.json")
    keeper.start()
    keeper.keep(*epoch(1))
    assert refused.wait(60)
    keeper.keep(*epoch(2))
    keeper.close(60)
    kept = read_table(tmp_path / "routes.json")
    assert kept is not None
    assert kept.epoch == 2
    assert "route table not kept on disk" in caplog.text
