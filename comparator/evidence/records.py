"""Environment and artifact records by digest: who answered, kept beside what was answered.

The store keeps the documents as they were captured and never looks into them; whoever hands one in has
checked its digest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from comparator.evidence.rows import RecordSeen, RecordSight, StoredRecord

MAX_DOCUMENT_BYTES = 16_777_216
"""An artifact of some 50,000 files. A larger document is not kept, and said to be so."""
MAX_RECORDS = 10_000
"""Documents kept; past that only sights of known ones are."""

_RECORD = (
    "INSERT OR IGNORE INTO record (kind, digest, document, first_seen_unix_s) "
    "SELECT ?, ?, ?, ? WHERE (SELECT count(*) FROM record) < ?"
)
_SIGHT = (
    "INSERT INTO record_seen (kind, digest, pool, endpoint, first_unix_s, last_unix_s) VALUES (?,?,?,?,?,?) "
    "ON CONFLICT (kind, digest, pool, endpoint) DO UPDATE SET "
    "last_unix_s = max(last_unix_s, excluded.last_unix_s)"
)


def add_records(db: sqlite3.Connection, records: Sequence[RecordSeen], lost: list[str]) -> None:
    """Keep what is new of them; runs inside the writer's transaction."""
    for one in records:
        if len(one.document) > MAX_DOCUMENT_BYTES:
            lost.append(
                f"{one.kind} {one.digest} of {one.endpoint}: its document has {len(one.document)} bytes, at "
                f"most {MAX_DOCUMENT_BYTES} are kept"
            )
            continue
        db.execute(_RECORD, (one.kind, one.digest, one.document, one.unix_s, MAX_RECORDS))
        db.execute(_SIGHT, (one.kind, one.digest, one.pool, one.endpoint, one.unix_s, one.unix_s))


def records_of(rows: Iterable[Sequence[Any]], sights: Iterable[Sequence[Any]]) -> tuple[StoredRecord, ...]:
    """From rows of both tables, all columns in their order."""
    seen: dict[tuple[str, str], list[RecordSight]] = {}
    for kind, digest, pool, endpoint, first_unix_s, last_unix_s in sights:
        seen.setdefault((kind, digest), []).append(
            RecordSight(pool=pool, endpoint=endpoint, first_unix_s=first_unix_s, last_unix_s=last_unix_s)
        )
    return tuple(
        StoredRecord(
            kind=kind,
            digest=digest,
            document=document,
            first_seen_unix_s=first_unix_s,
            seen=tuple(seen.get((kind, digest), ())),
        )
        for kind, digest, document, first_unix_s in rows
    )
