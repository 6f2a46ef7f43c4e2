"""SHA-256 sums that were computed before, kept by what a file is on its disk.

A sum is found again by ``(device, inode, size, mtime, ctime)``, times in nanoseconds. The last of them is
the kernel's own: whoever changes a file and sets its modification time back still moves it.

The file is a log of lines, each with its own check sum. Several processes append to it at once, each line
with one ``write`` at the end of the file; a line that is torn, flipped or foreign is skipped, and its file
hashed again. When most of it is old, it is written anew and swapped in by a rename.

It saves time and proves nothing: who may write this file may put any sum in it. It is used only if it
belongs to the user who runs us, and every command can do without (``--no-cache``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable

_NAME = "file-sha256.v1"
_MOST_LINES = 200_000
"""About 25 MB. Beyond it, and when half of the lines are old, the file is written anew."""
_MOST_BYTES = 64 << 20
# A file may be written twice within one tick of the clock that stamps it, so a sum is kept only once the
# stamp is older than a tick: ext4, xfs and tmpfs tick every 1-10 ms, others in whole seconds (NFSv2, FAT).
_FINE_TICK_NS = 50_000_000
_COARSE_TICK_NS = 2_500_000_000
_SECOND_NS = 1_000_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class FileKey:
    """What a file is to its disk, at one moment."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileKey:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def settled_at(self, now_ns: int) -> bool:
        """Whether a later change must show in the stamps."""
        newest = max(self.mtime_ns, self.ctime_ns)
        coarse = self.mtime_ns % _SECOND_NS == 0 and self.ctime_ns % _SECOND_NS == 0
        return now_ns - newest > (_COARSE_TICK_NS if coarse else _FINE_TICK_NS)


def default_cache_path() -> pathlib.Path:
    """``$XDG_CACHE_HOME/forkgate/file-sha256.v1``, by default under ``~/.cache``.

    Raises:
        RuntimeError: no home directory can be found.
    """
    # The specification: a relative path is to be ignored.
    told = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(told) if os.path.isabs(told) else pathlib.Path.home() / ".cache"
    return base / "forkgate" / _NAME


class HashCache:
    """Sums by :class:`FileKey`. Reading never fails and writing never raises: :attr:`trouble` says what did
    not work, and whoever uses the cache tells it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._known: dict[FileKey, str] = {}
        self._lines = 0
        self._ours = True
        self.trouble: str | None = None
        self._read()

    @classmethod
    def default(cls) -> HashCache | None:
        """The user's own cache; None where there is no home to keep it in."""
        try:
            return cls(default_cache_path())
        except RuntimeError:
            return None

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: FileKey) -> str | None:
        """The hex SHA-256 of the file that had this key, if it is known."""
        return self._known.get(key)

    def put(self, sums: Iterable[tuple[FileKey, str]], *, now_ns: int | None = None) -> None:
        """Keep these sums, computed before ``now_ns`` (the clock of :func:`time.time_ns` if None).

        A file whose stamps are not settled yet is left out, and is hashed again next time.
        """
        now_ns = time.time_ns() if now_ns is None else now_ns
        fresh = [(key, digest) for key, digest in sums if key.settled_at(now_ns)]
        fresh = [(key, digest) for key, digest in fresh if self._known.get(key) != digest]
        self._known.update(fresh)
        if not fresh or not self._ours:
            return
        try:
            self._append(fresh)
            if self._lines > _MOST_LINES and self._lines > 2 * len(self._known):
                self._compact()
        except OSError as error:
            self.trouble = f"{self._path}: sums are not kept: {error.strerror or error}"

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                    self._ours = False
                    self.trouble = f"{self._path}: not used, it is no plain file of this user: remove it"
                    return
                # The end is the newest; a file far beyond its bound is some accident.
                file.seek(max(0, status.st_size - _MOST_BYTES))
                lines = file.read(_MOST_BYTES).splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            self.trouble = f"{self._path}: sums are not read: {error.strerror or error}"
            return
        self._lines = len(lines)
        places: dict[tuple[int, int], FileKey] = {}
        for line in lines:
            entry = _entry(line)
            if entry is None:
                continue
            key, digest = entry
            # An inode has one state at a time: what was known of an earlier one is old.
            old = places.get((key.device, key.inode))
            if old is not None and old != key:
                self._known.pop(old, None)
            places[(key.device, key.inode)] = key
            self._known[key] = digest

    def _append(self, sums: list[tuple[FileKey, str]]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)  # a swap waits for us, so that no line goes to the old file
            text = b"".join(_line(key, digest) for key, digest in sums)
            # Begins on a line of its own even after a line that was torn off.
            os.write(file, b"\n" + text)
        finally:
            os.close(file)
        self._lines += len(sums) + 1

    def _compact(self) -> None:
        with self._path.open("rb") as old:
            fcntl.flock(old, fcntl.LOCK_EX)
            if os.fstat(old.fileno()).st_ino != self._path.stat().st_ino:
                return  # somebody else was quicker
            self._known.clear()
            self._read()
            kept = list(self._known.items())[-_MOST_LINES // 2 :]
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{_NAME}-")
            try:
                with open(handle, "wb") as new:
                    new.writelines(_line(key, digest) for key, digest in kept)
                os.replace(name, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            self._lines = len(kept)


def _line(key: FileKey, digest: str) -> bytes:
    body = f"{key.device} {key.inode} {key.size} {key.mtime_ns} {key.ctime_ns} {digest}".encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _entry(line: bytes) -> tuple[FileKey, str] | None:
    check, _, body = line.partition(b" ")
    if check != b"%08x" % zlib.crc32(body):
        return None
    fields = body.split(b" ")
    if len(fields) != 6 or len(fields[5]) != 64:
        return None
    try:
        device, inode, size, mtime_ns, ctime_ns = (int(field) for field in fields[:5])
        return FileKey(device, inode, size, mtime_ns, ctime_ns), fields[5].decode("ascii")
    except ValueError:
        return None
