"""``evidence.retention``: how long and how much is kept of each tenant.

*Age* takes whole captures: rows, hashes, forks and content, so that nothing of a request is left but counts.
*Size* takes content, oldest first, as ``max_bytes`` of the whole store does. Pinned captures stay, and the
journal stays: it holds numbers of everybody, and a replay says where a comparison is gone.

A run is bounded; whoever calls asks again while there is more.
"""

from __future__ import annotations

import itertools
import sqlite3
import uuid
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from comparator.evidence.forget import forget

AT_ONCE = 500
"""Captures, and exchanges, of one tenant in one run: some tens of milliseconds."""

_TENANTS = (
    "WITH RECURSIVE known(name) AS (SELECT min(tenant) FROM comparison UNION ALL "
    "SELECT (SELECT min(tenant) FROM comparison WHERE tenant > name) FROM known WHERE name IS NOT NULL) "
    "SELECT name FROM known WHERE name IS NOT NULL"
)
"""Each tenant once, by one index lookup each."""
_UNPINNED = "capture_id NOT IN (SELECT capture_id FROM pin)"


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and how much is kept of a tenant. Pinned captures stay."""

    tenant: str | None = None
    """Every tenant without an entry of its own, when absent; ``""``: samples of suites, which are meant by
    nothing else."""
    max_age_s: Annotated[float, Meta(gt=0)] | None = None
    """Since its comparison was finished; then a capture goes whole: rows, hashes and content."""
    max_bytes: Annotated[int, Meta(ge=0)] | None = None
    """Of prompts and answers; beyond, the oldest content goes and its numbers stay."""


class Retained(msgspec.Struct, frozen=True, kw_only=True):
    """What one run took."""

    captures: int = 0
    """Gone by age, whole."""
    exchanges: int = 0
    """Whose content went to make room for the same tenant's newer one."""
    more: bool = False
    """There is more to take now."""

    def plus(self, other: Retained) -> Retained:
        """Both."""
        return Retained(
            captures=self.captures + other.captures,
            exchanges=self.exchanges + other.exchanges,
            more=self.more or other.more,
        )


def retain(db: sqlite3.Connection, rules: Sequence[Retention], now_unix_s: float) -> Retained:
    """Take what is too old or too much, a bounded part of it; runs inside the writer's transaction."""
    own = {rule.tenant: rule for rule in rules if rule.tenant is not None}
    rest = next((rule for rule in rules if rule.tenant is None), None)
    names = {row[0] for row in db.execute(_TENANTS)} | {
        row[0] for row in db.execute("SELECT DISTINCT tenant FROM fork")
    }
    taken = Retained()
    for name in sorted(names):
        rule = own.get(name, rest if name else None)
        if rule is None:
            continue
        if rule.max_age_s is not None:
            taken = taken.plus(_by_age(db, name, now_unix_s - rule.max_age_s))
        if rule.max_bytes is not None:
            taken = taken.plus(_by_size(db, name, rule.max_bytes))
    return taken


def _by_age(db: sqlite3.Connection, tenant: str, before_unix_s: float) -> Retained:
    rows = db.execute(
        f"SELECT capture_id, unix_s FROM comparison WHERE tenant = ? AND {_UNPINNED} ORDER BY id LIMIT ?",
        (tenant, AT_ONCE),
    ).fetchall()
    # In the order in which they were finished: no look at what is younger.
    old = [row[0] for row in itertools.takewhile(lambda row: row[1] < before_unix_s, rows)]
    more = len(old) == AT_ONCE
    # Forks whose comparison never came, by the time in their own ID.
    rows = db.execute(
        f"SELECT DISTINCT capture_id FROM fork WHERE tenant = ? AND {_UNPINNED} AND NOT EXISTS "
        "(SELECT 1 FROM comparison WHERE comparison.capture_id = fork.capture_id) LIMIT ?",
        (tenant, AT_ONCE),
    ).fetchall()
    old += [row[0] for row in rows if _made_unix_s(row[0]) < before_unix_s]
    if not old:
        return Retained()
    forget(db, old)
    return Retained(captures=len(old), more=more)


def _by_size(db: sqlite3.Connection, tenant: str, max_bytes: int) -> Retained:
    used = db.execute(
        "SELECT coalesce(sum(content_bytes), 0) FROM exchange WHERE tenant = ? AND NOT pruned", (tenant,)
    ).fetchone()[0]
    if used <= max_bytes:
        return Retained()
    rows = db.execute(
        f"SELECT id, content_bytes FROM exchange WHERE tenant = ? AND NOT pruned AND {_UNPINNED} "
        "ORDER BY id LIMIT ?",
        (tenant, AT_ONCE),
    ).fetchall()
    taken = []
    for exchange_id, content_bytes in rows:
        if used <= max_bytes:
            break
        taken.append((exchange_id,))
        used -= content_bytes
    db.executemany("DELETE FROM content WHERE id = ?", taken)
    db.executemany("UPDATE exchange SET pruned = 1 WHERE id = ?", taken)
    return Retained(exchanges=len(taken), more=used > max_bytes and len(rows) == AT_ONCE)


def _made_unix_s(capture_id: str) -> float:
    """When a UUIDv7 was made; never, for any other ID."""
    try:
        made = uuid.UUID(capture_id)
    except ValueError:
        return float("inf")
    return (made.int >> 80) / 1000 if made.version == 7 else float("inf")
