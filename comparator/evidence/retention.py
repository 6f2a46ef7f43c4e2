"""Keeping the file under ``max_bytes``: content first, whole rows when that is not enough.

Order of going: content of the oldest unpinned exchanges (their rows stay and say ``pruned``), and with it the
journal up to that moment, which cannot be replayed without it. Where the rows of such captures fill half of
the room themselves, whole unpinned captures, oldest first, counted in ``meta.forgotten_captures``. When no
content is left to take, the oldest of the journal, then whole captures. Pinned captures, plans and ledger
counts never go. Runs inside the writer's transaction.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Sequence

from comparator.evidence.forget import forget

SLACK = 0.05
"""Prune this far below the limit, so that not every commit has to."""

ROWS_SHARE = 0.5
"""Of ``max_bytes``, for rows whose content is gone: hashes, lengths, times and forks of older captures."""

TERMINAL_ROWS = 500_000
"""Newest ended captures remembered one by one. An edge sends a batch again within seconds, not hours."""

VERDICT_ROWS = 100_000

TAKEN_ROWS = 4_096
"""Newest edge incarnations whose last batch is remembered."""

_CHUNK = 200
_ROW_BYTES = 1_500
"""Of an exchange without content: its row, its indexes, and its part in pair, comparison and fork."""
_ENTRY_BYTES = 60
"""Of a journal row and its index, beside the body."""


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
            # Short answers weigh less than their rows, which else would crowd all content out.
            crowded = self._rows_left_behind_bytes() > max_bytes * ROWS_SHARE
            if crowded and self._forget_captures(used - target):
                used = used_bytes()
                continue
            count = self._prune_content(used - target)
            pruned += count
            if not (count or self._prune_journal(used - target) or self._forget_captures(used - target)):
                break
            used = used_bytes()
        self._add("pruned_exchanges", pruned)
        return pruned

    def _rows_left_behind_bytes(self) -> int:
        """About what rows of exchanges take whose content is gone: those up to the floor, oldest first."""
        oldest = self._db.execute("SELECT min(id) FROM exchange").fetchone()[0]
        return 0 if oldest is None else max(0, self.floor - oldest + 1) * _ROW_BYTES

    def _prune_content(self, excess: int) -> int:
        pruned = freed = 0
        while freed < excess:
            rows = self._db.execute(
                "SELECT id, content_bytes, pruned, capture_id IN (SELECT capture_id FROM pin), "
                "started_unix_s FROM exchange WHERE id > ? ORDER BY id LIMIT ?",
                (self.floor, _CHUNK),
            ).fetchall()
            if not rows:
                break
            taken = []
            gone_until_s = None
            for exchange_id, content_bytes, gone, pinned, started_unix_s in rows:
                if freed >= excess:
                    break
                self.floor = exchange_id
                if not gone and not pinned:
                    taken.append((exchange_id,))
                    freed += content_bytes
                    gone_until_s = started_unix_s
            self._db.executemany("DELETE FROM content WHERE id = ?", taken)
            self._db.executemany("UPDATE exchange SET pruned = 1 WHERE id = ?", taken)
            pruned += len(taken)
            if gone_until_s is not None:
                freed += self._prune_journal_until(gone_until_s)
        return pruned

    def _prune_journal_until(self, unix_s: float) -> int:
        """Drop entries from the oldest on, up to the first of this moment. Returns the bytes of their bodies.

        Entries stand in the order in which they were written, which a clock that was set back cannot change.
        """
        freed = 0
        while True:
            rows = self._db.execute(
                "SELECT id, unix_s, length(body) FROM journal ORDER BY id LIMIT ?", (_CHUNK,)
            ).fetchall()
            old = list(itertools.takewhile(lambda row: row[1] < unix_s, rows))
            freed += self._drop_journal(old)
            if len(old) < _CHUNK:
                return freed

    def _prune_journal(self, excess: int) -> int:
        """Drop the oldest entries. Returns how many."""
        rows = self._db.execute(
            "SELECT id, unix_s, length(body) FROM journal ORDER BY id LIMIT ?", (_CHUNK,)
        ).fetchall()
        freed = 0
        for count, row in enumerate(rows, 1):
            freed += row[2] + _ENTRY_BYTES
            if freed >= excess:
                rows = rows[:count]
                break
        self._drop_journal(rows)
        return len(rows)

    def _drop_journal(self, rows: Sequence[tuple[int, float, int]]) -> int:
        if not rows:
            return 0
        # One range: entries are never dropped from the middle, so that what is left has no hole of ours.
        self._db.execute("DELETE FROM journal WHERE id <= ?", (rows[-1][0],))
        self._add("pruned_journal", len(rows))
        return sum(size + _ENTRY_BYTES for _, _, size in rows)

    def _forget_captures(self, excess: int) -> int:
        freed = forgotten = 0
        while freed < excess:
            # By ID, which is by age: what precedes the first row that may go is pinned, and little.
            rows = self._db.execute(
                "SELECT capture_id, length(settings) FROM exchange "
                "WHERE pruned AND capture_id NOT IN (SELECT capture_id FROM pin) ORDER BY id LIMIT ?",
                (_CHUNK,),
            ).fetchall()
            if not rows:
                break
            captures = dict.fromkeys(row[0] for row in rows)
            forget(self._db, captures)
            freed += sum(size + _ROW_BYTES for _, size in rows)
            forgotten += len(captures)
        if forgotten:
            # Samples that nobody answered have no exchange to find them by.
            older = "id < (SELECT min(id) FROM comparison WHERE pairs > 0)"
            nameless = f"SELECT capture_id FROM comparison WHERE pairs = 0 AND {older}"
            self._db.execute(f"DELETE FROM score WHERE capture_id IN ({nameless})")
            self._db.execute(f"DELETE FROM comparison WHERE pairs = 0 AND {older}")
        self._add("forgotten_captures", forgotten)
        return forgotten

    def count(self, *, captures: int, exchanges: int) -> None:
        """Count what somebody else took."""
        self._add("forgotten_captures", captures)
        self._add("pruned_exchanges", exchanges)

    def trim(self) -> None:
        """Bound the tables that have no content to prune."""
        for table, rows in (
            ("terminal", TERMINAL_ROWS),
            ("verdict", VERDICT_ROWS),
            ("taken", TAKEN_ROWS),
        ):
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
