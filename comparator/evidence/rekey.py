"""Bringing what stands in a file to the keys of today: another key, a first one, or none any more.

Theory of operation. The tables with sealed values are walked in a fixed order by their own keys, some rows a
transaction. A value that the present sealer would write the same way is left alone; any other is opened and
written anew. How far the walk got stands in ``meta`` and is kept in the same transaction, so that a kill
costs at most one batch. What is written meanwhile is already of today. When the walk has ended, data keys
that another key wraps are removed: from then on that key opens nothing in this file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from comparator.evidence import places, tables
from comparator.evidence.seal import Sealer

AT_ONCE = 100
"""Rows in one transaction: a few megabytes of content."""

_STATE = "rekey"

Row = Sequence[Any]
Update = tuple[str, tuple[Any, ...]]


class Rekeyed(msgspec.Struct, frozen=True, kw_only=True):
    """How far a walk is."""

    key_id: str | None
    """What values are brought to; None: written as they are."""
    rows: int
    """Written anew so far."""
    looked_at: int
    done: bool
    retired: tuple[str, ...] = ()
    """Keys that nothing in the file needs any more; once done."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    target: str | None
    table: int = 0
    after: list[Any] | None = None
    rows: int = 0
    looked_at: int = 0


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    """How to walk one: its key columns come first in ``columns``."""

    name: str
    key: int
    """Columns of the key."""
    columns: str
    anew: Callable[[Sealer, Row], Update | None]
    """The statement's ``SET`` and its values; None where the row may stay."""


def _exchange(seal: Sealer, row: Row) -> Update | None:
    _, exchange_id, *values = row
    if not seal.stale(values[0]):
        return None
    settings = tables.settings_of(seal, exchange_id, tuple(values))
    made = tables.settings_values(seal, exchange_id, settings)
    return "settings = ?, error = ?, stop_reason = ?, prompt_sha256 = ?, output_sha256 = ?", made


def _content(seal: Sealer, row: Row) -> Update | None:
    _, blob, exchange_id = row
    return _value(seal, "blob", places.content_place(exchange_id), blob)


def _fork(seal: Sealer, row: Row) -> Update | None:
    capture_id, left_arm, right_arm, replicate, detail = row
    update = _value(seal, "detail", places.fork_place(capture_id, left_arm, right_arm, replicate), detail)
    if update is None or not seal.active:
        return update
    return f"{update[0]}, left_token_id = NULL, right_token_id = NULL", update[1]


def _pair(seal: Sealer, row: Row) -> Update | None:
    _, left, right, reason = row
    return _text(seal, "set_aside_reason", places.pair_place(left, right), reason)


def _score(seal: Sealer, row: Row) -> Update | None:
    _, capture_id, arm, replicate, question, error = row
    return _text(seal, "error", places.score_place(capture_id, arm, replicate, question), error)


def _comparison(seal: Sealer, row: Row) -> Update | None:
    _, capture_id, cluster = row
    return _text(seal, "cluster", places.cluster_place(capture_id), cluster)


def _verdict(seal: Sealer, row: Row) -> Update | None:
    _, rollout, unix_s, gate, evidence, *texts = row
    names = ("reason", "state", "verdict")
    if not any(map(seal.stale, texts)):
        return None
    made = []
    for name, text in zip(names, texts, strict=True):
        place = places.verdict_place(name, rollout, unix_s, gate, evidence)
        made.append(seal.seal_text(place, seal.open_text(place, text)))
    return "reason = ?, state = ?, verdict = ?", tuple(made)


def _journal(seal: Sealer, row: Row) -> Update | None:
    _, rollout, sequence, before, after, unix_s, kind, body = row
    return _value(seal, "body", places.journal_place(rollout, sequence, before, after, unix_s, kind), body)


def _terminal(seal: Sealer, row: Row) -> Update | None:
    _, incarnation, sequence, detail = row
    return _text(seal, "detail", places.terminal_place(incarnation, sequence), detail)


def _value(seal: Sealer, column: str, place: str, value: Any) -> Update | None:
    return (f"{column} = ?", (seal.seal(place, seal.open(place, value)),)) if seal.stale(value) else None


