"""Erasure of one tenant or one request, in bounded steps that a kill in between only delays.

Theory of operation. An erasure begins as a row of ``erasing``, kept before anything is deleted. Each step
deletes some captures, notes their IDs in ``erased`` and counts them in that row, in one transaction. When
nothing is left the file is scrubbed (the write-ahead log, which still holds old pages, is folded in and
emptied), and only then its line is appended to the log and the row removed, again in one transaction. A
writer that opens the store finds what an earlier one left in ``erasing`` and goes on with it.

An erasure is stronger than a pin. It takes what is stored when its last step runs; what traffic brings
later is new evidence, but for captures that were erased by then, which are not kept any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from comparator.evidence.erasure_log import ERASURE_SELECT, FIRST, erasures_of, linked
from comparator.evidence.forget import forget
from comparator.evidence.rows import ErasureRow

AT_ONCE = 200
"""Captures that one step deletes: some tens of milliseconds."""

DETAILS_AT_ONCE = 5_000
"""Drops whose words one step empties."""

TENANT, CAPTURE = "tenant", "capture"

_KNOWING = (("comparison", ""), ("fork", ""), ("exchange", " AND NOT pruned"))
"""Tables that know of a capture, and of whose index only a part is wanted: a pruned exchange has a
comparison."""


class Erasing(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure under way."""

    id: int
    unix_s: float
    who: str
    scope: str
    name: str
    reason: str
    captures: int
    exchanges: int
    deleted: bool
    """Nothing is left to delete; its log line waits for the file to be scrubbed."""


class Eraser:
    """Steps of erasures. Every method runs inside the writer's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, scope: str, name: str, who: str, reason: str, unix_s: float) -> Erasing | None:
        """Note an erasure, or find the same one under way. None: there is nothing to erase."""
        for one in self.under_way():
            if (one.scope, one.name) == (scope, name):
                return one
        if not self._captures(scope, name, 1):
            return None
        self._db.execute(
            "INSERT INTO erasing (unix_s, who, scope, name, reason) VALUES (?,?,?,?,?)",
            (unix_s, who, scope, name, reason),
        )
        return self.under_way()[-1]

    def under_way(self) -> list[Erasing]:
        """Those not finished, oldest first."""
        rows = self._db.execute(
            "SELECT id, unix_s, who, scope, name, reason, captures, exchanges, deleted FROM erasing "
            "ORDER BY id"
        )
        return [
            Erasing(**dict(zip(Erasing.__struct_fields__, (*row[:-1], bool(row[-1])), strict=True)))
            for row in rows
        ]

    def step(self, job: Erasing) -> bool:
        """Delete some of it. Returns whether there may be more."""
        captures = self._captures(job.scope, job.name, AT_ONCE)
        self._db.executemany(
            "INSERT OR IGNORE INTO erased (capture_id, erasure) VALUES (?, ?)",
            [(capture_id, job.id) for capture_id in captures],
        )
        exchanges = forget(self._db, captures)
        self._db.executemany("DELETE FROM pin WHERE capture_id = ?", [(one,) for one in captures])
        # Why captures were dropped is told without a tenant; an engine's words may stand in any of them.
        emptied = self._db.execute(
            "UPDATE terminal SET detail = '' WHERE id IN "
            "(SELECT id FROM terminal WHERE detail != '' LIMIT ?)",
            (DETAILS_AT_ONCE,),
        ).rowcount
        more = len(captures) == AT_ONCE or emptied == DETAILS_AT_ONCE
        self._db.execute(
            "UPDATE erasing SET captures = captures + ?, exchanges = exchanges + ?, deleted = ? WHERE id = ?",
            (len(captures), exchanges, not more, job.id),
        )
        return more

    def finish(self, job: Erasing, unix_s: float) -> ErasureRow:
        """Append its line to the log."""
        last = self._db.execute("SELECT hash FROM erasure ORDER BY id DESC LIMIT 1").fetchone()
        line = linked(
            ErasureRow(
                erasure=job.id,
                unix_s=job.unix_s,
                done_unix_s=unix_s,
                who=job.who,
                scope=job.scope,
                name=job.name,
                reason=job.reason,
                captures=job.captures,
                exchanges=job.exchanges,
                previous="",
                hash="",
            ),
            FIRST if last is None else last[0],
        )
        self._db.execute(
            "INSERT INTO erasure (id, unix_s, done_unix_s, who, scope, name, reason, captures, exchanges, "
            "previous, hash) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            msgspec.structs.astuple(line),
        )
        self._db.execute("DELETE FROM erasing WHERE id = ?", (job.id,))
        return line

    def earlier(self, scope: str, name: str) -> ErasureRow | None:
        """The newest line of the log about the same."""
        if scope == CAPTURE:
            # Also when it went with its tenant.
            row = self._db.execute("SELECT erasure FROM erased WHERE capture_id = ?", (name,)).fetchone()
            wanted = None if row is None else row[0]
            lines = [one for one in self.log() if one.erasure == wanted]
        else:
            lines = [one for one in self.log() if (one.scope, one.name) == (scope, name)]
        return lines[-1] if lines else None

    def log(self) -> Sequence[ErasureRow]:
        """All lines, oldest first."""
        return erasures_of(self._db.execute(ERASURE_SELECT).fetchall())

    def gone(self, captures: Sequence[str]) -> set[str]:
        """Those of these captures that were erased."""
        if not captures or self._db.execute("SELECT 1 FROM erased LIMIT 1").fetchone() is None:
            return set()
        marks = ",".join("?" * len(captures))
        rows = self._db.execute(
            f"SELECT capture_id FROM erased WHERE capture_id IN ({marks})", list(captures)
        )
        return {row[0] for row in rows}

    def _captures(self, scope: str, name: str, limit: int) -> list[str]:
        """Some that are left, one table after the other: each is read no further than it must be."""
        column = "tenant" if scope == TENANT else "capture_id"
        found: dict[str, None] = {}
        for table, more in _KNOWING:
            rows = self._db.execute(
                f"SELECT DISTINCT capture_id FROM {table} WHERE {column} = ?{more} LIMIT ?",
                (name, limit - len(found)),
            )
            found.update(dict.fromkeys(row[0] for row in rows))
            if len(found) >= limit:
                break
        return list(found)
