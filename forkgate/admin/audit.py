"""The audit log: who did what, from where and why, and what came of it.

One JSON object a line, in ``STATE_DIR/audit.jsonl``. Each line carries the hash of the line before it and
ends with its own, so that a line that was changed, moved or taken out breaks the chain::

    {"seq":7,...,"prev":"<hash of line 6>","hash":"<SHA-256 of this line without its hash>"}

What the chain cannot show is a tail that was cut off, or a log that was written anew from its first line
by somebody who may write the file. Keep the head that ``forkgate audit verify`` prints somewhere else, and
give it back with ``--head``.

An action is written down and synced *before* it takes effect (``asked``), and again with its result
(``done``). Where the first line cannot be written, the action is refused; a rollback alone goes through, and
its line is written as soon as the disk takes it (``late``). A read of content is one line (``read``).

The file is written by one thread: a disk that hangs delays a person's action by a bounded time, and nothing
else.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

GENESIS = "0" * 64
"""``prev`` of the first line."""
MAX_WAITING = 64
"""Lines that may wait for the disk; a further action is refused at once."""
MAX_LATE = 1_000
_HASH = re.compile(rb',"hash":"([0-9a-f]{64})"\}\Z')


class AuditError(Exception):
    """A line could not be written: what, where."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    seq: int = msgspec.field(default=0)
    """From 1."""
    unix_s: float
    kind: str
    """``opened``, ``asked``, ``done``, ``read`` or ``denied``."""
    who: str = ""
    """A token's name, or the user behind the unix socket."""
    role: str = ""
    via: str = ""
    """``unix``, ``tcp``, ``tls`` or ``mtls``."""
    peer: str = ""
    """Address, or process and user."""
    action: str = ""
    """``rollout.lift``, ``evidence.show``, ..."""
    target: str = ""
    """Path and query of the request."""
    why: str = ""
    """The reason that was given."""
    detail: str = ""
    about: int = 0
    """Of a ``done``: the ``asked`` that it ends. 0: that line could not be written."""
    status: int = 0
    """HTTP status of the answer."""
    result: str = ""
    """``ok``, or the refusal in words."""
    epoch: int = 0
    """Route table after the action, where the action tells it."""
    late: bool = False
    """Written after its action, for the disk had refused it."""
    prev: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the whole file found."""

    lines: int
    head: str
    """Hash of the last whole line; :data:`GENESIS` of an empty log."""
    problems: tuple[str, ...]
    """One sentence each, the first ones; none: the chain holds."""
    has_head: bool | None = None
    """Whether the head that was asked for is in the chain."""
    unfinished: int = 0
    """Actions without a result: the judge ended in between."""


class AuditFile:
    """The file itself. Blocking; one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0
        self.seq = 0
        self.head = GENESIS

    def append(self, entry: AuditEntry) -> AuditEntry:
        """Write one line and sync it. Raises OSError, AuditError; the file is then as it was before."""
        if self._fd is None:
            self._open()
        assert self._fd is not None
        if os.fstat(self._fd).st_nlink == 0 or not self.path.exists():
            self.close()  # it was moved away: what follows stands in a new file, in the same chain
            self._open(follow=True)
        entry = msgspec.structs.replace(entry, seq=self.seq + 1, prev=self.head)
        line, digest = sealed(entry)
        try:
            written = os.pwrite(self._fd, line, self._size)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written, the disk is full")
            os.fdatasync(self._fd)
        except OSError:
            self._cut()
            raise
        self._size += len(line)
        self.seq, self.head = entry.seq, digest
        return entry

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, *, follow: bool = False) -> None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            fresh = size == 0
            if not (fresh and follow):
                self.seq, self.head, whole = _tail(fd, size, self.path)
                if whole < size:
                    # A line that was never finished belongs to an action that never happened.
                    log.warning(
                        "an unfinished line of the audit log is cut off", extra={"bytes": size - whole}
                    )
                    os.ftruncate(fd, whole)
                    os.fsync(fd)
                size = whole
            if fresh:
                os.fsync(fd)
                _sync_directory(self.path.parent)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._size = fd, size

    def _cut(self) -> None:
        """Take back what a failed write left; when that fails too, opening again does."""
        assert self._fd is not None
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            self.close()


