"""Reading a store: beside a running judge, after it, or from a copy of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from comparator.evidence import bundle, tables
from comparator.evidence.connection import Rows
from comparator.evidence.errors import (
    EvidenceAmbiguous,
    EvidenceErased,
    EvidenceError,
    EvidenceNotFound,
    mapped,
)
from comparator.evidence.export import export_line
from comparator.evidence.folded import FoldedReader
from comparator.evidence.records import records_of
from comparator.evidence.rows import LedgerCounts, Page, PlanRow, StoredRecord, StoreStatus, VerdictRow
from comparator.evidence.schema import version_of

MAX_PAGE = 1_000
MIN_PREFIX = 8
"""Characters of a capture ID that may stand for it, at least."""
MAX_NAMED = 4
"""IDs named of those that a prefix may mean."""

KNOWING = ("exchange", "fork", "comparison")
"""Tables that may know a capture: any of them alone."""

_ERASED_LIKE = "SELECT capture_id FROM erased WHERE capture_id >= ? AND capture_id < ?"
_LAST = "\U0010ffff"
"""Behind every character of an ID: ends the range of a prefix."""

Conditions = list[str]


class EvidenceReader(FoldedReader):
    """Read-only view; any number of them, in any process, while one judge writes.

    Raises from every method: kinds of :class:`comparator.evidence.errors.EvidenceError`.
    """

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
        pairs = tuple(tables.pair_of(self._seal, row) for row in rows[:limit])
        return Page(pairs=pairs, cursor=str(pairs[-1].id) if len(rows) > limit else None)

    def resolve(self, given: str) -> str:
        """The capture ID that is ``given``, or the only one that begins with it.

        Raises:
            EvidenceNotFound: none does, or fewer than :data:`MIN_PREFIX` characters were given.
            EvidenceAmbiguous: several do; the message names some.
        """
        if any(
            self._all(f"SELECT 1 FROM {table} WHERE capture_id = ? LIMIT 1", [given]) for table in KNOWING
        ):
            return given
        if len(given) < MIN_PREFIX:
            raise EvidenceNotFound(
                self.path,
                f"no capture {given}; give the whole ID or at least its first {MIN_PREFIX} characters, "
                "`forkgate evidence list` shows what there is",
            )
        # A range, not LIKE: it uses the index, and no character of the prefix means anything but itself.
        bounds = [given, given + _LAST]
        found = self._all(
            " UNION ".join(
                f"SELECT capture_id FROM {table} WHERE capture_id > ? AND capture_id < ?" for table in KNOWING
            )
            + " ORDER BY 1 LIMIT ?",
            [*bounds * len(KNOWING), MAX_NAMED + 1],
        )
        ids = [row[0] for row in found]
        if not ids:
            for row in self._all(f"{_ERASED_LIKE} LIMIT 1", bounds[:2]):
                self._check_erased(row[0])
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

    def known(self, given: str) -> str:
        """:meth:`resolve`, but a capture that was erased is known too. Raises as it does."""
        try:
            return self.resolve(given)
        except EvidenceErased:
            return str(self._all(f"{_ERASED_LIKE} LIMIT 1", [given, given + _LAST])[0][0])

    def export(
        self, *, rollout: str | None = None, tenant: str | None = None, forked: bool | None = None
    ) -> Iterator[bytes]:
        """NDJSON, each line with its newline: a head, the records of who answered, the erasure log
        (:mod:`comparator.evidence.bundle`), then one capture a line, oldest first. ``forked``: True: any of
        its pairs did; False: none did.

        Floats are written so that they read back to the same bits; the three that JSON lacks are the strings
        ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
        """
        yield from self._export_head(rollout, tenant)
        where = ["comparison.id > ?"]
        values: Rows = []
        for column, value in (("rollout", rollout), ("tenant", tenant)):
            if value is not None:
                where.append(f"comparison.{column} = ?")
                values.append(value)
        if forked is not None:
            where.append(
                f"{'' if forked else 'NOT '}EXISTS (SELECT 1 FROM pair WHERE "
                "pair.capture_id = comparison.capture_id AND pair.fork_index IS NOT NULL)"
            )
        for row in self._pages(
            f"SELECT id, capture_id FROM comparison {_where(where)} ORDER BY id LIMIT ?", values
        ):
            try:
                shown = self.show(row[1])
            except EvidenceNotFound:
                continue  # forgotten since the page was read
            yield export_line(shown)

    def _export_head(self, rollout: str | None, tenant: str | None) -> Iterator[bytes]:
        answered = self._answered(rollout)
        pools = {pool for _, pool, _ in answered}
        records = [one for one in self.records() if any(sight.pool in pools for sight in one.seen)]
        plans: tuple[PlanRow, ...] = ()
        verdicts: dict[str, VerdictRow] = {}
        if rollout is not None:
            plans = self.plans(rollout)
            for verdict in self.verdicts(rollout=rollout, limit=MAX_PAGE):
                verdicts.setdefault(verdict.gate, verdict)
        yield bundle.head_line(
            rollout, answered, records, plans[-1] if plans else None, list(verdicts.values())
        )
        yield from map(bundle.record_line, records)
        for line in self.erasures():
            if tenant is None or line.scope != "tenant" or line.name == tenant:
                yield bundle.erasure_line(line)

    def records(self, *, rollout: str | None = None) -> tuple[StoredRecord, ...]:
        """Environment and artifact records, oldest first: all, or those seen in the pools that answered in a
        rollout."""
        rows = self._all(
            "SELECT kind, digest, document, first_seen_unix_s FROM record ORDER BY first_seen_unix_s, kind",
            [],
        )
        sights = self._all(
            "SELECT kind, digest, pool, endpoint, first_unix_s, last_unix_s FROM record_seen "
            "ORDER BY first_unix_s, pool, endpoint",
            [],
        )
        found = records_of(rows, sights)
        if rollout is None:
            return found
        pools = {pool for _, pool, _ in self._answered(rollout)}
        return tuple(one for one in found if any(sight.pool in pools for sight in one.seen))

    def _answered(self, rollout: str | None) -> Rows:
        """Arm, pool and environment digest of the exchanges, each once."""
        where = ["rollout = ?"] if rollout is not None else []
        values: Rows = [rollout] if rollout is not None else []
        return self._all(
            f"SELECT DISTINCT arm, pool, environment_digest FROM exchange {_where(where)}", values
        )

    def verdicts(self, *, rollout: str | None = None, limit: int = 100) -> tuple[VerdictRow, ...]:
        """The newest verdicts, newest first."""
        where = ["rollout = ?"] if rollout is not None else []
        values: Rows = [rollout] if rollout is not None else []
        rows = self._all(
            f"SELECT {tables.VERDICT_COLUMNS} FROM verdict {_where(where)} ORDER BY id DESC LIMIT ?",
            [*values, limit],
        )
        return tuple(tables.verdict_of(self._seal, row) for row in rows)

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
                sealed_with=self._meta_text("sealed_with"),
                key_ids=tuple(row[0] for row in self._db.execute("SELECT DISTINCT key_id FROM data_key")),
                kept=self._meta_text("kept") or "full",
                erasures=self._count("erasure"),
                records=self._count("record"),
            )

    def _used_bytes(self) -> int:
        page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
        pages = self._db.execute("PRAGMA page_count").fetchone()[0]
        free = self._db.execute("PRAGMA freelist_count").fetchone()[0]
        return int(page_bytes * (pages - free))

    def _meta(self, key: str) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else 0

    def _meta_text(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row and row[0] != "" else None

    def _count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

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
