"""One process at a time: an advisory lock that dies with its holder, however it dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Locked(Exception):  # noqa: N818 - reads as the fact that it is
    """Somebody else holds the lock. ``holder`` is their process id, where it could be read."""

    def __init__(self, path: Path, holder: int | None) -> None:
        self.path = path
        self.holder = holder
        who = f"process {holder}" if holder is not None else "another process"
        super().__init__(f"{path}: held by {who}")


class StateLock:
    """``flock`` on a file that also names its holder. The file stays; only the lock means anything."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise :class:`Locked` at once. OSError when the file cannot be opened."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).strip()
            os.close(fd)
            raise Locked(self.path, int(holder) if holder.isdigit() else None) from None
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # A full disk must not keep the sidecar from starting; only the holder's name is lost.
            pass

    def release(self) -> None:
        """Give it up; the file stays behind."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
