"""A file of ``state_dir`` replaced whole: a crash leaves the old one or the new one, for its user alone."""

from __future__ import annotations

import os
from pathlib import Path

FILE_MODE = 0o600
"""Of every file in the state directory, like the directory's own: reasons may quote what clients wrote."""


def replace_file(path: Path, content: bytes, *, durable: bool) -> None:
    """Write ``content`` beside ``path`` and put it in its place.

    Args:
        durable: return once the disk has it; else a power cut may take it back to what it was.

    Raises:
        OSError: the disk said no; the old file still stands.
    """
    scratch = path.with_name(path.name + ".new")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        os.fchmod(fd, FILE_MODE)  # one that a killed process left may be wider
        _write_all(fd, content)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(scratch, path)
    if durable:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
