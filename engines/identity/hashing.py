"""SHA-256 of many files at once, over all cores.

Threads are enough: hashlib and the reads give up the interpreter's lock. Each thread has one buffer, and
the largest files are begun first, so that no core is left with a big one at the end. Memory does not grow
with the files.

A file is looked at before and after: one that was changed, replaced, cut or grown meanwhile has no sum, and
that is said. Two names of one file (a hub cache's links, hard links) are hashed once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from engines.identity.hash_cache import FileKey, HashCache
from engines.identity.trouble import changed, shown, special, unreadable

_BUFFER_BYTES = 1 << 20
_TELL_EVERY_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the hashing is. Files whose sum was known count as done from the start."""

    done_files: int
    files: int
    done_bytes: int
    bytes: int
    cached_files: int


@dataclasses.dataclass(frozen=True, slots=True)
class Hashed:
    """A file's sum, and the state in which it had it."""

    sha256: str
    key: FileKey
    cached: bool

    @property
    def bytes(self) -> int:
        return self.key.size


@dataclasses.dataclass(frozen=True, slots=True)
class NotHashed:
    """Why a file has no sum, in a whole sentence with the way out."""

    problem: str


Outcome = Hashed | NotHashed


def cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hash_files(
    paths: Iterable[str],
    *,
    cache: HashCache | None = None,
    progress: Callable[[Progress], None] | None = None,
    threads: int | None = None,
) -> Mapping[str, Outcome]:
    """The sum of each of ``paths``, or why it has none.

    Args:
        cache: asked first, and told what was computed; None hashes everything.
        progress: called in the caller's own thread, about ten times a second and at the end.
        threads: as many as :func:`cores` when None.

    Raises:
        Nothing of a file: its outcome says it. What the callback raises ends the hashing and is passed on.
    """
    run = _Run(paths, cache)
    began_ns = time.time_ns()
    crew = _Crew(run.jobs, min(threads or cores(), len(run.jobs)))

    def tell() -> None:
        if progress is not None:
            progress(run.progress(crew.read_bytes))

    for key, outcome in crew.run(tell):
        run.end(key, outcome)
    if cache is not None:
        cache.put(run.computed, now_ns=began_ns)
    tell()
    return run.outcomes


class _Run:
    """What is asked for, by state on the disk; what is known of it already; and what came out."""

    def __init__(self, paths: Iterable[str], cache: HashCache | None) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self.computed: list[tuple[FileKey, str]] = []
        self._names: dict[FileKey, list[str]] = {}
        for path in dict.fromkeys(paths):
            try:
                status = os.stat(path)
            except OSError as error:
                self.outcomes[path] = NotHashed(unreadable(path, error))
                continue
            if stat.S_ISREG(status.st_mode):
                self._names.setdefault(FileKey.of(status), []).append(path)
            else:
                self.outcomes[path] = NotHashed(special(path, status.st_mode))
        self._files = sum(map(len, self._names.values()))
        self._bytes = sum(key.size * len(same) for key, same in self._names.items())
        self._done_files = self._done_bytes = self._cached_files = 0
        self.jobs: list[tuple[FileKey, str]] = []
        for key, same in self._names.items():
            known = cache.get(key) if cache is not None else None
            if known is None:
                self.jobs.append((key, same[0]))
            else:
                self._cached_files += len(same)
                self.end(key, Hashed(known, key, cached=True))
        self.jobs.sort(key=lambda job: -job[0].size)
        self._known_bytes = self._done_bytes

    def end(self, key: FileKey, outcome: Outcome) -> None:
        same = self._names[key]
        self.outcomes.update(dict.fromkeys(same, outcome))
        self._done_files += len(same)
        self._done_bytes += key.size * len(same)
        if isinstance(outcome, Hashed) and not outcome.cached:
            self.computed.append((key, outcome.sha256))

    def progress(self, read_bytes: int) -> Progress:
        """``read_bytes`` counts files that are not done yet, too; a second name of a file is read with it."""
        done = max(self._done_bytes, min(self._known_bytes + read_bytes, self._bytes))
        return Progress(
            done_files=self._done_files,
            files=self._files,
            done_bytes=done,
            bytes=self._bytes,
            cached_files=self._cached_files,
        )


class _Crew:
    """Threads that take one file after another, until none is left or nobody wants more."""

    def __init__(self, jobs: list[tuple[FileKey, str]], threads: int) -> None:
        self._jobs = queue.SimpleQueue[tuple[FileKey, str]]()
        for job in jobs:
            self._jobs.put(job)
        self._count = len(jobs)
        self._done = queue.SimpleQueue[tuple[FileKey, Outcome | BaseException]]()
        self._stop = threading.Event()
        self._read = [0] * threads  # one slot a thread, so that counting needs no lock
        self._threads = [
            threading.Thread(target=self._work, args=(slot,), name=f"sha256-{slot}", daemon=True)
            for slot in range(threads)
        ]

    @property
    def read_bytes(self) -> int:
        return sum(self._read)

    def run(self, tell: Callable[[], None]) -> Iterable[tuple[FileKey, Outcome]]:
        for thread in self._threads:
            thread.start()
        try:
            told_s = time.monotonic()
            for _ in range(self._count):
                while True:
                    if time.monotonic() - told_s >= _TELL_EVERY_S:
                        tell()
                        told_s = time.monotonic()
                    try:
                        key, outcome = self._done.get(timeout=_TELL_EVERY_S)
                    except queue.Empty:
                        continue
                    break
                if isinstance(outcome, BaseException):
                    raise outcome
                yield key, outcome
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def _work(self, slot: int) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while not self._stop.is_set():
            try:
                key, path = self._jobs.get_nowait()
            except queue.Empty:
                return
            try:
                outcome: Outcome | BaseException = self._hash(key, path, buffer, slot)
            except OSError as error:
                outcome = NotHashed(unreadable(path, error))
            except BaseException as error:  # told to the caller, who is another thread
                outcome = error
            self._done.put((key, outcome))

    def _hash(self, key: FileKey, path: str, buffer: memoryview, slot: int) -> Outcome:
        # Not blocked by a pipe that has taken the file's place.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if FileKey.of(os.fstat(file)) != key:
                return NotHashed(changed(path, "it was written or replaced before it was opened"))
            digest = hashlib.sha256()
            left = key.size
            while left > 0:
                if self._stop.is_set():
                    return NotHashed(f"{shown(path)}: not finished: the hashing was stopped")
                count = os.readv(file, [buffer[: min(left, _BUFFER_BYTES)]])
                if count == 0:
                    return NotHashed(changed(path, f"it ended {left} bytes early"))
                digest.update(buffer[:count])
                left -= count
                self._read[slot] += count
            if FileKey.of(os.fstat(file)) != key:
                return NotHashed(changed(path, "its size or its times moved"))
            # The name may lead elsewhere by now: a download that ends with a rename.
            if FileKey.of(os.stat(path)) != key:
                return NotHashed(changed(path, "another file has taken its name"))
        finally:
            os.close(file)
        return Hashed(digest.hexdigest(), key, cached=False)
