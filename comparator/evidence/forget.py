"""Whole captures leave the file: one place that knows every table with a part of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

TABLES = ("pair", "fork", "exchange", "comparison", "score")


def forget(db: sqlite3.Connection, captures: Collection[str]) -> int:
    """Delete everything about these captures but verdicts, the journal's references and ledger counts, which
    hold numbers and IDs alone. Returns how many exchanges went; runs inside the writer's transaction."""
    keys = [(capture_id,) for capture_id in captures]
    db.executemany("DELETE FROM content WHERE id IN (SELECT id FROM exchange WHERE capture_id = ?)", keys)
    gone = 0
    for table in TABLES:
        count = db.executemany(f"DELETE FROM {table} WHERE capture_id = ?", keys).rowcount
        if table == "exchange":
            gone = count
    return gone
