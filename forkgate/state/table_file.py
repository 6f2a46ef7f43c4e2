"""The last route table on disk: what edges route by while there is no judge."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from policies.routes import RouteTable


class TableCorrupt(Exception):  # noqa: N818 - reads as the fact that it is
    """The file is there and is no route table."""


def write_table(path: Path, table: RouteTable) -> None:
    """Replace the file atomically and make it durable. A crash leaves the old one or the new one, whole.

    Raises:
        OSError: the disk said no; the old file still stands.
    """
    scratch = path.with_name(path.name + ".new")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, msgspec.json.encode(table))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(scratch, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_table(path: Path) -> RouteTable | None:
    """The table, or None when there never was one.

    Raises:
        TableCorrupt: the file holds something else; the message says what to do.
        OSError: it cannot be read.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(raw, type=RouteTable)
    except (msgspec.DecodeError, ValueError) as error:
        raise TableCorrupt(
            f"{path}: not a route table ({error}); remove it to start with every tenant at home"
        ) from None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
