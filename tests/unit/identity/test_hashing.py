"""Hashing many files: right sums, told troubles, nothing left running."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import re
import threading
from typing import Any

import pytest

from engines.identity import hashing
from engines.identity.hash_cache import HashCache
from engines.identity.hashing import Hashed, NotHashed, Progress, hash_files


def _problem(outcome: object) -> str:
    assert isinstance(outcome, NotHashed)
    return outcome.problem


def _sum(outcome: object) -> str:
    assert isinstance(outcome, Hashed)
    return outcome.sha256


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> HashCache:
    return HashCache(tmp_path / "cache" / "sums")


def _written(path: pathlib.Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stamp counts as old enough: a test neither sleeps nor can set a file's ctime back."""
    monkeypatch.setattr("engines.identity.hash_cache._FINE_TICK_NS", -(10**12))


@pytest.mark.parametrize("size", [0, 1, 4095, 1 << 20, (1 << 20) + 1, (5 << 20) + 17])
def test_a_file_has_its_sum_whatever_its_size(tmp_path: pathlib.Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "f").write_bytes(content)
    (outcome,) = hash_files([str(tmp_path / "f")]).values()
    assert isinstance(outcome, Hashed)
    assert (outcome.sha256, outcome.bytes, outcome.cached) == (
        hashlib.sha256(content).hexdigest(),
        size,
        False,
    )


def test_two_names_of_one_file_are_read_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blob").write_bytes(b"x" * 1000)
    os.link(tmp_path / "blob", tmp_path / "hard")
    os.symlink("blob", tmp_path / "soft")
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (opened.append(path), real(path, *rest))[1])
    outcomes = hash_files(str(tmp_path / name) for name in ("blob", "hard", "soft"))
    assert {_sum(one) for one in outcomes.values()} == {hashlib.sha256(b"x" * 1000).hexdigest()}
    assert len(outcomes) == 3
    assert len(opened) == 1


def test_a_known_sum_is_not_computed_again(
    tmp_path: pathlib.Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _settle(monkeypatch)
    path = _written(tmp_path / "f", b"content")
    assert hash_files([path], cache=cache)[path] == Hashed(
        _sum(hash_files([path])[path]), hashing.FileKey.of(os.stat(path)), False
    )
    monkeypatch.setattr(os, "readv", lambda *_: pytest.fail("read again"))
    again = hash_files([path], cache=cache)[path]
    assert isinstance(again, Hashed)
    assert again.cached


def test_a_change_that_keeps_size_and_modification_time_is_noticed(
    tmp_path: pathlib.Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _settle(monkeypatch)
    path = _written(tmp_path / "f", b"before")
    before = os.stat(path)
    hash_files([path], cache=cache)
    while os.stat(path).st_ctime_ns == before.st_ctime_ns:  # until the file system's clock has ticked
        pathlib.Path(path).write_bytes(b"after!")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(path).st_mtime_ns == before.st_mtime_ns
    assert _sum(hash_files([path], cache=cache)[path]) == hashlib.sha256(b"after!").hexdigest()


def test_a_file_written_a_moment_ago_is_not_kept(tmp_path: pathlib.Path, cache: HashCache) -> None:
    # It could be written again within the same tick of its stamp.
    path = _written(tmp_path / "f", b"fresh")
    os.utime(path, ns=(0, 2**61))
    hash_files([path], cache=cache)
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.write_bytes(b"y" * (3 << 20)), "its size or its times moved"),
        (lambda path: os.truncate(path, 10), "it ended .* bytes early"),
        (lambda path: os.truncate(path, 4 << 20), "its size or its times moved"),
        (lambda path: _replace(path), "its size or its times moved|another file has taken its name"),
    ],
    ids=["rewritten", "cut", "grown", "replaced"],
)
def test_a_file_that_changes_while_it_is_hashed_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, change: Any, told: str
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x" * (3 << 20))
    os.utime(path, ns=(0, 0))
    real, did = os.readv, threading.Event()

    def readv(file: int, buffers: Any) -> int:
        count = real(file, buffers)
        if not did.is_set():
            did.set()
            change(path)
        return count

    monkeypatch.setattr(os, "readv", readv)
    problem = _problem(hash_files([str(path)])[str(path)])
    assert problem.startswith(f"{path}: changed while it was hashed (")
    assert re.search(told, problem), problem


def _replace(path: pathlib.Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"z" * (3 << 20))
    other.rename(path)


def test_each_trouble_names_the_file_and_the_way_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.symlink("nowhere", tmp_path / "dangling")
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "secret").write_bytes(b"x")
    real = os.open

    def refuse(path: Any, *rest: Any) -> int:
        if str(path).endswith("secret"):  # root may read all, so the refusal is played
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    names = ("pipe", "dangling", "loop", "secret", "absent", "")
    outcomes = hash_files(str(tmp_path / name) for name in names)
    told = [_problem(outcome).removeprefix(str(tmp_path)) for outcome in outcomes.values()]
    assert told == [
        "/pipe: a named pipe, and an artifact is made of plain files: move it elsewhere",
        "/dangling: a link to nowhere, which is not there: finish the download, or remove the link",
        "/loop: a link that leads back to itself: remove it",
        "/absent: vanished while it was looked at: run this again when nothing writes there any more",
        ": a folder, and an artifact is made of plain files: move it elsewhere",
        "/secret: may not be read by this user: give it read permission, or run as a user who has it",
    ]


def test_progress_ends_with_everything_done_and_never_goes_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_TELL_EVERY_S", 0.0)
    paths = []
    for number in range(5):
        paths.append(str(tmp_path / str(number)))
        pathlib.Path(paths[-1]).write_bytes(os.urandom(1 << 20))
    os.symlink("nowhere", tmp_path / "dangling")
    seen: list[Progress] = []
    hash_files([*paths, str(tmp_path / "dangling")], progress=seen.append, threads=2)
    done = [one.done_bytes for one in seen]
    assert done == sorted(done)
    assert seen[-1] == Progress(done_files=5, files=5, done_bytes=5 << 20, bytes=5 << 20, cached_files=0)


def test_a_callback_that_raises_ends_the_threads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_TELL_EVERY_S", 0.0)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(os.urandom(1 << 20))

    def give_up(_progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hash_files((str(one) for one in tmp_path.iterdir()), progress=give_up, threads=2)
    assert not [one for one in threading.enumerate() if one.name.startswith("sha256-")]


def test_memory_does_not_grow_with_the_files(tmp_path: pathlib.Path) -> None:
    import tracemalloc

    with (tmp_path / "large").open("wb") as file:
        file.truncate(256 << 20)  # holes: no disk is used
    tracemalloc.start()
    try:
        hash_files([str(tmp_path / "large")], threads=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
