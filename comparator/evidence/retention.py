"""Keeping the file under ``max_bytes``: content first, whole rows when that is not enough.

Order of going: content of the oldest unpinned exchanges (their rows stay and say ``pruned``); when no content
is left to take, whole unpinned captures, oldest first, counted in ``meta.forgotten_captures``. Pinned
captures and ledger counts never go. Runs inside the writer's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

SLACK = 0.05
"""Prune this far below the limit, so that not every commit has to."""

TERMINAL_ROWS = 500_000
"""Newest ended captures remembered one by one. An edge sends a batch again within seconds, not hours."""

VERDICT_ROWS = 100_000

_CHUNK = 200


class Pruner:
    """Remembers how far it got, so that a chunk of work is a chunk, however large the file.

    Up to the exchange ``floor`` nothing is left to prune; whoever rolls a transaction back sets it
    to 0 again.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.floor = 0

    def make_room(self, used_bytes: Callable[[], int], max_bytes: int) -> int:
        """Prune until no more than ``max_bytes`` are used, or nothing is left that may go.

        Returns the number of exchanges whose content went. What a row frees is an estimate (rows share
        pages), so the file is measured again after each round.
        """
        pruned = 0
        used = used_bytes()
        target = max_bytes if used <= max_bytes else int(max_bytes * (1 - SLACK))
        while used > target:
            count = self._prune_content(used - target)
            pruned += count
            if not count and not self._forget_captures(used - target):
                break
            used = used_bytes()
        self._add("pruned_exchanges", pruned)
        return pruned

    def _prune_content(self, excess: int) -> int:
        pruned = freed = 0
        while freed < excess:
            rows = self._db.execute(
                "SELECT id, content_bytes, pruned, capture_id IN (SELECT capture_id FROM pin) "
                "FROM exchange WHERE id > ? ORDER BY id LIMIT ?",
                (self.floor, _CHUNK),
            ).fetchall()
            if not rows:
                break
            taken = []
            for exchange_id, content_bytes, gone, pinned in rows:
                if freed >= excess:
                    break
                self.floor = exchange_id
                if not gone and not pinned:
                    taken.append((exchange_id,))
                    freed += content_bytes
            self._db.executemany("DELETE FROM content WHERE id = ?", taken)
            self._db.executemany("UPDATE exchange SET pruned = 1 WHERE id = ?", taken)
            pruned += len(taken)
        return pruned

    def _forget_captures(self, excess: int) -> int:
        freed = forgotten = 0
        while freed < excess:
            rows = self._db.execute(
                "SELECT capture_id, sum(length(settings) + 600) FROM exchange "
                "WHERE pruned AND capture_id NOT IN (SELECT capture_id FROM pin) "
                "GROUP BY capture_id ORDER BY min(id) LIMIT ?",
                (_CHUNK,),
            ).fetchall()
            if not rows:
                break
            captures = [(capture_id,) for capture_id, _ in rows]
            for table in ("pair", "fork", "exchange"):
                self._db.executemany(f"DELETE FROM {table} WHERE capture_id = ?", captures)
            freed += sum(size for _, size in rows)
            forgotten += len(rows)
        self._add("forgotten_captures", forgotten)
        return forgotten

    def trim(self) -> None:
        """Bound the tables that have no content to prune."""
        for table, rows in (("terminal", TERMINAL_ROWS), ("verdict", VERDICT_ROWS)):
            self._db.execute(
                f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?",
                (rows,),
            )

    def _add(self, key: str, count: int) -> None:
        if count:
            self._db.execute(
                "INSERT INTO meta (key, value) VALUES (?, ?) "
                "ON CONFLICT (key) DO UPDATE SET value = value + excluded.value",
                (key, count),
            )
