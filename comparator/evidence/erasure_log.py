"""The log of what was erased: lines that are appended to only, each holding the hash of the one before. Pure.

The chain shows a line that was changed, taken out or put in between; not that the newest lines are missing.
For that a copy of a line's hash must stand elsewhere: each is written to the judge's own log, and every
export carries the log.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from comparator.evidence.rows import ErasureRow

FIRST = "0" * 64
"""What the first line has for the hash of the line before."""

ERASURE_SELECT = (
    "SELECT id, unix_s, done_unix_s, who, scope, name, reason, captures, exchanges, previous, hash "
    "FROM erasure ORDER BY id"
)
ERASED_SELECT = (
    "SELECT erased.erasure, coalesce(erasure.unix_s, erasing.unix_s), coalesce(erasure.who, erasing.who), "
    "coalesce(erasure.reason, erasing.reason) FROM erased LEFT JOIN erasure ON erasure.id = erased.erasure "
    "LEFT JOIN erasing ON erasing.id = erased.erasure WHERE erased.capture_id = ?"
)


def erasures_of(rows: Iterable[Sequence[Any]]) -> tuple[ErasureRow, ...]:
    """From rows of :data:`ERASURE_SELECT`."""
    return tuple(ErasureRow(**dict(zip(ErasureRow.__struct_fields__, row, strict=True))) for row in rows)


def hash_of(line: ErasureRow) -> str:
    """What :attr:`ErasureRow.hash` must be."""
    plain = msgspec.to_builtins(line)
    del plain["hash"]
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def linked(line: ErasureRow, previous: str) -> ErasureRow:
    """The line with both hashes set."""
    line = msgspec.structs.replace(line, previous=previous)
    return msgspec.structs.replace(line, hash=hash_of(line))


def faults_of(lines: Sequence[ErasureRow]) -> tuple[str, ...]:
    """What does not fit in a whole log, in words; none when the chain holds."""
    faults = []
    before = FIRST
    for line in lines:
        if line.previous != before:
            faults.append(f"erasure {line.erasure}: a line before it was changed or taken out")
        if hash_of(line) != line.hash:
            faults.append(f"erasure {line.erasure}: it was changed")
        before = line.hash
    return tuple(faults)


def erased_text(capture_id: str, row: Sequence[Any]) -> str:
    """From a row of :data:`ERASED_SELECT`."""
    number, unix_s, who, reason = row
    at = datetime.datetime.fromtimestamp(unix_s, tz=datetime.UTC)
    return f"capture {capture_id} was erased on {at:%Y-%m-%dT%H:%M:%SZ} by {who}: {reason} (erasure {number})"
