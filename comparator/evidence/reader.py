"""Reading a store: beside a running judge, after it, or from a copy of the file."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.evidence import tables
from comparator.evidence.codec import ContentError
from comparator.evidence.errors import (
    EvidenceAmbiguous,
    EvidenceDamaged,
    EvidenceError,
    EvidenceNotFound,
    EvidencePruned,
    mapped,
)
from comparator.evidence.export import export_line
from comparator.evidence.journal import unpack
from comparator.evidence.rows import JournalRow, LedgerCounts, Page, PlanRow, Shown, StoreStatus, VerdictRow
from comparator.evidence.schema import prepare, version_of
from comparator.evidence.whole import NotWholeError, comparison_of
from comparator.floor import Floors
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId

BUSY_TIMEOUT_S = 2.0
"""How long a statement waits for another process' lock before :class:`EvidenceBusy`."""

MAX_PAGE = 1_000
FLOOR_PAIRS = 200
"""Control pairs that a noise floor is taken from, at most: a fraction of a second of work."""
PAGE_ROWS = 500
"""Rows read at a time by what streams."""
MIN_PREFIX = 8
"""Characters of a capture ID that may stand for it, at least."""
MAX_NAMED = 4
"""IDs named of those that a prefix may mean."""

Rows = list[Any]
Conditions = list[str]


