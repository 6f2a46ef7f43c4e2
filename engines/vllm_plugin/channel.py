"""From the engine cores to the API servers: shared memory, one ring of fixed records an engine.

Why shared memory: the writer stands between two forward passes of a GPU, so it may neither wait nor wake
anybody. A record costs it one copy of 32 bytes and no system call; a datagram costs a system call, wakes the
reader at every step, and is lost beyond ten unread ones (``net.unix.max_dgram_qlen``). Several API servers
read one ring without knowing of each other. The ring never grows: a reader that sleeps for a whole round has
lost records, sees that it has, and says so.

The memory has no name in any file system. The process that starts all the others makes it
(:func:`create`) and tells its place in :data:`VARIABLE`, which they inherit; it is gone when they are. An
engine core takes one lane of it by a lock that dies with the process.

Order: the record of a step is written before the forward pass whose token it tells of, and a reader looks
for it after that token has come to it through vLLM's own sockets. So what is asked for has been written. What
may be written meanwhile is the next round of the ring over what is read, hence the second look at the head.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator

from engines.vllm_plugin.marks import KEY_BYTES

VARIABLE = "FORKGATE_BATCH_CHANNEL"
"""Where the channel is, in the environment of vLLM's processes."""
LANES = 64
"""Engine cores of one machine that are heard; the rest find no lane."""
RECORDS = 16_384
"""Of one lane. A reader can trust one fewer: the oldest is what the writer may be writing over."""
CLASH = 1
"""Flag of a record: two running requests carry this mark, so neither's steps are told."""
CROWD = 2
"""Flag of a record: more requests are marked than are watched; this one is not."""
_VERSION = 0x666F726B_00000001
_RECORD = struct.Struct(f"={KEY_BYTES}sIIII")
_HEAD_BYTES = 4096
_LANE_BYTES = _HEAD_BYTES + RECORDS * _RECORD.size

Heard = Callable[[bytes, int, int, int, int], None]
"""Called with key, position, batch size, place and flags of one record."""


class NoChannel(RuntimeError):  # noqa: N818
    """There is no channel here, or no lane of it is free. The message says why."""


def create() -> str:
    """Make the memory, and tell its place. It lives as long as this process, or anyone who opened it.

    Raises:
        NoChannel: this system has no anonymous files.
    """
    if not hasattr(os, "memfd_create"):
        raise NoChannel("this system has no memfd_create: batch facts need Linux")
    try:
        # Sparse: a lane that nobody writes takes no memory.
        fd = os.memfd_create("forkgate-batch")
        os.ftruncate(fd, LANES * _LANE_BYTES)
    except OSError as error:
        raise NoChannel(f"no shared memory: {error}") from error
    # The descriptor stays open on purpose: the path leads through it.
    return f"/proc/{os.getpid()}/fd/{fd}"


def _open(path: str | None) -> tuple[int, mmap.mmap]:
    if not path:
        raise NoChannel("no process made a channel: VLLM_PLUGINS must name forkgate where vLLM is started")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NoChannel(
            f"{VARIABLE}: {error.strerror}: the process that made the channel runs elsewhere or has ended"
        ) from error
    try:
        return fd, mmap.mmap(fd, LANES * _LANE_BYTES)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise NoChannel(f"{VARIABLE}: not a channel of this version: {error}") from error


class Writer:
    """An engine core's end. Never blocks and never raises once it is open.

    Raises:
        NoChannel: on construction.
    """

    def __init__(self, path: str | None) -> None:
        self._fd, self._map = _open(path)
        try:
            lane = self._claim()
        except NoChannel:
            self.close()
            raise
        self._start = lane * _LANE_BYTES + _HEAD_BYTES
        # Machine words, so that a reader in another process sees a head whole.
        self._words = memoryview(self._map)[lane * _LANE_BYTES :][:16].cast("Q")
        self._words[0] = _VERSION
        self._head = self._words[1]

    def _claim(self) -> int:
        for lane in range(LANES):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lane)
                return lane
        raise NoChannel(f"all {LANES} lanes are taken by other engine cores of this machine")

    def write(self, key: bytes, position: int, batch_size: int, place: int, flags: int = 0) -> None:
        """Tell that from output token ``position`` on a request stands there. Oldest records go first."""
        at = self._start + (self._head % RECORDS) * _RECORD.size
        _RECORD.pack_into(self._map, at, key, position, batch_size, place, flags)
        self._head += 1
        self._words[1] = self._head

    def close(self) -> None:
        """Let go of the lane."""
        if hasattr(self, "_words"):
            self._words.release()
        self._map.close()
        os.close(self._fd)


class Reader:
    """An API server's end: everything that any engine core of this machine tells, from now on.

    Raises:
        NoChannel: on construction.
    """

    def __init__(self, path: str | None) -> None:
        self._fd, self._map = _open(path)
        self._words = [memoryview(self._map)[lane * _LANE_BYTES :][:16].cast("Q") for lane in range(LANES)]
        self._seen = [words[1] for words in self._words]

    def drain(self, heard: Heard) -> int:
        """Hand over what is new, oldest first within a lane. How many records were lost."""
        lost = 0
        for lane, words in enumerate(self._words):
            head = words[1]
            if head == self._seen[lane]:
                continue
            first = max(self._seen[lane], head + 1 - RECORDS)
            lost += first - self._seen[lane]
            found = list(self._records(lane, first, head))
            # What the writer came round to while this was read may be half of one record and half another,
            # and so may the one that it is at now: it raises the head after it wrote.
            overtaken = max(0, min(words[1] + 1 - RECORDS - first, len(found)))
            lost += overtaken
            for record in found[overtaken:]:
                heard(*record)
            self._seen[lane] = head
        return lost

    def _records(self, lane: int, first: int, end: int) -> Iterator[tuple[bytes, int, int, int, int]]:
        start = lane * _LANE_BYTES + _HEAD_BYTES
        for number in range(first, end):
            yield _RECORD.unpack_from(self._map, start + (number % RECORDS) * _RECORD.size)

    def close(self) -> None:
        """Let go of the memory."""
        for words in self._words:
            words.release()
        self._map.close()
        os.close(self._fd)
