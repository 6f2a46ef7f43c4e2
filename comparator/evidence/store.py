"""The one writer of a store."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from comparator.evidence import places, tables
from comparator.evidence.codec import ContentError
from comparator.evidence.connection import BUSY_TIMEOUT_S
from comparator.evidence.erasure import Eraser
from comparator.evidence.errors import (
    EvidenceError,
    EvidenceFull,
    EvidenceUnavailable,
    mapped,
)
from comparator.evidence.hashed import Hider, Kept
from comparator.evidence.journal import JournalError, encode_items, pack
from comparator.evidence.keeping import KeepingStore
from comparator.evidence.keys import NO_KEYS, Keyring
from comparator.evidence.reader import COMPARED
from comparator.evidence.records import add_records
from comparator.evidence.retention import Pruner
from comparator.evidence.rows import (
    LOST,
    OBSERVED,
    Added,
    Batch,
    ComparisonDone,
    Drop,
    JournalEntry,
    Pin,
)
from comparator.evidence.schema import prepare
from comparator.evidence.seal import Sealer
from comparator.pair import Pair
from comparator.records import Exchange

MIN_MAX_BYTES = 1_000_000
"""Under this the empty tables and one long exchange would not fit."""

_INSERT_EXCHANGE = (
    f"INSERT OR IGNORE INTO exchange ({tables.EXCHANGE_COLUMNS}) "
    f"VALUES ({','.join('?' * len(tables.EXCHANGE_COLUMNS.split(',')))})"
)
_INSERT_CONTENT = (
    "INSERT OR IGNORE INTO content (id, blob) SELECT id, ? FROM exchange WHERE exchange_id = ? AND NOT pruned"
)
_INSERT_FORK = (
    f"INSERT OR REPLACE INTO fork ({tables.FORK_COLUMNS}) "
    f"VALUES ({','.join('?' * len(tables.FORK_COLUMNS.split(',')))})"
)
_INSERT_VERDICT = (
    f"INSERT INTO verdict ({tables.VERDICT_COLUMNS}) "
    f"VALUES ({','.join('?' * len(tables.VERDICT_COLUMNS.split(',')))})"
)
_INSERT_COMPARISON = (
    f"INSERT OR IGNORE INTO comparison ({tables.COMPARISON_COLUMNS}) "
    f"VALUES ({','.join('?' * len(tables.COMPARISON_COLUMNS.split(',')))})"
)
_INSERT_SCORE = f"INSERT INTO score ({tables.SCORE_COLUMNS}) VALUES (?,?,?,?,?,?)"
_INSERT_JOURNAL = f"INSERT INTO journal ({tables.JOURNAL_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"
_INSERT_PLAN = (
    "INSERT OR IGNORE INTO plan (rollout, digest, unix_s, policy_digest, policy, body) VALUES (?,?,?,?,?,?)"
)
_INSERT_TAKEN = (
    "INSERT OR REPLACE INTO taken (incarnation, batch) "
    "SELECT ?1, ?2 WHERE ?2 > coalesce((SELECT batch FROM taken WHERE incarnation = ?1), 0)"
)


class EvidenceStore(KeepingStore):
    """Opens, or creates, the store and writes to it. Synchronous: give it a thread of its own.

    One writer a file. A second one is not corruption (SQLite serialises them), but whoever waits longer than
    :data:`BUSY_TIMEOUT_S` gets :class:`EvidenceBusy`. Each :meth:`add` is one transaction: after an error
    nothing of that batch is kept, the store stays open, and the next call may succeed.

    A read from another thread needs an :class:`EvidenceReader` of its own.
    """

    def __init__(
        self,
        path: Path | str,
        max_bytes: int,
        *,
        keys: Keyring = NO_KEYS,
        kept: Kept = Kept.FULL,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        """Open for writing.

        Args:
            path: the database; created, readable by its owner alone, when absent. Its directory must exist.
            max_bytes: pages in use at most, the write-ahead log (a few MB) apart.
            keys: the current one seals what is written from now on; what is there stays as it is.
            kept: whether token IDs and text are kept, or keyed hashes in their place (needs a current key).
            busy_timeout_s: how long to wait for another process' lock.

        Raises:
            EvidenceError: its kinds say what is wrong with the file.
        """
        self.path = Path(path)
        self.max_bytes = max_bytes
        if max_bytes < MIN_MAX_BYTES:
            raise EvidenceError(self.path, f"max_bytes: {max_bytes} is under the least, {MIN_MAX_BYTES}")
        if kept is Kept.HASHES and keys.current is None:
            raise EvidenceError(self.path, "hashes need a key: without one whoever holds them guesses")
        self.kept = kept
        self._hider = Hider(keys.current) if kept is Kept.HASHES and keys.current is not None else None
        with mapped(self.path):
            # Prompts and answers of clients are inside: nobody else's to read. SQLite would create it wider.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(
                self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._seal = Sealer(self._db, self.path, keys)
            self._pruner = Pruner(self._db)
            self._eraser = Eraser(self._db)
            try:
                self._open()
            except BaseException:
                self._db.close()
                raise

    def _open(self) -> None:
        # Deleted content is overwritten, in the file and in what the log folds into it.
        self._db.execute("PRAGMA secure_delete = ON")
        self._db.execute("PRAGMA temp_store = MEMORY")  # nor is any in files of SQLite's own
        prepare(self._db, self.path, writable=True)
        mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise EvidenceUnavailable(
                self.path,
                f"its file system allows no write-ahead log (journal_mode {mode}); use a local disk",
            )
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA journal_size_limit = 8388608")
        current = self._seal.keys.current
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
                [
                    ("max_bytes", self.max_bytes),
                    ("sealed_with", "" if current is None else current.id),
                    ("kept", self.kept.value),
                ],
            )
        self._seal.ready()

    def close(self) -> None:
        """Fold the log into the file and close."""
        with mapped(self.path):
            self._db.close()

    def add(self, batch: Batch) -> Added:
        """Keep a batch, all or nothing. Safe to repeat: what is there already is not counted twice.

        Raises:
            EvidenceFull: disk full, or pinned content alone exceeds ``max_bytes``.
            EvidenceReadOnly, EvidenceBusy, EvidenceCorrupt, EvidenceUnavailable: see there.
            EvidenceError: a value that cannot be stored.
        """
        seal, hider = self._seal, self._hider
        with mapped(self.path):
            seal.ready()
            batch, refused = self._without_erased(batch)
        try:
            exchanges = [tables.exchange_row(seal, exchange, hider) for exchange in _exchanges(batch)]
        except (ContentError, TypeError, OverflowError) as exc:
            raise EvidenceError(self.path, f"a pair cannot be stored: {exc}") from exc
        lost: list[str] = []
        journal = [_journal_row(seal, entry, lost) for entry in batch.journal]
        repeated: list[tuple[str, int]] = []
        with mapped(self.path):
            with self._transaction():
                self._db.executemany(_INSERT_EXCHANGE, [row for row, _ in exchanges])
                self._db.executemany(_INSERT_CONTENT, [(blob, row[0]) for row, blob in exchanges])
                self._db.executemany(
                    _INSERT_FORK, [tables.fork_seen_row(seal, seen, hider) for seen in batch.forks]
                )
                pairs = sum(self._add_comparison(done, repeated) for done in batch.comparisons)
                drops = sum(self._add_drop(drop, repeated) for drop in batch.drops)
                verdicts = [tables.verdict_row(seal, row) for row in batch.verdicts]
                self._db.executemany(_INSERT_VERDICT, verdicts)
                self._db.executemany(_INSERT_PLAN, _plan_rows(batch.journal))
                self._db.executemany(_INSERT_JOURNAL, journal)
                self._db.executemany(_INSERT_TAKEN, [(one.incarnation, one.batch) for one in batch.taken])
                add_records(self._db, batch.records, lost)
                self._add_pins(batch.pins)
                self._pruner.trim()
                pruned = self._pruner.make_room(self._used_bytes, self.max_bytes)
                used_bytes = self._used_bytes()
                if used_bytes > self.max_bytes:
                    raise EvidenceFull(
                        self.path,
                        f"{used_bytes} bytes in use and all that is left is pinned; "
                        f"raise evidence.max_bytes ({self.max_bytes})",
                    )
            if pruned:
                self._db.execute("PRAGMA incremental_vacuum").fetchall()
        return Added(
            pairs=pairs,
            drops=drops,
            repeated=tuple(repeated),
            pruned_exchanges=pruned,
            lost=tuple(lost),
            refused=refused,
        )

    def _without_erased(self, batch: Batch) -> tuple[Batch, int]:
        """The batch without what was erased before it was finished; captures are settled all the same."""
        named = [done.comparison.capture_id for done in batch.comparisons]
        gone = self._eraser.gone([*named, *(seen.capture_id for seen in batch.forks)])
        if not gone:
            return batch, 0
        bare = tuple(
            msgspec.structs.replace(
                done, comparison=msgspec.structs.replace(done.comparison, pairs=(), scores=())
            )
            if done.comparison.capture_id in gone
            else done
            for done in batch.comparisons
        )
        forks = tuple(seen for seen in batch.forks if seen.capture_id not in gone)
        return msgspec.structs.replace(batch, comparisons=bare, forks=forks), len(set(named) & gone)

    def _add_comparison(self, done: ComparisonDone, repeated: list[tuple[str, int]]) -> int:
        comparison = done.comparison
        if self._eraser.gone([comparison.capture_id]):
            pass  # its row went with it
        elif self._db.execute(_INSERT_COMPARISON, tables.comparison_row(self._seal, done)).rowcount:
            scores = tables.score_rows(self._seal, comparison, self._hider)
            self._db.executemany(_INSERT_SCORE, scores)
        new = sum(self._add_pair(pair) for pair in comparison.pairs)
        if done.incarnation is not None and done.sequence is not None:
            self._settle(done.incarnation, done.sequence, comparison.rollout, COMPARED, "", None, repeated)
        return new

    def _add_pair(self, pair: Pair) -> bool:
        left, right = pair.left, pair.right
        fork = pair.fork
        reason = pair.set_aside_reason if self._hider is None else self._hider.text(pair.set_aside_reason)
        new = self._db.execute(
            "INSERT OR IGNORE INTO pair (capture_id, left_exchange_id, right_exchange_id, rollout, tenant, "
            "fork_index, proper_prefix, max_error_nats, set_aside, set_aside_reason, replicate, right_arm) "
            "VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                pair.capture_id,
                left.exchange_id,
                right.exchange_id,
                right.rollout,
                right.tenant,
                None if fork is None else fork.fork_index,
                fork is not None and fork.proper_prefix,
                pair.max_error_nats,
                None if pair.set_aside is None else pair.set_aside.value,
                self._seal.seal_text(places.pair_place(left.exchange_id, right.exchange_id), reason),
                right.replicate,
                right.arm.value,
            ),
        ).rowcount
        if fork is not None:
            self._db.execute(_INSERT_FORK, _fork_row(self._seal, pair, self._hider))
        return new == 1

    def _add_drop(self, drop: Drop, repeated: list[tuple[str, int]]) -> bool:
        return self._settle(
            drop.incarnation, drop.sequence, drop.rollout, drop.reason, drop.detail, drop.unix_s, repeated
        )

    def _settle(
        self,
        incarnation: str,
        sequence: int,
        rollout: str,
        reason: str,
        detail: str,
        unix_s: float | None,
        repeated: list[tuple[str, int]],
    ) -> bool:
        said = detail if self._hider is None else self._hider.text(detail)
        sealed = self._seal.seal_text(places.terminal_place(incarnation, sequence), said)
        new = self._db.execute(
            "INSERT OR IGNORE INTO terminal (incarnation, sequence, reason, detail, unix_s) "
            "VALUES (?,?,?,?,?)",
            (incarnation, sequence, reason, sealed, unix_s),
        ).rowcount
        if not new:
            repeated.append((incarnation, sequence))
            return False
        self._db.execute(
            "INSERT INTO ledger (incarnation, rollout, reason, count, highest_sequence) VALUES (?,?,?,1,?) "
            "ON CONFLICT (incarnation, rollout, reason) DO UPDATE SET count = count + 1, "
            "highest_sequence = max(highest_sequence, excluded.highest_sequence)",
            (incarnation, rollout, reason, sequence),
        )
        return True

    def _add_pins(self, pins: Sequence[Pin]) -> int:
        before = self._count("pin")
        self._db.executemany(
            "INSERT OR IGNORE INTO pin (capture_id, rollout, why, unix_s) VALUES (?,?,?,?)",
            [(pin.capture_id, pin.rollout, pin.why, pin.unix_s) for pin in pins],
        )
        return self._count("pin") - before


def _exchanges(batch: Batch) -> Iterable[Exchange]:
    """Each once: all pairs of a replicate share its baseline."""
    return {
        exchange.exchange_id: exchange
        for done in batch.comparisons
        for pair in done.comparison.pairs
        for exchange in (pair.left, pair.right)
    }.values()


def _journal_row(seal: Sealer, entry: JournalEntry, lost: list[str]) -> tuple[object, ...]:
    """Values for ``journal``. What cannot be kept leaves a mark: a gap that nobody sees would be a lie."""
    kind = entry.kind
    try:
        body = encode_items(entry.items) if kind == OBSERVED else pack(entry.body)
    except JournalError as exc:
        lost.append(f"rollout {entry.rollout}, evidence {entry.before}-{entry.after}: {exc}")
        kind, body = LOST, b""
    plan = None if entry.plan is None else entry.plan.digest
    place = places.journal_place(
        entry.rollout, entry.sequence, entry.before, entry.after, float(entry.unix_s), kind
    )
    if body:
        body = seal.seal(place, body)
    return (entry.rollout, entry.sequence, entry.before, entry.after, entry.unix_s, kind, body, plan)


def _plan_rows(journal: Sequence[JournalEntry]) -> list[tuple[object, ...]]:
    plans = [entry.plan for entry in journal if entry.plan is not None]
    return [
        (plan.rollout, plan.digest, plan.unix_s, plan.policy_digest, plan.policy, pack(plan.body))
        for plan in plans
    ]


def _fork_row(seal: Sealer, pair: Pair, hider: Hider | None) -> tuple[object, ...]:
    assert pair.fork is not None
    right = pair.right
    return tables.fork_row(
        seal,
        pair.capture_id,
        right.rollout,
        right.tenant,
        pair.left.arm.value,
        right.arm.value,
        right.replicate,
        pair.fork,
        hider,
    )