class EvidenceReader:
    """Read-only view; any number of them, in any process, while one judge writes.

    Raises from every method: kinds of :class:`comparator.evidence.errors.EvidenceError`.
    """

    def __init__(self, path: Path | str) -> None:
        """Open an existing store.

        Raises:
            EvidenceUnavailable: no such file, or no permission.
            EvidenceForeign: not a store, or a newer forkgate's.
        """
        self.path = Path(path)
        with mapped(self.path):
            self._db = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode=ro",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                prepare(self._db, self.path, writable=False)
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with mapped(self.path):
            self._db.close()

    def list(
        self,
        *,
        rollout: str | None = None,
        tenant: str | None = None,
        forked: bool | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page:
        """Pairs, newest first.

        Args:
            rollout: only of this rollout.
            tenant: only of this tenant.
            forked: True: only pairs with a fork; False: only without; None: all.
            limit: 1 to :data:`MAX_PAGE` rows.
            cursor: :attr:`Page.cursor` of the page before.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise EvidenceError(self.path, f"limit: {limit} is outside 1-{MAX_PAGE}")
        where, values = self._filter(rollout, tenant, forked)
        if cursor is not None:
            if not cursor.isdecimal():
                raise EvidenceError(self.path, f"cursor: {cursor!r} is none of ours; pass the last page's")
            where.append("pair.id < ?")
            values.append(int(cursor))
        rows = self._all(
            f"{tables.PAIR_SELECT} {_where(where)} ORDER BY pair.id DESC LIMIT ?", [*values, limit + 1]
        )
        pairs = tuple(tables.pair_of(row) for row in rows[:limit])
        return Page(pairs=pairs, cursor=str(pairs[-1].id) if len(rows) > limit else None)

    def resolve(self, given: str) -> str:
        """The capture ID that is ``given``, or the only one that begins with it.

        Raises:
            EvidenceNotFound: none does, or fewer than :data:`MIN_PREFIX` characters were given.
            EvidenceAmbiguous: several do; the message names some.
        """
        if self._all("SELECT 1 FROM exchange WHERE capture_id = ? LIMIT 1", [given]) or self._all(
            "SELECT 1 FROM fork WHERE capture_id = ? LIMIT 1", [given]
        ):
            return given
        if len(given) < MIN_PREFIX:
            raise EvidenceNotFound(
                self.path,
                f"no capture {given}; give the whole ID or at least its first {MIN_PREFIX} characters, "
                "`forkgate evidence list` shows what there is",
            )
        # A range, not LIKE: it uses the index, and no character of the prefix means anything but itself.
        bounds = [given, given + "\U0010ffff"]
        found = self._all(
            "SELECT capture_id FROM exchange WHERE capture_id > ? AND capture_id < ? UNION "
            "SELECT capture_id FROM fork WHERE capture_id > ? AND capture_id < ? ORDER BY 1 LIMIT ?",
            [*bounds, *bounds, MAX_NAMED + 1],
        )
        ids = [row[0] for row in found]
        if not ids:
            raise EvidenceNotFound(
                self.path, f"no capture {given}; `forkgate evidence list` shows what there is"
            )
        if len(ids) > 1:
            more = ", ..." if len(ids) > MAX_NAMED else ""
            raise EvidenceAmbiguous(
                self.path,
                f"several captures begin with {given}: {', '.join(ids[:MAX_NAMED])}{more}; "
                "give more of the ID",
            )
        return str(ids[0])

    def show(self, capture_id: str) -> Shown:
        """Everything about one capture.

        Raises:
            EvidenceNotFound: the store knows nothing of it.
        """
        exchanges = self._all(f"{tables.EXCHANGE_SELECT} WHERE capture_id = ? ORDER BY id", [capture_id])
        forks = self._all(f"SELECT {tables.FORK_COLUMNS} FROM fork WHERE capture_id = ?", [capture_id])
        if not exchanges and not forks:
            raise EvidenceNotFound(
                self.path, f"no capture {capture_id}; `forkgate evidence list` shows what there is"
            )
        pairs = self._all(f"{tables.PAIR_SELECT} WHERE pair.capture_id = ? ORDER BY pair.id", [capture_id])
        verdicts = self._all(
            f"SELECT {tables.VERDICT_COLUMNS} FROM verdict WHERE deciding_id = ? ORDER BY id", [capture_id]
        )
        pins = self._all("SELECT why FROM pin WHERE capture_id = ?", [capture_id])
        comparisons = self._all(
            f"SELECT id, {tables.COMPARISON_COLUMNS} FROM comparison WHERE capture_id = ?", [capture_id]
        )
        scores = self._all(
            f"SELECT {tables.SCORE_COLUMNS} FROM score WHERE capture_id = ? ORDER BY id", [capture_id]
        )
        return Shown(
            capture_id=CaptureId(capture_id),
            comparison=tables.comparison_of(comparisons[0]) if comparisons else None,
            scores=tuple(tables.score_of(row) for row in scores),
            exchanges=tuple(tables.exchange_of(row) for row in exchanges),
            pairs=tuple(tables.pair_of(row) for row in pairs),
            forks=tuple(tables.fork_of(row) for row in forks),
            verdicts=tuple(tables.verdict_of(row) for row in verdicts),
            pinned=pins[0][0] if pins else None,
        )

    def export(
        self, *, rollout: str | None = None, tenant: str | None = None, forked: bool | None = None
    ) -> Iterator[bytes]:
        """NDJSON, one capture a line, oldest first, each line with its newline.

        Floats are written so that they read back to the same bits; the three that JSON lacks are the strings
        ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
        """
        where, values = self._filter(rollout, tenant, forked)
        last = 0
        while True:
            # A page at a time: a long read transaction would keep the log from shrinking.
            rows = self._all(
                f"SELECT min(pair.id), pair.capture_id FROM pair {_where(where)} "
                "GROUP BY pair.capture_id HAVING min(pair.id) > ? ORDER BY 1 LIMIT 100",
                [*values, last],
            )
            if not rows:
                return
            for first, capture_id in rows:
                last = first
                try:
                    shown = self.show(capture_id)
                except EvidenceNotFound:
                    continue  # pruned since the page was read
                yield export_line(shown)

    def comparison(self, capture_id: str) -> Comparison:
        """One comparison as its gates saw it: pairs compared again from their stored exchanges.

        Raises:
            EvidenceNotFound: it was never finished, or is forgotten.
            EvidencePruned: its steps made room.
            EvidenceDamaged: what is stored of it does not fit together.
        """
        try:
            return comparison_of(self.show(capture_id))
        except NotWholeError as exc:
            kind = EvidencePruned if exc.pruned else EvidenceDamaged
            raise kind(self.path, f"capture {capture_id}: {exc}") from exc
        except (ContentError, msgspec.MsgspecError, ValueError) as exc:
            raise EvidenceDamaged(self.path, f"capture {capture_id}: {exc}") from exc

    def fork_seen(self, capture_id: str, left_arm: str, right_arm: str, replicate: int) -> ForkSeen:
        """A fork as it was reported. Raises EvidenceNotFound."""
        rows = self._all(
            f"SELECT {tables.FORK_COLUMNS} FROM fork WHERE "
            "capture_id = ? AND left_arm = ? AND right_arm = ? AND replicate = ?",
            [capture_id, left_arm, right_arm, replicate],
        )
        if not rows:
            arms = f"{left_arm} and {right_arm}, replicate {replicate}"
            raise EvidenceNotFound(self.path, f"capture {capture_id}: no fork of {arms}")
        try:
            stored = tables.fork_of(rows[0])
        except msgspec.MsgspecError as exc:
            raise EvidenceDamaged(self.path, f"capture {capture_id}: its fork: {exc}") from exc
        return ForkSeen(
            capture_id=stored.capture_id,
            rollout=stored.rollout,
            tenant=stored.tenant,
            left_arm=Arm(left_arm),
            right_arm=Arm(right_arm),
            fork=stored.fork,
            replicate=stored.replicate,
        )

    def floors(self, rollout: str, *, without: str, limit: int = FLOOR_PAIRS) -> Floors:
        """The A/A floor of a rollout, by path and band, from its newest stored control pairs.

        Args:
            without: a capture whose own controls are left out: what is explained must not excuse itself.
            limit: control pairs at most.
        """
        rows = self._all(
            "SELECT pair.left_exchange_id, pair.right_exchange_id FROM pair "
            "JOIN exchange l ON l.exchange_id = pair.left_exchange_id "
            "JOIN exchange r ON r.exchange_id = pair.right_exchange_id "
            "WHERE pair.rollout = ? AND pair.right_arm = 'control' AND pair.set_aside IS NULL "
            "AND pair.capture_id != ? AND NOT l.pruned AND NOT r.pruned ORDER BY pair.id DESC LIMIT ?",
            [rollout, without, limit],
        )
        floors = Floors()
        for ids in reversed(rows):
            found = self._all(f"{tables.EXCHANGE_SELECT} WHERE exchange_id IN (?, ?)", list(ids))
            by_id = {row[0]: tables.exchange_of(row).exchange for row in found}
            if len(by_id) == 2:  # else pruned since
                floors = floors.add(compare(by_id[ids[0]], by_id[ids[1]]))
        return floors

    def clusters(self, rollout: str, since_unix_s: float = 0.0) -> Iterator[str]:
        """The cluster of each kept comparison of live traffic with a valid pair of the candidate, repeats
        left out, oldest first, streamed.

        Those of captures that were forgotten to make room are not among them.
        """
        for row in self._pages(
            "SELECT id, cluster FROM comparison WHERE id > ? AND rollout = ? AND NOT repeat "
            "AND sample_id IS NULL AND unix_s >= ? AND EXISTS (SELECT 1 FROM pair WHERE "
            "pair.capture_id = comparison.capture_id AND right_arm = 'candidate' AND set_aside IS NULL) "
            "ORDER BY id LIMIT ?",
            [rollout, since_unix_s],
        ):
            yield row[1]

    def samples_done(
        self, rollout: str, suite_digest: str, stage: str, since_unix_s: float = 0.0
    ) -> Iterator[tuple[str, int]]:
        """(sample, passage) of each kept comparison of this suite in this stage, oldest first."""
        for row in self._pages(
            "SELECT id, sample_id, passage FROM comparison WHERE id > ? AND rollout = ? "
            "AND suite_digest = ? AND suite_stage = ? AND unix_s >= ? AND sample_id IS NOT NULL "
            "ORDER BY id LIMIT ?",
            [rollout, suite_digest, stage, since_unix_s],
        ):
            yield row[1], row[2]

    def journal(self, rollout: str, until_id: int) -> Iterator[JournalRow]:
        """What is left of a rollout's journal up to an entry, oldest first, streamed; bodies still packed."""
        for row in self._pages(
            f"SELECT id, {tables.JOURNAL_COLUMNS} FROM journal WHERE id > ? AND rollout = ? AND id <= ? "
            "ORDER BY id LIMIT ?",
            [rollout, until_id],
        ):
            yield tables.journal_of(row)

    def journal_after(self, rollout: str, sequence: int, limit: int) -> tuple[JournalRow, ...]:
        """The end of a rollout's journal, from the event after number ``sequence`` on, oldest first; its
        newest ``limit`` entries at most."""
        rows = self._all(
            f"SELECT id, {tables.JOURNAL_COLUMNS} FROM journal WHERE rollout = ? ORDER BY id DESC LIMIT ?",
            [rollout, limit],
        )
        newest = itertools.takewhile(lambda row: row.sequence > sequence, map(tables.journal_of, rows))
        return tuple(reversed(list(newest)))

    def plans(self, rollout: str) -> tuple[PlanRow, ...]:
        """Every plan that this rollout had, oldest first."""
        rows = self._all(
            "SELECT rollout, digest, unix_s, policy_digest, policy, body FROM plan WHERE rollout = ? "
            "ORDER BY unix_s",
            [rollout],
        )
        return tuple(
            PlanRow(
                rollout=row[0],
                digest=row[1],
                unix_s=row[2],
                policy_digest=row[3],
                policy=row[4],
                body=unpack(row[5]),
            )
            for row in rows
        )

    def taken(self) -> dict[str, int]:
        """Edge incarnation → its last batch whose live records are in the journal, oldest first."""
        return dict(self._all("SELECT incarnation, batch FROM taken ORDER BY id", []))

    def verdicts_until_now(self, rollout: str) -> tuple[int, tuple[VerdictRow, ...]]:
        """The ID of the journal's last entry, and every stored verdict, oldest first, of one moment."""
        with mapped(self.path):
            self._db.execute("BEGIN")
            try:
                last = self._db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0]
                rows = self._db.execute(
                    f"SELECT {tables.VERDICT_COLUMNS} FROM verdict WHERE rollout = ? ORDER BY id", [rollout]
                ).fetchall()
            finally:
                self._db.execute("COMMIT")
        return int(last), tuple(tables.verdict_of(row) for row in rows)

    def rollouts(self) -> tuple[str, ...]:
        """Every rollout that the store knows, by name."""
        rows = self._all(
            "SELECT rollout FROM plan UNION SELECT rollout FROM verdict UNION SELECT rollout FROM ledger "
            "ORDER BY 1",
            [],
        )
        return tuple(row[0] for row in rows)

    def verdicts(self, *, rollout: str | None = None, limit: int = 100) -> tuple[VerdictRow, ...]:
        """The newest verdicts, newest first."""
        where = ["rollout = ?"] if rollout is not None else []
        values: Rows = [rollout] if rollout is not None else []
        rows = self._all(
            f"SELECT {tables.VERDICT_COLUMNS} FROM verdict {_where(where)} ORDER BY id DESC LIMIT ?",
            [*values, limit],
        )
        return tuple(tables.verdict_of(row) for row in rows)

    def ledger_counts(self, incarnation: str) -> LedgerCounts:
        """How many captures of this edge incarnation have ended, and how. Zeros for one never heard of."""
        rows = self._all(
            "SELECT reason, sum(count), max(highest_sequence) FROM ledger "
            "WHERE incarnation = ? GROUP BY reason",
            [incarnation],
        )
        counts = {reason: count for reason, count, _ in rows}
        return LedgerCounts(
            compared=counts.pop(COMPARED, 0),
            dropped=counts,
            highest_sequence=max((highest for _, _, highest in rows), default=0),
        )

    def incarnations(self) -> tuple[str, ...]:
        """Every edge incarnation that has an ended capture."""
        return tuple(row[0] for row in self._all("SELECT DISTINCT incarnation FROM ledger", []))

    def terminal(self, incarnation: str, sequences: Iterable[int]) -> set[int]:
        """Which of these captures have already ended, by a pair or a drop."""
        wanted = sorted(set(sequences))
        found: set[int] = set()
        for start in range(0, len(wanted), 500):
            chunk = wanted[start : start + 500]
            marks = ",".join("?" * len(chunk))
            rows = self._all(
                f"SELECT sequence FROM terminal WHERE incarnation = ? AND sequence IN ({marks})",
                [incarnation, *chunk],
            )
            found.update(row[0] for row in rows)
        return found

    def status(self) -> StoreStatus:
        """Size and counts, for metrics and ``forkgate status``."""
        with mapped(self.path):
            return StoreStatus(
                schema_version=version_of(self._db),
                used_bytes=self._used_bytes(),
                max_bytes=self._meta("max_bytes"),
                pairs=self._count("pair"),
                forks=self._count("fork"),
                pinned=self._count("pin"),
                pruned_exchanges=self._meta("pruned_exchanges"),
                forgotten_captures=self._meta("forgotten_captures"),
                journal=self._count("journal"),
                pruned_journal=self._meta("pruned_journal"),
            )

    def _pages(self, statement: str, values: Rows) -> Iterator[Any]:
        """Rows by rising ID, the statement's first column and first parameter; its last is a page's size.

        A page at a time: a long read transaction would keep the log from shrinking.
        """
        last = 0
        while rows := self._all(statement, [last, *values, PAGE_ROWS]):
            last = rows[-1][0]
            yield from rows

    def _used_bytes(self) -> int:
        page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        free = self._db.execute("PRAGMA freelist_count").fetchone()[0]
        return int(page_bytes * (pages - free))

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def _all(self, statement: str, values: Rows) -> Rows:
        with mapped(self.path):
            return self._db.execute(statement, values).fetchall()

    def _filter(
        self, rollout: str | None, tenant: str | None, forked: bool | None
    ) -> tuple[Conditions, Rows]:
        where: Conditions = []
        values: Rows = []
        if rollout is not None:
            where.append("pair.rollout = ?")
            values.append(rollout)
        if tenant is not None:
            where.append("pair.tenant = ?")
            values.append(tenant)
        if forked is not None:
            where.append(f"pair.fork_index IS {'NOT ' if forked else ''}NULL")
        return where, values


COMPARED = "compared"
"""The ledger's reason of a capture that was not dropped."""


def _where(conditions: list[str]) -> str:
    return "WHERE " + " AND ".join(conditions) if conditions else ""