class AuditLog:
    """What the admin API writes to. Its methods belong to the event loop."""

    def __init__(self, path: Path, wait_s: float = 2.0) -> None:
        """
        Args:
            wait_s: how long a line waits for the disk.
        """
        self.path = path
        self._file = AuditFile(path)
        self._wait_s = wait_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit")
        self._waiting = 0
        self._late: deque[AuditEntry] = deque(maxlen=MAX_LATE)
        self.trouble: str | None = None
        self.lost = 0
        """Lines of rollbacks and results that were given up, because too many waited."""

    @property
    def late(self) -> int:
        """Lines that wait for a disk that refused them."""
        return len(self._late)

    @property
    def head(self) -> tuple[int, str]:
        """Number and hash of the last line that this life wrote or found."""
        return self._file.seq, self._file.head

    async def write(self, entry: AuditEntry) -> AuditEntry:
        """Write one line and wait until it is on disk. Raises AuditError: it is not, or not known to be."""
        if self._waiting >= MAX_WAITING:
            raise self._failed("too many lines wait for the disk")
        self._waiting += 1
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._append, entry)
        work.add_done_callback(self._written)
        try:
            async with asyncio.timeout(self._wait_s):
                written = await asyncio.shield(work)
        except TimeoutError:
            raise self._failed(f"the disk did not answer within {self._wait_s:g} s") from None
        except (OSError, AuditError, msgspec.MsgspecError) as error:
            raise self._failed(str(getattr(error, "strerror", None) or error)) from error
        self.trouble = None
        return written

    def later(self, entry: AuditEntry) -> None:
        """Keep a line of something that happened although it could not be written; :meth:`flush` tries
        again."""
        if len(self._late) == MAX_LATE:
            self.lost += 1
        self._late.append(msgspec.structs.replace(entry, late=True))

    async def flush(self) -> None:
        """Write what is late, oldest first. Raises AuditError."""
        while self._late:
            entry = self._late[0]
            await self.write(entry)
            if self._late and self._late[0] is entry:
                self._late.popleft()

    async def close(self) -> None:
        """Let the thread end; one that hangs is left behind."""
        self._thread.submit(self._file.close)
        self._thread.shutdown(wait=False)

    def _append(self, entry: AuditEntry) -> AuditEntry:
        return self._file.append(entry)

    def _written(self, work: asyncio.Future[AuditEntry]) -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # whoever waited was told, or had stopped waiting

    def _failed(self, why: str) -> AuditError:
        self.trouble = f"{self.path}: {why}"
        return AuditError(self.trouble)


def sealed(entry: AuditEntry) -> tuple[bytes, str]:
    """The line of an entry whose ``seq`` and ``prev`` are set, and its hash."""
    body = msgspec.json.encode(entry)
    digest = hashlib.sha256(body).hexdigest()
    return body[:-1] + b',"hash":"' + digest.encode() + b'"}\n', digest


def unsealed(line: bytes) -> tuple[AuditEntry, str, bool]:
    """Entry and hash of a line (without its newline), and whether they fit. Raises ValueError."""
    match = _HASH.search(line)
    if match is None:
        raise ValueError("does not end with a hash")
    body = line[: match.start()] + b"}"
    try:
        entry = msgspec.json.decode(body, type=AuditEntry)
    except msgspec.DecodeError as error:
        raise ValueError(f"is no line of an audit log: {error}") from None
    told = match.group(1).decode()
    return entry, told, hashlib.sha256(body).hexdigest() == told


def read_entries(path: Path) -> Iterator[tuple[int, bytes]]:
    """Line number and bytes, without newlines. Raises OSError."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield number, line.rstrip(b"\n")


def verify(path: Path, head: str | None = None, follows: str | None = None, most: int = 20) -> Verified:
    """Follow the chain from its first line. Raises OSError.

    Args:
        head: a hash that was kept elsewhere, to be found in the chain.
        follows: of the line before the first one here, where an older file holds it.
        most: problems to tell.
    """
    problems: list[str] = []
    before: tuple[int, str] | None = None
    lines = 0
    open_: set[int] = set()
    found = False
    for number, line in read_entries(path):
        lines += 1
        try:
            entry, digest, fits = unsealed(line)
        except ValueError as error:
            problems.append(f"line {number}: {error}")
            before = None
            continue
        if not fits:
            problems.append(f"line {number}: its content was changed, seq {entry.seq}")
        if number == 1 and entry.prev != (follows if follows is not None else GENESIS):
            problems.append(
                f"line 1: is no beginning, seq {entry.seq} after {entry.prev}: an older file holds what is "
                "before it, give that file's head with --follows"
            )
        if before is not None and (entry.prev != before[1] or entry.seq != before[0] + 1):
            problems.append(
                f"line {number}: does not follow the line before it, seq {entry.seq} after {before[0]}"
            )
        if entry.kind == "asked" and not entry.late:
            open_.add(entry.seq)
        open_.discard(entry.about)
        before = (entry.seq, digest)
        found = found or digest == head
    return Verified(
        lines=lines,
        head=before[1] if before is not None else GENESIS,
        problems=tuple(problems[:most]),
        has_head=None if head is None else found,
        unfinished=len(open_),
    )


def _tail(fd: int, size: int, path: Path) -> tuple[int, str, int]:
    """Number and hash of the last whole line, and where it ends. Raises AuditError."""
    end = size
    block = b""
    start = size
    while start > 0 and block.count(b"\n", 0, len(block)) < 2:
        step = min(65_536, start)
        start -= step
        block = os.pread(fd, step, start) + block
    whole = block.rfind(b"\n") + 1
    end = start + whole
    if end == 0:
        return 0, GENESIS, 0
    line = block[:whole].rstrip(b"\n").rpartition(b"\n")[2]
    try:
        entry, digest, fits = unsealed(line)
    except ValueError as error:
        raise AuditError(
            f"{path}: its last line {error}; move the file away to go on with a new one"
        ) from None
    if not fits:
        raise AuditError(f"{path}: its last line was changed; move the file away to go on with a new one")
    return entry.seq, digest, end


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
