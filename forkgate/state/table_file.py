"""The last route table on disk: what edges route by while there is no judge.

It is kept as the judge wrote it. A supervisor that is older than its judge reads less than all of it, and the
newer one that is started in its place reads the rest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from forkgate.state.whole import replace_file
from policies.routes import RouteTable


class TableCorrupt(Exception):  # noqa: N818 - reads as the fact that it is
    """The file is there and is no route table that can be obeyed here."""


def write_table(path: Path, encoded: bytes) -> None:
    """Replace the file atomically and make it durable. A crash leaves the old one or the new one, whole.

    Args:
        encoded: the table as JSON.

    Raises:
        OSError: the disk said no; the old file still stands.
    """
    replace_file(path, encoded, durable=True)


def read_table(path: Path) -> RouteTable | None:
    """The table, or None when there never was one.

    Raises:
        TableCorrupt: the file holds something else, or a table that asks for a newer reader; the message says
            what to do.
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
            f"{path}: no route table for this version ({error}); remove it to start with every tenant at home"
        ) from None
