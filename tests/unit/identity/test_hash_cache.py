"""The log of known sums: found again, shared, and harmless when it is damaged."""

from __future__ import annotations

import multiprocessing
import os
import pathlib

import pytest

from engines.identity import hash_cache
from engines.identity.hash_cache import FileKey, HashCache, default_cache_path

LATE_NS = 10**19
SUM = "ab" * 32


def key(number: int, *, size: int = 1, mtime_ns: int = 7) -> FileKey:
    return FileKey(device=1, inode=number, size=size, mtime_ns=mtime_ns, ctime_ns=mtime_ns)


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "deep" / "sums"


def test_a_sum_is_found_by_another_process(place: pathlib.Path) -> None:
    HashCache(place).put([(key(1), SUM)], now_ns=LATE_NS)
    again = HashCache(place)
    assert again.get(key(1)) == SUM
    assert again.get(key(1, size=2)) is None
    assert again.get(key(2)) is None


@pytest.mark.parametrize(
    ("stamp_ns", "age_ns", "kept"),
    [
        (10**18 + 1, 60_000_000, True),
        (10**18 + 1, 40_000_000, False),
        (10**18, 60_000_000, False),
        (10**18, 3 * 10**9, True),
        (10**18 + 1, -1, False),
    ],
    ids=["settled", "fresh", "fresh where the clock ticks in seconds", "settled there", "from the future"],
)
def test_a_sum_is_kept_once_a_change_must_show(
    place: pathlib.Path, stamp_ns: int, age_ns: int, kept: bool
) -> None:
    cache = HashCache(place)
    cache.put([(key(1, mtime_ns=stamp_ns), SUM)], now_ns=stamp_ns + age_ns)
    assert (cache.get(key(1, mtime_ns=stamp_ns)) is not None) is kept
    assert place.exists() is kept


def test_an_inode_has_one_state_and_the_last_counts(place: pathlib.Path) -> None:
    cache = HashCache(place)
    cache.put([(key(1), SUM)], now_ns=LATE_NS)
    cache.put([(key(1, mtime_ns=8), "cd" * 32)], now_ns=LATE_NS)
    again = HashCache(place)
    assert (again.get(key(1)), again.get(key(1, mtime_ns=8))) == (None, "cd" * 32)


def test_damage_costs_the_damaged_lines_and_nothing_else(place: pathlib.Path) -> None:
    HashCache(place).put([(key(number), SUM) for number in range(20)], now_ns=LATE_NS)
    lines = place.read_bytes().split(b"\n")
    for at in range(len(lines)):
        if b" 5 1 7 7" in lines[at]:
            lines[at] = lines[at].replace(b"abab", b"abac", 1)  # another sum, which would be a lie
        if b" 6 1 7 7" in lines[at]:
            lines[at] = lines[at][:30]
        if b" 7 1 7 7" in lines[at]:
            lines[at] = b"\x00\xff\xfe garbage"
    place.write_bytes(b"\n".join(lines)[:-40])  # and the last was torn off
    again = HashCache(place)
    assert again.trouble is None
    assert [number for number in range(20) if again.get(key(number)) is None] == [5, 6, 7, 19]
    again.put([(key(19), SUM)], now_ns=LATE_NS)
    assert HashCache(place).get(key(19)) == SUM


@pytest.mark.parametrize("content", [b"", b"\x00" * 10_000, os.urandom(4096), b"x" * 10_000])
def test_a_file_of_something_else_is_an_empty_cache(place: pathlib.Path, content: bytes) -> None:
    place.parent.mkdir()
    place.write_bytes(content)
    cache = HashCache(place)
    assert len(cache) == 0
    cache.put([(key(1), SUM)], now_ns=LATE_NS)
    assert HashCache(place).get(key(1)) == SUM


def _fill(place: str, first: int) -> None:
    for number in range(first, first + 200):
        HashCache(pathlib.Path(place)).put([(key(number), SUM)], now_ns=LATE_NS)


def test_processes_that_write_at_once_lose_nothing(place: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_fill, args=(str(place), first)) for first in (0, 200, 400)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    cache = HashCache(place)
    assert [number for number in range(600) if cache.get(key(number)) is None] == []


def test_a_log_that_is_mostly_old_is_written_anew(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_cache, "_MOST_LINES", 100)
    for stamp in range(200):
        HashCache(place).put([(key(1, mtime_ns=stamp), SUM), (key(2), SUM)], now_ns=LATE_NS)
    assert len(place.read_bytes().splitlines()) <= 101
    assert (HashCache(place).get(key(1, mtime_ns=199)), HashCache(place).get(key(2))) == (SUM, SUM)
    assert sorted(one.name for one in place.parent.iterdir()) == [place.name]


def test_a_place_that_cannot_be_written_is_told_and_does_no_harm(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = HashCache(tmp_path / "file" / "sums")  # its folder is a file
    cache.put([(key(1), SUM)], now_ns=LATE_NS)
    assert cache.get(key(1)) == SUM
    assert cache.trouble == f"{tmp_path}/file/sums: sums are not kept: File exists"


def test_a_file_of_another_user_is_not_believed(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HashCache(place).put([(key(1), SUM)], now_ns=LATE_NS)
    before = place.read_bytes()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    cache = HashCache(place)
    assert cache.get(key(1)) is None
    assert cache.trouble == f"{place}: not used, it is no plain file of this user: remove it"
    cache.put([(key(2), SUM)], now_ns=LATE_NS)
    assert place.read_bytes() == before


def test_the_place_follows_the_xdg_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_path() == pathlib.Path("/somewhere/forkgate/file-sha256.v1")
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert default_cache_path() == tmp_path / ".cache/forkgate/file-sha256.v1"