def _text(seal: Sealer, column: str, place: str, value: Any) -> Update | None:
    if not seal.stale(value):
        return None
    return f"{column} = ?", (seal.seal_text(place, seal.open_text(place, value)),)


_WALK = (
    _Table(
        name="exchange",
        key=1,
        columns="id, exchange_id, settings, error, stop_reason, prompt_sha256, output_sha256",
        anew=_exchange,
    ),
    _Table(
        name="content",
        key=1,
        columns="id, blob, (SELECT exchange_id FROM exchange WHERE exchange.id = content.id)",
        anew=_content,
    ),
    _Table(name="fork", key=4, columns="capture_id, left_arm, right_arm, replicate, detail", anew=_fork),
    _Table(
        name="pair", key=1, columns="id, left_exchange_id, right_exchange_id, set_aside_reason", anew=_pair
    ),
    _Table(name="score", key=1, columns="id, capture_id, arm, replicate, question, error", anew=_score),
    _Table(name="comparison", key=1, columns="id, capture_id, cluster", anew=_comparison),
    _Table(
        name="verdict",
        key=1,
        columns="id, rollout, unix_s, gate, evidence_sequence, reason, state, verdict",
        anew=_verdict,
    ),
    _Table(
        name="journal",
        key=1,
        columns="id, rollout, sequence, number_before, number_after, unix_s, kind, body",
        anew=_journal,
    ),
    _Table(name="terminal", key=1, columns="id, incarnation, sequence, detail", anew=_terminal),
)


class Rekeyer:
    """One walk through one file."""

    def __init__(self, db: sqlite3.Connection, seal: Sealer) -> None:
        self._db = db
        self._seal = seal

    def step(self) -> Rekeyed:
        """One batch; runs inside the writer's transaction.

        Raises:
            EvidenceLocked: a value needs a key that is not given.
        """
        key = self._seal.keys.current
        target = None if key is None else key.id
        state = self._state()
        if state is None or state.target != target:
            state = _State(target=target)
        if state.table == len(_WALK):
            return self._end(state)
        state = self._walk(state, _WALK[state.table])
        self._db.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)",
            (_STATE, msgspec.json.encode(state).decode()),
        )
        return Rekeyed(key_id=target, rows=state.rows, looked_at=state.looked_at, done=False)

    def _walk(self, state: _State, table: _Table) -> _State:
        columns = table.columns.split(", ")[: table.key]
        keys, marks = ", ".join(columns), ", ".join("?" * table.key)
        where = f"WHERE ({keys}) > ({marks})" if state.after is not None else ""
        rows = self._db.execute(
            f"SELECT {table.columns} FROM {table.name} {where} ORDER BY {keys} LIMIT ?",
            [*(state.after or ()), AT_ONCE],
        ).fetchall()
        written = 0
        for row in rows:
            update = table.anew(self._seal, row)
            if update is not None:
                self._db.execute(
                    f"UPDATE {table.name} SET {update[0]} WHERE ({keys}) = ({marks})",
                    [*update[1], *row[: table.key]],
                )
                written += 1
        state = msgspec.structs.replace(
            state, rows=state.rows + written, looked_at=state.looked_at + len(rows)
        )
        if len(rows) < AT_ONCE:
            return msgspec.structs.replace(state, table=state.table + 1, after=None)
        return msgspec.structs.replace(state, after=list(rows[-1][: table.key]))

    def _end(self, state: _State) -> Rekeyed:
        other = "key_id IS NOT ?"
        retired = self._db.execute(f"SELECT DISTINCT key_id FROM data_key WHERE {other}", (state.target,))
        ids = tuple(row[0] for row in retired)
        self._db.execute(f"DELETE FROM data_key WHERE {other}", (state.target,))
        self._db.execute("DELETE FROM meta WHERE key = ?", (_STATE,))
        return Rekeyed(
            key_id=state.target, rows=state.rows, looked_at=state.looked_at, done=True, retired=ids
        )

    def _state(self) -> _State | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (_STATE,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=_State)
